"""A gateway whose state is in files, in front of an upstream that sends scripted texts.

`file_store_gateway(protocol, folder)` yields a GatewayHarness: `send` sends a user's text, `counts` is the
number of uses on disk at the moment each request reached the upstream.
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
from routecodex.protocols.grammar.frames import read
from tests.gateway.instruction_gateway import answer_text
from tests.kit import answers, asking
from tests.kit.gateway import Running, one_target, serving
from tests.kit.raw_client import Answer, Call, begin, call
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.upstream import Request, Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
SESSION_HEADER = {"x-session-id": "s-1"}
SET_STOP_MESSAGE = '<**stopMessage:"go on",{}**>Hello'

Script = Callable[[Request, int], UpstreamAnswer]
"""Returns the upstream's answer to a request and its number, from 0."""


@dataclass
class GatewayHarness:
    """A client of one protocol, the gateway, and the upstream behind it."""

    protocol: str
    upstream_protocol: str
    folder: Path
    upstream: Upstream
    port: int = 0
    counts: list[int | None] = field(default_factory=list)

    def script(self, answer: Script) -> None:
        """Answer with this function; record the count on disk before each answer."""

        def answered(request: Request) -> UpstreamAnswer:
            self.counts.append(stored_uses(self.folder))
            return answer(request, len(self.counts) - 1)

        self.upstream.answer_with(answered)

    def script_texts(self, *texts: str, then: str = "") -> None:
        """Answer with these texts in order, and after them with `then` and the number of the request."""

        def answer(request: Request, number: int) -> UpstreamAnswer:
            text = texts[number] if number < len(texts) else f"{then}{number}"
            return self.text_answer(text, request)

        self.script(answer)

    def text_answer(self, text: str, request: Request) -> UpstreamAnswer:
        return answers.text(self.upstream_protocol, text, answers.wants_stream(request))

    async def send(
        self,
        text: str = "Hello",
        *,
        stream: bool = False,
        headers: Mapping[str, str] = SESSION_HEADER,
        tools: bool = False,
        body: Any = None,
    ) -> Answer:
        request = body or asking.body(self.protocol, text, stream=stream, tools=tools)
        return await call(self.port, asking.path(self.protocol, stream=stream), request, headers=headers)

    async def begin(
        self, text: str, *, stream: bool = True, headers: Mapping[str, str] = SESSION_HEADER
    ) -> Call:
        request = asking.body(self.protocol, text, stream=stream)
        return await begin(self.port, asking.path(self.protocol, stream=stream), request, headers=headers)

    def answer_text(self, answer: Answer, *, stream: bool) -> str:
        """Check the grammar of the answer and return its text."""
        asking.check(self.protocol, answer, stream=stream)
        return answer_text(self.protocol, answer, stream=stream)

    @property
    def upstream_texts(self) -> list[list[tuple[str, str]]]:
        """The role and text of every message in each request that reached the upstream."""
        return [message_texts(self.upstream_protocol, request) for request in self.upstream.requests]


@contextlib.asynccontextmanager
async def file_store_gateway(
    protocol: str, folder: Path, *, upstream_protocol: str = "", more: str = "", provider: str = ""
) -> AsyncIterator[GatewayHarness]:
    """Run a gateway for clients of this protocol; its one target uses `upstream_protocol`, or the same."""
    async with Upstream() as upstream:
        harness = GatewayHarness(protocol, upstream_protocol or protocol, folder, upstream)
        async with serving(configuration(harness, more=more, provider=provider)) as gateway:
            harness.port = gateway.port
            yield harness


def configuration(harness: GatewayHarness, *, more: str = "", provider: str = "") -> str:
    return f'[store]\nurl = "file:{harness.folder}"\n{more}\n' + one_target(
        harness.upstream_protocol, harness.upstream, more=provider
    )


@contextlib.asynccontextmanager
async def second_gateway(harness: GatewayHarness) -> AsyncIterator[Running]:
    """Run a second gateway on the same state."""
    async with serving(configuration(harness)) as gateway:
        yield gateway


def message_texts(protocol: str, request: Request) -> list[tuple[str, str]]:
    """Return every text of a request with the role of its message."""
    codec = CODECS[protocol]
    path_fields = {"model": "m", "stream": False} if protocol == "gemini" else {}
    decoded = codec.decode_request(codec.validate(request.body, **path_fields))
    parts = [(message.role, part) for message in decoded.messages for part in message.parts]
    return [(role, part.text) for role, part in parts if isinstance(part, Text)]


def stored_sessions(folder: Path) -> list[dict[str, Any]]:
    """Return every session on disk."""
    files = sorted((folder / "sessions").glob("*.json"))
    return [msgspec.json.decode(file.read_bytes())["value"] for file in files]


def stored_stop_message(folder: Path) -> dict[str, Any] | None:
    """Return the stop message of the only session on disk."""
    sessions = stored_sessions(folder)
    assert len(sessions) < 2
    message: dict[str, Any] | None = sessions[0]["stop_message"] if sessions else None
    return message


def stored_uses(folder: Path) -> int | None:
    message = stored_stop_message(folder)
    return None if message is None else message.get("used", 0)


def token_usage(protocol: str, answer: Answer, *, stream: bool) -> tuple[int, int]:
    """Return input and output tokens as the client reads them."""
    if stream:
        values = [frame.json for frame in read(answer.body) if frame.data != "[DONE]"]
    else:
        values = [answer.json]
    pairs = [pair for value in values for pair in _USAGES[protocol](value)]
    return tuple(max(column) for column in zip(*pairs, strict=True))


def _usage_pair(usage: Any, first: str, second: str) -> Sequence[tuple[int, int]]:
    return [(usage.get(first) or 0, usage.get(second) or 0)] if usage else []


_USAGES: dict[str, Callable[[Any], Sequence[tuple[int, int]]]] = {
    "chat": lambda value: _usage_pair(value.get("usage"), "prompt_tokens", "completion_tokens"),
    "responses": lambda value: _usage_pair(
        (value.get("response") or value).get("usage"), "input_tokens", "output_tokens"
    ),
    "messages": lambda value: _usage_pair(
        value.get("usage") if value["type"] != "message_start" else None, "input_tokens", "output_tokens"
    ),
    "gemini": lambda value: _usage_pair(
        value.get("usageMetadata"), "promptTokenCount", "candidatesTokenCount"
    ),
}

_ERROR = re.compile(rb'event: error|"type":"response.failed"|"error":')


def has_error(answer: Answer) -> bool:
    """Return whether the stream has the protocol's error event."""
    return _ERROR.search(answer.body) is not None
