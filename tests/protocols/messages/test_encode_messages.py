from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.messages.encode_messages import encode_messages, system_blocks
from tests.protocols.messages.samples import OPTIONS, chat_request

PNG = "iVBORw0KGgo="


def user(*parts: Part | str) -> Message:
    return Message("user", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def model(*parts: Part | str) -> Message:
    return Message("assistant", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def result(call_id: str, text: str, **fields: Any) -> Message:
    return Message("tool", (ToolResult(call_id, (Text(text),) if text else (), **fields),))


def encoded_turns(*messages: Message, **settings: Any) -> list[tuple[str, list[Any]]]:
    """The conversation as (role, blocks in short)."""
    request = chat_request(*messages, **settings)
    turns = encode_messages(request, OPTIONS, notices=Notices())
    return [(turn["role"], [_short(block) for block in turn["content"]]) for turn in turns]


def _short(block: dict[str, Any]) -> Any:
    match block["type"]:
        case "text":
            return block["text"]
        case "tool_use":
            return ("call", block["id"], block["input"])
        case "tool_result":
            return ("result", block["tool_use_id"], block.get("content"))
        case kind:
            return kind


NOTHING = "(the tool gave no result)"

ORDERS: list[tuple[tuple[Message, ...], list[tuple[str, list[Any]]]]] = [
    ((user("a"), user("b"), model("c"), model("d")), [("user", ["a", "b"]), ("assistant", ["c", "d"])]),
    ((user("a", " ", ""), model(""), user("b")), [("user", ["a", "b"])]),
    ((model("hello"), user("hi")), [("user", ["(continue)"]), ("assistant", ["hello"]), ("user", ["hi"])]),
    ((), [("user", ["(continue)"])]),
    ((user("a"), model("prefill \n")), [("user", ["a"]), ("assistant", ["prefill"])]),
    (
        (user("a"), Message("system", (Text("mind"),)), user("b")),
        [("user", ["a", "<system>\nmind\n</system>", "b"])],
    ),
    (
        (
            user("a"),
            model(ToolCall("1", "f", '{"x":1}'), ToolCall("2", "g")),
            result("2", "two"),
            result("1", "one"),
        ),
        [
            ("user", ["a"]),
            ("assistant", [("call", "1", {"x": 1}), ("call", "2", {})]),
            ("user", [("result", "1", "one"), ("result", "2", "two")]),
        ],
    ),
    (
        (user("a"), model(ToolCall("1", "f")), user("wait"), result("1", "one")),
        [("user", ["a"]), ("assistant", [("call", "1", {})]), ("user", [("result", "1", "one"), "wait"])],
    ),
    (
        (user("a"), model(ToolCall("1", "f"), ToolCall("2", "f")), result("1", "one"), model("so")),
        [
            ("user", ["a"]),
            ("assistant", [("call", "1", {}), ("call", "2", {})]),
            ("user", [("result", "1", "one"), ("result", "2", NOTHING)]),
            ("assistant", ["so"]),
        ],
    ),
    (
        (user("a"), model(ToolCall("1", "f"))),
        [("user", ["a"]), ("assistant", [("call", "1", {})]), ("user", [("result", "1", NOTHING)])],
    ),
    (
        (
            user("a"),
            model(ToolCall("call_0", "f")),
            result("call_0", "one"),
            model(ToolCall("call_0", "f")),
            result("call_0", "two"),
        ),
        [
            ("user", ["a"]),
            ("assistant", [("call", "call_0", {})]),
            ("user", [("result", "call_0", "one")]),
            ("assistant", [("call", "call_0_2", {})]),
            ("user", [("result", "call_0_2", "two")]),
        ],
    ),
    ((user("a"), result("lost", "but found")), [("user", ["a", "but found"])]),
    (
        (
            user("a"),
            model(
                ToolCall("1", "f", "not json"),
                ToolCall("2", "f", "[1]"),
                ToolCall("3", "p", "*** patch", custom=True),
            ),
        ),
        [
            ("user", ["a"]),
            (
                "assistant",
                [
                    ("call", "1", {"input": "not json"}),
                    ("call", "2", {"input": [1]}),
                    ("call", "3", {"input": "*** patch"}),
                ],
            ),
            ("user", [("result", "1", NOTHING), ("result", "2", NOTHING), ("result", "3", NOTHING)]),
        ],
    ),
    ((user("a"), model(Refusal("no"))), [("user", ["a"]), ("assistant", ["no"])]),
    (
        (user("a"), model(ToolCall("1", "f")), result("1", "")),
        [
            ("user", ["a"]),
            ("assistant", [("call", "1", {})]),
            ("user", [("result", "1", None)]),
        ],
    ),
    (
        (user("a"), model(ToolCall("1", "f")), result("1", "", is_error=True)),
        [
            ("user", ["a"]),
            ("assistant", [("call", "1", {})]),
            ("user", [("result", "1", "error")]),
        ],
    ),
]


@pytest.mark.parametrize(("messages", "expected"), ORDERS)
def test_the_conversation_is_put_in_order(
    messages: tuple[Message, ...], expected: list[tuple[str, list[Any]]]
) -> None:
    assert encoded_turns(*messages) == expected


def test_illegal_call_ids_are_mapped_always_alike() -> None:
    turns = encoded_turns(user("a"), model(ToolCall("a.b:c", "f")), result("a.b:c", "x"))
    again = encoded_turns(user("a"), model(ToolCall("a.b:c", "f")), result("a.b:c", "x"))
    call, answer = turns[1][1][0], turns[2][1][0]
    assert call[1] == answer[1] == again[1][1][0][1]
    assert call[1].startswith("a_b_c_")


def test_system_messages_at_the_start_join_the_system_text() -> None:
    request = chat_request(Message("system", (Text("b"),)), user("hi"), system=(Text("a"),))
    assert [block["text"] for block in system_blocks(request)] == ["a", "b"]
    assert encode_messages(request, OPTIONS, notices=Notices())[0]["content"][0]["text"] == "hi"


def sent_parts(
    *parts: Part, role: Any = "user", **options: Any
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    notices = Notices()
    request = chat_request(Message("user", (Text("go"),)), Message(role, parts))
    turns = encode_messages(request, replace(OPTIONS, **options), notices=notices)
    blocks = [block for turn in turns for block in turn["content"]][1:]
    return blocks, notices.lines()


MEDIA: list[tuple[Media, dict[str, Any]]] = [
    (
        Media("image", "image/png", PNG),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    ),
    (
        Media("image", None, PNG),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    ),
    (
        Media("image", url=f"data:image/jpg;base64,{PNG}"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PNG}},
    ),
    (Media("image", url="https://x/y"), {"type": "image", "source": {"type": "url", "url": "https://x/y"}}),
    (
        Media("file", "application/pdf", "AA", name="p.pdf"),
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"},
            "title": "p.pdf",
        },
    ),
    (
        Media("file", "text/markdown", "aGk="),
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}},
    ),
    (
        Media("file", text="hi"),
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}},
    ),
    (Media("file", url="https://x/p"), {"type": "document", "source": {"type": "url", "url": "https://x/p"}}),
]


