"""One tool call: its approval (`Allow`, `Edit`, `Deny`) and its execution (`Job`).

The tool's own work may outlive the turn; its output is then dropped.
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
from routecodex.turns.json_types import encodable
from routecodex.turns.plugins import call_pairing
from routecodex.turns.plugins.function_tools import Tool, in_thread


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a known tool with valid arguments."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Allow:
    """Run the call."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Run the call with these arguments instead; the answer keeps the original ones."""

    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deny:
    """Do not run the call; the tool result gives the reason."""

    reason: str = ""


Decision: TypeAlias = Allow | Edit | Deny

Decisions: TypeAlias = Sequence[Decision] | Mapping[str, Decision] | None
"""Decisions in the order of the calls, or by call id; a call without a decision is allowed."""


def check_decisions(decisions: object, calls: Sequence[ToolCall]) -> list[Decision]:
    """Return the decision for each call; raise for anything else, so that no call runs by mistake."""
    if decisions is None:
        return [Allow() for _ in calls]
    if isinstance(decisions, Mapping):
        unknown = decisions.keys() - {call.id for call in calls}
        if unknown:
            raise ValueError(f"before_call_tools returned unknown call ids: {sorted(unknown)!r}")
        found = [decisions.get(call.id, Allow()) for call in calls]
    elif isinstance(decisions, Sequence) and len(decisions) == len(calls):
        found = list(decisions)
    else:
        raise TypeError(f"before_call_tools returned {decisions!r} for {len(calls)} calls; see Decisions")
    for decision in found:
        if not isinstance(decision, Allow | Edit | Deny):
            raise TypeError(f"before_call_tools returned {decision!r}; use Allow(), Edit(…) or Deny(…)")
    return found


NO_OUTPUT = "(no output)"
_PART_TYPES = frozenset({"text", "image_url", "input_audio", "file"})
_END = object()


class Job:
    """A call, its tool message and its execution; a settled job does not change any more."""

    __slots__ = ("_turn", "call", "is_open", "message", "prepared", "task", "tool")

    def __init__(self, turn: ChatTurn, call: Mapping[str, Any], tool: Tool | None) -> None:
        self._turn = turn
        self.tool = tool
        self.message = call_pairing.result(call, "", state="waiting")
        self.call = ToolCall(call["id"], call_pairing.name_of(call), {})
        self.prepared: Any = None
        self.is_open = True
        self.task: asyncio.Task[None] | None = None

    def parse_arguments(self, text: object) -> None:
        """Parse the arguments the model wrote; settle the job if they are not JSON."""
        try:
            arguments = msgspec.json.decode(text or "{}") if isinstance(text, str | None) else text
        except (msgspec.DecodeError, UnicodeEncodeError) as exc:
            self._refuse(f"are not JSON ({exc}). They were: {text}")
            return
        self.set_arguments(arguments)

    def set_arguments(self, arguments: Any) -> None:
        """Set the model's or edited arguments; settle the job if the tool rejects them."""
        if not isinstance(arguments, dict):
            self._refuse(f"are not a JSON object. They were: {_as_text(arguments)}")
            return
        self.call = ToolCall(self.call.id, self.call.name, arguments)
        try:
            self.prepared = self.tool.prepare(dict(arguments)) if self.tool is not None else arguments
        except Exception as exc:
            # A custom `prepare` may raise anything; the model gets the reason and can correct the call.
            self._refuse(f"are wrong: {exc}")

    def _refuse(self, why: str) -> None:
        self.settle("refused", f"The tool {self.call.name!r} was not called: the arguments {why}")

    def start(self, run: Callable[[Job], Any]) -> asyncio.Task[None]:
        """Start the tool in a task that may outlive the turn."""
        call_pairing.set_state(self.message, "running")
        self.task = asyncio.create_task(self._work(run))
        return self.task

    async def _work(self, run: Callable[[Job], Any]) -> None:
        try:
            value = run(self)
            if isawaitable(value):
                value = await value
            if isinstance(value, AsyncIterator):
                await self._consume(value)
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

    async def _consume(self, pieces: AsyncIterator[Any]) -> None:
        try:
            async for piece in pieces:
                self._add(piece)
        finally:
            aclose = getattr(pieces, "aclose", None)
            if aclose is not None:
                await aclose()

    def _add(self, piece: Any) -> None:
        text = piece if isinstance(piece, str) else _as_text(piece)
        if text and self._accepts_output():
            self.message.content = (self.message.content or "") + _clean(text)
            self._turn.tell(ToolOutputAdded(self.message, text))

    def _end(self, state: str, content: Any) -> None:
        if self._accepts_output():
            self.settle(state, content)

    def _accepts_output(self) -> bool:
        """Return whether the tool's output still counts; an abort ends that."""
        return self.is_open and not self._turn.aborted

    def settle(self, state: str, content: Any) -> None:
        """Set the result of the message; ignored once the job is settled."""
        if not self.is_open:
            return
        self.is_open = False
        call_pairing.settle(self.message, content, state=state)
        if not self._turn.over:
            self._turn.tell(ToolEnded(self.message))


def as_content(value: Any) -> Any:
    """Convert a tool's return value to message content: text, or content parts unchanged."""
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
            # Mostly the output of a command.
            with suppress(UnicodeDecodeError):
                return value.decode()
        return msgspec.json.encode(value, enc_hook=encodable).decode()
    except Exception:
        # A tool may return any object, even one that msgspec cannot encode.
        return repr(value)


def _clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode; file names may contain them."""
    return text.encode("utf-8", "replace").decode()


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
