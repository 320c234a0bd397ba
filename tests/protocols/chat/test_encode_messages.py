from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols.codec import EncodeOptions
from tests.protocols.chat.samples import OPTIONS, decoded, foreign_request, notices_of, sent, with_dialect


def messages(request: Request, to: EncodeOptions = OPTIONS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sent(request, to)["messages"]
    return found


def user(*parts: Part) -> Request:
    return foreign_request(Message("user", parts))


CALLS = Message("assistant", (Text("Let me see."), ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g")))
A = {"role": "tool", "tool_call_id": "a", "content": "one"}
B = {"role": "tool", "tool_call_id": "b", "content": "two"}
CALLED = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ],
}


def result(call_id: str, *parts: Text | Media | Opaque, **fields: Any) -> ToolResult:
    return ToolResult(call_id, parts, **fields)


def test_system_text_comes_first_in_the_role_the_upstream_knows() -> None:
    request = foreign_request(Message("user", (Text("hi"),)), system=(Text("a"), Text(""), Text("b")))
    hi = {"role": "user", "content": "hi"}
    assert messages(request) == [{"role": "system", "content": "a\n\nb"}, hi]
    assert messages(request, with_dialect(system_role="developer")) == [
        {"role": "developer", "content": "a\n\nb"},
        hi,
    ]


def test_system_messages_of_a_chat_client_stay_apart_unless_the_upstream_takes_one_only() -> None:
    request = decoded(
        messages=[
            {"role": "system", "content": "a"},
            {"role": "system", "content": "b"},
            {"role": "user", "content": "x"},
        ]
    )
    assert [item["content"] for item in messages(request)] == ["a", "b", "x"]
    assert [item["content"] for item in messages(request, with_dialect(merge_system=True))] == ["a\n\nb", "x"]


def test_system_text_in_the_middle_stays_there() -> None:
    request = foreign_request(
        Message("user", (Text("a"),)), Message("system", (Text("b"), Text("c"))), Message("system", ())
    )
    assert messages(request) == [{"role": "user", "content": "a"}, {"role": "system", "content": "b\n\nc"}]


PARTS: list[tuple[Part, dict[str, Any]]] = [
    (Media("image", url="https://x/y.png"), {"type": "image_url", "image_url": {"url": "https://x/y.png"}}),
    (
        Media("image", "image/png", "AAAA", detail="low"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
    ),
    (
        Media("audio", "audio/mp3", "AAAA"),
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
    ),
    (
        Media("audio", "audio/mpeg", "AAAA"),
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
    ),
    (Media("video", url="https://x/v"), {"type": "video_url", "video_url": {"url": "https://x/v"}}),
    (
        Media("file", "application/pdf", "AAAA", name="a.pdf"),
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
    ),
    (
        Media("file", None, "AAAA"),
        {
            "type": "file",
            "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        },
    ),
    (
        Media("file", text="words", name="a.txt"),
        {"type": "text", "text": "<document name='a.txt'>\nwords\n</document>"},
    ),
    (Opaque("chat", {"type": "hologram", "x": 1}), {"type": "hologram", "x": 1}),
]


@pytest.mark.parametrize(("part", "expected"), PARTS, ids=range(len(PARTS)))
def test_parts_are_written(part: Part, expected: dict[str, Any]) -> None:
    request = user(Text("see"), part)
    assert messages(request) == [{"role": "user", "content": [{"type": "text", "text": "see"}, expected]}]
    assert notices_of(request) == ()


LOST: list[tuple[Part, EncodeOptions, str]] = [
    (Media("image"), OPTIONS, "dropped image: it has no content that chat can send"),
    (Media("file", url="https://x/y.pdf"), OPTIONS, "dropped file by URL: chat accepts only inline files"),
    (Media("audio", url="https://x/y.mp3"), OPTIONS, "dropped audio by URL: chat accepts only inline files"),
    (Media("image", file_id="f"), OPTIONS, "dropped image by id: it is stored at another provider"),
    (Media("file", file_id="f"), OPTIONS, "dropped file by id: it is stored at another provider"),
    (
        Media("image", url="https://x"),
        with_dialect(image_urls=False),
        "dropped image by URL: this upstream accepts only inline images",
    ),
    (
        Media("image", "image/png", "AAAA"),
        replace(OPTIONS, vision=False),
        "dropped image: this model does not accept images",
    ),
    (
        Opaque("gemini", {"executableCode": {}}),
        OPTIONS,
        "dropped provider-specific parts: chat has no place for them",
    ),
]


@pytest.mark.parametrize(("part", "to", "notice"), LOST, ids=range(len(LOST)))
def test_parts_that_cannot_be_encoded_are_reported(part: Part, to: EncodeOptions, notice: str) -> None:
    request = user(Text("see"), part)
    assert messages(request, to) == [{"role": "user", "content": [{"type": "text", "text": "see"}]}]
    assert notices_of(request, to) == (notice,)


def test_a_file_stored_at_a_chat_provider_is_named_for_a_chat_client() -> None:
    request = decoded(messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}])
    assert messages(request)[0]["content"] == [{"type": "file", "file": {"file_id": "f"}}]


def test_texts_of_other_protocols_are_joined_and_those_of_chat_stay_apart() -> None:
    assert messages(user(Text("a"), Text("b")))[0]["content"] == "a\n\nb"
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages(decoded(messages=[{"role": "user", "content": texts}]))[0]["content"] == texts


def test_extra_fields_of_a_chat_clients_parts_and_messages_are_sent() -> None:
    client_messages = [
        {
            "role": "user",
            "name": "ann",
            "weight": 1,
            "content": [{"type": "text", "text": "a", "x": 1, "cache_control": {"type": "ephemeral"}}],
        },
        {"role": "assistant", "content": "b", "prefix": True},
    ]
    assert messages(decoded(messages=client_messages)) == client_messages


def test_extras_of_other_protocols_stay_behind() -> None:
    part = Text("a", cache={"type": "ephemeral"}, extras={"citations": []})
    request = foreign_request(
        Message("user", (part,), extras={"x": 1}), Message("assistant", (part,), extras={"y": 1})
    )
    assert messages(request) == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]


