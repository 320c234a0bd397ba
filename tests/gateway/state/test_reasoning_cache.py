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
from routecodex.gateway.state.reasoning_cache import CallReasoning, ReasoningCache, ReasoningRecorder

THOUGHT = Reasoning("Hm, yes.", signature="signed", origin="maker")
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


def watched(
    events: list[Event], provider: str = "maker", memory: ReasoningCache | None = None
) -> ReasoningCache:
    memory = memory or ReasoningCache()
    watch = ReasoningRecorder(memory, provider)
    for event in events:
        watch(event)
    watch.settle()
    return memory


def asking(*parts: Part) -> Request:
    return Request(
        model="m",
        source="chat",
        messages=(
            Message("user", (Text("hi"),)),
            Message("assistant", parts),
            Message("tool", (ToolResult("call_1", (Text("1"),)),)),
        ),
    )


def recalled(memory: ReasoningCache, provider: str, *parts: Part) -> tuple[Part, ...]:
    return memory.recall(asking(*parts), provider).messages[1].parts


CALLS = (ToolCall("call_1", "f", "{}"), ToolCall("call_2", "g"))
SIGNED = (ToolCall("call_1", "f", "{}", signature="call-sig", origin="maker"), CALLS[1])


def test_a_signature_goes_back_only_to_its_maker() -> None:
    memory = watched(ANSWER)
    for signature in ("signed", "call-sig"):
        assert memory.owners.owner_of(signature) == "maker"


def test_a_signature_that_came_with_its_part_has_a_maker_too() -> None:
    memory = watched(
        [
            PartStarted(0, Reasoning(signature="sealed", redacted=True)),
            PartFinished(0),
            PartStarted(1, ToolCall("call_1", "f", signature="at once")),
            PartFinished(1),
        ]
    )
    for signature in ("sealed", "at once"):
        assert memory.owners.owner_of(signature) == "maker"


def test_thoughts_behind_a_call_come_back_for_their_maker() -> None:
    memory = watched(ANSWER)
    assert recalled(memory, "maker", Text("Look:"), *CALLS) == (THOUGHT, Text("Look:"), *SIGNED)


def test_thoughts_are_kept_from_everybody_else() -> None:
    memory = watched(ANSWER)
    request = asking(Text("Look:"), *CALLS)
    assert memory.recall(request, "other") is request


def test_visible_thoughts_the_client_sent_are_replaced_by_the_signed_ones() -> None:
    memory = watched(ANSWER)
    assert recalled(memory, "maker", Reasoning("Hm, yes."), *CALLS) == (THOUGHT, *SIGNED)


def test_signed_thoughts_the_client_sent_are_left_alone() -> None:
    memory = watched(ANSWER)
    own = Reasoning("mine", signature="own", origin="maker")
    assert recalled(memory, "maker", own, *CALLS) == (own, *SIGNED)


def test_a_signed_call_is_left_alone() -> None:
    memory = watched(ANSWER)
    call = ToolCall("call_1", "f", "{}", signature="own", origin="maker")
    assert recalled(memory, "maker", THOUGHT, call) == (THOUGHT, call)


def test_a_conversation_without_known_calls_is_not_touched() -> None:
    request = asking(ToolCall("call_9", "f"))
    assert ReasoningCache().recall(request, "maker") is request
    assert watched(ANSWER).recall(request, "maker") is request


def test_thoughts_without_any_signature_are_not_kept() -> None:
    events: list[Event] = [
        PartStarted(0, Reasoning()),
        ReasoningDelta(0, "Hm"),
        PartFinished(0),
        PartStarted(1, ToolCall("call_1", "f")),
        PartFinished(1),
    ]
    request = asking(*CALLS)
    assert watched(events).recall(request, "maker") is request


def kept(memory: ReasoningCache, *ids: int) -> list[int]:
    found = []
    for number in ids:
        request = asking(ToolCall(f"call_{number}", "f"))
        if memory.recall(request, "maker") is not request:
            found.append(number)
    return found


def keep(memory: ReasoningCache, number: int, text: str = "x") -> None:
    memory.keep(f"call_{number}", CallReasoning("maker", (Reasoning(text, signature="s"),), None))


def test_the_oldest_calls_are_forgotten_first() -> None:
    memory = ReasoningCache(calls=3)
    for number in range(5):
        keep(memory, number)
    assert kept(memory, *range(5)) == [2, 3, 4]


def test_a_call_that_is_kept_again_is_young_again() -> None:
    memory = ReasoningCache(calls=2)
    for number in (1, 2, 1, 3):
        keep(memory, number)
    assert kept(memory, 1, 2, 3) == [1, 3]


def test_thoughts_take_no_more_room_than_there_is() -> None:
    memory = ReasoningCache(size=100)
    for number in range(6):
        keep(memory, number, "x" * 30)
    assert kept(memory, *range(6)) == [3, 4, 5]
    keep(memory, 7, "x" * 101)
    assert kept(memory, *range(8)) == []
    for number in itertools.chain(range(3), range(3)):
        keep(memory, number, "x" * 30)
    assert kept(memory, *range(3)) == [0, 1, 2]
