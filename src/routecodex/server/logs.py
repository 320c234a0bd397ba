"""Logging: one line per request and whatever else happens, for people or for machines, never with secrets."""

from __future__ import annotations

import functools
import logging
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from msgspec import Struct

from routecodex.gateway.context.identity import ScopeKind
from routecodex.gateway.records import FollowUpRecord
from routecodex.gateway.request import RequestRecord
from routecodex.server.log_numbers import stamp
from routecodex.wire import json


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": stamp(record.created),
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


class RequestLine(Struct, omit_defaults=True):
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
    followups: tuple[FollowUpRecord, ...] = ()


def request_line(at: float, record: RequestRecord) -> RequestLine:
    """The request as it is logged: what it was, where it went, what came of it; never what was said."""
    told = RequestLine(
        time=stamp(at),
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


KINDS: dict[str, ScopeKind] = {"session": "session", "conversation": "conversation", "chain": "chain"}
"""The kinds of scopes that last, by name."""


def session_name(key: str) -> str:
    """How a scope is shown: a session by its id alone, unless that reads like one of another kind."""
    id = key.removeprefix("session:")
    kind, colon, _ = id.partition(":")
    return key if colon and kind in KINDS else id


_ONE_LINE = dict.fromkeys((*range(32), 127, 133, 8232, 8233), "?")
"""What could end a line or steer a terminal has no place in a log for people."""
_named = functools.lru_cache(maxsize=1024)(str)


def json_line(at: float, record: RequestRecord) -> str:
    """The request for machines."""
    return json.encode(request_line(at, record)).decode()


def human_line(at: float, record: RequestRecord) -> str:
    """The request for people."""
    told = request_line(at, record)
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