def test_messages_without_content_are_left_out() -> None:
    request = foreign_request(
        Message("user", (Text(""),)), Message("user", ()), Message("user", (Text("x"),))
    )
    assert messages(request) == [{"role": "user", "content": "x"}]


NOTHING_FOR_CHAT: list[tuple[Part, ...]] = [
    (),
    (Text(""),),
    (Opaque("responses", {"type": "web_search_call"}),),
    (Reasoning(signature="E"),),
]


@pytest.mark.parametrize("parts", NOTHING_FOR_CHAT)
def test_an_empty_assistant_message_is_left_out(parts: tuple[Part, ...]) -> None:
    first, again = Message("user", (Text("a"),)), Message("user", (Text("b"),))
    assert messages(foreign_request(first, Message("assistant", parts), again)) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_an_assistant_message_of_only_reasoning_is_sent_where_reasoning_is_accepted() -> None:
    request = foreign_request(Message("assistant", (Reasoning("Hm."),)))
    assert messages(request, with_dialect(reasoning_history="reasoning_content")) == [
        {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    ]
    assert messages(request) == []


def test_an_empty_assistant_of_a_chat_client_keeps_its_place() -> None:
    empty = {"role": "assistant", "content": ""}
    assert messages(decoded(messages=[empty])) == [empty]


def test_two_messages_of_one_turn_stand_apart() -> None:
    parts = (Text("One,"), Text(" and."), Text("Two.", apart=True), ToolCall("a", "f"))
    (message,) = messages(foreign_request(Message("assistant", parts)))
    assert message["content"] == "One, and.\n\nTwo."


def test_refusals_become_text() -> None:
    assert messages(foreign_request(Message("assistant", (Refusal("I will not."),)))) == [
        {"role": "assistant", "content": "I will not."}
    ]


def test_calls_and_results_pair_up() -> None:
    request = foreign_request(CALLS, Message("tool", (result("a", Text("one")), result("b", Text("two")))))
    assert messages(request) == [CALLED, A, B]


def test_results_are_put_right_after_their_calls_in_the_order_of_the_calls() -> None:
    request = foreign_request(
        CALLS,
        Message("user", (Text("wait"), result("b", Text("two")))),
        Message("system", (Text("note"),)),
        Message("tool", (result("a", Text("one")),)),
    )
    assert messages(request) == [
        CALLED,
        A,
        B,
        {"role": "user", "content": "wait"},
        {"role": "system", "content": "note"},
    ]


def test_an_id_used_in_two_turns_gets_each_turns_own_result() -> None:
    call = Message("assistant", (ToolCall("a", "f"),))
    request = foreign_request(
        call,
        Message("tool", (result("a", Text("1")),)),
        call,
        Message("tool", (result("a", Text("2")),)),
    )
    assert [item["content"] for item in messages(request)] == [None, "1", None, "2"]


def test_a_result_without_a_call_is_reported() -> None:
    request = foreign_request(
        Message("tool", (result("lost", Text("x")),)),
        CALLS,
        Message("tool", (result("a", Text("one")), result("a", Text("again")))),
        Message("tool", (result("b", Text("two")),)),
    )
    assert messages(request) == [CALLED, A, B]
    assert notices_of(request) == ("dropped tool results without a call: chat rejects them",)


def test_an_error_result_begins_with_error() -> None:
    def content(*parts: Text) -> str:
        request = foreign_request(CALLS, Message("tool", (result("a", *parts, is_error=True),)))
        return str(messages(request)[1]["content"])

    assert content(Text("no such file")) == "Error: no such file"
    assert content(Text("Error: already said")) == "Error: already said"
    assert content() == "Error: "


def test_images_of_results_follow_all_results() -> None:
    request = foreign_request(
        CALLS,
        Message("tool", (result("a", Text("one"), Media("image", "image/png", "AAAA")),)),
        Message("tool", (result("b", Text("two")),)),
    )
    note = "(the attachment follows in the next message)"
    assert messages(request) == [
        CALLED,
        {**A, "content": f"one\n{note}"},
        B,
        {"role": "user", "content": [PARTS[1][1] | {"image_url": {"url": "data:image/png;base64,AAAA"}}]},
    ]


def test_namespaced_calls_travel_under_one_flat_name() -> None:
    call = ToolCall("a", "read", "{}", namespace="files")
    (message,) = messages(foreign_request(Message("assistant", (call,))))
    assert message["tool_calls"][0]["function"]["name"] == "files__read"


def test_custom_calls_are_wrapped_for_clients_of_other_protocols_only() -> None:
    call = ToolCall("a", "patch", 'say "hi"', custom=True)
    (message,) = messages(foreign_request(Message("assistant", (call,))))
    assert message["tool_calls"] == [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "patch", "arguments": '{"input":"say \\"hi\\""}'},
        }
    ]
    own = {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "free"}}
    client_messages = {"role": "assistant", "content": None, "tool_calls": [own]}
    assert messages(decoded(messages=[client_messages])) == [client_messages]


