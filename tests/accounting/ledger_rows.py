"""Rows of the usage ledger as tests make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from routecodex.accounting.ledger_file import LedgerBatch, LedgerFile, LedgerRow
from routecodex.accounting.ledger_schema import CALL_COLUMNS, REQUEST_COLUMNS

DAY = 86_400
MIDNIGHT = 1_774_396_800
"""2026-03-25T00:00:00Z, in seconds; four days later Europe's clocks go forward."""

_REQUEST: dict[str, Any] = {
    "server": "main",
    "client": "laptop",
    "team": "core",
    "session": "s1",
    "agent": "",
    "role": "main",
    "protocol": "chat",
    "stream": 1,
    "model": "asked",
    "route": "default",
    "provider": "glm",
    "key": "primary",
    "target_model": "glm-4.7",
    "status": 200,
    "finish": "stop",
    "error": None,
    "attempts": 1,
    "rounds": 1,
    "input_tokens": 100,
    "output_tokens": 10,
    "cache_read_tokens": 80,
    "cache_write_tokens": 5,
    "cache_write_1h_tokens": 0,
    "reasoning_tokens": 3,
    "cost": 0.5,
    "cost_kind": "reported",
    "first_byte_ms": 20.0,
    "total_ms": 30.0,
}
_SHARED = (
    "provider",
    "key",
    "status",
    "cost",
    "cost_kind",
    *(name for name in CALL_COLUMNS if name.endswith("_tokens")),
)


def request(id: str, at: float, **fields: Any) -> dict[str, Any]:
    """Return a request that ended at `at`, in seconds, with one call."""
    row = {**_REQUEST, "id": id, "time": int(at * 1000), **fields}
    known = row["cost"] or 0.0
    row.setdefault("cost_known", known)
    row.setdefault("cost_estimated", 0.0 if row["cost_kind"] == "reported" else known)
    return row


def call(row: dict[str, Any], number: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a call of a request, with its figures."""
    shared = {name: row[name] for name in _SHARED}
    own = {"request_id": row["id"], "n": number, "kind": "round", "model": row["target_model"]}
    return {**shared, **own, "price_source": "package", "ms": 25.0, **fields}


def batch(rows: Iterable[dict[str, Any]], calls: Iterable[dict[str, Any]] | None = None) -> LedgerBatch:
    """Return these rows as a batch; without calls every request has one."""
    requests = list(rows)
    made = [call(row) for row in requests] if calls is None else list(calls)
    return LedgerBatch(
        [_tuple(row, REQUEST_COLUMNS) for row in requests], [_tuple(row, CALL_COLUMNS) for row in made]
    )


def _tuple(row: dict[str, Any], columns: tuple[str, ...]) -> LedgerRow:
    return tuple(row[name] for name in columns)


def ledger_file(
    path: Path, *, timezone: str = "UTC", now: Callable[[], float] = lambda: MIDNIGHT + 100 * DAY
) -> LedgerFile:
    """Return a ledger that is written in this process, long after its rows."""
    return LedgerFile(path, server="main", timezone=timezone, now=now)
