"""Sticky targets, allow lists and what is disabled, over HTTP: which key and model a request really gets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.instruction_gateway import DEFAULT, PROTOCOLS, World, steered, target, told, turns
from tests.kit import answers, asking
from tests.kit.raw_client import Answer
from tests.routing.instruction_texts import Step

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

A, B = ("key-glm-a", "glm-4.7"), ("key-glm-b", "glm-4.7")
EYE = ("key-eye-1", "seer")
STICKY = "<**!glm.glm-4.7**> hi"
WROTE: tuple[Step, ...] = (("user", "do it"), ("call", "Write", {"path": "f"}), ("result", "done"))
SEARCHES: dict[str, dict[str, Any]] = {
    "chat": {"web_search_options": {}},
    "responses": {"tools": [{"type": "web_search"}]},
    "messages": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "gemini": {"tools": [{"googleSearch": {}}]},
}


def limited(protocol: str, seconds: int = 500) -> Any:
    return answers.error(protocol, 429, "slow down", retry_after=str(seconds))


async def ask(world: World, *steps: Step | str, **more: Any) -> Answer:
    answer = await world.say(*steps, **more)
    assert answer.status == 200, answer.body
    return answer


@streams
@protocols
async def test_all_keys_of_a_sticky_model_take_their_turns(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        answer = await ask(world, STICKY, stream=stream)
        asking.check(protocol, answer, stream=stream)
        for text in ("one", "two", "three"):
            await ask(world, text, stream=stream)
        assert world.sent in ([A, B, A, B], [B, A, B, A])
        assert told(answer) == {
            "route": "coding",
            "target": target(answer),
            "reason": "sticky glm.glm-4.7",
        }


@protocols
async def test_one_sticky_key_is_the_only_one(protocol: str) -> None:
    async with steered(protocol) as world:
        for text in ("<**!glm.b.glm-4.7**> hi", "one", "two"):
            await ask(world, text)
        assert world.sent == [B, B, B]


async def test_sticky_overrides_the_class_of_the_request_and_the_model_it_names() -> None:
    async with steered() as world:
        await ask(world, "<**!gpt.1**> hi")
        wrote = await ask(world, *WROTE)
        named = await ask(world, "hi", model="glm.glm-4.7")
        assert world.sent == [DEFAULT] * 3
        assert [told(answer)["route"] for answer in (wrote, named)] == ["default", "default"]


async def test_a_sticky_target_that_stands_in_no_route_works() -> None:
    async with steered() as world:
        await ask(world, "<**!spare.one**> hi")
        assert told(await ask(world, "more")) == {
            "route": "sticky",
            "target": "spare.key1.one",
            "reason": "sticky spare.one",
        }


@streams
@protocols
async def test_vision_web_search_and_longcontext_come_before_sticky(protocol: str, stream: bool) -> None:
    async with steered(protocol, long=20_000) as world:
        await ask(world, STICKY, stream=stream)
        special = [
            await ask(world, ("image", "what is it?"), stream=stream),
            await ask(world, "what is new?", stream=stream, **SEARCHES[protocol]),
            await ask(world, "long " * 30_000, stream=stream),
        ]
        assert [told(answer)["route"] for answer in special] == ["vision", "web_search", "longcontext"]
        assert world.sent[1:] == [EYE] * 3
        await ask(world, ("image", "what is it?"), ("assistant", "a cat"), ("user", "sure?"), stream=stream)
        assert world.last in (A, B)
        assert await world.state() == {"sticky": "glm.glm-4.7"}


async def test_the_sticky_keys_come_next_when_the_special_route_fails() -> None:
    async with steered() as world:
        world.refuses["key-eye-1"] = limited("chat")
        await ask(world, STICKY)
        answer = await ask(world, ("image", "what is it?"))
        assert world.sent[1] == EYE
        assert world.last in (A, B)
        assert (target(answer)[:4], await world.state()) == ("glm.", {"sticky": "glm.glm-4.7"})


@protocols
async def test_a_host_may_ignore_sticky_for_one_request(protocol: str) -> None:
    home, yes = ("labels", "true") if protocol == "gemini" else ("metadata", True)
    async with steered(protocol) as world:
        await ask(world, STICKY)
        await ask(world, "hi", **{home: {"disableStickyRoutes": yes}})
        assert (world.last, await world.state()) == (DEFAULT, {"sticky": "glm.glm-4.7"})
        assert home not in world.requests[-1].json
        await ask(world, "hi")
        assert world.last in (A, B)


@streams
@protocols
async def test_a_sticky_key_that_fails_leaves_the_others(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        world.refuses["key-glm-a"] = limited(protocol)
        for text in (STICKY, "one", "two"):
            await ask(world, text, stream=stream)
        assert [sent for sent in world.sent if sent != A] == [B, B, B]
        assert world.sent.count(A) <= 1
        assert await world.state() == {"sticky": "glm.glm-4.7"}


@streams
@protocols
async def test_a_sticky_target_without_any_key_left_is_cleared(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        world.refuses |= {"key-glm-a": limited(protocol), "key-glm-b": limited(protocol)}
        refused = await world.say("<**glm.glm-4.7**> hi", headers={"x-session-id": "s-0"}, stream=stream)
        assert refused.status == 429
        world.requests.clear()
        answer = await ask(world, "<**!glm.glm-4.7**><**#gpt.1**> hi", stream=stream)
        assert told(answer)["reason"].startswith(
            "sticky glm.glm-4.7 cleared, none of its keys can be used; the newest message is the user's"
        )
        assert await world.state() == {"disable": ["gpt.1"]}
        world.refuses.clear()
        await ask(world, *turns("<**!glm.glm-4.7**><**#gpt.1**> hi", "and now?"), stream=stream)
        assert world.sent == [("key-gpt-2", "gpt-5.2")] * 2


async def test_a_failure_that_passes_does_not_clear_sticky() -> None:
    async with steered() as world:
        world.refuses |= {"key-glm-a": answers.error("chat", 500), "key-glm-b": answers.error("chat", 500)}
        answer = await ask(world, STICKY)
        assert set(world.sent) == {A, B, DEFAULT}
        assert told(answer)["reason"].startswith(
            "sticky glm.glm-4.7 skipped, none of its keys can be used"
        )
        world.refuses.clear()
        await ask(world, "hi")
        assert (world.last in (A, B), await world.state()) == (True, {"sticky": "glm.glm-4.7"})


async def test_a_rejected_request_leaves_sticky_as_it_was() -> None:
    async with steered() as world:
        world.refuses |= {key: answers.error("chat", 400) for key in ("key-glm-a", "key-glm-b")}
        assert (await world.say(STICKY)).status == 400
        assert (len(world.sent), await world.state()) == (1, {"sticky": "glm.glm-4.7"})


@protocols
async def test_disabled_keys_are_left_out_of_sticky_and_of_force(protocol: str) -> None:
    async with steered(protocol) as world:
        for text in ("<**!glm.glm-4.7**><**#glm.a**> hi", "one", "<**glm.glm-4.7**> two"):
            await ask(world, text)
        assert world.sent == [B, B, B]


@protocols
async def test_the_allow_list_filters_the_table_and_the_named_model_only(protocol: str) -> None:
    async with steered(protocol) as world:
        await ask(world, "<**!gpt**> hi")
        wrote = await ask(world, *WROTE)
        named = await ask(world, "hi", model="glm.glm-4.7")
        assert world.sent == [DEFAULT] * 3
        assert told(named)["notice"] == "glm.glm-4.7 is not in the allow list gpt"
        assert "notice" not in told(wrote)
        forced = await ask(world, "<**eye.seer**> hi")
        assert (world.last, told(forced)["route"]) == (EYE, "force")


async def test_a_route_the_host_asks_for_counts_when_the_named_model_is_not_allowed() -> None:
    async with steered() as world:
        await ask(world, "<**!glm**> hi")
        await ask(world, "hi", model="gpt.gpt-5.2", metadata={"routeHint": "coding"})
        assert world.last in (A, B)


async def test_the_operators_rules_hold_for_all_and_a_session_cannot_lift_what_is_disabled() -> None:
    async with steered() as world:
        await world.operate(disable=["gpt"], sticky="!glm.a.glm-4.7")
        await ask(world, "<**@gpt**> hi")
        await ask(world, "hi", headers={"x-session-id": "s-2"})
        assert world.sent == [A, A]
        await ask(world, "<**!glm.b.glm-4.7**> hi")
        assert world.last == B
        await ask(world, "<**!eye**> hi", headers={"x-session-id": "s-3"})
        assert world.last == EYE
        refused = await world.say("<**gpt.1**> hi")
        assert (refused.status, refused.json["details"]) == (403, {"provider": "gpt", "reason": "disabled"})


async def test_the_operators_sticky_target_is_not_cleared_by_a_request() -> None:
    async with steered() as world:
        await world.operate(sticky="glm.glm-4.7")
        world.refuses |= {"key-glm-a": limited("chat"), "key-glm-b": limited("chat")}
        for _ in range(2):
            await ask(world, "hi")
        answer = await ask(world, "hi")
        assert told(answer)["reason"].startswith("sticky glm.glm-4.7 skipped")
        assert (await world.operate(enable=["gpt"]))["routing"]["sticky"] == "glm.glm-4.7"
