"""Targets that cannot be used, over HTTP: code, details, the protocol's error, and no change of state."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.protocols import grammar
from tests.gateway.instruction_gateway import (
    DEFAULT_TARGET,
    PROTOCOLS,
    InstructionHarness,
    instruction_gateway,
    routing_headers,
    target,
)
from tests.kit import answers
from tests.kit.raw_client import Answer

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

UNKNOWN: dict[str, str] = {
    "<**not.found**> hi": "not.found",
    "<**nobody**> hi": "nobody",
    "<**!nobody**> hi": "nobody",
    "<**!glm,nobody**> hi": "nobody",
    "<**!nobody.x**> hi": "nobody.x",
    "<**gpt.9**> hi": "gpt.9",
    "<**gpt.0**> hi": "gpt.0",
    "<**!gpt.99999999999999999999**> hi": "gpt.99999999999999999999",
    "<**gpt.nope**> hi": "gpt.nope",
    "<**glm.a.nope**> hi": "glm.a.nope",
    "<**!glm.c.air**> hi": "glm.c.air",
    "<**GLM**> hi": "GLM",
    "<**glm.Air**> hi": "glm.Air",
    "<**#gpt,nobody**> hi": "nobody",
    "<**#gpt.3**> hi": "gpt.3",
    "<**@nobody**> hi": "nobody",
    "<**nobody**>": "nobody",
    "<**status**><**nobody**>": "nobody",
    "<**#gpt**><**!glm.1**><**nobody**><**#eye**> hi": "nobody",
}


def read_error(protocol: str, answer: Answer) -> tuple[int, str, dict[str, Any]]:
    """Check the envelope of a refusal; return its status, message and details."""
    grammar.check_error(protocol, answer.status, answer.body)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["code"] == "PROVIDER_NOT_AVAILABLE"
    return answer.status, answer.json["error"]["message"], answer.json["details"]


NEAR = {"gpt": ["gpt.gpt-5.2"], "glm": ["glm.air", "glm.glm-4.7"]}
"""The models of the known providers; their order depends on the name."""


def unknown(name: str) -> tuple[int, str, dict[str, Any]]:
    return 404, f"Requested provider {name} not found in provider registry", {"provider": name}


def without_near(error: tuple[int, str, dict[str, Any]]) -> tuple[int, str, dict[str, Any]]:
    """Check the near targets of a refusal, which a known provider has; return it without them."""
    status, message, details = error
    near = details.pop("near", [])
    assert sorted(near) == NEAR.get(details["provider"].partition(".")[0], [])
    if near:
        message, _, listed = message.partition("; near: ")
        assert listed == ", ".join(near)
    return status, message, details


def disabled(name: str) -> tuple[int, str, dict[str, Any]]:
    details = {"provider": name, "reason": "disabled"}
    return 403, f"Requested provider {name} is disabled", details


@streams
@protocols
async def test_an_unknown_name_is_refused_and_nothing_of_the_message_applied(
    protocol: str, stream: bool
) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<**!glm.2**><**#eye**>", stream=stream)
        before = await harness.session_state()
        for place, (text, name) in enumerate(UNKNOWN.items()):
            again = await harness.send(text, stream=stream)
            assert (text, without_near(read_error(protocol, again))) == (text, unknown(name))
            assert (place, await harness.session_state()) == (place, before)
    assert (before, harness.requests) == ({"sticky": "glm.2", "disable": ["eye"]}, [])


@protocols
async def test_the_next_message_applies_after_a_refusal(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        for _ in range(2):
            assert (await harness.send("<**!glm.2**><**nobody**> hi")).status == 404
        corrected = await harness.send("<**!glm.2**> hi")
        assert (corrected.status, harness.sent_targets) == (200, [("key-glm-b", "air")])


@streams
@protocols
async def test_a_forced_target_that_is_disabled_is_an_error(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<**#gpt,glm.a**> hi", stream=stream)
        cases = {
            "<**gpt.gpt-5.2**> hi": disabled("gpt"),
            "<**gpt.1**> hi": disabled("gpt"),
            "<**glm.a.air**> hi": disabled("glm.a.air"),
            "<**glm.1.air**> hi": disabled("glm.a.air"),
        }
        for text, expected in cases.items():
            assert (text, read_error(protocol, await harness.send(text, stream=stream))) == (text, expected)
        assert harness.sent_targets == [("key-glm-b", "air")]
        forced = await harness.send("<**glm.air**> hi", stream=stream)
        assert (forced.status, harness.last_target) == (200, ("key-glm-b", "air"))


@streams
@protocols
async def test_a_body_model_that_a_known_provider_lacks_is_an_error_with_near_names(
    protocol: str, stream: bool
) -> None:
    message = "Requested provider glm.glm-4.8 not found in provider registry; near: glm.glm-4.7, glm.air"
    details = {"provider": "glm.glm-4.8", "near": ["glm.glm-4.7", "glm.air"]}
    async with instruction_gateway(protocol) as harness:
        refused = await harness.send("hi", model="glm.glm-4.8", stream=stream)
        assert read_error(protocol, refused) == (404, message, details)
        assert harness.requests == []
        free = await harness.send("hi", model="nobody.x", stream=stream)
        assert (free.status, harness.sent_targets) == (200, [DEFAULT_TARGET])
        pinned = await harness.send("<**!spare.one**> hi", model="glm.glm-4.8", stream=stream)
        assert (pinned.status, harness.last_target) == (200, ("key-spare-1", "one"))


@streams
@protocols
async def test_a_named_model_that_is_disabled_is_an_error(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<**#gpt**>", stream=stream)
        refused = await harness.send("hi", model="gpt.gpt-5.2", stream=stream)
        assert read_error(protocol, refused) == disabled("gpt")
        await harness.change_routing(disable=["glm.air"])
        refused = await harness.send("hi", model="glm.air", stream=stream)
        assert (refused.status, refused.json["details"]["reason"]) == (403, "disabled")
    assert harness.requests == []


@protocols
async def test_everything_disabled_is_an_error(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        assert read_error(protocol, await harness.send("<**#gpt,glm**> hi")) == disabled("gpt")
        assert await harness.session_state() == {"disable": ["gpt", "glm"]}
        lifted = await harness.send("<**@gpt**> hi")
        assert (lifted.status, harness.sent_targets) == (200, [DEFAULT_TARGET])


@streams
@protocols
async def test_an_allow_list_that_leaves_no_target_is_an_error(protocol: str, stream: bool) -> None:
    message = "No route has a target that the allow list permits (spare); <**clear**> clears the list"
    expected = (403, message, {"provider": "spare", "reason": "not_allowed"})
    async with instruction_gateway(protocol) as harness:
        assert read_error(protocol, await harness.send("<**!spare**> hi", stream=stream)) == expected
        assert read_error(protocol, await harness.send("more", stream=stream)) == expected
        forced = await harness.send("<**spare.one**> hi", stream=stream)
        assert (forced.status, harness.sent_targets) == (200, [("key-spare-1", "one")])
        assert read_error(protocol, await harness.send("again", stream=stream)) == expected
        cleared = await harness.send("<**clear**> hi", stream=stream)
        assert (cleared.status, harness.last_target) == (200, DEFAULT_TARGET)


async def unhealthy(harness: InstructionHarness, protocol: str, *, stream: bool) -> None:
    """Put both keys of glm into cooldown."""
    limit = answers.error(protocol, 429, "slow down", retry_after="45")
    harness.replies_by_key |= {"key-glm-a": limit, "key-glm-b": limit}
    refused = await harness.send("<**glm.air**> hi", stream=stream)
    assert (refused.status, "slow down" in refused.body.decode()) == (429, True)
    harness.requests.clear()


@streams
@protocols
async def test_a_forced_target_that_is_unhealthy_is_an_error_and_never_another(
    protocol: str, stream: bool
) -> None:
    async with instruction_gateway(protocol) as harness:
        await unhealthy(harness, protocol, stream=stream)
        details = {"provider": "glm", "reason": "unhealthy"}
        message = "Requested provider glm is not available (health check failed)"
        for text in ("<**glm.air**> hi", "<**glm.1**> hi", "<**glm.b.glm-4.7**> hi"):
            refused = await harness.send(text, stream=stream, headers={})
            assert (text, read_error(protocol, refused)) == (text, (503, message, details))
            assert 40 <= int(refused.headers["retry-after"]) <= 45
        assert harness.requests == []
        free = await harness.send("hi", stream=stream, headers={})
        assert (free.status, harness.sent_targets) == (200, [DEFAULT_TARGET])


@protocols
async def test_a_forced_target_that_fails_returns_the_error_of_the_provider(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        harness.replies_by_key["key-spare-1"] = answers.error(protocol, 500, "out of order")
        refused = await harness.send("<**spare.one**> hi")
        grammar.check_error(protocol, refused.status, refused.body)
        assert (refused.status, "out of order" in refused.body.decode()) == (502, True)
        assert set(harness.sent_targets) == {("key-spare-1", "one")}


@protocols
async def test_an_answer_names_its_target_and_reason(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        free = await harness.send("hi", headers={})
        named = await harness.send("hi", headers={}, model="glm.b.air")
    reason = "the newest message is the user's; route thinking has no usable target"
    assert routing_headers(free) == {"route": "default", "target": "gpt.key1.gpt-5.2", "reason": reason}
    assert routing_headers(named) == {
        "route": "direct",
        "target": "glm.b.air",
        "reason": "model glm.b.air names the target",
    }


@protocols
async def test_an_error_names_its_target_and_reason(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        unheard = await harness.send("<**nobody**> hi")
        harness.replies_by_key["key-spare-1"] = answers.error(protocol, 500, "out of order")
        failed = await harness.send("<**spare.one**> hi")
        await harness.change_routing(disable=["glm"])
        barred = await harness.send("hi", model="glm.air", headers={})
        wrong = await harness.post(b"{", headers={})
    assert [routing_headers(answer) for answer in (unheard, failed, barred)] == [
        {"route": "gateway", "target": "gateway", "reason": unknown("nobody")[1]},
        {"route": "force", "target": "spare.key1.one", "reason": "this message asks for spare.one"},
        {"route": "gateway", "target": "gateway", "reason": disabled("glm")[1]},
    ]
    assert (wrong.status, target(wrong)) == (400, "gateway")
