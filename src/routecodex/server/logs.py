"""Logging: set-up, and the fields of a request's line, as JSON or for people, never with secrets."""

from __future__ import annotations

import functools
import logging
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from msgspec import UNSET, Struct, UnsetType

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
    """Whether lines are JSON: as configured, or with "auto" if the stream is not a terminal."""
    return choice == "json" or (choice == "auto" and not stream.isatty())


def set_up(*, level: str, as_json: bool, finish_trace: Path | None = None) -> None:
    """Send the gateway's loggers to stderr; finish reasons go to the file `finish_trace`."""
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
    """Change the log level while running."""
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
    """Fields of a request's log line."""

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
    rounds: int = 0
    first_byte: float | None = None
    finish: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | UnsetType | None = UNSET
    cost_kind: str = ""
    client: str = ""
    team: str = ""
    client_request_id: str = ""
    trace_id: str = ""
    call: str = ""
    address: str = ""
    error: str = ""
    code: str = ""
    notices: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    session: str = ""
    role: str = ""
    agent: str = ""
    followups: tuple[FollowUpRecord, ...] = ()


def request_line(at: float, record: RequestRecord) -> RequestLine:
    """Build the log line of a request: model, target, timings, outcome; never its content."""
    line = RequestLine(
        time=stamp(at),
        level="info",
        logger="routecodex.access",
        request=record.id,
        protocol=record.protocol,
        model=record.model[:200],
        stream=record.stream,
        status=499 if record.gone else record.status,
        route=record.route,
        target=_target_name(record.target) if record.target is not None else "",
        reason=record.reason,
        attempts=record.attempts,
        rounds=record.rounds,
        seconds=round(record.finished - record.arrived, 4),
        first_byte=round(record.first_byte - record.arrived, 4) if record.first_byte else None,
        finish=record.finish,
        client=record.client_name,
        team=record.team,
        client_request_id=record.client_request_id,
        trace_id=record.trace_id,
        call=record.call,
        address=record.address,
        notices=record.notices,
        failures=tuple(failure.text for failure in record.failures),
        session=session_name(record.session)[:200],
        role=record.role.name,
        agent=record.role.agent,
        followups=record.followups,
    )
    usage = record.usage
    if usage is not None:
        line.input_tokens, line.output_tokens = usage.input, usage.output
        line.cache_read_tokens, line.cache_write_tokens = usage.cache_read, usage.cache_write
        line.reasoning_tokens = usage.reasoning
    cost = record.cost
    if cost is not None:
        line.cost, line.cost_kind = cost.usd, cost.kind
    if record.error is not None:
        line.error, line.code = record.error.message, record.error.code or ""
    return line


KINDS: dict[str, ScopeKind] = {"session": "session", "conversation": "conversation", "chain": "chain"}
"""Kinds of scopes that are stored, by name."""


def session_name(key: str) -> str:
    """Return the name of a scope: a session's id alone, unless it looks like another kind."""
    id = key.removeprefix("session:")
    kind, colon, _ = id.partition(":")
    return key if colon and kind in KINDS else id


_ONE_LINE = dict.fromkeys((*range(32), 127, 133, 8232, 8233), "?")
"""Line ends and control characters, which could forge lines or control a terminal."""
_target_name = functools.lru_cache(maxsize=1024)(str)


def json_line(at: float, record: RequestRecord) -> str:
    """Format the line of a request as JSON."""
    return json.encode(request_line(at, record)).decode()


def human_line(at: float, record: RequestRecord) -> str:
    """Format the line of a request for people."""
    line = request_line(at, record)
    columns = [
        time.strftime("%H:%M:%S", time.localtime(at)),
        str(line.status),
        f"{line.protocol}{' stream' if line.stream else ''}",
        line.call if line.call else f"{line.model} → {line.target or '-'}",
        f"{line.seconds:.2f}s",
    ]
    if line.input_tokens is not None:
        columns.append(f"{line.input_tokens}+{line.output_tokens} tokens")
    if line.role != "main":
        columns.append(f"{line.role} {line.agent}".rstrip())
    columns.extend(text for text in (line.finish, line.error, *line.notices) if text)
    if line.attempts > 1:
        columns.extend(f"after {failure}" for failure in line.failures)
    return "  ".join(columns).translate(_ONE_LINE)
