from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.events import (
    AnnotationDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    Started,
    TextDelta,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Opaque, Reasoning, Text, ToolCall
from routecodex.canon.response import Response, fold, unfold
from routecodex.protocols.chat.encode_stream import annotation_of
from routecodex.protocols.chat.whole import decode_response, encode_response
from routecodex.wire import json
from tests.protocols.chat.samples import chunks, reply, written


def url_citation(start: int, end: int, title: str = "T") -> dict[str, Any]:
    where = {"url": "https://a.example/", "title": title, "start_index": start, "end_index": end}
    return {"type": "url_citation", "url_citation": where}


FLAT = {"type": "url_citation", "url": "https://a.example/", "title": "T", "start_index": 0, "end_index": 3}
FOUND = {"type": "web_search_result_location", "url": "https://a.example/", "title": None, "cited_text": "c"}
CASES: list[tuple[Any, Any]] = [
    (FLAT, url_citation(10, 13)),
    (FOUND, url_citation(10, 15, title="")),
    ({"url": "https://a.example/", "title": "T", "start_index": None}, url_citation(10, 15)),
    (url_citation(1, 2), url_citation(1, 2)),
    ({"type": "file", "file": {"name": "a.pdf"}}, {"type": "file", "file": {"name": "a.pdf"}}),
    ({"type": "char_location", "document_index": 0, "cited_text": "c"}, None),
    ({"type": "file_citation", "file_id": "f", "index": 0}, None),
    ({"type": "url_citation", "url": ""}, None),
    ({"type": ["odd"], "url": 7}, None),
    ("odd", None),
]


@pytest.mark.parametrize(("annotation", "expected"), CASES, ids=range(len(CASES)))
def test_citations_are_encoded_in_chats_form(annotation: Any, expected: Any) -> None:
    assert annotation_of(annotation, start=10, end=15) == expected


def test_places_count_from_the_beginning_of_the_answer_streamed_or_not() -> None:
    parts = (
        Reasoning("Hm"),
        Text("Hello", annotations=(FLAT, {"type": "char_location"})),
        Text("you", annotations=(FOUND,)),
    )
    response = Response("up-1", "gpt", 1, parts, Finish("stop"))
    message = json.decode(encode_response(response, reply()))["choices"][0]["message"]
    assert message["content"] == "Helloyou"
    assert message["annotations"] == [url_citation(0, 3), url_citation(5, 8, title="")]
    deltas = [
        chunk["choices"][0]["delta"] for chunk in chunks(written(list(unfold(response)))) if chunk["choices"]
    ]
    streamed = [mark for delta in deltas for mark in delta.get("annotations", ())]
    assert streamed == message["annotations"]


def test_citations_of_a_chat_provider_stay_unchanged() -> None:
    own = [url_citation(0, 2), {"type": "file", "file": {"hash": "x"}}]
    message = {"role": "assistant", "content": "Hi", "annotations": own}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    response = fold(decode_response(json.encode({"id": "c", "choices": [choice]})))
    assert json.decode(encode_response(response, reply()))["choices"][0]["message"]["annotations"] == own


def test_a_citation_without_a_page_gives_no_chunk() -> None:
    end: list[Event] = [PartFinished(0), Finished(Finish("stop"))]
    begin: list[Event] = [Started("u", "m"), PartStarted(0, Text("")), TextDelta(0, "Hi")]
    mark = AnnotationDelta(0, {"type": "page_location", "document_index": 0})
    assert written([*begin, mark, *end]) == written([*begin, *end])


def test_citations_and_images_of_a_stream_are_one_delta_before_the_finish() -> None:
    images = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}} for data in "AB"]
    parts = (
        Text("Hello", annotations=(FLAT, FLAT)),
        Opaque("chat", images[0]),
        Text("you", annotations=(FLAT,)),
        Opaque("chat", images[1]),
    )
    sent = chunks(written(list(unfold(Response("up-1", "gpt", 1, parts, Finish("stop"))))))
    deltas = [chunk["choices"][0]["delta"] for chunk in sent if chunk["choices"]]
    citations = [url_citation(0, 3), url_citation(0, 3), url_citation(5, 8)]
    assert deltas[-2:] == [{"annotations": citations, "images": images}, {}]
    assert [delta for delta in deltas[:-2] if "annotations" in delta or "images" in delta] == []


def test_citations_of_a_broken_stream_come_before_its_error() -> None:
    begin: list[Event] = [Started("u", "m"), PartStarted(0, Text("")), TextDelta(0, "Hi")]
    failed = Failed(UpstreamFailed("down", code="upstream_error"))
    sent = chunks(written([*begin, AnnotationDelta(0, FLAT), failed]))
    assert sent[-2]["choices"][0]["delta"] == {"annotations": [url_citation(0, 3)]}
    assert sent[-1]["error"]["message"] == "down"


def test_citations_come_before_a_call_and_have_an_index_after_it() -> None:
    parts = (Text("Hi", annotations=(FLAT,)), ToolCall("a", "f", "{}"), Text("you", annotations=(FLAT,)))
    sent = chunks(written(list(unfold(Response("up-1", "gpt", 1, parts, Finish("tool_calls"))))))
    deltas = [chunk["choices"][0]["delta"] for chunk in sent if chunk["choices"]]
    fields = [next(iter(delta), "") for delta in deltas]
    assert fields == [
        "role",
        "content",
        "annotations",
        "tool_calls",
        "tool_calls",
        "content",
        "annotations",
        "",
    ]
    assert deltas[2] == {"annotations": [url_citation(0, 3)]}
    assert deltas[6] == {"annotations": [{**url_citation(2, 5), "index": 1}]}
