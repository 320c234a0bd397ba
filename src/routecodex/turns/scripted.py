"""A sender that follows a script, for tests of conversations and plugins.

    sender = ScriptedSender(["Hello!", [Call("read_file", {"path": "a.py"})], ["Let me ", event, "think"]])
    conversation = Conversation(model="any", sender=sender)

Each item answers one request: a text, an exception, a function that gets the request body and returns an
answer, or a list of steps played in order:

    "text"            sends a text delta
    Call(...)         sends a tool call
    {...}             sends the chunk unchanged
    OSError(...)      is raised
    asyncio.Event()   waits until the event is set
    a function        is called, and its result awaited if it is awaitable
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
    """A tool call of the scripted model; a missing id is generated from its position."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


ScriptStep: TypeAlias = "str | Call | Mapping[str, Any] | BaseException | asyncio.Event | Callable[[], Any]"
Answer: TypeAlias = "str | BaseException | Sequence[ScriptStep] | Callable[[dict[str, Any]], Any]"


class ScriptedSender:
    """Answers requests from a script; `bodies` are the requests, `open_streams` counts unclosed streams.

    `usage` is reported at the end of every answer, in a separate chunk.
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
            playback = _Playback(self._steps(body), request=len(self.bodies))
            async with aclosing(playback.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
            if self._usage is not None:
                yield {"choices": [], "usage": copied(self._usage)}
        finally:
            self.open_streams -= 1

    def _steps(self, body: dict[str, Any]) -> Sequence[ScriptStep]:
        number = len(self.bodies)
        if number > len(self._answers):
            raise LookupError(
                f"the script has {len(self._answers)} answers, but this is request {number}; add an answer"
            )
        answer: Any = self._answers[number - 1]
        if callable(answer):
            answer = answer(body)
        return [answer] if isinstance(answer, str | BaseException) else answer


class _Playback:
    """One answer that is being sent."""

    def __init__(self, steps: Sequence[ScriptStep], *, request: int) -> None:
        self._steps = steps
        self._request = request
        self._calls = 0
        self._finished = False

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        for step in self._steps:
            chunk = self._chunk(step)
            if chunk is not None:
                yield chunk
            elif isinstance(step, asyncio.Event):
                await step.wait()
            elif callable(step):
                result = step()
                if isawaitable(result):
                    await result
        if not self._finished:
            yield _chunk({}, "tool_calls" if self._calls else "stop")

    def _chunk(self, step: ScriptStep) -> dict[str, Any] | None:
        match step:
            case BaseException():
                raise step
            case str():
                return _chunk({"role": "assistant", "content": step})
            case Call():
                return _chunk({"role": "assistant", "tool_calls": [self._call(step)]})
            case Mapping():
                choices = step.get("choices") or ()
                self._finished |= any(choice.get("finish_reason") for choice in choices)
                return dict(step)
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
