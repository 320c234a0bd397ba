"""One log line per request, formatted cheaply, because most of a line repeats from request to request.

Repeating fields are encoded once and cached; time, id, durations, tokens and session are written around them.
A request with an error, notices or follow-ups is encoded as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from time import time
from typing import Final, Protocol, TextIO

import msgspec

from routecodex.accounting.cost import Cost
from routecodex.canon.events import Usage
from routecodex.gateway.request import RequestRecord
from routecodex.routing.registry import Target
from routecodex.server.log_numbers import PAIRS, duration, second_text, ticks
from routecodex.server.logs import human_line, request_line, session_name
from routecodex.wire import json

_FLUSH_SECONDS: Final = 0.2
_FLUSH_LINES: Final = 500
_MAX_CACHED: Final = 256
_MAX_CACHED_BYTES: Final = 2048
_VARYING = frozenset(
    (
        "time",
        "request",
        "seconds",
        "first_byte",
        "input_tokens",
        "output_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "cost",
        "cost_kind",
        "session",
        "client_request_id",
        "trace_id",
    )
)

_CacheKey = tuple[str, str, bool, int, str, Target | None, str, int, int, str, str, str, str]


class LineSink(Protocol):
    """Stores the lines of requests, each as JSON."""

    def append(self, lines: Sequence[bytes]) -> None: ...


class AccessLog:
    """Writes one line per request, a little later and many at once.

    `sink` gets the lines too; with `shown` False only the sink does.
    """

    def __init__(
        self,
        *,
        as_json: bool,
        stream: TextIO | None = None,
        sink: LineSink | None = None,
        shown: bool = True,
    ) -> None:
        self._as_json = as_json
        self._stream = sys.stderr if stream is None else stream
        self._sink = sink
        self.shown = shown
        self._encoder = LineEncoder()
        self._records: list[tuple[float, RequestRecord]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: RequestRecord) -> None:
        self._records.append((time(), record))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)
        elif len(self._records) >= _FLUSH_LINES:
            self.flush()

    def flush(self) -> None:
        """Write the pending lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._records = self._records, []
        if not records:
            return
        lines: list[bytes] = []
        if self._as_json or self._sink is not None:
            lines = [self._encoder.encode(at, record) for at, record in records]
        if self._sink is not None:
            self._sink.append(lines)
        # Writing to a closed terminal fails; the requests go on.
        with contextlib.suppress(OSError):
            if self.shown and self._as_json:
                _write(self._stream, b"\n".join([*lines, b""]))
            elif self.shown:
                self._stream.writelines([f"{human_line(at, record)}\n" for at, record in records])
                self._stream.flush()


def _write(stream: TextIO, lines: bytes) -> None:
    """Write lines of JSON, to the binary stream below the text stream if there is one."""
    binary = getattr(stream, "buffer", None)
    if binary is None:
        stream.write(lines.decode())
    else:
        stream.flush()
        binary.write(lines)
    stream.flush()


class LineEncoder:
    """Encodes requests as lines of JSON; caches the fields they have in common, within bounds."""

    def __init__(self) -> None:
        self._cache: dict[_CacheKey, bytes] = {}

    def encode(self, at: float, record: RequestRecord) -> bytes:
        """Encode the line of a request that finished at `at`; decodes to the same value as `json_line`."""
        plain = not (
            record.gone or record.failures or record.notices or record.followups or record.role.agent
        )
        if record.error is not None or not plain or record.call or record.address:
            return json.encode(request_line(at, record))
        key = (
            record.protocol,
            record.model,
            record.stream,
            record.status,
            record.route,
            record.target,
            record.reason,
            record.attempts,
            record.rounds,
            record.finish,
            record.client_name,
            record.team,
            record.role.name,
        )
        constant = self._cache.get(key)
        if constant is None:
            constant = self._remember(key, _constant_fields(at, record))
        arrived, first_byte = record.arrived, record.first_byte
        seconds, first = ticks(record.finished - arrived), ticks(first_byte - arrived) if first_byte else 0
        if seconds < 0 or first < 0:
            return json.encode(request_line(at, record))
        second = int(at)
        thousandths = int((at - second) * 1000.0)
        # Request ids are generated here and need no escaping.
        return b'{"time":"%b.%b%dZ","request":"%b","seconds":%b%b%b%b%b%b%b,%b' % (
            second_text(second),
            PAIRS[thousandths // 10],
            thousandths % 10,
            record.id.encode(),
            duration(seconds),
            b',"first_byte":' + duration(first) if first_byte else b"",
            _tokens(record.usage),
            _cost(record.cost),
            _session(record.session),
            _client_id(record.client_request_id),
            b"" if record.trace is None else b',"trace_id":"%b"' % record.trace.trace_id.encode(),
            constant,
        )

    def _remember(self, key: _CacheKey, text: bytes) -> bytes:
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        if len(text) + len(key[1]) <= _MAX_CACHED_BYTES:
            self._cache[key] = text
        return text


def _tokens(usage: Usage | None) -> bytes:
    if usage is None:
        return b""
    return (
        b',"input_tokens":%d,"output_tokens":%d,"cache_read_tokens":%d,"cache_write_tokens":%d,"reasoning_tokens":%d'
        % (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning)
    )


def _cost(cost: Cost | None) -> bytes:
    if cost is None:
        return b""
    amount = b"null" if cost.nanos is None else cost.encode()
    return b',"cost":%b,"cost_kind":"%b"' % (amount, cost.kind.encode())


def _session(key: str) -> bytes:
    name = session_name(key)[:200] if key else ""
    return b',"session":%b' % json.encode(name) if name else b""


def _client_id(id: str) -> bytes:
    return b',"client_request_id":%b' % json.encode(id) if id else b""


def _constant_fields(at: float, record: RequestRecord) -> bytes:
    fields = msgspec.to_builtins(request_line(at, record))
    constant = {name: value for name, value in fields.items() if name not in _VARYING}
    return json.encode(constant)[1:]
