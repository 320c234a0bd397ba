"""Logging: one line per request and whatever else happens, for people or for machines, never with secrets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, Protocol, TextIO

from msgspec import Struct

from routecodex.gateway.ask import FollowedUp, Record
from routecodex.gateway.scope import Kind
from routecodex.wire import json

_FLUSH_SECONDS = 0.2
_FLUSH_LINES = 500


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.encode(line).decode()


def is_json(choice: str, stream: TextIO) -> bool:
    """Whether lines are JSON: as chosen, or whenever no person is watching."""
    return choice == "json" or (choice == "auto" and not stream.isatty())


def set_up(*, level: str, as_json: bool, finish_trace: Path | None = None) -> None:
    """Sends our loggers to stderr; `finish_trace` is the file that follows finish reasons."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter()
        if as_json
        else logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger("routecodex")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    if finish_trace is not None:
        _trace_finishes(finish_trace)


def set_level(level: str) -> None:
    """Changes the least severity that is logged, while running."""
    logging.getLogger("routecodex").setLevel(level.upper())


def _trace_finishes(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("routecodex.finish")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG)
    logger.propagate = False


class Keeper(Protocol):
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
        keeper: Keeper | None = None,
        shown: bool = True,
    ) -> None:
        self._as_json = as_json
        self._stream = sys.stderr if stream is None else stream
        self._keeper = keeper
        self.shown = shown
        self._records: deque[tuple[float, Record]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: Record) -> None:
        self._records.append((time.time(), record))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)
        elif len(self._records) >= _FLUSH_LINES:
            self.flush()

    def flush(self) -> None:
        """Writes what has gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._records:
            return
        told = [(at, line(at, record)) for at, record in self._records]
        self._records.clear()
        lines = [json.encode(row) for _, row in told]
        if self._keeper is not None:
            self._keeper.keep(lines)
        if self.shown:
            text = b"\n".join(lines).decode() if self._as_json else "\n".join(starmap(_human_text, told))
            # A terminal that was closed takes nothing more, and whoever read it there has left.
            with contextlib.suppress(OSError):
                self._stream.write(text + "\n")
                self._stream.flush()


def _stamp(at: float) -> str:
    second = int(at)
    return f"{_second(second)}.{int((at - second) * 1000):03d}Z"


@functools.lru_cache(maxsize=4)
def _second(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


class Line(Struct, omit_defaults=True):
    """What is told of a request."""

    time: str
    request: str
    protocol: str
    model: str
    status: int
    seconds: float
    level: str = ""
    logger: str = ""
    stream: bool | None = None
    route: str = ""
    target: str = ""
    reason: str = ""
    attempts: int = 0
    first_byte: float | None = None
    finish: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    client: str = ""
    error: str = ""
    code: str = ""
    notices: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    session: str = ""
    followups: tuple[FollowedUp, ...] = ()


def line(at: float, record: Record) -> Line:
    """The request as it is logged: what it was, where it went, what came of it; never what was said."""
    told = Line(
        time=_stamp(at),
        level="info",
        logger="routecodex.access",
        request=record.id,
        protocol=record.protocol,
        model=record.model[:200],
        stream=record.stream,
        status=499 if record.gone else record.status,
        route=record.route,
        target=_named(record.target) if record.target is not None else "",
        reason=record.reason,
        attempts=record.attempts,
        seconds=round(record.finished - record.arrived, 4),
        first_byte=round(record.first_byte - record.arrived, 4) if record.first_byte else None,
        finish=record.finish,
        client=record.client_name,
        notices=record.notices,
        failures=tuple(record.failures),
        session=session_name(record.session)[:200],
        followups=record.followups,
    )
    usage = record.usage
    if usage is not None:
        told.input_tokens, told.output_tokens = usage.input, usage.output
        told.cache_read_tokens = usage.cache_read
    if record.error is not None:
        told.error, told.code = record.error.message, record.error.code or ""
    return told


KINDS: dict[str, Kind] = {"session": "session", "conversation": "conversation", "chain": "chain"}
"""The kinds of scopes that last, by name."""


def session_name(key: str) -> str:
    """How a scope is shown: a session by its id alone, unless that reads like one of another kind."""
    id = key.removeprefix("session:")
    kind, colon, _ = id.partition(":")
    return key if colon and kind in KINDS else id


_ONE_LINE = dict.fromkeys((*range(32), 127, 133, 8232, 8233), "?")
"""What could end a line or steer a terminal has no place in a log for people."""
_named = functools.lru_cache(maxsize=1024)(str)


def json_line(at: float, record: Record) -> str:
    """The request for machines."""
    return json.encode(line(at, record)).decode()


def human_line(at: float, record: Record) -> str:
    """The request for people."""
    return _human_text(at, line(at, record))


def _human_text(at: float, told: Line) -> str:
    words = [
        time.strftime("%H:%M:%S", time.localtime(at)),
        str(told.status),
        f"{told.protocol}{' stream' if told.stream else ''}",
        f"{told.model} → {told.target or '-'}",
        f"{told.seconds:.2f}s",
    ]
    if told.input_tokens is not None:
        words.append(f"{told.input_tokens}+{told.output_tokens} tokens")
    words.extend(word for word in (told.finish, told.error, *told.notices) if word)
    if told.attempts > 1:
        words.extend(f"after {failure}" for failure in told.failures)
    return "  ".join(words).translate(_ONE_LINE)
