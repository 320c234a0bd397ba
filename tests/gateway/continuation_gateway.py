"""A gateway whose state is in files, before an upstream that says one thing after the other.

`continuing(protocol, folder)` gives a Talk: `ask` sends what a person says, `counts` is the number of uses on
disk at the moment each request reached the upstream.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from routecodex.canon.parts import Text
from routecodex.protocols.codecs import CODECS
from tests.gateway.instruction_gateway import words
from tests.kit import answers, asking
from tests.kit.gateway import Running, one_target, serving
from tests.kit.grammar.frames import read
from tests.kit.raw_client import Answer, Call, begin, call
from tests.kit.steps import Answer as Given
from tests.kit.upstream import Request, Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
HERE = {"x-session-id": "s-1"}
SET = '<**stopMessage:"go on",{}**>Hello'

Script = Callable[[Request, int], Given]
"""What the upstream answers to its request of that number, from 0."""


@dataclass
class Talk:
    """A client of one protocol, the gateway, and the upstream behind it."""

    protocol: str
    speaks: str
    folder: Path
    upstream: Upstream
    port: int = 0
    counts: list[int | None] = field(default_factory=list)

    def script(self, answer: Script) -> None:
        """What the upstream says; the count on disk is noted first."""

        def answered(request: Request) -> Given:
            self.counts.append(used(self.folder))
            return answer(request, len(self.counts) - 1)

        self.upstream.answer_with(answered)

    def says(self, *texts: str, then: str = "") -> None:
        """The upstream says these texts in turn, and after them `then`, with a number."""

        def answer(request: Request, number: int) -> Given:
            text = texts[number] if number < len(texts) else f"{then}{number}"
            return self.text(text, request)

        self.script(answer)

    def text(self, text: str, request: Request) -> Given:
        return answers.text(self.speaks, text, answers.wants_stream(request))

    async def ask(
        self,
        said: str = "Hello",
        *,
        stream: bool = False,
        headers: Mapping[str, str] = HERE,
        tools: bool = False,
        body: Any = None,
    ) -> Answer:
        given = body or asking.body(self.protocol, said, stream=stream, tools=tools)
        return await call(self.port, asking.path(self.protocol, stream=stream), given, headers=headers)

    async def begin(self, said: str, *, stream: bool = True, headers: Mapping[str, str] = HERE) -> Call:
        given = asking.body(self.protocol, said, stream=stream)
        return await begin(self.port, asking.path(self.protocol, stream=stream), given, headers=headers)

    def words(self, answer: Answer, *, stream: bool) -> str:
        """What a well-formed answer says."""
        asking.check(self.protocol, answer, stream=stream)
        return words(self.protocol, answer, stream=stream)

    @property
    def heard(self) -> list[list[tuple[str, str]]]:
        """What was said in each request that reached the upstream, and by whom."""
        return [spoken(self.speaks, request) for request in self.upstream.requests]


@contextlib.asynccontextmanager
async def continuing(
    protocol: str, folder: Path, *, speaks: str = "", more: str = "", provider: str = ""
) -> AsyncIterator[Talk]:
    """A running gateway for clients of this protocol; its one target speaks `speaks`, or the same."""
    async with Upstream() as upstream:
        talk = Talk(protocol, speaks or protocol, folder, upstream)
        async with serving(configuration(talk, more=more, provider=provider)) as gateway:
            talk.port = gateway.port
            yield talk


def configuration(talk: Talk, *, more: str = "", provider: str = "") -> str:
    return f'[store]\nurl = "file:{talk.folder}"\n{more}\n' + one_target(
        talk.speaks, talk.upstream, more=provider
    )


@contextlib.asynccontextmanager
async def again(talk: Talk) -> AsyncIterator[Running]:
    """Another gateway on the same state."""
    async with serving(configuration(talk)) as gateway:
        yield gateway


def spoken(protocol: str, request: Request) -> list[tuple[str, str]]:
    """Every text of a request with the role of who said it."""
    codec = CODECS[protocol]
    named = {"model": "m", "stream": False} if protocol == "gemini" else {}
    told = codec.decode_request(codec.validate(request.body, **named))
    parts = [(message.role, part) for message in told.messages for part in message.parts]
    return [(role, part.text) for role, part in parts if isinstance(part, Text)]


def states(folder: Path) -> list[dict[str, Any]]:
    """Every session on disk."""
    files = sorted((folder / "sessions").glob("*.json"))
    return [msgspec.json.decode(file.read_bytes())["value"] for file in files]


def stop_message(folder: Path) -> dict[str, Any] | None:
    """What is on disk of the only session's message."""
    found = states(folder)
    assert len(found) < 2
    kept: dict[str, Any] | None = found[0]["stop_message"] if found else None
    return kept


def used(folder: Path) -> int | None:
    found = stop_message(folder)
    return None if found is None else found.get("used", 0)


def usage(protocol: str, answer: Answer, *, stream: bool) -> tuple[int, int]:
    """Input and output tokens, as the client reads them."""
    if stream:
        values = [frame.json for frame in read(answer.body) if frame.data != "[DONE]"]
    else:
        values = [answer.json]
    pairs = [pair for value in values for pair in _USAGES[protocol](value)]
    return tuple(max(column) for column in zip(*pairs, strict=True))


def _pair(usage: Any, first: str, second: str) -> Sequence[tuple[int, int]]:
    return [(usage.get(first) or 0, usage.get(second) or 0)] if usage else []


_USAGES: dict[str, Callable[[Any], Sequence[tuple[int, int]]]] = {
    "chat": lambda value: _pair(value.get("usage"), "prompt_tokens", "completion_tokens"),
    "responses": lambda value: _pair(
        (value.get("response") or value).get("usage"), "input_tokens", "output_tokens"
    ),
    "messages": lambda value: _pair(
        value.get("usage") if value["type"] != "message_start" else None, "input_tokens", "output_tokens"
    ),
    "gemini": lambda value: _pair(value.get("usageMetadata"), "promptTokenCount", "candidatesTokenCount"),
}

_ERROR = re.compile(rb'event: error|"type":"response.failed"|"error":')


def has_error(answer: Answer) -> bool:
    """Whether the stream ends with the protocol's error event."""
    return _ERROR.search(answer.body) is not None
