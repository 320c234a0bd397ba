from __future__ import annotations

import pytest

from routecodex.turns import Message


def test_a_message_takes_whatever_fields_arrive() -> None:
    message = Message.of({"role": "assistant", "content": "x", "reasoning_content": "hm", "refusal": None})
    assert message.reasoning_content == "hm"
    assert message.as_dict() == {"role": "assistant", "content": "x", "reasoning_content": "hm"}


def test_a_message_is_a_copy_of_the_mapping_and_itself_when_it_is_one() -> None:
    given = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    message = Message.of(given)
    message.content[0]["text"] = "y"
    assert given["content"] == [{"type": "text", "text": "x"}]
    assert Message.of(message) is message


def test_metadata_is_never_sent_even_if_asked_for_and_not_compared() -> None:
    message = Message("user", "x", metadata={"a": 1})
    assert message.as_dict(["role", "metadata"]) == {"role": "user"}
    assert message == Message("user", "x")
    assert Message.of({"role": "user", "metadata": {"a": 1}}).metadata == {"a": 1}


def test_the_index_of_streamed_calls_is_not_sent() -> None:
    message = Message("assistant", tool_calls=[{"index": 3, "id": "a"}])
    assert message.as_dict() == {"role": "assistant", "tool_calls": [{"id": "a"}]}
    assert message.tool_calls == [{"index": 3, "id": "a"}]


def test_what_is_no_message_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="not 'hi'"):
        Message.of("hi")
    with pytest.raises(TypeError, match="a mapping with a role"):
        Message.of({"content": "x"})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(AttributeError, match="user message has no field 'audio'"):
        _ = Message("user").audio


def test_messages_differ_by_what_they_say_and_show_it() -> None:
    assert Message("user", "x") != Message("user", "y")
    assert Message("user", "x") != "x"
    assert repr(Message("tool", "x", tool_call_id="1")) == (
        "Message(role='tool', content='x', tool_call_id='1')"
    )
