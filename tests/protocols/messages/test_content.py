"""Blocks of messages become texts and images in other protocols, and stay unchanged in their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routecodex.canon.parts import Media, Opaque, Part, Text
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.messages.content import part_of, parts_of
from routecodex.protocols.messages.decode_request import decode_request
from routecodex.wire import json
from tests.protocols.messages.samples import OPTIONS, wire_request

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
PICTURE = Media("image", "image/png", "iVBORw0KGgo=")
FOUND = {
    "type": "search_result",
    "source": "https://x/y",
    "title": "On tides",
    "content": [{"type": "text", "text": "Twice a day."}, {"type": "text", "text": "Or so."}],
    "citations": {"enabled": True},
}
MARK = {"cache_control": {"type": "ephemeral"}}
SEARCH_TEXT = "On tides\nhttps://x/y\n\nTwice a day.\n\nOr so."


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def document(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "content", "content": list(content)}, **fields}


MIXED = document(text("a"), text("b"), IMAGE, text("c"), title="Tides", citations={"enabled": True})


def bare(part: Part) -> Part:
    assert isinstance(part, Text | Media)
    return Text(part.text) if isinstance(part, Text) else Media(*map(part.__getattribute__, _MEDIA_FIELDS))


_MEDIA_FIELDS = ("kind", "media_type", "data", "url", "file_id", "text", "name")


def file(content: str, name: str | None = None) -> Media:
    return Media("file", "text/plain", text=content, name=name)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (MIXED, [file("a\n\nb", "Tides"), PICTURE, file("c", "Tides")]),
        (document(IMAGE, text("a")), [PICTURE, file("a")]),
        (document(IMAGE, IMAGE), [PICTURE, PICTURE]),
        (document(text("a"), IMAGE, {"type": "later"}, 7), [file("a"), PICTURE]),
        (document(text("a"), text("b")), [file("a\n\nb")]),
        (document(text("a"), {"type": "image", "source": {"type": "url", "url": 7}}), [file("a")]),
        (document(text("a"), {"type": "image", "source": 7}), [file("a")]),
        (FOUND, [Text(SEARCH_TEXT)]),
        ({**FOUND, "title": None, "source": 7}, [Text("Twice a day.\n\nOr so.")]),
    ],
)
def test_a_block_of_several_pieces_becomes_several_parts(block: dict[str, Any], expected: list[Part]) -> None:
    assert [bare(part) for part in parts_of(block)] == expected


@pytest.mark.parametrize("content", [None, [], 7, "words", [7], [{"type": "text", "text": 7}], [text(" ")]])
def test_a_search_result_without_text_stays_opaque(content: Any) -> None:
    block = {**FOUND, "content": content}
    assert part_of(block) == Opaque("messages", block)


def conversation_with(*blocks: Any) -> list[dict[str, Any]]:
    """Return a conversation with these blocks in a user message and in a tool result."""
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": list(blocks)}
    return [
        {"role": "user", "content": [*blocks, text("so?")]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


@pytest.mark.parametrize(
    "block", [MIXED, FOUND, {**MIXED, **MARK}, {**FOUND, **MARK}, document(IMAGE, text("a"))]
)
def test_such_a_block_comes_back_whole_in_its_own_protocol(block: dict[str, Any]) -> None:
    request = decode_request(wire_request(messages=conversation_with(block)))
    encoded = CODECS["messages"].encode_request(request, OPTIONS)
    assert json.decode(encoded.body)["messages"] == conversation_with(block)
    assert encoded.notices == ()


def test_a_model_without_vision_gets_the_texts_of_a_document() -> None:
    request = decode_request(wire_request(messages=[{"role": "user", "content": [MIXED]}]))
    encoded = CODECS["messages"].encode_request(request, replace(OPTIONS, vision=False))
    [message] = json.decode(encoded.body)["messages"]

    def plain(content: str) -> dict[str, Any]:
        return {"type": "text", "media_type": "text/plain", "data": content}

    assert message["content"] == [
        {"type": "document", "source": plain("a\n\nb"), "title": "Tides"},
        text("[image not shown]"),
        {"type": "document", "source": plain("c"), "title": "Tides"},
    ]
    assert encoded.notices == ("dropped image: this model does not accept images",)


@pytest.mark.parametrize("protocol", ["chat", "responses", "gemini"])
def test_such_a_block_loses_only_its_citations_in_another_protocol(protocol: str) -> None:
    request = decode_request(wire_request(messages=conversation_with(MIXED, FOUND)))
    encoded = CODECS[protocol].encode_request(request, OPTIONS)
    sent = encoded.body.decode()
    assert sent.count("iVBORw0KGgo=") == 2
    assert sent.count(json.encode(SEARCH_TEXT).decode().strip('"')) == 2
    assert sent.count(r"a\n\nb") == 2
    assert encoded.notices == (
        "dropped file.citations: only messages has it",
        "dropped text.citations: only messages has it",
    )
