"""Every shape of every agent through the gateway to every upstream protocol."""

from __future__ import annotations

from functools import partial

import pytest

from routecodex.cli.agents import AGENTS
from routecodex.cli.checks.gateway_in_use import open_gateway
from routecodex.cli.checks.shape_runs import run_agent, target_facts
from routecodex.cli.checks.shapes import AGENT_SHAPES
from routecodex.cli.checks.shapes.shape import ShapeInput
from tests.cli.checks.agent_model import (
    answers_well,
    configured,
    gateway_before,
    is_count,
    results_of,
    statuses,
)
from tests.kit import answers
from tests.kit.answers import PROTOCOLS
from tests.kit.steps import Answer
from tests.kit.upstream import Request

agents = pytest.mark.parametrize("agent", AGENT_SHAPES)
GIVEN = ShapeInput(model="up.m", key="any", session="doctor-1", turn_id="turn-1")
ROLES = {"title": "utility", "compaction": "compaction"}


def test_every_agent_has_shapes() -> None:
    assert AGENT_SHAPES.keys() == AGENTS.keys()


@agents
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_shape_works_over_every_upstream_protocol(agent: str, protocol: str) -> None:
    results = await results_of(agent, protocol, answers_well)
    assert [(result.id, result.status, result.fix) for result in results] == [
        (f"{agent}.up.m.{name}", "ok", "") for name in AGENT_SHAPES[agent].shapes
    ], results


@agents
async def test_every_shape_works_with_the_demo_provider(agent: str) -> None:
    config = configured(
        '[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.demo-1]\n'
        '[routing]\ndefault = ["demo.demo-1"]\n'
    )
    async with open_gateway(config, server=None, environ={}) as gateway:
        facts = [target_facts(config, "demo.demo-1")]
        runs = run_agent(agent, AGENT_SHAPES[agent], facts, gateway=gateway, offline=True)
        assert set(statuses([result async for result in runs]).values()) == {"ok"}


@agents
async def test_the_gateway_sees_the_role_of_each_shape(agent: str) -> None:
    async with gateway_before("chat", partial(answers_well, "chat")) as (_, gateway, _up):
        for name, build in AGENT_SHAPES[agent].shapes.items():
            if name == "count_tokens":
                continue
            shape = build(GIVEN)
            reply = await gateway.post(shape.path, shape.headers, shape.body)
            assert (name, reply.headers["x-routecodex-role"]) == (name, ROLES.get(name, "main"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_turn_after_a_tool_call_sends_back_what_was_served(protocol: str) -> None:
    seen: list[Request] = []

    def model(protocol: str, request: Request) -> Answer:
        seen.append(request)
        return answers_well(protocol, request)

    results = await results_of("claude", protocol, model)
    assert statuses(results)["tool_result"] == "ok"
    texts = [request.body.decode() for request in seen if not is_count(request)]
    assert [("notes.txt" in text, "harvest festival" in text) for text in texts[:3]] == [
        (False, False),
        (True, False),
        (True, True),
    ]


async def test_codex_goes_on_after_a_compaction_with_its_summary() -> None:
    seen: list[str] = []

    def model(protocol: str, request: Request) -> Answer:
        seen.append(request.body.decode())
        if "CONTEXT CHECKPOINT" in seen[-1]:
            return answers.text(protocol, "A SUMMARY OF IT", stream=True)
        return answers_well(protocol, request)

    results = await results_of("codex", "responses", model)
    assert statuses(results)["compaction"] == "ok"
    assert "A SUMMARY OF IT" in seen[-1]
    assert len(seen) == len(results) + 1


async def test_a_failure_after_the_compaction_of_codex_fails_the_compaction() -> None:
    def model(protocol: str, request: Request) -> Answer:
        if "Another language model" in request.body.decode():
            return answers.error(protocol, 400, "the summary is not welcome")
        return answers_well(protocol, request)

    result = (await results_of("codex", "responses", model))[-1]
    assert (result.id, result.status) == ("codex.up.m.compaction", "fail")
    assert result.message.startswith("the turn after it: HTTP 400: ")


async def test_offline_sends_nothing_to_a_provider_elsewhere() -> None:
    config = configured(
        '[providers.far]\nprotocol = "chat"\nbase_url = "https://far.invalid/v1"\n'
        'auth = [{ value = "secret-far" }]\n[providers.far.models.m]\n[routing]\ndefault = ["far.m"]\n'
    )
    async with gateway_before("chat", partial(answers_well, "chat")) as (_, gateway, upstream):
        facts = [target_facts(config, "far.m")]
        runs = run_agent("pi", AGENT_SHAPES["pi"], facts, gateway=gateway, offline=True)
        results = [result async for result in runs]
        assert upstream.requests == []
    assert set(statuses(results).values()) == {"skip"}
    assert results[0].message == "far is not on this machine, and --offline is set"