WITH_REASONING = Message(
    "assistant", (Reasoning("Hm."), Reasoning("Well.", signature="s", origin="x"), Text("Yes."))
)


@pytest.mark.parametrize(
    ("style", "fields"),
    [
        ("reasoning_content", {"reasoning_content": "Hm.\n\nWell."}),
        ("reasoning", {"reasoning": "Hm.\n\nWell."}),
        ("reasoning_details", {"reasoning_details": [{"type": "reasoning.text", "text": "Hm.\n\nWell."}]}),
    ],
)
def test_reasoning_is_sent_where_the_upstream_accepts_it(style: str, fields: dict[str, Any]) -> None:
    to = with_dialect(reasoning_history=style)
    assert messages(foreign_request(WITH_REASONING), to) == [
        {"role": "assistant", "content": "Yes.", **fields}
    ]
    assert notices_of(foreign_request(WITH_REASONING), to) == ()


def test_reasoning_is_dropped_with_a_notice_where_it_is_not_accepted() -> None:
    assert messages(foreign_request(WITH_REASONING)) == [{"role": "assistant", "content": "Yes."}]
    assert notices_of(foreign_request(WITH_REASONING)) == (
        "dropped reasoning: this upstream does not accept reasoning in requests",
    )


def test_sealed_reasoning_has_no_text_to_send() -> None:
    request = foreign_request(Message("assistant", (Reasoning(signature="s", redacted=True), Text("Yes."))))
    to = with_dialect(reasoning_history="reasoning_content")
    assert messages(request, to) == [{"role": "assistant", "content": "Yes."}]
    assert notices_of(request, to) == (
        "dropped reasoning: this upstream does not accept reasoning in requests",
    )


def test_a_url_in_file_data_returns_to_a_chat_upstream() -> None:
    """OpenRouter takes a URL there."""
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "https://x/a.pdf"}}
    request = decoded(messages=[{"role": "user", "content": [file]}])
    assert messages(request) == [{"role": "user", "content": [file]}]
