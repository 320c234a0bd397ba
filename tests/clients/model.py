"""The model behind every upstream of these tests: a tool loop, and answers triggered by phrases."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

from msgspec import Struct

from tests.kit import answers
from tests.kit.answers import Call, Counts, Piece, ReasoningPiece, TextPiece
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request

RESULT = "sunny"
"""Part of every tool result; a request that contains it gets the results quoted."""

SIGNATURE = "c2lnbmVk+/vPz8/+b3V0PT0/bG9vaw=="
"""Standard base64; Google's SDK sends it back in the URL-safe alphabet."""
REASONING = "The sky is on my mind, and the city too."
COUNTED = 4242
RETRY_AFTER = 45


class TriggeredAnswer(Struct, frozen=True):
    """The answer of the model when the request contains a phrase."""

    pieces: tuple[Piece, ...]
    end: str = "stop"
    counts: Counts = Counts()


PARIS = Call("look_up", {"city": "Paris"})
OSLO = Call("look_up", {"city": "Oslo"})
_REASONING = ReasoningPiece(REASONING, SIGNATURE)
_REASONING_COUNTS = Counts(output=40, reasoning=31)
TRIGGERED_ANSWERS: dict[str, TriggeredAnswer] = {
    "two cities": TriggeredAnswer((TextPiece("Let me look at both."), PARIS, OSLO)),
    "think aloud": TriggeredAnswer(
        (_REASONING, TextPiece("I have thought about it.")), counts=_REASONING_COUNTS
    ),
    "think first": TriggeredAnswer((_REASONING, PARIS), counts=_REASONING_COUNTS),
    "as json": TriggeredAnswer((TextPiece('{"city":"Paris","sky":"blue"}'),)),
    "cut short": TriggeredAnswer((TextPiece("This goes on and on and"),), end="length"),
    "count it": TriggeredAnswer(
        (TextPiece("Counted."),), counts=Counts(input=1200, output=60, cached=1000, reasoning=32)
    ),
}

CITING = "cite your pages"
CITED = ("https://a.example/", "https://b.example/")
"""A request with the phrase gets a stream that cites these pages, each in a delta of its own."""

_FAULT = re.compile(rb"says-(\d+)|(breaks-off)|(reports-an-error)")
# Google's Python SDK sends some names in snake_case; the real API accepts both.
_CAMEL_CASE = (b'"parameters_json_schema"', b'"parametersJsonSchema"')
_COUNTERS = {"/messages/count_tokens": "input_tokens", ":countTokens": "totalTokens"}


def model(protocol: str) -> Callable[[Request], Json | Sse]:
    """Return the script of one upstream."""
    smart = answers.smart(protocol)

    def answer(request: Request) -> Json | Sse:
        for path, field in _COUNTERS.items():
            if request.path.partition("?")[0].endswith(path):
                return Json(200, {field: COUNTED})
        fault = _FAULT.search(request.path.encode() + b" " + request.body)
        if fault is not None:
            return _fail(protocol, fault)
        if CITING.encode() in request.body:
            return _cite(protocol)
        triggered = _triggered_answer(request.body)
        if triggered is None:
            return smart(replace(request, body=request.body.replace(*_CAMEL_CASE)))
        stream = answers.wants_stream(request)
        return answers.compose(
            protocol, *triggered.pieces, stream=stream, end=triggered.end, counts=triggered.counts
        )

    return answer


def _triggered_answer(body: bytes) -> TriggeredAnswer | None:
    if RESULT.encode() in body:
        return None
    return next(
        (triggered for phrase, triggered in TRIGGERED_ANSWERS.items() if phrase.encode() in body), None
    )


def _fail(protocol: str, fault: re.Match[bytes]) -> Json | Sse:
    status, breaks, _ = fault.groups()
    if status is not None:
        waits = {"retry_after": str(RETRY_AFTER)} if status == b"429" else {}
        return answers.error(protocol, int(status), f"the upstream says {status.decode()}", **waits)
    text = "The beginning of an answer that has no end."
    return answers.cut_off(protocol, text) if breaks else answers.stream_error(protocol, text)


def _cite(protocol: str) -> Sse:
    """Return a stream with citations, as OpenRouter (chat) and Anthropic's web search send them."""
    plain = answers.compose(protocol, TextPiece("See both."), stream=True, end="stop", counts=Counts())
    assert isinstance(plain, Sse)
    end = {"chat": b'"finish_reason":"stop"', "messages": b"event: content_block_stop"}[protocol]
    at = next(number for number, frame in enumerate(plain.frames) if end in frame)
    cite = {"chat": _chat_citation, "messages": _messages_citation}[protocol]
    citations = [cite(url, plain.frames[0]) for url in CITED]
    return Sse([*plain.frames[:at], *citations, *plain.frames[at:]])


def _chat_citation(url: str, first: bytes) -> bytes:
    citation = {"url": url, "title": "Page", "start_index": 0, "end_index": 9}
    delta = {"annotations": [{"type": "url_citation", "url_citation": citation}]}
    chunk = json.loads(first.removeprefix(b"data: "))
    chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": None}]
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def _messages_citation(url: str, _: bytes) -> bytes:
    citation = {"type": "web_search_result_location", "url": url, "title": "Page", "cited_text": "Both."}
    delta = {"type": "citations_delta", "citation": {**citation, "encrypted_index": "e"}}
    event = {"type": "content_block_delta", "index": 0, "delta": delta}
    return b"event: content_block_delta\ndata: %b\n\n" % json.dumps(event).encode()
