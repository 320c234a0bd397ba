"""Limits on tokens and cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routecodex.turns import (
    Call,
    Conversation,
    MaxUsage,
    Price,
    ScriptedSender,
    ToolPlugin,
    UsageLimitReached,
    tool,
)
from tests.turns.plugins.pairs import as_dicts, check_pairs

USAGE = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}


def start_conversation(
    *plugins: object, answers: Any, usage: Any = USAGE
) -> tuple[Conversation, ScriptedSender]:
    sender = ScriptedSender(answers, usage=usage)
    return Conversation(model="m", sender=sender, plugins=plugins), sender


async def test_the_next_request_is_not_made_when_the_tokens_are_used() -> None:
    limit = MaxUsage(150)
    conversation, sender = start_conversation(limit, answers=["one", "two", "three"])
    await conversation.send("a")
    await conversation.send("b")
    with pytest.raises(UsageLimitReached, match="200 of 150 tokens are used; the limit of this conversation"):
        await conversation.send("c")
    assert len(sender.bodies) == 2
    assert limit.tokens == 200
    assert conversation.request_state == "error"


async def test_a_turn_with_tools_is_stopped_between_its_requests_with_calls_and_results_in_pairs() -> None:
    conversation, sender = start_conversation(
        MaxUsage(50), ToolPlugin([tool(name="run")(lambda: "ran")]), answers=[[Call("run")], "never"]
    )
    with pytest.raises(UsageLimitReached):
        await conversation.send("go")
    assert len(sender.bodies) == 1
    check_pairs(as_dicts(conversation.messages))


async def test_a_limit_per_turn_begins_anew_with_every_turn() -> None:
    conversation, sender = start_conversation(MaxUsage(100, per_turn=True), answers=["one", "two"])
    await conversation.send("a")
    await conversation.send("b")
    assert len(sender.bodies) == 2


async def test_tokens_are_summed_when_the_provider_does_not() -> None:
    limit = MaxUsage(1000)
    conversation, _ = start_conversation(
        limit, answers=["one"], usage={"prompt_tokens": 1, "completion_tokens": 2}
    )
    await conversation.send("a")
    assert limit.tokens == 3


async def test_reports_that_grow_count_once() -> None:
    def chunk(total: int) -> dict[str, Any]:
        return {"choices": [{"delta": {"content": "x"}}], "usage": {"total_tokens": total}}

    limit = MaxUsage(1000)
    conversation, _ = start_conversation(limit, answers=[[chunk(1), chunk(2)]], usage=None)
    await conversation.send("a")
    assert limit.tokens == 2


async def test_an_aborted_request_counts_as_far_as_it_was_reported() -> None:
    here = asyncio.Event()
    chunk = {"choices": [{"delta": {"content": "x"}}], "usage": {"total_tokens": 7}}
    limit = MaxUsage(1000)
    conversation, _ = start_conversation(limit, answers=[[chunk, here.set, asyncio.Event()]])
    task = asyncio.create_task(conversation.send("a"))
    await here.wait()
    conversation.abort()
    await task
    assert limit.tokens == 7


async def test_cost_is_counted_by_the_price_of_a_million_tokens() -> None:
    limit = MaxUsage(cost=0.01, prices={"m": Price(input=100, output=50)})
    conversation, sender = start_conversation(limit, answers=["one", "two", "three"])
    await conversation.send("a")
    assert limit.cost == pytest.approx((60 * 100 + 40 * 50) / 1_000_000)
    await conversation.send("b")
    with pytest.raises(UsageLimitReached, match=r"0\.0160 of 0\.01 are spent"):
        await conversation.send("c")
    assert len(sender.bodies) == 2


@pytest.mark.parametrize(
    ("price", "cost"),
    [
        (Price(1, 2), 100 + 20 * 2),
        (Price(1, 2, cached=0.1), 30 + 70 * 0.1 + 20 * 2),
        (Price(0, 2, cached=0), 40),
    ],
)
def test_cached_input_has_a_price_of_its_own(price: Price, cost: float) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 70},
    }
    assert price.of(usage) == pytest.approx(cost / 1_000_000)
    assert price.of({}) == 0


async def test_a_model_without_a_price_is_refused_under_a_limit_on_cost() -> None:
    conversation, sender = start_conversation(
        MaxUsage(cost=1, prices={"other": Price(1, 1)}), answers=["one"]
    )
    with pytest.raises(UsageLimitReached, match="no entry for the model 'm'"):
        await conversation.send("a")
    assert sender.bodies == []


async def test_conversations_that_share_a_limit_share_what_is_left() -> None:
    limit = MaxUsage(100)
    first, _ = start_conversation(limit, answers=["one"])
    second, sender = start_conversation(limit, answers=["two"])
    await first.send("a")
    with pytest.raises(UsageLimitReached):
        await second.send("b")
    assert sender.bodies == []


def test_a_limit_that_limits_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a limit"):
        MaxUsage()
    with pytest.raises(ValueError, match="needs prices"):
        MaxUsage(cost=1)
