"""The headers of an answer: what it is, which request it answers, how it was routed."""

from __future__ import annotations

import functools
from time import monotonic
from typing import Final

from routecodex.gateway.ask import ClientRequest, Headers, RequestRecord
from routecodex.routing.registry import Target

JSON: Final = b"content-type: application/json\r\n"

SSE: Final = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
"""Whole lines, for answers and for streams."""
_Fields = tuple[tuple[bytes, bytes], ...]


def answer_headers(ask: ClientRequest, record: RequestRecord, kind: bytes) -> Headers:
    """The headers of an answer that begins now; the record notes when, and the notices that were told."""
    record.first_byte = record.first_byte or monotonic()
    # Ids are our own: there is nothing in them that could forge a line.
    headers: list[tuple[bytes, bytes] | bytes] = [
        kind,
        b"x-request-id: %b\r\n" % ask.id.encode(),
        _ready_lines(record.route, record.target, record.reason),
    ]
    if ask.notices:
        record.notices = tuple(ask.notices)
        headers.append((b"x-routecodex-notice", header_text("; ".join(ask.notices))))
    return headers


def refusal_headers(message: str, routed: tuple[str, str, str] | None) -> _Fields:
    """How a request was routed that ended in an error; without a route it is the gateway that refused it."""
    route, target, reason = routed or ("gateway", "", message)
    return (
        (b"x-routecodex-route", header_text(route or "gateway")),
        (b"x-routecodex-target", header_text(target or "gateway")),
        (b"x-routecodex-reason", header_text(reason or message)),
    )


def routing_headers(record: RequestRecord) -> _Fields:
    """How a request was routed, by its record."""
    return _routing_headers(record.route, record.target, record.reason)


@functools.lru_cache(maxsize=1024)
def _ready_lines(route: str, target: Target | None, reason: str) -> bytes:
    return b"".join(b"%b: %b\r\n" % field for field in _routing_headers(route, target, reason))


def _routing_headers(route: str, target: Target | None, reason: str) -> _Fields:
    return (
        (b"x-routecodex-route", header_text(route)),
        (b"x-routecodex-target", header_text(str(target or "gateway"))),
        (b"x-routecodex-reason", header_text(reason)),
    )


def header_text(text: str) -> bytes:
    """Text as a header value: one line of printable ASCII, of bounded length."""
    line = "".join(sign if " " <= sign <= "~" else "?" for sign in text)
    return line[:2000].encode("ascii")
