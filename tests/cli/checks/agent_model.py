"""A provider's model that answers the shapes of agents, and a gateway in front of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from routecodex.cli.checks.gateway_in_use import GatewayInUse, open_gateway
from routecodex.cli.checks.result import CheckResult
from routecodex.cli.checks.shape_runs import run_agent, target_facts
from routecodex.cli.checks.shapes import AGENT_SHAPES
from routecodex.cli.checks.shapes.shape import FILE_CONTENT
from routecodex.config import Config, loads
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from tests.clients.agents.scene import news
from tests.kit import answers
from tests.kit.answers import Call, Piece, TextPiece
from tests.kit.gateway import one_target
from tests.kit.steps import Answer, Json
from tests.kit.upstream import Request, Script, Upstream

ARGUMENTS = dict.fromkeys(filter(None, (shapes.argument for shapes in AGENT_SHAPES.values())), "notes.txt")
"""The argument of every agent's tool for files: two have a tool `read` with different ones."""
_CALL = re.compile(r"Call the tool (\w+)")
Model = Callable[[str, Request], Answer]


def is_count(request: Request) -> bool:
    return request.path.partition("?")[0].endswith(("/count_tokens", ":countTokens"))


def answers_well(protocol: str, request: Request) -> Answer:
    """Answer as a good model does: calls the tool that it is told to, quotes results, writes titles."""
    if is_count(request):
        return Json(200, {"input_tokens": 42, "totalTokens": 42})
    return answers.compose(
        protocol,
        _piece(news(protocol, request.json)),
        stream=answers.wants_stream(request),
        include_usage=bool((request.json.get("stream_options") or {}).get("include_usage")),
    )


def _piece(new: str) -> Piece:
    called = _CALL.search(new)
    if called is not None and FILE_CONTENT not in new and "Another language model" not in new:
        return Call(called[1], ARGUMENTS)
    return TextPiece('{"title":"Festival"}' if "<session>" in new else "The festival is on Friday.")


def configured(text: str) -> Config:
    return loads(text, source="test.toml", environ={}, presets=PRESETS, dialect_type=Dialect)


@asynccontextmanager
async def gateway_before(
    protocol: str, script: Script, *, more: str = ""
) -> AsyncIterator[tuple[Config, GatewayInUse, Upstream]]:
    """Run a gateway for checks in front of a scripted provider with the target `up.m`."""
    async with Upstream(script) as upstream:
        config = configured(one_target(protocol, upstream, more=more))
        async with open_gateway(config, server=None, environ={}) as gateway:
            yield config, gateway, upstream


async def results_of(
    agent: str, protocol: str, model: Model, *, more: str = "", offline: bool = False
) -> list[CheckResult]:
    """Return the results of all shapes of an agent, with the model behind the target `up.m`."""
    async with gateway_before(protocol, partial(model, protocol), more=more) as (config, gateway, _):
        facts = [target_facts(config, "up.m")]
        runs = run_agent(agent, AGENT_SHAPES[agent], facts, gateway=gateway, offline=offline)
        return [result async for result in runs]


def statuses(results: list[CheckResult]) -> dict[str, str]:
    """Return the status of each check by the last word of its id."""
    return {result.id.rpartition(".")[2]: result.status for result in results}
