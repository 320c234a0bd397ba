from __future__ import annotations

import json

import pytest

from routecodex.protocols.gemini.framing import FrameReader, JsonArray, JsonArrayReader
from routecodex.wire.sse import FrameTooLarge


def test_frames_become_a_json_array() -> None:
    array = JsonArray()
    out = (
        array.wrap(b"") + array.wrap(b'data: {"a":1}\n\n') + array.wrap(b'data: {"b":2}\n\ndata: {"c":3}\n\n')
    )
    assert out + array.end() == b'[{"a":1}\n,\n{"b":2}\n,\n{"c":3}\n]'


def test_no_frames_are_an_empty_array() -> None:
    assert JsonArray().end() == b"[]"


def test_an_array_read_back_gives_its_frames() -> None:
    array = JsonArray()
    frames = b'data: {"a":"\\"}{[\\\\"}\n\ndata: {"b":{"c":[]}}\n\n'
    assert FrameReader().cut(array.wrap(frames) + array.end()) == frames


def test_objects_are_found_at_every_split() -> None:
    values = [{"a": 'x"}{\\'}, {"b": {"c": "\\\\"}}, {}]
    data = json.dumps(values, indent=1).encode()
    for at in range(len(data)):
        objects = JsonArrayReader()
        found = objects.feed(data[:at]) + objects.feed(data[at:])
        assert [json.loads(item) for item in found] == values
        assert all(b"\n" not in item for item in found)


def test_an_endless_object_is_rejected() -> None:
    objects, piece = JsonArrayReader(), b"y" * 1024 * 1024
    assert objects.feed(b'[{"a": "') == []
    assert [objects.feed(piece) for _ in range(31)] == [[]] * 31
    with pytest.raises(FrameTooLarge):
        objects.feed(piece)


@pytest.mark.timeout(20)
def test_a_large_object_is_read_as_it_arrives() -> None:
    """Feed many small pieces; a reader that copies its buffer for each of them takes minutes."""
    objects, piece = JsonArrayReader(), b"y" * 500
    assert objects.feed(b'[{"a": "') == []
    assert [found for _ in range(60_000) for found in objects.feed(piece)] == []
    assert objects.feed(b'"}, {"b"') == [b'{"a": "' + piece * 60_000 + b'"}']
    assert objects.feed(b": 1}]") == [b'{"b": 1}']
