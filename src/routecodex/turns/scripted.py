"""A sender that follows a script, for tests of conversations and plugins.

    sender = ScriptedSender(["Hello!", [Call("read_file", {"path": "a.py"})], ["Let me ", gate, "think"]])
    conversation = Conversation(model="any", sender=sender)

Each item answers one request: a text, an exception, a function that gets the request body and returns an
answer, or a list of pieces played in order:

    "text"            a piece of text
    Call(...)         a tool call
    {...}             a chunk as it is
    OSError(...)      is raised
    asyncio.Event()   is waited for
    a function        is called, and what it returns awaited if it can be
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, TypeAlias

import msgspec

from routecodex.turns.message import copied


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call the scripted model makes; without an id it gets one by its place."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


Piece: TypeAlias = "str | Call | Mapping[str, Any] | BaseException | asyncio.Event | Callable[[], Any]"
Answer: TypeAlias = "str | BaseException | Sequence[Piece] | Callable[[dict[str, Any]], Any]"


class ScriptedSender:
    """Answers requests from a script; `bodies` are the requests, `open_streams` counts what nobody closed.

    `usage` is reported at the end of every answer, in a chunk of its own.
    """

    def __init__(self, answers: Iterable[Answer], *, usage: Mapping[str, Any] | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.open_streams = 0
        self._answers = list(answers)
        self._usage = usage

    async def __call__(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        self.bodies.append(copied(body))
        self.open_streams += 1
        try:
            pieces = self._pieces(body)
            script = _Playing(pieces, request=len(self.bodies))
            async with aclosing(script.play()) as chunks:
                async for chunk in chunks:
                    yield chunk
            if self._usage is not None:
                yield {"choices": [], "usage": copied(self._usage)}
        finally:
            self.open_streams -= 1

    def _pieces(self, body: dict[str, Any]) -> Sequence[Piece]:
        number = len(self.bodies)
        if number > len(self._answers):
            raise LookupError(f"the script has {len(self._answers)} answers, this is request {number}")
        answer: Any = self._answers[number - 1]
        if callable(answer):
            answer = answer(body)
        return [answer] if isinstance(answer, str | BaseException) else answer


class _Playing:
    """One answer being played."""

    def __init__(self, pieces: Sequence[Piece], *, request: int) -> None:
        self._pieces = pieces
        self._request = request
        self._calls = 0
        self._finished = False

    async def play(self) -> AsyncGenerator[dict[str, Any], None]:
        for piece in self._pieces:
            chunk = self._chunk(piece)
            if chunk is not None:
                yield chunk
            elif isinstance(piece, asyncio.Event):
                await piece.wait()
            elif callable(piece):
                result = piece()
                if isawaitable(result):
                    await result
        if not self._finished:
            yield _chunk({}, "tool_calls" if self._calls else "stop")

    def _chunk(self, piece: Piece) -> dict[str, Any] | None:
        match piece:
            case BaseException():
                raise piece
            case str():
                return _chunk({"role": "assistant", "content": piece})
            case Call():
                return _chunk({"role": "assistant", "tool_calls": [self._call(piece)]})
            case Mapping():
                choices = piece.get("choices") or ()
                self._finished |= any(choice.get("finish_reason") for choice in choices)
                return dict(piece)
        return None

    def _call(self, call: Call) -> dict[str, Any]:
        index, self._calls = self._calls, self._calls + 1
        arguments = call.arguments
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        identity = call.id or f"call_{self._request}_{index}"
        function = {"name": call.name, "arguments": text}
        return {"index": index, "id": identity, "type": "function", "function": function}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
