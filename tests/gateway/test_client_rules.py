"""What a client may use and which instructions act, seen by the client: plans, lists, force, sticky, tags."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.instruction_gateway import (
    DEFAULT_TARGET,
    OPERATOR,
    PROTOCOLS,
    InstructionHarness,
    answer_text,
    instruction_gateway,
)
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json

CLIENTS = """
[teams.small]
allow = {{ models = ["air", "eye.*"] }}
instructions = ["status", "routing"]
[clients.all]
key = "key-all"
[clients.glm]
key = "key-glm"
allow = {{ providers = ["glm"] }}
[clients.member]
key = "key-member"
team = "small"
allow = {{ providers = ["glm", "gpt"] }}
instructions = ["routing", "clock"]
[clients.coder]
key = "key-coder"
allow = {{ routes = ["coding"] }}
[clients.nothing]
key = "key-nothing"
allow = {{ models = ["no-such-model"] }}
[clients.silent]
key = "key-silent"
instructions = "none"
[clients.stopper]
key = "key-stopper"
instructions = ["stop_message"]
""".format()

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


def headers(name: str, session: str = "s-1") -> dict[str, str]:
    return {"authorization": f"Bearer key-{name}", "x-session-id": session}


async def say(harness: InstructionHarness, name: str, text: str = "Hello", **more: Any) -> Answer:
    return await harness.send(text, headers=headers(name), **more)


def refused(answer: Answer) -> tuple[int, str, dict[str, Any]]:
    assert answer.headers["x-should-retry"] == "false"
    return answer.status, answer.json["code"], answer.json["details"]


GLM_ONLY = {"client": "glm", "allow": {"providers": ["glm"], "models": ["*"], "routes": ["*"]}}


@protocols
async def test_what_is_not_allowed_is_not_in_the_plan(protocol: str) -> None:
    async with instruction_gateway(protocol, more=CLIENTS) as harness:
        for name in ("all", "glm", "member", "coder"):
            assert (await say(harness, name)).status == 200
        assert [model for _, model in harness.sent_targets] == ["gpt-5.2", "air", "air", "glm-4.7"]


@protocols
async def test_a_model_that_is_named_and_not_allowed_is_a_403_with_what_is(protocol: str) -> None:
    async with instruction_gateway(protocol, more=CLIENTS) as harness:
        answer = await say(harness, "glm", model="gpt.gpt-5.2")
        assert refused(answer) == (403, "not_allowed", GLM_ONLY)
        assert "may not use gpt.gpt-5.2" in answer.json["error"]["message"]
        assert (await say(harness, "glm", model="glm.glm-4.7")).status == 200
        assert len(harness.requests) == 1


@protocols
async def test_with_nothing_left_every_request_is_a_403(protocol: str) -> None:
    async with instruction_gateway(protocol, more=CLIENTS) as harness:
        for stream in (False, True):
            status, code, details = refused(await say(harness, "nothing", stream=stream))
            assert (status, code, details["allow"]["models"]) == (403, "not_allowed", ["no-such-model"])
        assert harness.requests == []


async def test_a_target_that_is_not_allowed_cannot_be_forced_set_or_allowed_by_instruction() -> None:
    async with instruction_gateway(more=CLIENTS) as harness:
        for tag in ("gpt.gpt-5.2", "!gpt.gpt-5.2", "!gpt", "gpt.1", "#gpt"):
            answer = await say(harness, "glm", f"<**{tag}**> Hello")
            assert refused(answer) == (403, "not_allowed", GLM_ONLY), tag
        assert harness.requests == []
        unknown = await say(harness, "glm", "<**nobody.x**> Hello")
        assert (unknown.status, unknown.json["code"]) == (404, "PROVIDER_NOT_AVAILABLE")
        assert (await say(harness, "glm", "<**glm.glm-4.7**> Hello")).status == 200
        assert harness.last_target[1] == "glm-4.7"


async def test_an_operators_sticky_target_does_not_exist_for_a_client_that_may_not_use_it() -> None:
    async with instruction_gateway(more=CLIENTS) as harness:
        await harness.change_routing(sticky="gpt.gpt-5.2")
        await say(harness, "glm")
        assert harness.last_target[1] == "air"
        await say(harness, "all")
        assert harness.last_target == DEFAULT_TARGET


async def listed(harness: InstructionHarness, name: str, path: str = "/v1/models") -> set[str]:
    answer = await call(harness.gateway.port, path, method="GET", headers=headers(name))
    assert answer.status == 200
    rows = answer.json.get("data") or answer.json.get("models") or []
    return {row.get("id") or row["name"] for row in rows}


async def test_the_model_list_has_what_the_client_may_use() -> None:
    aliases = '[models]\n"fast" = "glm.air"\n"smart" = "gpt.gpt-5.2"\n"code" = "route:coding"\n'
    async with instruction_gateway(more=CLIENTS + aliases) as harness:
        assert await listed(harness, "glm") == {"glm.glm-4.7", "glm.air", "fast", "code"}
        assert await listed(harness, "coder") == {"glm.glm-4.7", "code"}
        assert await listed(harness, "nothing") == set()
        assert "gpt.gpt-5.2" in await listed(harness, "all")
        assert await listed(harness, "member", "/v1beta/models") == {"models/glm.air", "models/fast"}
        for name, status in (("glm", 404), ("all", 200)):
            answer = await call(
                harness.gateway.port, "/v1/models/gpt.gpt-5.2", method="GET", headers=headers(name)
            )
            assert answer.status == status


async def test_an_alias_of_a_refused_target_is_refused_and_of_an_allowed_one_is_not() -> None:
    aliases = '[models]\n"fast" = "glm.air"\n"smart" = "gpt.gpt-5.2"\n"see" = "route:vision"\n'
    async with instruction_gateway(more=CLIENTS + aliases) as harness:
        assert [
            (await say(harness, "glm", model=model)).status for model in ("fast", "smart", "see", "other")
        ] == [*(200, 403, 403, 200)]


async def test_naming_a_model_does_not_lead_around_allowed_routes() -> None:
    async with instruction_gateway(more=CLIENTS) as harness:
        assert (await say(harness, "coder", model="glm.air")).status == 403
        assert (await say(harness, "coder", "<**glm.air**> Hello")).status == 403
        assert harness.requests == []


async def test_embeddings_and_token_counts_are_planned_by_the_same_rules() -> None:
    async with instruction_gateway("chat", more=CLIENTS) as harness:
        port = harness.gateway.port
        body = {"model": "gpt.gpt-5.2", "input": "x"}
        answer = await call(port, "/v1/embeddings", body, headers=headers("glm"))
        assert refused(answer) == (403, "not_allowed", GLM_ONLY)
        message = {"model": "gpt.gpt-5.2", "messages": [{"role": "user", "content": "x"}]}
        answer = await call(port, "/v1/messages/count_tokens", message, headers=headers("glm"))
        assert refused(answer) == (403, "not_allowed", GLM_ONLY)
        assert harness.requests == []


async def test_explain_shows_the_plan_of_a_client() -> None:
    async with instruction_gateway(more=CLIENTS) as harness:
        body = {"protocol": "chat", "body": {"model": "auto", "messages": [{"role": "user", "content": "x"}]}}
        answer = await call(
            harness.gateway.port, "/admin/explain", {**body, "client": "glm"}, headers=OPERATOR
        )
        assert {step["target"] for step in answer.json["steps"]} == {"glm.a.air", "glm.b.air"}


async def test_status_shows_the_health_of_allowed_providers_only() -> None:
    async with instruction_gateway(more=CLIENTS) as harness:
        harness.replies_by_key = {
            key: Json(401, {"error": {"message": "bad key"}}) for key in ("key-gpt-1", "key-gpt-2")
        }
        await say(harness, "all")
        shown = {
            name: answer_text("chat", await say(harness, name, "<**status**>"), stream=False)
            for name in ("all", "glm")
        }
        assert "gpt." in shown["all"]
        assert "gpt." not in shown["glm"]


NOTICE = "instruction ignored: not allowed"


@protocols
async def test_tags_that_may_not_act_are_stripped_with_a_notice(protocol: str) -> None:
    async with instruction_gateway(protocol, more=CLIENTS) as harness:
        answer = await say(harness, "silent", "<**!glm.glm-4.7**> Hello")
        assert (answer.status, answer.headers["x-routecodex-notice"]) == (200, NOTICE)
        assert harness.last_target == DEFAULT_TARGET
        assert b"<**" not in harness.requests[-1].body
        await say(harness, "silent")
        assert harness.last_target == DEFAULT_TARGET


@protocols
async def test_a_message_of_such_tags_alone_is_answered_by_the_gateway(protocol: str) -> None:
    async with instruction_gateway(protocol, more=CLIENTS) as harness:
        answer = await say(harness, "silent", "<**status**>")
        assert answer_text(protocol, answer, stream=False) == f"[RouteCodex] nothing is set.\n- {NOTICE}"
        assert harness.requests == []


KINDS = [
    ("stopper", '<**stopMessage:"go on",1**>', True),
    ("stopper", "<**!glm.air**>", False),
    ("stopper", "<**agents:!glm.air**>", False),
    ("stopper", "<**clock:clear**>", False),
    ("stopper", "<**status**>", False),
    ("stopper", "<**help**>", False),
    ("member", "<**!glm.air**>", True),
    ("member", "<**#glm.1**>", True),
    ("member", "<**clear**>", True),
    ("member", "<**clock:clear**>", False),
    ("member", "<**status**>", False),
    ("all", "<**clock:clear**>", True),
    ("all", "<**status**>", True),
]


@pytest.mark.parametrize(("name", "tag", "acts"), KINDS)
async def test_instructions_act_by_their_kind_the_stricter_of_client_and_team(
    name: str, tag: str, acts: bool
) -> None:
    async with instruction_gateway(more=CLIENTS) as harness:
        text = answer_text("chat", await say(harness, name, tag), stream=False)
        assert (NOTICE not in text) == acts


async def test_of_several_tags_those_that_may_act_do() -> None:
    async with instruction_gateway(more=CLIENTS) as harness:
        answer = await say(harness, "member", "<**glm.2.air**> <**status**> Hello")
        assert answer.headers["x-routecodex-notice"] == NOTICE
        assert harness.last_target == ("key-glm-b", "air")


async def test_malformed_tags_are_not_explained_to_a_client_without_instructions() -> None:
    async with instruction_gateway(more=CLIENTS) as harness:
        answer = await say(harness, "silent", "<**!**> Hello")
        assert answer.headers["x-routecodex-notice"] == NOTICE
        answer = await say(harness, "stopper", "<**!**> Hello")
        assert "instruction ignored: <**!**>" in answer.headers["x-routecodex-notice"]
