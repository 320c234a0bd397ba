"""Calls before they are made: what the model wants, and what whoever is asked says to it.

One call and the tool's own work on it, which may outlive the turn that wanted it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias

import msgspec

from routecodex.turns.chat_host import ChatTurn
from routecodex.turns.events import ToolEnded, ToolOutputAdded
from routecodex.turns.plugins import call_pairing
from routecodex.turns.plugins.function_tools import Tool, in_thread


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that exists, with arguments it takes."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Allow:
    """The call may be made."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The call is made with these arguments instead; the answer that called keeps its own."""

    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deny:
    """The call is not made; the model is told why."""

    reason: str = ""


Decision: TypeAlias = Allow | Edit | Deny

Decisions: TypeAlias = Sequence[Decision] | Mapping[str, Decision] | None
"""One for each call in order, or by the id of the call; a call nothing is said about is allowed."""


def decided(decisions: object, calls: Sequence[ToolCall]) -> list[Decision]:
    """The decision on each call; anything that is no decision is refused, so that nothing runs by mistake."""
    if decisions is None:
        return [Allow() for _ in calls]
    if isinstance(decisions, Mapping):
        strangers = decisions.keys() - {call.id for call in calls}
        if strangers:
            raise ValueError(f"before_call_tools decided on {sorted(strangers)!r}, which are no ids of calls")
        found = [decisions.get(call.id, Allow()) for call in calls]
    elif isinstance(decisions, Sequence) and len(decisions) == len(calls):
        found = list(decisions)
    else:
        raise TypeError(f"before_call_tools gave {decisions!r} for {len(calls)} calls; see Decisions")
    for decision in found:
        if not isinstance(decision, Allow | Edit | Deny):
            raise TypeError(f"before_call_tools decided {decision!r}; it takes Allow(), Edit(…) or Deny(…)")
    return found


NO_OUTPUT = "(no output)"
_PART_TYPES = frozenset({"text", "image_url", "input_audio", "file"})
_END = object()


class Job:
    """A call, the message its result goes into, and how it is run; once settled, nothing changes it."""

    __slots__ = ("_turn", "call", "is_open", "message", "prepared", "task", "tool")

    def __init__(self, turn: ChatTurn, call: Mapping[str, Any], tool: Tool | None) -> None:
        self._turn = turn
        self.tool = tool
        self.message = call_pairing.result(call, "", state="waiting")
        self.call = ToolCall(call["id"], call_pairing.name_of(call), {})
        self.prepared: Any = None
        self.is_open = True
        self.task: asyncio.Task[None] | None = None

    def read(self, text: object) -> None:
        """Takes the arguments as the model wrote them; what cannot be read settles the job."""
        try:
            arguments = msgspec.json.decode(text or "{}") if isinstance(text, str | None) else text
        except (msgspec.DecodeError, UnicodeEncodeError) as exc:
            self._refuse(f"are not JSON ({exc}). They were: {text}")
            return
        self.take(arguments)

    def take(self, arguments: Any) -> None:
        """Takes arguments, the model's or edited ones; what the tool does not take settles the job."""
        if not isinstance(arguments, dict):
            self._refuse(f"are no JSON object. They were: {_as_text(arguments)}")
            return
        self.call = ToolCall(self.call.id, self.call.name, arguments)
        try:
            self.prepared = self.tool.prepare(dict(arguments)) if self.tool is not None else arguments
        except Exception as exc:
            # Whatever a tool does not like about its arguments is for the model to hear.
            self._refuse(f"are wrong: {exc}")

    def _refuse(self, why: str) -> None:
        self.settle("refused", f"The tool {self.call.name!r} was not called: the arguments {why}")

    def start(self, run: Callable[[Job], Any]) -> asyncio.Task[None]:
        """Begins the tool's own work, in a task nobody has to wait for."""
        call_pairing.set_state(self.message, "running")
        self.task = asyncio.create_task(self._work(run))
        return self.task

    async def _work(self, run: Callable[[Job], Any]) -> None:
        try:
            value = run(self)
            if isawaitable(value):
                value = await value
            if isinstance(value, AsyncIterator):
                await self._take_pieces(value)
            elif isinstance(value, Generator):
                while (piece := await in_thread(partial(next, value, _END))) is not _END:
                    self._add(piece)
            else:
                self._end("done", as_content(value))
                return
            self._end("done", self.message.content or NO_OUTPUT)
        except asyncio.CancelledError:
            self._end("failed", f"The tool {self.call.name!r} was cancelled from within.")
            raise
        except BaseException as error:
            self._end("failed", _clean(f"The tool {self.call.name!r} failed: {_described(error)}"))
            if isinstance(error, KeyboardInterrupt):
                raise

    async def _take_pieces(self, pieces: AsyncIterator[Any]) -> None:
        try:
            async for piece in pieces:
                self._add(piece)
        finally:
            aclose = getattr(pieces, "aclose", None)
            if aclose is not None:
                await aclose()

    def _add(self, piece: Any) -> None:
        text = piece if isinstance(piece, str) else _as_text(piece)
        if text and self._is_heard():
            self.message.content = (self.message.content or "") + _clean(text)
            self._turn.tell(ToolOutputAdded(self.message, text))

    def _end(self, state: str, content: Any) -> None:
        if self._is_heard():
            self.settle(state, content)

    def _is_heard(self) -> bool:
        """Whether what the tool says still counts: not from the moment of an abort on."""
        return self.is_open and not self._turn.aborted

    def settle(self, state: str, content: Any) -> None:
        """Gives the message its result; too late, nothing happens."""
        if not self.is_open:
            return
        self.is_open = False
        call_pairing.settle(self.message, content, state=state)
        if not self._turn.over:
            self._turn.tell(ToolEnded(self.message))


def as_content(value: Any) -> Any:
    """What a tool returned as the content of its message: text, or content parts as they are."""
    if isinstance(value, list) and value and all(_is_part(item) for item in value):
        return value
    if value is None:
        return NO_OUTPUT
    return _clean(value if isinstance(value, str) else _as_text(value)) or NO_OUTPUT


def _is_part(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type") in _PART_TYPES


def _as_text(value: Any) -> str:
    try:
        if isinstance(value, bytes | bytearray):
            # What a command has printed, mostly.
            with suppress(UnicodeDecodeError):
                return value.decode()
        return msgspec.json.encode(value, enc_hook=str).decode()
    except Exception:
        # A tool may return anything at all; the model gets at least how it looks.
        return repr(value)


def _clean(text: str) -> str:
    """The text with what UTF-8 cannot carry replaced: file names may hold such."""
    return text.encode("utf-8", "replace").decode()


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
