"""A gateway before a scripted upstream, and people who talk to it in each protocol.

`steered(protocol)` gives a World: `say` asks with a conversation (the steps of
tests/routing/instruction_texts.py), and `sent` is what reached the upstream, as (key, model). The
 providers are `glm` (keys a, b; models glm-4.7 and
air), `gpt` (two keys without a name; model gpt-5.2), `eye` (for the routes that sticky gives way to) and
`spare`, which stands in no route.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.kit import answers, asking
from tests.kit.gateway import Running, serving
from tests.kit.grammar.frames import read
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream
from tests.routing.instruction_texts import Step, tell

PROTOCOLS = ("chat", "responses", "messages", "gemini")
TOKEN = "operator"
SESSION = "s-1"
OPERATOR = {"authorization": f"Bearer {TOKEN}"}
HERE = {"x-session-id": SESSION}
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

DEFAULT = ("key-gpt-1", "gpt-5.2")
"""Where a request goes that nobody has steered."""


@dataclass
class World:
    """A running gateway, the upstream behind it, and the client protocol that is spoken to it."""

    protocol: str
    gateway: Running
    upstream: Upstream
    refuses: dict[str, Json | Sse] = field(default_factory=dict)
    """What the upstream answers to a key instead of words."""

    async def say(
        self,
        *steps: Step | str,
        stream: bool = False,
        headers: Mapping[str, str] = HERE,
        model: str = "auto",
        protocol: str = "",
        **fields: Any,
    ) -> Answer:
        """Asks with this conversation; a text alone is one the user says."""
        protocol = protocol or self.protocol
        spoken = [("user", step) if isinstance(step, str) else step for step in steps]
        named: dict[str, Any] = {} if protocol == "gemini" else {"model": model, "stream": stream}
        if protocol == "chat" and stream:
            named["stream_options"] = {"include_usage": True}
        body = tell(protocol, *spoken, **named, **fields).body
        return await self.post(body, stream=stream, headers=headers, model=model, protocol=protocol)

    async def post(
        self,
        body: Any,
        *,
        stream: bool = False,
        headers: Mapping[str, str] = HERE,
        model: str = "auto",
        protocol: str = "",
    ) -> Answer:
        path = asking.path(protocol or self.protocol, stream=stream, model=model)
        return await call(self.gateway.port, path, body, headers=headers)

    async def operate(self, **change: Any) -> Any:
        """What an operator changes through the admin API."""
        answer = await call(self.gateway.port, "/admin/routing", change, headers=OPERATOR)
        assert answer.status == 200, answer.body
        return answer.json

    @property
    def requests(self) -> list[Request]:
        return self.upstream.requests

    @property
    def sent(self) -> list[tuple[str, str]]:
        """The key and the model of everything that reached the upstream."""
        return [(key_of(request), model_of(request)) for request in self.upstream.requests]

    @property
    def last(self) -> tuple[str, str]:
        return self.sent[-1]

    async def state(self, id: str = SESSION) -> dict[str, Any]:
        """What is set for a session, nothing else."""
        found = await self._routing(f"?session={id}")
        return {name: value for name, value in found["sessions"][0].items() if value and name != "id"}

    async def listed(self) -> list[dict[str, Any]]:
        """Every state that is stored."""
        return list((await self._routing())["sessions"])

    async def _routing(self, query: str = "") -> Any:
        path = f"/admin/routing{query}"
        return (await call(self.gateway.port, path, method="GET", headers=OPERATOR)).json

    def answer(self, request: Request) -> Json | Sse:
        refused = self.refuses.get(key_of(request))
        if refused is not None:
            return refused
        return answers.text(_spoken_by(request), "hello there", answers.wants_stream(request))


@contextlib.asynccontextmanager
async def steered(
    protocol: str = "chat", *, upstream: str = "", long: int = 180_000, more: str = ""
) -> AsyncIterator[World]:
    """The gateway for clients of this protocol; its providers speak `upstream`, or the same."""
    speaks = upstream or protocol
    async with Upstream() as up:
        base = f"http://127.0.0.1:{up.port}{_BASES[speaks]}"
        text = more + CONFIG.format(protocol=speaks, base=base, token=TOKEN, long=long)
        async with serving(text) as gateway:
            world = World(protocol, gateway, up)
            up.answer_with(world.answer)
            yield world


def _spoken_by(request: Request) -> str:
    ends = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}
    path = request.path.partition("?")[0]
    return next((name for end, name in ends.items() if path.endswith(end)), "gemini")


def turns(*texts: str) -> list[Step]:
    """What the user said, each but the last answered."""
    steps: list[Step] = []
    for text in texts:
        steps += [("user", text), ("assistant", "hello there")]
    return steps[:-1]


def key_of(request: Request) -> str:
    """The key a request was sent with."""
    found = (_KEY.search(value) for value in request.headers.values())
    return next(match[0] for match in found if match)


def model_of(request: Request) -> str:
    named = _MODEL.search(request.path)
    return named[1] if named else str(request.json["model"])


def told(answer: Answer) -> dict[str, str]:
    """What the answer's headers say of routing."""
    names = ("route", "target", "reason", "notice")
    return {
        name: answer.headers[f"x-routecodex-{name}"]
        for name in names
        if f"x-routecodex-{name}" in answer.headers
    }


def target(answer: Answer) -> str:
    return answer.headers["x-routecodex-target"]


_ENTRIES = {"chat": "messages", "responses": "input", "messages": "messages", "gemini": "contents"}


def conversation(protocol: str, request: Request) -> Any:
    """The messages a provider got."""
    return request.json[_ENTRIES[protocol]]


def as_told(protocol: str, *steps: Step) -> Any:
    """The messages of a conversation as the client would have sent them."""
    return msgspec.json.decode(tell(protocol, *steps).body)[_ENTRIES[protocol]]


def words(protocol: str, answer: Answer, *, stream: bool) -> str:
    """What the answer says."""
    if not stream:
        return str(_WHOLE[protocol](answer.json))
    data = (msgspec.json.decode(frame.data) for frame in read(answer.body) if frame.data != "[DONE]")
    return "".join(_PIECE[protocol](value) for value in data)


def _gemini_text(value: Any) -> str:
    parts = value["candidates"][0].get("content", {}).get("parts", []) if value.get("candidates") else []
    return "".join(part.get("text", "") for part in parts)


def _chat_piece(value: Any) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in value["choices"])


_WHOLE: dict[str, Any] = {
    "chat": lambda value: value["choices"][0]["message"]["content"],
    "responses": lambda value: value["output"][0]["content"][0]["text"],
    "messages": lambda value: value["content"][0]["text"],
    "gemini": _gemini_text,
}
_PIECE: dict[str, Any] = {
    "chat": _chat_piece,
    "responses": lambda value: value["delta"] if value["type"] == "response.output_text.delta" else "",
    "messages": lambda value: value.get("delta", {}).get("text", ""),
    "gemini": _gemini_text,
}
