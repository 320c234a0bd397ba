"""A gateway in its own process between a real agent and a scripted model, with a target per role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests.clients.gateway import UPSTREAM_KEY, gateway_process
from tests.kit import answers
from tests.kit.answers import Counts, Piece, TextPiece
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream

ROUTES = {"default": "main", "subagent": "sub", "background": "small", "compaction": "summary"}
"""The model behind each route: the name that the upstream gets tells the role of the request."""

NOTHING_ELSE = "That is all I have to say."
"""The answer of the model where no rule fits."""

FOLLOWUP = "Carry on now."
TWICE = f'<**stopMessage:"{FOLLOWUP}",2**>'
"""The instruction that continues the next two answers of the main conversation."""

_BASE = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": ""}
_LISTS = {"chat": "messages", "messages": "messages", "responses": "input", "gemini": "contents"}


@dataclass(frozen=True)
class Rule:
    """What the model answers to a phrase in what is new since its last answer, or in the system text."""

    phrase: str
    pieces: tuple[Piece, ...]
    counts: Counts = field(default_factory=Counts)
    after: asyncio.Event | None = None
    """The answer waits for it."""
    system: bool = False

    def fits(self, protocol: str, body: dict[str, Any]) -> bool:
        """Return whether the phrase stands where the rule looks."""
        return self.phrase in (_system(protocol, body) if self.system else news(protocol, body))


def rule(phrase: str, *pieces: Piece | str, **more: Any) -> Rule:
    """Return a rule; a string is text."""
    made = tuple(TextPiece(piece) if isinstance(piece, str) else piece for piece in pieces)
    return Rule(phrase, made, **more)


@dataclass
class Scene:
    """One test: the gateway's address, folders for the agent, and what the upstream received."""

    url: str
    protocol: str
    home: Path
    work: Path
    upstream: Upstream
    log: Path

    def requests(self, *models: str) -> list[Request]:
        """Return the requests that reached the upstream, those to the models if any are named."""
        asked = [request for request in self.upstream.requests if not _is_count(request)]
        return [request for request in asked if not models or model_of(request) in models]

    def models(self) -> list[str]:
        """Return the model of each request that reached the upstream, which tells its route."""
        return [model_of(request) for request in self.requests()]

    def news(self, *models: str) -> list[str]:
        """Return what was new in each request, as JSON text."""
        return [news(self.protocol, request.json) for request in self.requests(*models)]


def model_of(request: Request) -> str:
    """Return the model of a request; Gemini has it in the path."""
    body: dict[str, Any] = request.json
    return str(body["model"]) if "model" in body else request.path.rpartition("/")[2].partition(":")[0]


def news(protocol: str, body: dict[str, Any]) -> str:
    """Return what follows the model's last answer, as JSON text."""
    items = body[_LISTS[protocol]]
    last = max((at for at, item in enumerate(items) if _is_answer(item)), default=-1)
    return msgspec.json.encode(items[last + 1 :]).decode()


def _system(protocol: str, body: dict[str, Any]) -> str:
    texts = [item for item in body[_LISTS[protocol]] if item.get("role") in ("system", "developer")]
    named = [body.get(name) for name in ("system", "instructions", "systemInstruction")]
    return msgspec.json.encode([*named, *texts]).decode()


def _is_count(request: Request) -> bool:
    return request.path.partition("?")[0].endswith(("/count_tokens", ":countTokens"))


def _is_answer(item: dict[str, Any]) -> bool:
    kind = str(item.get("type", "message"))
    return item.get("role") in ("assistant", "model") or kind.endswith("_call") or kind == "reasoning"


async def _script(
    protocol: str, rules: tuple[Rule, ...], request: Request, *, knows_functions_only: bool
) -> Json | Sse:
    if _is_count(request):
        return Json(200, {"input_tokens": 4242, "totalTokens": 4242})
    body = request.json
    if knows_functions_only and any(item.get("type") == "additional_tools" for item in body["input"]):
        return Json(400, {"error": {"message": "unknown item type", "type": "invalid_request_error"}})
    fitting = next((known for known in rules if known.fits(protocol, body)), rule("", NOTHING_ELSE))
    if fitting.after is not None:
        await fitting.after.wait()
    stream = answers.wants_stream(request)
    return answers.compose(protocol, *fitting.pieces, stream=stream, counts=fitting.counts)


def _configuration(protocol: str, port: int, settings: str) -> str:
    routes = "".join(f'{route} = ["up.{model}"]\n' for route, model in ROUTES.items())
    models = "".join(f"[providers.up.models.{model}]\n" for model in ROUTES.values())
    return f"""
[server]
port = 0
drain_seconds = 0
[routing]
{routes}
[routing_options]
health = false
max_wait_ms = 0
[providers.up]
protocol = "{protocol}"
base_url = "http://127.0.0.1:{port}{_BASE[protocol]}"
auth = [{{ value = "{UPSTREAM_KEY}" }}]
{models}
{settings}"""


@asynccontextmanager
async def open_scene(
    folder: Path, protocol: str, *rules: Rule, settings: str = "", knows_functions_only: bool = False
) -> AsyncIterator[Scene]:
    """Run the gateway in front of a model that follows the first fitting rule; `work` holds a file a.txt.

    `knows_functions_only`: the provider rejects tools in items, as most Responses providers do.
    """
    script = partial(_script, protocol, rules, knows_functions_only=knows_functions_only)
    async with Upstream(script) as upstream:
        text = _configuration(protocol, upstream.port, settings)
        with gateway_process(text, folder / "gateway") as url:
            log = folder / "gateway" / "log"
            yield Scene(url, protocol, folder / "home", _work_tree(folder), upstream, log)


@asynccontextmanager
async def open_model(folder: Path, protocol: str, *rules: Rule, settings: str = "") -> AsyncIterator[Scene]:
    """Run the model alone; `gateway/user` is a user dir with the configuration of a gateway to start."""
    script = partial(_script, protocol, rules, knows_functions_only=False)
    async with Upstream(script) as upstream:
        user = folder / "gateway" / "user"
        user.mkdir(parents=True)
        (user / "config.toml").write_text(_configuration(protocol, upstream.port, settings))
        (user / "config.toml").chmod(0o600)
        log = user / "logs" / "run.log"
        yield Scene("", protocol, folder / "home", _work_tree(folder), upstream, log)


def _work_tree(folder: Path) -> Path:
    work = folder / "work"
    work.mkdir()
    (work / "a.txt").write_text("sunny\n")
    return work


def records(scene: Scene) -> list[dict[str, Any]]:
    """Return the request log of a gateway that has stopped."""
    lines = [line for line in scene.log.read_text().splitlines() if line.startswith("{")]
    found = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
    return [line for line in found if line["logger"] == "routecodex.access"]
