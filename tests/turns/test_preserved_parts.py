"""Parts that chat cannot express: preserved with the message and restored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routecodex.canon.events import AnswerPart
from routecodex.canon.parts import Opaque, Part, Reasoning, Text, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.turns.preserved_parts import FIELD, AnswerSource, preserve, restore


def sealed(signature: str) -> str:
    return f"sealed {signature}"


HERE = AnswerSource("here:1", "messages", "me", sealed)
ITEM = {"type": "server_tool_use", "id": "s1"}
ANSWER: list[AnswerPart] = [
    Text("one "),
    Reasoning("hm", "sig-1"),
    Text("two", signature="sig-2"),
    Opaque("messages", ITEM),
    ToolCall("c1", "look", "{}", signature="sig-3"),
    ToolCall("c2", "look", "{}"),
]


def put(parts: tuple[Part, ...], kept: str | None, endpoint: AnswerSource = HERE) -> tuple[Part, ...]:
    """Return the parts of an assistant message with the preserved parts restored."""
    sent: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", FIELD: kept},
    ]
    messages = (Message("user", (Text("hi"),)), Message("assistant", parts))
    made = restore(Request(model="m", messages=messages, source="chat"), sent, endpoint)
    assert made.messages[0] == messages[0]
    return made.messages[1].parts


CALLS = (ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}"))


def test_an_answer_comes_back_part_by_part() -> None:
    assert put((Text("one two"), *CALLS), preserve(ANSWER, HERE)) == (
        Text("one "),
        Reasoning("hm", "sig-1", origin="me"),
        Text("two", signature="sealed sig-2"),
        Opaque("messages", ITEM),
        ToolCall("c1", "look", "{}", signature="sig-3", origin="me"),
        ToolCall("c2", "look", "{}", origin="me"),
    )


def test_what_was_changed_since_stays_changed() -> None:
    edited = (Text("three"), ToolCall("c2", "look", '{"at":1}'), ToolCall("c9", "new", "{}"))
    assert put(edited, preserve(ANSWER, HERE)) == (
        Text("three"),
        Reasoning("hm", "sig-1", origin="me"),
        Opaque("messages", ITEM),
        ToolCall("c2", "look", '{"at":1}', origin="me"),
        ToolCall("c9", "new", "{}"),
    )


def test_an_answer_that_went_on_in_a_second_response_is_one() -> None:
    first = preserve([Reasoning("a", "sig-a"), Text("one ")], HERE)
    second = preserve([Reasoning("b", "sig-b"), Text("two")], HERE)
    assert first is not None
    assert second is not None
    assert put((Text("one two"),), first + second) == (
        Reasoning("a", "sig-a", origin="me"),
        Text("one "),
        Reasoning("b", "sig-b", origin="me"),
        Text("two"),
    )


@pytest.mark.parametrize(
    "other",
    [AnswerSource("there:1", "messages", "me", sealed), AnswerSource("here:1", "gemini", "me", sealed)],
)
def test_nobody_else_is_given_it(other: AnswerSource) -> None:
    parts = (Text("one two"), *CALLS)
    assert put(parts, preserve(ANSWER, HERE), other) == parts


@pytest.mark.parametrize("kept", [None, "", "nonsense", '{"maker":1}', "[]"])
def test_what_cannot_be_read_changes_nothing(kept: str | None) -> None:
    parts = (Reasoning("hm"), Text("one two"), *CALLS)
    assert put(parts, kept) in (parts, parts[1:])


def test_nothing_is_kept_of_an_answer_that_chat_can_tell() -> None:
    plain: list[AnswerPart] = [Text("one"), ToolCall("c1", "look", "{}")]
    assert preserve(plain, HERE) is None
    assert preserve([Reasoning("unsigned"), *plain], msgspec.structs.replace(HERE, protocol="gemini")) is None
    assert preserve([Reasoning("unsigned"), *plain], HERE) is not None
