"""Questions about usage as people put them, and answers of several ledgers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from routecodex.accounting.usage_report import (
    InvalidUsageQuery,
    UsageQuestion,
    merge,
    read_usage,
    zone_of,
)
from tests.accounting.ledger_rows import MIDNIGHT, batch, ledger_file, request

NOW = MIDNIGHT + 15 * 3600.0
OSLO = ZoneInfo("Europe/Oslo")


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


SINCES = {
    None: moment("2026-03-25T00:00:00+01:00"),
    "7d": NOW - 7 * 86_400,
    "24h": NOW - 86_400,
    "90s": NOW - 90,
    "2w": NOW - 14 * 86_400,
    "2026-03-01": moment("2026-03-01T00:00:00+01:00"),
    "2026-03-01T12:00:00Z": moment("2026-03-01T12:00:00+00:00"),
    "2026-03-01T12:00:00+09:00": moment("2026-03-01T12:00:00+09:00"),
    "999999999d": 0.0,
}


@pytest.mark.parametrize(("text", "expected"), SINCES.items())
def test_a_time_is_a_duration_a_day_or_a_moment(text: str | None, expected: float) -> None:
    assert UsageQuestion(since=text, now=NOW).query(OSLO).since == expected


@pytest.mark.parametrize("text", ["yesterday", "7", "-7d", "2026-13-01", "2026-03-01T12:00:00", "", "7 d"])
def test_any_other_time_is_named(text: str) -> None:
    with pytest.raises(InvalidUsageQuery, match="is not a time") as caught:
        UsageQuestion(since=text, now=NOW)
    assert caught.value.parameter == "since"


def test_an_end_before_the_beginning_is_refused() -> None:
    with pytest.raises(InvalidUsageQuery, match="before since"):
        UsageQuestion(since="1d", until="2d", now=NOW)


def test_a_beginning_in_the_future_is_refused() -> None:
    with pytest.raises(InvalidUsageQuery, match="is in the future") as caught:
        UsageQuestion(since="2027-01-01", now=NOW)
    assert caught.value.parameter == "since"


def test_a_day_that_has_begun_in_the_zone_of_the_ledger_is_not_in_the_future() -> None:
    late = moment("2026-03-25T23:30:00+00:00")
    question = UsageQuestion(since="2026-03-26", now=late)
    assert question.times(OSLO) == ("2026-03-25T23:00:00Z", "2026-03-25T23:30:00Z")
    assert question.times(UTC) == ("2026-03-26T00:00:00Z", "2026-03-26T00:00:00Z")


def test_today_begins_with_the_first_midnight_where_clocks_go_back_over_it() -> None:
    """On the Azores a second midnight follows an hour after the first, on the last Sunday of October."""
    now = moment("2026-10-25T01:30:00+00:00")
    query = UsageQuestion(now=now).query(ZoneInfo("Atlantic/Azores"))
    assert query.since == moment("2026-10-25T00:00:00+00:00")


def test_an_end_in_the_future_is_now() -> None:
    question = UsageQuestion(since="1d", until="2030-01-01", now=NOW)
    assert question.query(UTC).until is None
    assert question.times(UTC) == ("2026-03-24T15:00:00Z", "2026-03-25T15:00:00Z")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidUsageQuery, match="'colour' is not one of client, team"):
        UsageQuestion(by=["client", "colour"], now=NOW)


def test_an_unknown_zone_is_utc() -> None:
    assert [zone_of(name) for name in ("", "UTC", "Nowhere/Land", "../etc/passwd")] == [UTC] * 4
    assert zone_of("Europe/Oslo") == OSLO


def test_today_is_that_of_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    file = ledger_file(path, timezone="Europe/Oslo")
    file.write(batch([request("req_1", MIDNIGHT - 1800), request("req_2", MIDNIGHT - 4000)]))
    file.close()
    answer = read_usage(path, UsageQuestion(by=["day"], now=NOW))
    assert [(row["day"], row["requests"]) for row in answer["rows"]] == [("2026-03-25", 1)]
    assert answer["since"] == "2026-03-24T23:00:00Z"


def test_the_answers_of_several_servers_are_added_up(tmp_path: Path) -> None:
    answers = []
    question = UsageQuestion(by=["client", "day"], now=NOW)
    for server, clients in enumerate((["laptop", "ci"], ["laptop"])):
        path = tmp_path / f"{server}.sqlite"
        file = ledger_file(path)
        rows = [request(f"req_{server}_{name}", MIDNIGHT + 60, client=name) for name in clients]
        file.write(batch(rows))
        file.close()
        answers.append(read_usage(path, question))
    merged = merge(question, answers, UTC)
    shown = [(row["client"], row["day"], row["requests"], row["cost"]) for row in merged["rows"]]
    assert shown == [("laptop", "2026-03-25", 2, 1.0), ("ci", "2026-03-25", 1, 0.5)]
    assert (merged["total"]["requests"], merged["total"]["cache_hit_rate"]) == (3, 0.8)
    assert merged["by"] == ["client", "day"]
