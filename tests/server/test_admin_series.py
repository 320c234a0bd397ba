"""`/admin/series` over a real socket; the figures themselves are tested in tests/accounting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.kit import answers
from tests.kit.answers.model_answer import Counts
from tests.server.admin_gateway import CI, CLIENTS, LAPTOP, asked, gateway, get, refused


async def test_the_last_hour_is_shown_by_minutes(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        up.answer_with(lambda _: answers.text("chat", "hi", False, counts=Counts(100, 20, 40)))
        for _ in range(3):
            await asked(port)
        up.queue(answers.error("chat", 400))
        await asked(port)
        found = await get(port, "series")
    (series,) = found["series"]
    assert (series["name"], found["step"], len(series["points"])) == ("all", 60, 60)
    last = series["points"][-1]
    assert last.keys() == {
        *("t", "requests", "errors", "input_tokens", "output_tokens", "cache_read_tokens", "cost"),
        *("first_byte_p50", "first_byte_p95"),
    }
    sums = {name: sum(point[name] for point in series["points"]) for name in last if name.endswith("s")}
    assert sums == {
        "requests": 4,
        "errors": 1,
        "input_tokens": 300,
        "output_tokens": 60,
        "cache_read_tokens": 120,
    }
    assert sum(point["cost"] for point in series["points"]) == pytest.approx(3 * 340 / 1e6)
    assert 0 < last["first_byte_p50"] <= last["first_byte_p95"]
    assert series["points"][0]["first_byte_p50"] is None


async def test_series_by_a_name_and_with_filters(tmp_path: Path) -> None:
    async with gateway(tmp_path, more=CLIENTS) as (_, port):
        for model, headers in (("up.m", LAPTOP), ("other.m", CI), ("other.m", LAPTOP)):
            await asked(port, model=model, **headers)
        found = {}
        for query in (
            "by=provider",
            "by=client",
            "by=model",
            "by=route",
            "by=provider&client=ci",
            "client=x",
        ):
            answer = await get(port, f"series?{query}")
            found[query] = {
                one["name"]: sum(point["requests"] for point in one["points"]) for one in answer["series"]
            }
    assert found == {
        "by=provider": {"other": 2, "up": 1},
        "by=client": {"laptop": 2, "ci": 1},
        "by=model": {"m": 3},
        "by=route": {"direct": 3},
        "by=provider&client=ci": {"other": 1},
        "client=x": {"all": 0},
    }


async def test_points_begin_at_since_and_are_at_most_500(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    since = (now - timedelta(hours=2, seconds=7)).isoformat()
    until = (now + timedelta(seconds=30)).isoformat()
    async with gateway(tmp_path) as (_, port):
        await asked(port)
        whole = await get(port, f"series?since={quote(since)}&until={quote(until)}&step=3700")
        fine = await get(port, f"series?since={quote(since)}&until={quote(until)}&step=1")
        long = await get(port, "series?since=1970-01-01&step=60")
    points = whole["series"][0]["points"]
    assert [point["requests"] for point in points] == [0, 1]
    assert abs(datetime.fromisoformat(points[0]["t"]) - datetime.fromisoformat(since)) < timedelta(seconds=1)
    assert len(fine["series"][0]["points"]) <= 500
    assert fine["step"] == 15
    assert len(long["series"][0]["points"]) <= 500
    assert sum(point["requests"] for point in long["series"][0]["points"]) == 1


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("step=0", "step"),
        ("step=-5", "step"),
        ("step=x", "step"),
        ("step=1.5", "step"),
        (f"step={'9' * 40}", "step"),
        ("by=session", "by"),
        ("since=1h&until=2h", "until"),
        ("since=now", "since"),
        ("since=2999-01-01", "since"),
        ("status=bad", "status"),
        ("stop=1", "stop"),
    ],
)
async def test_a_bad_parameter_is_a_400_that_names_it(tmp_path: Path, query: str, param: str) -> None:
    async with gateway(tmp_path) as (_, port):
        status, _, named = await refused(port, f"series?{query}")
    assert (status, named) == (400, param)


async def test_without_a_ledger_there_are_no_series(tmp_path: Path) -> None:
    async with gateway(tmp_path, more="[usage]\nenabled = false\n") as (_, port):
        assert (await refused(port, "series"))[:2] == (409, "no_ledger")
