"""Targets that cannot be used, over HTTP: the code and details, the protocol's own error, nothing applied."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.instruction_gateway import DEFAULT, PROTOCOLS, World, steered, target, told
from tests.kit import answers, grammar
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


def seen(protocol: str, answer: Answer) -> tuple[int, str, dict[str, Any]]:
    """Status, message and details of a refusal, once its envelope is found right."""
    grammar.check_error(protocol, answer.status, answer.body)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["code"] == "PROVIDER_NOT_AVAILABLE"
    return answer.status, answer.json["error"]["message"], answer.json["details"]


def unknown(name: str) -> tuple[int, str, dict[str, Any]]:
    return 404, f"Requested provider {name} not found in provider registry", {"provider": name}


def disabled(name: str) -> tuple[int, str, dict[str, Any]]:
    details = {"provider": name, "reason": "disabled"}
    return 403, f"Requested provider {name} is disabled", details


@streams
@protocols
async def test_an_unknown_name_is_refused_and_nothing_of_the_message_applied(
    protocol: str, stream: bool
) -> None:
    async with steered(protocol) as world:
        await world.say("<**!glm.2**><**#eye**>", stream=stream)
        before = await world.state()
        for place, (text, name) in enumerate(UNKNOWN.items()):
            again = await world.say(text, stream=stream)
            assert (text, seen(protocol, again)) == (text, unknown(name))
            assert (place, await world.state()) == (place, before)
    assert (before, world.requests) == ({"sticky": "glm.2", "disable": ["eye"]}, [])


@protocols
async def test_after_a_refusal_the_next_message_is_heard(protocol: str) -> None:
    async with steered(protocol) as world:
        for _ in range(2):
            assert (await world.say("<**!glm.2**><**nobody**> hi")).status == 404
        corrected = await world.say("<**!glm.2**> hi")
        assert (corrected.status, world.sent) == (200, [("key-glm-b", "air")])


@streams
@protocols
async def test_a_forced_target_that_is_disabled_is_an_error(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        await world.say("<**#gpt,glm.a**> hi", stream=stream)
        cases = {
            "<**gpt.gpt-5.2**> hi": disabled("gpt"),
            "<**gpt.1**> hi": disabled("gpt"),
            "<**glm.a.air**> hi": disabled("glm.a.air"),
            "<**glm.1.air**> hi": disabled("glm.a.air"),
        }
        for text, expected in cases.items():
            assert (text, seen(protocol, await world.say(text, stream=stream))) == (text, expected)
        assert world.sent == [("key-glm-b", "air")]
        forced = await world.say("<**glm.air**> hi", stream=stream)
        assert (forced.status, world.last) == (200, ("key-glm-b", "air"))


@streams
@protocols
async def test_a_named_model_that_is_disabled_is_an_error(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        await world.say("<**#gpt**>", stream=stream)
        refused = await world.say("hi", model="gpt.gpt-5.2", stream=stream)
        assert seen(protocol, refused) == disabled("gpt")
        await world.operate(disable=["glm.air"])
        refused = await world.say("hi", model="glm.air", stream=stream)
        assert (refused.status, refused.json["details"]["reason"]) == (403, "disabled")
    assert world.requests == []


@protocols
async def test_everything_disabled_is_an_error(protocol: str) -> None:
    async with steered(protocol) as world:
        assert seen(protocol, await world.say("<**#gpt,glm**> hi")) == disabled("gpt")
        assert await world.state() == {"disable": ["gpt", "glm"]}
        lifted = await world.say("<**@gpt**> hi")
        assert (lifted.status, world.sent) == (200, [DEFAULT])


@streams
@protocols
async def test_an_allow_list_that_leaves_no_target_is_an_error(protocol: str, stream: bool) -> None:
    message = "No route has a target that the allow list permits (spare); <**clear**> clears the list"
    expected = (403, message, {"provider": "spare", "reason": "not_allowed"})
    async with steered(protocol) as world:
        assert seen(protocol, await world.say("<**!spare**> hi", stream=stream)) == expected
        assert seen(protocol, await world.say("more", stream=stream)) == expected
        forced = await world.say("<**spare.one**> hi", stream=stream)
        assert (forced.status, world.sent) == (200, [("key-spare-1", "one")])
        assert seen(protocol, await world.say("again", stream=stream)) == expected
        cleared = await world.say("<**clear**> hi", stream=stream)
        assert (cleared.status, world.last) == (200, DEFAULT)


async def unhealthy(world: World, protocol: str, *, stream: bool) -> None:
    """Both keys of glm meet a limit."""
    limit = answers.error(protocol, 429, "slow down", retry_after="45")
    world.refuses |= {"key-glm-a": limit, "key-glm-b": limit}
    refused = await world.say("<**glm.air**> hi", stream=stream)
    assert (refused.status, "slow down" in refused.body.decode()) == (429, True)
    world.requests.clear()


@streams
@protocols
async def test_a_forced_target_that_is_unhealthy_is_an_error_and_never_another(
    protocol: str, stream: bool
) -> None:
    async with steered(protocol) as world:
        await unhealthy(world, protocol, stream=stream)
        details = {"provider": "glm", "reason": "unhealthy"}
        message = "Requested provider glm is not available (health check failed)"
        for text in ("<**glm.air**> hi", "<**glm.1**> hi", "<**glm.b.glm-4.7**> hi"):
            refused = await world.say(text, stream=stream, headers={})
            assert (text, seen(protocol, refused)) == (text, (503, message, details))
            assert 40 <= int(refused.headers["retry-after"]) <= 45
        assert world.requests == []
        free = await world.say("hi", stream=stream, headers={})
        assert (free.status, world.sent) == (200, [DEFAULT])


@protocols
async def test_a_forced_target_that_fails_tells_what_the_provider_said(protocol: str) -> None:
    async with steered(protocol) as world:
        world.refuses["key-spare-1"] = answers.error(protocol, 500, "out of order")
        refused = await world.say("<**spare.one**> hi")
        grammar.check_error(protocol, refused.status, refused.body)
        assert (refused.status, "out of order" in refused.body.decode()) == (502, True)
        assert set(world.sent) == {("key-spare-1", "one")}


@protocols
async def test_an_answer_says_where_it_came_from_and_why(protocol: str) -> None:
    async with steered(protocol) as world:
        free = await world.say("hi", headers={})
        named = await world.say("hi", headers={}, model="glm.b.air")
    reason = "the newest message is the user's; route thinking has no usable target"
    assert told(free) == {"route": "default", "target": "gpt.key1.gpt-5.2", "reason": reason}
    assert told(named) == {
        "route": "direct",
        "target": "glm.b.air",
        "reason": "model glm.b.air names the target",
    }


@protocols
async def test_an_error_says_where_it_came_from_and_why(protocol: str) -> None:
    async with steered(protocol) as world:
        unheard = await world.say("<**nobody**> hi")
        world.refuses["key-spare-1"] = answers.error(protocol, 500, "out of order")
        failed = await world.say("<**spare.one**> hi")
        await world.operate(disable=["glm"])
        barred = await world.say("hi", model="glm.air", headers={})
        wrong = await world.post(b"{", headers={})
    assert [told(answer) for answer in (unheard, failed, barred)] == [
        {"route": "gateway", "target": "gateway", "reason": unknown("nobody")[1]},
        {"route": "force", "target": "spare.key1.one", "reason": "this message asks for spare.one"},
        {"route": "gateway", "target": "gateway", "reason": disabled("glm")[1]},
    ]
    assert (wrong.status, target(wrong)) == (400, "gateway")
