"""Past use from the usage ledger: by owner, unit and model, from rows and from the totals of hours."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from routecodex.accounting.cost import Cost
from routecodex.accounting.ledger_file import LedgerFile
from routecodex.accounting.ledger_use import LedgerUse
from routecodex.accounting.limits import Limit, make_limits
from routecodex.accounting.shared_counters import SharedCounters
from routecodex.accounting.windows import MICROS
from routecodex.canon.events import Usage
from routecodex.config import LimitConfig
from routecodex.gateway.call_record import CallRecord
from routecodex.gateway.request import RequestRecord
from routecodex.routing.registry import Target
from routecodex.server.ledger_rows import ledger_batch

NOW = datetime(2026, 11, 18, 7, 30, tzinfo=UTC).timestamp()
HOUR, DAY = 3600, 86_400


def record(number: int, client: str, *providers: str) -> RequestRecord:
    """Return a request of a client of the team `core` that called these providers for one cent each."""
    made = RequestRecord(
        id=f"req_{number}",
        protocol="chat",
        model="m",
        stream=False,
        arrived=0.0,
        client_name=client,
        team="core",
    )
    made.is_priced = made.counted = True
    for name in providers:
        target = Target(name, "k", "m")
        usage = Usage(input=100, output=10, cache_read=60)
        made.target = target
        made.usage = usage if made.usage is None else made.usage + usage
        made.calls.append(CallRecord("round", target, usage, cost=Cost(10_000_000), status=200, ms=1.0))
    return made


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    file = LedgerFile(path, server="s", timezone="UTC")
    moments = [
        (NOW - 10, record(1, "laptop", "opus")),
        (NOW - 2 * HOUR, record(2, "laptop", "opus", "sonnet")),
        (NOW - 3 * DAY, record(3, "laptop", "sonnet")),
        (NOW - 40 * DAY, record(4, "laptop", "opus")),
        (NOW - 20, record(5, "ci", "opus")),
    ]
    file.write(ledger_batch(sorted(moments, key=lambda one: one[0]), server="s"))
    file.close()
    return path


def used(ledger: Path, folder: Path, *rows: LimitConfig, owner: str = "client:laptop") -> list[int]:
    limits = make_limits(owner, rows)
    counters = SharedCounters(folder / "x.limits", past_use=LedgerUse(ledger))
    found = [row.used for row in counters.figures(limits, int(NOW * MICROS))]
    counters.close()
    return found


def texts(*rows: str) -> tuple[LimitConfig, ...]:
    return tuple(LimitConfig(limit=row) for row in rows)


def test_every_unit_is_read(ledger: Path, tmp_path: Path) -> None:
    rows = texts(
        "$5/day", "9 requests/day", "9k tokens/day", "9k input/day", "9k output/day", "9k uncached/day"
    )
    assert used(ledger, tmp_path, *rows) == [30_000_000, 2, 330, 300, 30, 150]


def test_every_window_is_read(ledger: Path, tmp_path: Path) -> None:
    windows = ("60s", "1h", "5h", "day", "week", "7d", "month", "60d")
    assert used(ledger, tmp_path, *texts(*(f"9 requests/{one}" for one in windows))) == [
        1,
        1,
        2,
        2,
        2,
        3,
        3,
        4,
    ]


def test_long_windows_read_every_unit_too(ledger: Path, tmp_path: Path) -> None:
    rows = texts("$5/month", "9k tokens/month", "9k uncached/month")
    assert used(ledger, tmp_path, *rows) == [40_000_000, 440, 200]


def test_a_team_adds_up_its_members(ledger: Path, tmp_path: Path) -> None:
    rows = texts("9 requests/day", "9 requests/month")
    assert used(ledger, tmp_path, *rows, owner="team:core") == [3, 4]


def test_models_are_told_apart(ledger: Path, tmp_path: Path) -> None:
    rows = [
        LimitConfig(limit=f"{amount}/{window}", models=("opus.*",))
        for window in ("day", "month")
        for amount in ("$5", "9 requests")
    ]
    assert used(ledger, tmp_path, *rows)[:3] == [20_000_000, 2, 20_000_000]


def test_rows_leave_when_their_time_is_over(ledger: Path, tmp_path: Path) -> None:
    limits = make_limits("client:laptop", texts("9 requests/60s"))
    counters = SharedCounters(tmp_path / "x.limits", past_use=LedgerUse(ledger))
    later = [counters.figures(limits, int((NOW + after) * MICROS))[0].used for after in (0, 49, 52)]
    counters.close()
    assert later == [1, 1, 0]


@pytest.mark.parametrize("content", [None, b"", b"not a database" * 100])
def test_a_ledger_that_cannot_be_read_knows_nothing(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ledger.sqlite"
    if content is not None:
        path.write_bytes(content)
    assert used(path, tmp_path, *texts("9 requests/day")) == [0]


def test_limits_of_keys_are_not_in_the_ledger(ledger: Path) -> None:
    limit: Limit = make_limits("key:up.a", texts("9 requests/60s"))[0]
    assert LedgerUse(ledger)(limit, 0) == []
