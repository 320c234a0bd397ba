"""The provider of a trial: it follows rules and records every call.

Every text of a client ends with `[q12]`, the number of its request, so that a call is known by its request
however many rounds the gateway adds. The model

- calls the clock when it is asked to `schedule NAME in N ms`, and says `scheduled` or `refused`,
- says `told NAME` first when it reads a reminder,
- answers 429 while its provider is said to be exhausted.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field

from tests.gateway.clock_gateway import command, now_ms, task_item
from tests.gateway.continuation_gateway import message_texts
from tests.kit import answers
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Json, Pause, Send, Sse, Steps
from tests.kit.upstream import Request

_NUMBER = re.compile(r"\[q(\d+)\]")
_SCHEDULE = re.compile(r"schedule (\S+) in (\d+) ms")
_REMINDER = re.compile(r'\[scheduled task:"([^"]+)"\]')
_COOLING_SECONDS = 5
# A node that is killed or frozen has answers under way, and requests of one session meet.
_THINKING_SECONDS = 0.1
_STREAMING_SECONDS = 0.1


@dataclass(frozen=True)
class ModelCall:
    """One call of the provider: by which request, when, and what it carried."""

    number: int
    provider: str
    at: float
    follow_ups: int
    reminders: frozenset[str]


@dataclass
class Exhaustion:
    """A time in which a provider answered 429; `hits` are its calls, the first of which is the news."""

    provider: str
    begin: float
    end: float = 0.0
    hits: list[ModelCall] = field(default_factory=list)


@dataclass
class TrialModel:
    """Answers the calls of all providers; `exhausted` is the one that answers 429 now."""

    calls: list[ModelCall] = field(default_factory=list)
    exhaustions: list[Exhaustion] = field(default_factory=list)
    exhausted: Exhaustion | None = None

    def exhaust(self, provider: str) -> None:
        self.exhausted = Exhaustion(provider, time.monotonic())
        self.exhaustions.append(self.exhausted)

    def recover(self) -> None:
        if self.exhausted is not None:
            self.exhausted.end = time.monotonic()
            self.exhausted = None

    async def answer(self, request: Request) -> UpstreamAnswer:
        protocol = "messages" if request.path.endswith("/messages") else "chat"
        key = request.headers.get("x-api-key", request.headers.get("authorization", ""))
        provider = key.rpartition("secret-")[2]
        texts = [text for _, text in message_texts(protocol, request)]
        call = _read(provider, texts)
        self.calls.append(call)
        if self.exhausted is not None and provider == self.exhausted.provider:
            self.exhausted.hits.append(call)
            return answers.error(protocol, 429, "slow down", retry_after=str(_COOLING_SECONDS))
        await asyncio.sleep(_THINKING_SECONDS)
        return _slowly(_reply(protocol, request, texts, call))


def _read(provider: str, texts: list[str]) -> ModelCall:
    joined = "\n".join(texts)
    number = _NUMBER.search(joined)
    assert number is not None, joined
    return ModelCall(
        int(number[1]),
        provider,
        time.monotonic(),
        sum(text.startswith("carry on") for text in texts),
        frozenset(_REMINDER.findall(joined)),
    )


def _slowly(answer: Json | Sse) -> UpstreamAnswer:
    """Return a stream in two parts with a pause between; a whole answer as it is."""
    if isinstance(answer, Json):
        return answer
    frames = list(map(Send, answer.frames))
    middle = len(frames) // 2 + 1
    return Steps([*frames[:middle], Pause(_STREAMING_SECONDS), *frames[middle:]])


def _reply(protocol: str, request: Request, texts: list[str], call: ModelCall) -> Json | Sse:
    stream = answers.wants_stream(request)
    if call.reminders:
        return answers.text(protocol, f"told {' '.join(sorted(call.reminders))}", stream)
    asked = _SCHEDULE.search("\n".join(texts))
    if asked is None:
        return answers.text(protocol, f"answer {call.follow_ups}", stream)
    if b"tool_call_id" in request.body or b"tool_result" in request.body:
        is_done = re.search(rb'ok\\?":\s*true', request.body) is not None
        return answers.text(protocol, "scheduled" if is_done else "refused", stream)
    arguments = command("schedule", task_item(now_ms() + int(asked[2]), asked[1]))
    return answers.tool_call(protocol, "clock", arguments, f"call_{call.number}", stream=stream)
