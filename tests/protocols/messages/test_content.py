"""Blocks that stand for words and images elsewhere, and for themselves in their own protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routecodex.canon.parts import Media, Opaque, Part, Text
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.messages.content import part_of, parts_of
from routecodex.protocols.messages.decode_request import decode_request
from routecodex.wire import json
from tests.protocols.messages.samples import AIM, inbound

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
WORDS = "On tides\nhttps://x/y\n\nTwice a day.\n\nOr so."


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def document(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "content", "content": list(content)}, **fields}


MIXED = document(text("a"), text("b"), IMAGE, text("c"), title="Tides", citations={"enabled": True})


def bare(part: Part) -> Part:
    assert isinstance(part, Text | Media)
    return Text(part.text) if isinstance(part, Text) else Media(*map(part.__getattribute__, _SHOWN))


_SHOWN = ("kind", "media_type", "data", "url", "file_id", "text", "name")


def file(words: str, name: str | None = None) -> Media:
    return Media("file", "text/plain", text=words, name=name)


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
        (FOUND, [Text(WORDS)]),
        ({**FOUND, "title": None, "source": 7}, [Text("Twice a day.\n\nOr so.")]),
    ],
)
def test_a_block_of_several_pieces_is_told_piece_by_piece(
    block: dict[str, Any], expected: list[Part]
) -> None:
    assert [bare(part) for part in parts_of(block)] == expected


@pytest.mark.parametrize("content", [None, [], 7, "words", [7], [{"type": "text", "text": 7}], [text(" ")]])
def test_a_search_result_without_words_stays_as_it_is(content: Any) -> None:
    block = {**FOUND, "content": content}
    assert part_of(block) == Opaque("messages", block)


def asked(*blocks: Any) -> list[dict[str, Any]]:
    """A conversation with these blocks from the user, and in the result of a call."""
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
    request = decode_request(inbound(messages=asked(block)))
    encoded = CODECS["messages"].encode_request(request, AIM)
    assert json.decode(encoded.body)["messages"] == asked(block)
    assert encoded.notices == ()


def test_a_model_that_takes_no_images_gets_the_rest_of_a_document() -> None:
    request = decode_request(inbound(messages=[{"role": "user", "content": [MIXED]}]))
    encoded = CODECS["messages"].encode_request(request, replace(AIM, vision=False))
    [message] = json.decode(encoded.body)["messages"]

    def plain(words: str) -> dict[str, Any]:
        return {"type": "text", "media_type": "text/plain", "data": words}

    assert message["content"] == [
        {"type": "document", "source": plain("a\n\nb"), "title": "Tides"},
        text("[image not shown]"),
        {"type": "document", "source": plain("c"), "title": "Tides"},
    ]
    assert encoded.notices == ("dropped image: this model does not accept images",)


@pytest.mark.parametrize("protocol", ["chat", "responses", "gemini"])
def test_nothing_of_such_a_block_but_its_citations_is_lost_in_another_protocol(protocol: str) -> None:
    request = decode_request(inbound(messages=asked(MIXED, FOUND)))
    encoded = CODECS[protocol].encode_request(request, AIM)
    sent = encoded.body.decode()
    assert sent.count("iVBORw0KGgo=") == 2
    assert sent.count(json.encode(WORDS).decode().strip('"')) == 2
    assert sent.count(r"a\n\nb") == 2
    assert encoded.notices == (
        "dropped file.citations: only messages has it",
        "dropped text.citations: only messages has it",
    )
