from __future__ import annotations

import itertools

from routecodex.canon.events import (
    ArgumentsDelta,
    Event,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    SignatureDelta,
    Started,
    TextDelta,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Part, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.gateway.state.reasoning_cache import (
    CallReasoning,
    ReasoningCache,
    ReasoningRecorder,
    size_of,
)

REASONING = Reasoning("Hm, yes.", signature="signed", origin="owner")
ANSWER: list[Event] = [
    Started(),
    PartStarted(0, Reasoning("Hm")),
    ReasoningDelta(0, ", yes."),
    SignatureDelta(0, "sig"),
    SignatureDelta(0, "ned"),
    PartFinished(0),
    PartStarted(1, Text("")),
    TextDelta(1, "Look:"),
    PartFinished(1),
    PartStarted(2, ToolCall("call_1", "f")),
    ArgumentsDelta(2, "{}"),
    SignatureDelta(2, "call-sig"),
    PartFinished(2),
    PartStarted(3, ToolCall("call_2", "g")),
    PartFinished(3),
    Finished(Finish("tool_calls")),
]


def cache_of(
    events: list[Event], provider: str = "owner", cache: ReasoningCache | None = None
) -> ReasoningCache:
    cache = cache or ReasoningCache()
    watch = ReasoningRecorder(cache, provider)
    for event in events:
        watch(event)
    watch.settle()
    return cache


def request_with(*parts: Part) -> Request:
    return Request(
        model="m",
        source="chat",
        messages=(
            Message("user", (Text("hi"),)),
            Message("assistant", parts),
            Message("tool", (ToolResult("call_1", (Text("1"),)),)),
        ),
    )


def restored_parts(cache: ReasoningCache, provider: str, *parts: Part) -> tuple[Part, ...]:
    return cache.recall(request_with(*parts), provider).messages[1].parts


CALLS = (ToolCall("call_1", "f", "{}"), ToolCall("call_2", "g"))
SIGNED = (ToolCall("call_1", "f", "{}", signature="call-sig", origin="owner"), CALLS[1])


def test_a_signature_belongs_to_the_provider_that_issued_it() -> None:
    cache = cache_of(ANSWER)
    for signature in ("signed", "call-sig"):
        assert cache.owners.owner_of(signature) == "owner"


def test_a_signature_of_a_started_part_has_an_owner() -> None:
    cache = cache_of(
        [
            PartStarted(0, Reasoning(signature="sealed", redacted=True)),
            PartFinished(0),
            PartStarted(1, ToolCall("call_1", "f", signature="at once")),
            PartFinished(1),
        ]
    )
    for signature in ("sealed", "at once"):
        assert cache.owners.owner_of(signature) == "owner"


def test_reasoning_behind_a_call_is_restored_for_its_owner() -> None:
    cache = cache_of(ANSWER)
    assert restored_parts(cache, "owner", Text("Look:"), *CALLS) == (REASONING, Text("Look:"), *SIGNED)


def test_reasoning_is_not_restored_for_other_providers() -> None:
    cache = cache_of(ANSWER)
    request = request_with(Text("Look:"), *CALLS)
    assert cache.recall(request, "other") is request


def test_visible_reasoning_of_the_client_is_replaced_by_the_signed_reasoning() -> None:
    cache = cache_of(ANSWER)
    assert restored_parts(cache, "owner", Reasoning("Hm, yes."), *CALLS) == (REASONING, *SIGNED)


def test_signed_reasoning_of_the_client_is_unchanged() -> None:
    cache = cache_of(ANSWER)
    own = Reasoning("mine", signature="own", origin="owner")
    assert restored_parts(cache, "owner", own, *CALLS) == (own, *SIGNED)


def test_a_signed_call_is_unchanged() -> None:
    cache = cache_of(ANSWER)
    call = ToolCall("call_1", "f", "{}", signature="own", origin="owner")
    assert restored_parts(cache, "owner", REASONING, call) == (REASONING, call)


def test_a_conversation_without_known_calls_is_unchanged() -> None:
    request = request_with(ToolCall("call_9", "f"))
    assert ReasoningCache().recall(request, "owner") is request
    assert cache_of(ANSWER).recall(request, "owner") is request


def test_reasoning_without_a_signature_is_not_cached() -> None:
    events: list[Event] = [
        PartStarted(0, Reasoning()),
        ReasoningDelta(0, "Hm"),
        PartFinished(0),
        PartStarted(1, ToolCall("call_1", "f")),
        PartFinished(1),
    ]
    request = request_with(*CALLS)
    assert cache_of(events).recall(request, "owner") is request


def cached_ids(cache: ReasoningCache, *ids: int) -> list[int]:
    found = []
    for number in ids:
        request = request_with(ToolCall(f"call_{number}", "f"))
        if cache.recall(request, "owner") is not request:
            found.append(number)
    return found


def cache_call(cache: ReasoningCache, number: int, text: str = "x") -> None:
    parts = (Reasoning(text, signature="s"),)
    cache.keep(f"call_{number}", CallReasoning("owner", parts, None, size_of(parts)))


def test_the_oldest_calls_are_evicted_first() -> None:
    cache = ReasoningCache(calls=3)
    for number in range(5):
        cache_call(cache, number)
    assert cached_ids(cache, *range(5)) == [2, 3, 4]


def test_a_call_that_is_cached_again_is_evicted_later() -> None:
    cache = ReasoningCache(calls=2)
    for number in (1, 2, 1, 3):
        cache_call(cache, number)
    assert cached_ids(cache, 1, 2, 3) == [1, 3]


def test_the_cache_stays_within_its_size() -> None:
    cache = ReasoningCache(size=100)
    for number in range(6):
        cache_call(cache, number, "x" * 30)
    assert cached_ids(cache, *range(6)) == [3, 4, 5]
    cache_call(cache, 7, "x" * 101)
    assert cached_ids(cache, *range(8)) == []
    for number in itertools.chain(range(3), range(3)):
        cache_call(cache, number, "x" * 30)
    assert cached_ids(cache, *range(3)) == [0, 1, 2]