@pytest.mark.parametrize(("media", "block"), MEDIA)
def test_images_and_documents_are_shown(media: Media, block: dict[str, Any]) -> None:
    assert sent_parts(media) == ([block], ())


@pytest.mark.parametrize(
    ("media", "options", "notice"),
    [
        (
            Media("image", "image/png", PNG),
            {"vision": False},
            "dropped image: this model does not accept images",
        ),
        (Media("image", "image/tiff", "AA"), {}, "dropped image: image/tiff is not supported"),
        (Media("audio", "audio/wav", "AA"), {}, "dropped audio: messages has no such content type"),
        (Media("file", "application/zip", "AA"), {}, "dropped file: application/zip is not supported"),
        (Media("file", file_id="f"), {}, "dropped file by id: it is stored at another provider"),
    ],
)
def test_media_that_cannot_be_sent_are_replaced_by_a_text(
    media: Media, options: dict[str, Any], notice: str
) -> None:
    blocks, notices = sent_parts(media, **options)
    assert notices == (notice,)
    assert blocks == [{"type": "text", "text": f"[{media.kind} not shown]"}]


def test_reasoning_returns_only_to_its_owner() -> None:
    ours = Reasoning("t", "s", origin="acme")
    unsigned = Reasoning("u", origin="acme")
    redacted = Reasoning(signature="d", redacted=True, origin="acme")
    blocks, notices = sent_parts(ours, unsigned, redacted, Text("x"), role="assistant")
    assert blocks[:3] == [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "thinking", "thinking": "u", "signature": ""},
        {"type": "redacted_thinking", "data": "d"},
    ]
    assert notices == ()
    for foreign in (Reasoning("t", "s", origin="other"), Reasoning("t"), Reasoning("t", "s")):
        blocks, notices = sent_parts(foreign, Text("x"), role="assistant")
        assert notices == ("dropped reasoning: made by another provider",)
        assert blocks == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize("source", ["messages", "responses"])
def test_unsigned_thinking_goes_only_to_a_provider_that_accepts_it(source: str) -> None:
    origin = None if source == "messages" else "acme"
    parts = (Reasoning("u", origin=origin), Reasoning("t", "s", origin=origin))
    request = chat_request(user("hi"), model(*parts), source=source)
    signed = {"type": "thinking", "thinking": "t", "signature": "s"}
    notices = Notices()
    strict = replace(OPTIONS, dialect=Dialect(unsigned_thoughts=False))
    assert encode_messages(request, strict, notices=notices)[1]["content"] == [signed]
    assert notices.lines() == ("dropped reasoning: this provider rejects it without a signature",)
    unsigned = {"type": "thinking", "thinking": "u", "signature": ""}
    assert encode_messages(request, OPTIONS, notices=Notices())[1]["content"] == [unsigned, signed]


def test_cache_hints_of_this_protocol_are_kept_wherever_they_come_from() -> None:
    mark = {"type": "ephemeral"}
    blocks, _ = sent_parts(Text("a", cache=mark), Text("b", cache="yes"))
    assert blocks == [{"type": "text", "text": "a", "cache_control": mark}, {"type": "text", "text": "b"}]


def test_parts_only_another_protocol_has_are_noticed() -> None:
    _, notices = sent_parts(Opaque("responses", {"type": "computer_call"}), Text("x"))
    assert notices == ("dropped computer_call: only responses has it",)
