"""A gateway in front of a scripted upstream, and a client that sends chat instructions in each protocol.

`instruction_gateway(protocol)` yields an InstructionHarness: `send` sends a conversation (the steps of
tests/routing/instruction_texts.py), and `sent_targets` are the (key, model) pairs that reached the upstream.
The providers are `glm` (keys a, b; models glm-4.7 and air), `gpt` (two keys without a name; model gpt-5.2),
`eye` (for the routes that take precedence over sticky) and `spare`, which is not in any route.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from routecodex.protocols.grammar.frames import read
from tests.kit import answers, asking
from tests.kit.gateway import Running, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream
from tests.routing.instruction_texts import Step, wire_request

PROTOCOLS = ("chat", "responses", "messages", "gemini")
TOKEN = "operator"
SESSION = "s-1"
OPERATOR = {"authorization": f"Bearer {TOKEN}"}
SESSION_HEADER = {"x-session-id": SESSION}
_BASES = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": ""}
_KEY = re.compile(r"key-\w+-\w+")
_MODEL = re.compile(r"/models/([^:]+):")

CONFIG = """
[server]
port = 0
drain_seconds = 1
admin_token = "{token}"
[routing_options]
max_wait_ms = 0
[classifier]
longcontext_tokens = {long}
[providers.glm]
protocol = "{protocol}"
base_url = "{base}"
auth = [{{ alias = "a", value = "key-glm-a" }}, {{ alias = "b", value = "key-glm-b" }}]
[providers.glm.models."glm-4.7"]
[providers.glm.models.air]
[providers.gpt]
protocol = "{protocol}"
base_url = "{base}"
auth = [{{ value = "key-gpt-1" }}, {{ value = "key-gpt-2" }}]
[providers.gpt.models."gpt-5.2"]
[providers.eye]
protocol = "{protocol}"
base_url = "{base}"
auth = [{{ value = "key-eye-1" }}]
[providers.eye.models.seer]
[providers.spare]
protocol = "{protocol}"
base_url = "{base}"
auth = [{{ value = "key-spare-1" }}]
[providers.spare.models.one]
[routing]
default = [
    {{ id = "first", targets = ["gpt.key1.gpt-5.2"] }},
    {{ id = "second", targets = ["gpt.key2.gpt-5.2"] }},
    {{ id = "third", targets = ["glm.air"] }},
]
coding = ["glm.glm-4.7"]
vision = ["eye.seer"]
web_search = ["eye.seer"]
longcontext = ["eye.seer"]
"""

DEFAULT_TARGET = ("key-gpt-1", "gpt-5.2")
"""Key and model of a request without instructions."""


@dataclass
class InstructionHarness:
    """A running gateway, the upstream behind it, and the protocol of its client."""

    protocol: str
    gateway: Running
    upstream: Upstream
    replies_by_key: dict[str, Json | Sse] = field(default_factory=dict)
    """Answers of the upstream for requests with these keys, instead of text."""

    async def send(
        self,
        *steps: Step | str,
        stream: bool = False,
        headers: Mapping[str, str] = SESSION_HEADER,
        model: str = "auto",
        protocol: str = "",
        **fields: Any,
    ) -> Answer:
        """Send this conversation; a text alone is a user message."""
        protocol = protocol or self.protocol
        conversation = [("user", step) if isinstance(step, str) else step for step in steps]
        more: dict[str, Any] = {} if protocol == "gemini" else {"model": model, "stream": stream}
        if protocol == "chat" and stream:
            more["stream_options"] = {"include_usage": True}
        body = wire_request(protocol, *conversation, **more, **fields).body
        return await self.post(body, stream=stream, headers=headers, model=model, protocol=protocol)

    async def post(
        self,
        body: Any,
        *,
        stream: bool = False,
        headers: Mapping[str, str] = SESSION_HEADER,
        model: str = "auto",
        protocol: str = "",
    ) -> Answer:
        path = asking.path(protocol or self.protocol, stream=stream, model=model)
        return await call(self.gateway.port, path, body, headers=headers)

    async def change_routing(self, **change: Any) -> Any:
        """Change routing through the admin API, as an operator does."""
        answer = await call(self.gateway.port, "/admin/routing", change, headers=OPERATOR)
        assert answer.status == 200, answer.body
        return answer.json

    @property
    def requests(self) -> list[Request]:
        return self.upstream.requests

    @property
    def sent_targets(self) -> list[tuple[str, str]]:
        """The key and the model of every request that reached the upstream."""
        return [(key_of(request), model_of(request)) for request in self.upstream.requests]

    @property
    def last_target(self) -> tuple[str, str]:
        return self.sent_targets[-1]

    async def session_state(self, id: str = SESSION) -> dict[str, Any]:
        """Return the fields that are set for a session."""
        routing = await self._routing(f"?session={id}")
        return {name: value for name, value in routing["sessions"][0].items() if value and name != "id"}

    async def stored_states(self) -> list[dict[str, Any]]:
        """Return every stored session state."""
        return list((await self._routing())["sessions"])

    async def _routing(self, query: str = "") -> Any:
        path = f"/admin/routing{query}"
        return (await call(self.gateway.port, path, method="GET", headers=OPERATOR)).json

    def answer(self, request: Request) -> Json | Sse:
        reply = self.replies_by_key.get(key_of(request))
        if reply is not None:
            return reply
        return answers.text(_protocol_of(request), "hello there", answers.wants_stream(request))


@contextlib.asynccontextmanager
async def instruction_gateway(
    protocol: str = "chat", *, upstream: str = "", long: int = 180_000, more: str = "", routes: str = ""
) -> AsyncIterator[InstructionHarness]:
    """Run a gateway for clients of this protocol; its providers use `upstream`, or the same."""
    upstream_protocol = upstream or protocol
    async with Upstream() as up:
        base = f"http://127.0.0.1:{up.port}{_BASES[upstream_protocol]}"
        text = more + CONFIG.format(protocol=upstream_protocol, base=base, token=TOKEN, long=long) + routes
        async with serving(text) as gateway:
            harness = InstructionHarness(protocol, gateway, up)
            up.answer_with(harness.answer)
            yield harness


def _protocol_of(request: Request) -> str:
    ends = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}
    path = request.path.partition("?")[0]
    return next((name for end, name in ends.items() if path.endswith(end)), "gemini")


def user_turns(*texts: str) -> list[Step]:
    """Return a conversation of these user texts, each but the last with an answer."""
    steps: list[Step] = []
    for text in texts:
        steps += [("user", text), ("assistant", "hello there")]
    return steps[:-1]


def key_of(request: Request) -> str:
    """Return the key a request was sent with."""
    matches = (_KEY.search(value) for value in request.headers.values())
    return next(match[0] for match in matches if match)


def model_of(request: Request) -> str:
    match = _MODEL.search(request.path)
    return match[1] if match else str(request.json["model"])


def routing_headers(answer: Answer) -> dict[str, str]:
    """Return the routing headers of the answer, without their prefix."""
    names = ("route", "target", "reason", "notice")
    return {
        name: answer.headers[f"x-routecodex-{name}"]
        for name in names
        if f"x-routecodex-{name}" in answer.headers
    }


def target(answer: Answer) -> str:
    return answer.headers["x-routecodex-target"]


_ENTRIES = {"chat": "messages", "responses": "input", "messages": "messages", "gemini": "contents"}


def upstream_messages(protocol: str, request: Request) -> Any:
    """Return the messages that a provider received."""
    return request.json[_ENTRIES[protocol]]


def client_messages(protocol: str, *steps: Step) -> Any:
    """Return the messages of a conversation as a client would send them."""
    return msgspec.json.decode(wire_request(protocol, *steps).body)[_ENTRIES[protocol]]


def answer_text(protocol: str, answer: Answer, *, stream: bool) -> str:
    """Return the text of the answer."""
    if not stream:
        return str(_WHOLE_TEXT[protocol](answer.json))
    data = (msgspec.json.decode(frame.data) for frame in read(answer.body) if frame.data != "[DONE]")
    return "".join(_DELTA_TEXT[protocol](value) for value in data)


def _gemini_text(value: Any) -> str:
    parts = value["candidates"][0].get("content", {}).get("parts", []) if value.get("candidates") else []
    return "".join(part.get("text", "") for part in parts)


def _chat_delta_text(value: Any) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in value["choices"])


_WHOLE_TEXT: dict[str, Any] = {
    "chat": lambda value: value["choices"][0]["message"]["content"],
    "responses": lambda value: value["output"][0]["content"][0]["text"],
    "messages": lambda value: value["content"][0]["text"],
    "gemini": _gemini_text,
}
_DELTA_TEXT: dict[str, Any] = {
    "chat": _chat_delta_text,
    "responses": lambda value: value["delta"] if value["type"] == "response.output_text.delta" else "",
    "messages": lambda value: value.get("delta", {}).get("text", ""),
    "gemini": _gemini_text,
}
