"""Sums of a batch: the same as those that SQL computes from the rows."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from routecodex.accounting import ledger_totals
from routecodex.accounting.ledger_file import LedgerBatch
from routecodex.accounting.ledger_schema import ROWS_AT_ONCE
from tests.accounting.ledger_rows import MIDNIGHT, batch, call, ledger_file, request

TABLES = ("hours", "facet_hours", "session_hours", "first_bytes")

names = st.sampled_from(["", "one", "two"])
tokens = st.integers(0, 3)
# Amounts whose sums are exact in any order.
costs = st.sampled_from([None, 0.0, 0.25, 1.5])
figures: dict[str, Any] = {
    "status": st.sampled_from([200, 404, 499, 500]),
    "cost": costs,
    "cost_kind": st.sampled_from(["reported", "observed", "estimated"]),
    **{f"{part}_tokens": tokens for part in ("input", "output", "cache_read", "cache_write", "reasoning")},
}
targets = {"provider": names, "key": names}
requests = st.fixed_dictionaries(
    {
        "client": names,
        "team": names,
        "session": names,
        "agent": names,
        "route": names,
        "protocol": names,
        "target_model": names,
        "error": st.sampled_from([None, "", "boom"]),
        "first_byte_ms": st.sampled_from([None, 0.0, 12.5, 90_000.0]),
        **targets,
        **figures,
    }
)
calls = st.lists(st.fixed_dictionaries({"model": names, **targets, **figures}), max_size=3)


def contents(connection: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr) for table in TABLES
    }


def made(rows: list[tuple[dict[str, Any], list[dict[str, Any]], int]]) -> LedgerBatch:
    whole = [
        request(f"req_{n}", MIDNIGHT + hour * 3600, **fields) for n, (fields, _, hour) in enumerate(rows)
    ]
    return batch(
        whole,
        [
            call(row, number, **fields)
            for row, (_, made, _) in zip(whole, rows, strict=True)
            for number, fields in enumerate(made, 1)
        ],
    )


@given(st.lists(st.tuples(requests, calls, st.integers(0, 2)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_sums_of_a_batch_are_those_of_its_rows(
    rows: list[tuple[dict[str, Any], list[dict[str, Any]], int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "usage.sqlite"
        file = ledger_file(path)
        file.write(made(rows))
        file.close()
        connection = sqlite3.connect(path, isolation_level=None)
        summed = contents(connection)
        ledger_totals.prepare(connection)
        ledger_totals.compute_since(connection, MIDNIGHT, closed=0)
        assert summed == contents(connection)
        connection.close()


def test_requests_that_are_there_already_are_counted_once(tmp_path: Path) -> None:
    file = ledger_file(tmp_path / "usage.sqlite")
    rows = [request(f"req_{number}", MIDNIGHT + 5) for number in range(ROWS_AT_ONCE * 2 + 3)]
    file.write(batch(rows[:10]))
    file.write(batch(rows))
    file.close()
    connection = sqlite3.connect(tmp_path / "usage.sqlite")
    counted = connection.execute("SELECT SUM(requests), SUM(calls), SUM(input_tokens) FROM hours").fetchone()
    stored = connection.execute("SELECT COUNT(*), SUM(input_tokens) FROM requests").fetchone()
    connection.close()
    assert counted == (len(rows), len(rows), stored[1])
    assert stored[0] == len(rows)
