"""The model behind every upstream of these tests: a tool loop, and acts that the user's words call for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from msgspec import Struct
from tests.kit import answers
from tests.kit.answers import Call
from tests.kit.answers import Counts
from tests.kit.answers import Piece
from tests.kit.answers import ReasoningPiece
from tests.kit.answers import TextPiece
from tests.kit.steps import Json
from tests.kit.steps import Sse
from tests.kit.upstream import Request
import re

RESULT = "sunny"
"""Stands in every tool result: once it is in a request, the acts are over and the results are quoted."""

SIGNATURE = "c2lnbmVk+/vPz8/+b3V0PT0/bG9vaw=="
"""In the standard alphabet of base64; some SDKs send it back in the other one, for URLs."""
THOUGHT = "The sky is on my mind, and the city too."
COUNTED = 4242
RETRY_AFTER = 45


class Act(Struct, frozen=True):
    """What the model says when the user's words have the mark."""

    pieces: tuple[Piece, ...]
    end: str = "stop"
    counts: Counts = Counts()


PARIS = Call("look_up", {"city": "Paris"})
OSLO = Call("look_up", {"city": "Oslo"})
_THOUGHT = ReasoningPiece(THOUGHT, SIGNATURE)
_REASONED = Counts(output=40, reasoning=31)
ACTS: dict[str, Act] = {
    "two cities": Act((TextPiece("Let me look at both."), PARIS, OSLO)),
    "think aloud": Act((_THOUGHT, TextPiece("I have thought about it.")), counts=_REASONED),
    "think first": Act((_THOUGHT, PARIS), counts=_REASONED),
    "as json": Act((TextPiece('{"city":"Paris","sky":"blue"}'),)),
    "cut short": Act((TextPiece("This goes on and on and"),), end="length"),
    "count it": Act(
        (TextPiece("Counted."),), counts=Counts(input=1200, output=60, cached=1000, reasoning=32)
    ),
}

_FAULT = re.compile(rb"says-(\d+)|(breaks-off)|(reports-an-error)")
# Google's Python SDK sends some names in its own spelling; the real API takes both.
_RESPELLED = (b'"parameters_json_schema"', b'"parametersJsonSchema"')
_COUNTERS = {"/messages/count_tokens": "input_tokens", ":countTokens": "totalTokens"}


def model(protocol: str) -> Callable[[Request], Json | Sse]:
    """The script of one upstream."""
    smart = answers.smart(protocol)

    def answer(request: Request) -> Json | Sse:
        for path, field in _COUNTERS.items():
            if request.path.partition("?")[0].endswith(path):
                return Json(200, {field: COUNTED})
        fault = _FAULT.search(request.path.encode() + b" " + request.body)
        if fault is not None:
            return _fail(protocol, fault)
        act = _act(request.body)
        if act is None:
            return smart(replace(request, body=request.body.replace(*_RESPELLED)))
        stream = answers.wants_stream(request)
        return answers.compose(protocol, *act.pieces, stream=stream, end=act.end, counts=act.counts)

    return answer


def _act(body: bytes) -> Act | None:
    if RESULT.encode() in body:
        return None
    return next((act for mark, act in ACTS.items() if mark.encode() in body), None)


def _fail(protocol: str, fault: re.Match[bytes]) -> Json | Sse:
    status, breaks, _ = fault.groups()
    if status is not None:
        waits = {"retry_after": str(RETRY_AFTER)} if status == b"429" else {}
        return answers.error(protocol, int(status), f"the upstream says {status.decode()}", **waits)
    words = "The beginning of an answer that has no end."
    return answers.cut_off(protocol, words) if breaks else answers.stream_error(protocol, words)
