"""Sticky targets, allow lists and disabled targets over HTTP: the key and model of each upstream request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.instruction_gateway import (
    DEFAULT_TARGET,
    PROTOCOLS,
    InstructionHarness,
    instruction_gateway,
    routing_headers,
    target,
    user_turns,
)
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


async def send(harness: InstructionHarness, *steps: Step | str, **more: Any) -> Answer:
    answer = await harness.send(*steps, **more)
    assert answer.status == 200, answer.body
    return answer


@streams
@protocols
async def test_all_keys_of_a_sticky_model_take_their_turns(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await send(harness, STICKY, stream=stream)
        asking.check(protocol, answer, stream=stream)
        for text in ("one", "two", "three"):
            await send(harness, text, stream=stream)
        assert harness.sent_targets in ([A, B, A, B], [B, A, B, A])
        assert routing_headers(answer) == {
            "route": "coding",
            "target": target(answer),
            "reason": "sticky glm.glm-4.7",
        }


@protocols
async def test_one_sticky_key_is_the_only_one(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        for text in ("<**!glm.b.glm-4.7**> hi", "one", "two"):
            await send(harness, text)
        assert harness.sent_targets == [B, B, B]


async def test_sticky_overrides_the_class_of_the_request_and_the_model_it_names() -> None:
    async with instruction_gateway() as harness:
        await send(harness, "<**!gpt.1**> hi")
        wrote = await send(harness, *WROTE)
        named = await send(harness, "hi", model="glm.glm-4.7")
        assert harness.sent_targets == [DEFAULT_TARGET] * 3
        assert [routing_headers(answer)["route"] for answer in (wrote, named)] == ["default", "default"]


async def test_a_sticky_target_outside_of_every_route_works() -> None:
    async with instruction_gateway() as harness:
        await send(harness, "<**!spare.one**> hi")
        assert routing_headers(await send(harness, "more")) == {
            "route": "sticky",
            "target": "spare.key1.one",
            "reason": "sticky spare.one",
        }


@streams
@protocols
async def test_vision_web_search_and_longcontext_come_before_sticky(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol, long=20_000) as harness:
        await send(harness, STICKY, stream=stream)
        special = [
            await send(harness, ("image", "what is it?"), stream=stream),
            await send(harness, "what is new?", stream=stream, **SEARCHES[protocol]),
            await send(harness, "long " * 30_000, stream=stream),
        ]
        assert [routing_headers(answer)["route"] for answer in special] == [
            "vision",
            "web_search",
            "longcontext",
        ]
        assert harness.sent_targets[1:] == [EYE] * 3
        await send(
            harness, ("image", "what is it?"), ("assistant", "a cat"), ("user", "sure?"), stream=stream
        )
        assert harness.last_target in (A, B)
        assert await harness.session_state() == {"sticky": "glm.glm-4.7"}


async def test_the_sticky_keys_come_next_when_the_special_route_fails() -> None:
    async with instruction_gateway() as harness:
        harness.replies_by_key["key-eye-1"] = limited("chat")
        await send(harness, STICKY)
        answer = await send(harness, ("image", "what is it?"))
        assert harness.sent_targets[1] == EYE
        assert harness.last_target in (A, B)
        assert (target(answer)[:4], await harness.session_state()) == ("glm.", {"sticky": "glm.glm-4.7"})


@protocols
async def test_a_host_may_ignore_sticky_for_one_request(protocol: str) -> None:
    home, yes = ("labels", "true") if protocol == "gemini" else ("metadata", True)
    async with instruction_gateway(protocol) as harness:
        await send(harness, STICKY)
        await send(harness, "hi", **{home: {"disableStickyRoutes": yes}})
        assert (harness.last_target, await harness.session_state()) == (
            DEFAULT_TARGET,
            {"sticky": "glm.glm-4.7"},
        )
        assert home not in harness.requests[-1].json
        await send(harness, "hi")
        assert harness.last_target in (A, B)


@streams
@protocols
async def test_a_sticky_key_that_fails_leaves_the_others(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        harness.replies_by_key["key-glm-a"] = limited(protocol)
        for text in (STICKY, "one", "two"):
            await send(harness, text, stream=stream)
        assert [sent for sent in harness.sent_targets if sent != A] == [B, B, B]
        assert harness.sent_targets.count(A) <= 1
        assert await harness.session_state() == {"sticky": "glm.glm-4.7"}


@streams
@protocols
async def test_a_sticky_target_without_any_key_left_is_cleared(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        harness.replies_by_key |= {"key-glm-a": limited(protocol), "key-glm-b": limited(protocol)}
        refused = await harness.send("<**glm.glm-4.7**> hi", headers={"x-session-id": "s-0"}, stream=stream)
        assert refused.status == 429
        harness.requests.clear()
        answer = await send(harness, "<**!glm.glm-4.7**><**#gpt.1**> hi", stream=stream)
        assert routing_headers(answer)["reason"].startswith(
            "sticky glm.glm-4.7 cleared, none of its keys can be used; the newest message is the user's"
        )
        assert await harness.session_state() == {"disable": ["gpt.1"]}
        harness.replies_by_key.clear()
        await send(harness, *user_turns("<**!glm.glm-4.7**><**#gpt.1**> hi", "and now?"), stream=stream)
        assert harness.sent_targets == [("key-gpt-2", "gpt-5.2")] * 2


async def test_a_temporary_failure_does_not_clear_sticky() -> None:
    async with instruction_gateway() as harness:
        harness.replies_by_key |= {
            "key-glm-a": answers.error("chat", 500),
            "key-glm-b": answers.error("chat", 500),
        }
        answer = await send(harness, STICKY)
        assert set(harness.sent_targets) == {A, B, DEFAULT_TARGET}
        assert routing_headers(answer)["reason"].startswith(
            "sticky glm.glm-4.7 skipped, none of its keys can be used"
        )
        harness.replies_by_key.clear()
        await send(harness, "hi")
        assert (harness.last_target in (A, B), await harness.session_state()) == (
            True,
            {"sticky": "glm.glm-4.7"},
        )


async def test_a_rejected_request_leaves_sticky_as_it_was() -> None:
    async with instruction_gateway() as harness:
        harness.replies_by_key |= {key: answers.error("chat", 400) for key in ("key-glm-a", "key-glm-b")}
        assert (await harness.send(STICKY)).status == 400
        assert (len(harness.sent_targets), await harness.session_state()) == (1, {"sticky": "glm.glm-4.7"})


@protocols
async def test_disabled_keys_are_excluded_from_sticky_and_force(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        for text in ("<**!glm.glm-4.7**><**#glm.a**> hi", "one", "<**glm.glm-4.7**> two"):
            await send(harness, text)
        assert harness.sent_targets == [B, B, B]


@protocols
async def test_the_allow_list_filters_the_table_and_the_named_model_only(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await send(harness, "<**!gpt**> hi")
        wrote = await send(harness, *WROTE)
        named = await send(harness, "hi", model="glm.glm-4.7")
        assert harness.sent_targets == [DEFAULT_TARGET] * 3
        assert routing_headers(named)["notice"] == "glm.glm-4.7 is not in the allow list gpt"
        assert "notice" not in routing_headers(wrote)
        forced = await send(harness, "<**eye.seer**> hi")
        assert (harness.last_target, routing_headers(forced)["route"]) == (EYE, "force")


async def test_a_route_hint_applies_when_the_named_model_is_not_allowed() -> None:
    async with instruction_gateway() as harness:
        await send(harness, "<**!glm**> hi")
        await send(harness, "hi", model="gpt.gpt-5.2", metadata={"routeHint": "coding"})
        assert harness.last_target in (A, B)


async def test_rules_of_the_operator_apply_to_all_and_a_session_cannot_enable_a_disabled_target() -> None:
    async with instruction_gateway() as harness:
        await harness.change_routing(disable=["gpt"], sticky="!glm.a.glm-4.7")
        await send(harness, "<**@gpt**> hi")
        await send(harness, "hi", headers={"x-session-id": "s-2"})
        assert harness.sent_targets == [A, A]
        await send(harness, "<**!glm.b.glm-4.7**> hi")
        assert harness.last_target == B
        await send(harness, "<**!eye**> hi", headers={"x-session-id": "s-3"})
        assert harness.last_target == EYE
        refused = await harness.send("<**gpt.1**> hi")
        assert (refused.status, refused.json["details"]) == (403, {"provider": "gpt", "reason": "disabled"})


async def test_the_operators_sticky_target_is_not_cleared_by_a_request() -> None:
    async with instruction_gateway() as harness:
        await harness.change_routing(sticky="glm.glm-4.7")
        harness.replies_by_key |= {"key-glm-a": limited("chat"), "key-glm-b": limited("chat")}
        for _ in range(2):
            await send(harness, "hi")
        answer = await send(harness, "hi")
        assert routing_headers(answer)["reason"].startswith("sticky glm.glm-4.7 skipped")
        assert (await harness.change_routing(enable=["gpt"]))["routing"]["sticky"] == "glm.glm-4.7"
