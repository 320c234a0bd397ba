"""The trace context of a request (W3C Trace Context, level 1), and random ids for traces and spans."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from routecodex.providers.upstream import can_be_sent

_TRACEPARENT: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_SAMPLED: Final = 0x01


class TraceContext:
    """The caller's place in a trace: the trace, the span that called, and whether it is sampled.

    `state` is its `tracestate`, to be passed on unchanged; empty without one.
    """

    __slots__ = ("sampled", "span_id", "state", "trace_id")

    def __init__(self, trace_id: str, span_id: str, *, sampled: bool, state: str = "") -> None:
        self.trace_id: Final = trace_id
        self.span_id: Final = span_id
        self.sampled: Final = sampled
        self.state: Final = state


def read_context(headers: Mapping[str, str]) -> TraceContext | None:
    """Return the context that the headers carry; None without a valid `traceparent`.

    `tracestate` has no meaning without it (section 3.3).
    """
    value = headers.get("traceparent")
    if value is None:
        return None
    found = _TRACEPARENT.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    # Version ff is forbidden; a later version than 00 may have more fields behind the flags (section 4.2).
    if version == "ff" or (rest is not None and version == "00"):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, sampled=bool(int(flags, 16) & _SAMPLED), state=_state(headers))


def _state(headers: Mapping[str, str]) -> str:
    state = headers.get("tracestate", "")
    return state if can_be_sent(state) else ""


def context_lines(trace_id: str, span_id: str, *, sampled: bool, state: str = "") -> bytes:
    """Return the header lines that name a span as the parent of the call they are sent with."""
    flags = b"01" if sampled else b"00"
    line = b"traceparent: 00-%b-%b-%b\r\n" % (trace_id.encode(), span_id.encode(), flags)
    return line + b"tracestate: %b\r\n" % state.encode() if state else line


def is_sampled(trace_id: str, share: float) -> bool:
    """Return whether a trace that begins here is sampled; all parties that know its id decide alike.

    As TraceIdRatioBased of the OpenTelemetry SDKs: the low 64 bits of the id, below the share of their range.
    """
    return int(trace_id[16:], 16) < round(share * (1 << 64))


_STOCK: Final = 4096


class _RandomIds:
    """Random ids without a system call for each: bytes are drawn for many at once."""

    __slots__ = ("_at", "_stock")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Draw new bytes; a forked worker must not reuse those of its parent."""
        self._stock = os.urandom(_STOCK).hex()
        self._at = 0

    def take(self, digits: int) -> str:
        at = self._at
        if at + digits > 2 * _STOCK:
            self.renew()
            at = 0
        self._at = at + digits
        return self._stock[at : at + digits]


_ids: Final = _RandomIds()
os.register_at_fork(after_in_child=_ids.renew)


def new_trace_id() -> str:
    """Return a random trace id: 32 hex digits, not all zero."""
    id = _ids.take(32)
    return id if id != _NO_TRACE else new_trace_id()


def new_span_id() -> str:
    """Return a random span id: 16 hex digits, not all zero."""
    id = _ids.take(16)
    return id if id != _NO_SPAN else new_span_id()
