"""A capture as JSON, with secrets removed: what is written to a file and what the admin API shows.

A stream is shown frame by frame, each with the time at which its last byte came. Where bytes are missing, a
line of text in the body or a frame of its own says how many.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any

from routecodex.accounting.timestamps import iso_time
from routecodex.gateway.capture import Piece, Recording, RequestCapture, UpstreamExchange
from routecodex.server.capture_redaction import (
    CaptureRedactor,
    redact_header,
    redact_target,
    sent_credentials,
)

Document = dict[str, Any]

_MOST_FRAMES = 20_000
_FRAME_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_EVENT = re.compile(rb"\s*(?:data|event|id|retry|):")


def document_of(capture: RequestCapture) -> Document:
    """Return a capture as JSON, without its secrets and without the credentials that its client sent."""
    target = capture.path.decode("latin-1")
    redactor = CaptureRedactor((*capture.secrets, *sent_credentials(capture.headers, target)))
    shown = {name: value for name, value in capture.headers.items() if not name.startswith(":")}
    client: Document = {
        "name": capture.client_name,
        "method": capture.method,
        "path": redactor.text(redact_target(target)),
        "headers": _headers(shown.items(), redactor),
        "body": _text(capture.body, redactor),
        "body_missing": capture.body.missing,
        "status": capture.status,
        "response_headers": _headers(_fields(capture.response_headers), redactor),
        "response": _text(capture.response, redactor),
        "response_missing": capture.response.missing,
    }
    return {
        "request": capture.id,
        "time": iso_time(capture.time),
        "owner": capture.owner,
        "client": client,
        "upstream": [_call(call, redactor) for call in capture.calls],
        "upstream_missing": capture.calls_missing,
    }


def _call(call: UpstreamExchange, redactor: CaptureRedactor) -> Document:
    return {
        "target": call.target,
        "path": redactor.text(redact_target(call.path.decode("latin-1"))),
        "headers": _headers(_fields(call.headers), redactor),
        "body": _text(call.body, redactor),
        "body_missing": call.body.missing,
        "status": call.status or None,
        "frames": list(_frames(call.response, redactor)),
        "frames_missing": call.response.missing,
    }


def _headers(fields: Any, redactor: CaptureRedactor) -> dict[str, str]:
    return {name: redactor.text(redact_header(name, value)) for name, value in fields}


def _fields(block: bytes) -> Iterator[tuple[str, str]]:
    for line in block.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip().lower(), value.strip()


def _text(recording: Recording, redactor: CaptureRedactor) -> str:
    """Return the body as text."""
    first = b"".join(data for _, data in recording.first)
    last = b"".join(data for _, data in recording.last)
    if not recording.missing:
        return _decoded(redactor.body(first + last))
    head = redactor.before_gap(redactor.body(first))
    tail = redactor.after_gap(redactor.body(last))
    return f"{_decoded(head)}{_gap(recording)}{_decoded(tail)}"


def _gap(recording: Recording) -> str:
    return f"\n[{recording.missing} bytes were not captured]\n"


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _frames(recording: Recording, redactor: CaptureRedactor) -> Iterator[Document]:
    """Yield the frames of a stream, or the whole body of an answer that does not stream."""
    pieces = [*recording.first, *recording.last]
    streams = _EVENT.match(b"".join(data for _, data in pieces[:2])) is not None
    if not recording.missing:
        yield from _split(pieces, redactor, streams=streams)
        return
    yield from _split(recording.first, redactor, streams=streams, cut_behind=True)
    ms = recording.last[0][0] if recording.last else recording.first[-1][0] if recording.first else 0.0
    yield {"ms": round(ms, 3), "data": _gap(recording).strip()}
    yield from _split([*recording.last], redactor, streams=streams, cut_before=True)


def _split(
    pieces: Sequence[Piece],
    redactor: CaptureRedactor,
    *,
    streams: bool,
    cut_behind: bool = False,
    cut_before: bool = False,
) -> Iterator[Document]:
    data = b"".join(data for _, data in pieces)
    ends = list(accumulate(len(data) for _, data in pieces))
    for start, end in _bounds(data) if streams else [(0, len(data))]:
        frame = redactor.body(data[start:end])
        if cut_before and start == 0:
            frame = redactor.after_gap(frame)
        if cut_behind and end == len(data):
            frame = redactor.before_gap(frame)
        if frame.strip():
            ms = pieces[bisect_left(ends, end)][0]
            yield {"ms": round(ms, 3), "data": _decoded(frame)}


def _bounds(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of every frame; those past the most that are shown are one."""
    start = 0
    for found in islice(_FRAME_END.finditer(data), _MOST_FRAMES):
        yield start, found.start()
        start = found.end()
    if start < len(data):
        yield start, len(data)
