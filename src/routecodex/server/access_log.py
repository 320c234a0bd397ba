"""The line per request, as cheap as it can be: most of one repeats from request to request.

What repeats is encoded once and kept; moment, id, durations, tokens and session are written around it. A
request of which there is more to tell is encoded as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from time import time
from typing import Final, Protocol, TextIO

import msgspec

from routecodex.canon.events import Usage
from routecodex.gateway.request import RequestRecord
from routecodex.routing.registry import Target
from routecodex.server.log_numbers import PAIRS, duration, second_text, ticks
from routecodex.server.logs import human_line, request_line, session_name
from routecodex.wire import json

_FLUSH_SECONDS: Final = 0.2
_FLUSH_LINES: Final = 500
_KEPT: Final = 256
_KEPT_CHARS: Final = 2048
_DIFFERENT = frozenset(
    (
        "time",
        "request",
        "seconds",
        "first_byte",
        "input_tokens",
        "output_tokens",
        "cache_read_tokens",
        "session",
    )
)

_Alike = tuple[str, str, bool, int, str, Target | None, str, int, str, str]


class LineSink(Protocol):
    """Where the lines of requests are kept as well, each as JSON."""

    def keep(self, lines: Sequence[bytes]) -> None: ...


class AccessLog:
    """The line per request; lines are formatted and written a little later, together.

    `keeper` gets them too; with `shown` False it alone does.
    """

    def __init__(
        self,
        *,
        as_json: bool,
        stream: TextIO | None = None,
        keeper: LineSink | None = None,
        shown: bool = True,
    ) -> None:
        self._as_json = as_json
        self._stream = sys.stderr if stream is None else stream
        self._keeper = keeper
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
        """Writes what has gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._records = self._records, []
        if not records:
            return
        lines: list[bytes] = []
        if self._as_json or self._keeper is not None:
            lines = [self._encoder.encode(at, record) for at, record in records]
        if self._keeper is not None:
            self._keeper.keep(lines)
        # A terminal that was closed takes nothing more, and whoever read it there has left.
        with contextlib.suppress(OSError):
            if self.shown and self._as_json:
                _write(self._stream, b"\n".join([*lines, b""]))
            elif self.shown:
                self._stream.writelines([f"{human_line(at, record)}\n" for at, record in records])
                self._stream.flush()


def _write(stream: TextIO, lines: bytes) -> None:
    """Writes lines of JSON; as they are where the stream takes bytes below, and after what it still holds."""
    below = getattr(stream, "buffer", None)
    if below is None:
        stream.write(lines.decode())
    else:
        stream.flush()
        below.write(lines)
    stream.flush()


class LineEncoder:
    """Requests as lines of JSON; keeps what they have in common, within bounds."""

    def __init__(self) -> None:
        self._kept: dict[_Alike, bytes] = {}

    def encode(self, at: float, record: RequestRecord) -> bytes:
        """The line of a request that was finished at this moment; equal to `json_line` when read."""
        usual = not (record.gone or record.failures or record.notices or record.followups)
        if record.error is not None or not usual:
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
            record.finish,
            record.client_name,
        )
        alike = self._kept.get(key)
        if alike is None:
            alike = self._keep(key, _without_differences(at, record))
        arrived, first_byte = record.arrived, record.first_byte
        seconds, begun = ticks(record.finished - arrived), ticks(first_byte - arrived) if first_byte else 0
        if seconds < 0 or begun < 0:
            return json.encode(request_line(at, record))
        second = int(at)
        thousandths = int((at - second) * 1000.0)
        # Ids are our own and go into headers too: there is nothing to escape in them.
        return b'{"time":"%b.%b%dZ","request":"%b","seconds":%b%b%b%b,%b' % (
            second_text(second),
            PAIRS[thousandths // 10],
            thousandths % 10,
            record.id.encode(),
            duration(seconds),
            b',"first_byte":' + duration(begun) if first_byte else b"",
            _tokens(record.usage),
            _session(record.session),
            alike,
        )

    def _keep(self, key: _Alike, text: bytes) -> bytes:
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        if len(text) + len(key[1]) <= _KEPT_CHARS:
            self._kept[key] = text
        return text


def _tokens(usage: Usage | None) -> bytes:
    if usage is None:
        return b""
    return b',"input_tokens":%d,"output_tokens":%d,"cache_read_tokens":%d' % (
        usage.input,
        usage.output,
        usage.cache_read,
    )


def _session(key: str) -> bytes:
    name = session_name(key)[:200] if key else ""
    return b',"session":%b' % json.encode(name) if name else b""


def _without_differences(at: float, record: RequestRecord) -> bytes:
    told = msgspec.to_builtins(request_line(at, record))
    alike = {name: value for name, value in told.items() if name not in _DIFFERENT}
    return json.encode(alike)[1:]
