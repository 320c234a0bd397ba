"""`/admin/requests` over a real socket: pages, filters, groups, and one request in detail."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.kit import answers, asking
from tests.kit.answers.model_answer import Counts
from tests.kit.raw_client import begin, call
from tests.kit.steps import Hang, Steps
from tests.server.admin_gateway import (
    BEARER,
    CI,
    CLIENTS,
    LAPTOP,
    asked,
    chat,
    gateway,
    get,
    refusal,
    refused,
)

Rows = list[dict[str, Any]]
COUNTS = Counts(input=100, output=20, cached=40)


def ids(found: dict[str, Any]) -> list[str]:
    return [row["request"] for row in found["requests"]]


async def test_pages_lead_back_to_the_first_request_and_none_is_missing(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        made = [await asked(port) for _ in range(5)]
        newest = await get(port, "requests?limit=2")
        middle = await get(port, f"requests?limit=2&before={newest['next']}")
        first = await get(port, f"requests?limit=2&before={middle['next']}")
        none = await get(port, f"requests?before={made[0]}")
    assert [ids(page) for page in (first, middle, newest)] == [made[:1], made[1:3], made[3:]]
    assert [page["total"] for page in (first, middle, newest, none)] == [5] * 4
    assert (newest["next"], middle["next"], first["next"]) == (made[3], made[1], None)
    assert none["requests"] == []


async def test_pages_of_one_row_pass_refused_requests_too(tmp_path: Path) -> None:
    """Requests that usage does not count are in another table, and end in the same millisecond."""
    async with gateway(tmp_path) as (_, port):
        made: list[str] = []
        for _ in range(4):
            made.append(await asked(port))
            bad = await call(port, "/v1/chat/completions", b"{")
            made.append(bad.headers["x-request-id"])
        seen: list[str] = []
        page = await get(port, "requests?limit=1")
        while True:
            seen = ids(page) + seen
            if page["next"] is None:
                break
            page = await get(port, f"requests?limit=1&before={page['next']}")
        usage = await get(port, "usage")
    assert seen == made
    assert page["total"] == 8
    assert usage["total"]["requests"] == 4


async def test_a_row_has_the_fields_of_the_log_line(tmp_path: Path) -> None:
    async with gateway(
        tmp_path, more=CLIENTS.replace("[clients.ci]", 'team = "core"\n[clients.ci]') + "[teams.core]\n"
    ) as (up, port):
        up.queue(answers.text("chat", "hi", False, counts=COUNTS))
        id = await asked(port, session="s-1", **LAPTOP, x_request_id="mine")
        (row,) = (await get(port, "requests"))["requests"]
    assert {name: row[name] for name in row if name not in ("time", "seconds", "first_byte")} == {
        "request": id,
        "level": "info",
        "logger": "routecodex.access",
        "protocol": "chat",
        "model": "auto",
        "status": 200,
        "stream": False,
        "route": "default",
        "target": "up.primary.m",
        "reason": row["reason"],
        "attempts": 1,
        "rounds": 1,
        "finish": "stop",
        "input_tokens": 100,
        "output_tokens": 20,
        "cache_read_tokens": 40,
        "cache_write_tokens": 0,
        "reasoning_tokens": 0,
        "cost": pytest.approx((60 * 2.0 + 40 * 0.5 + 20 * 10.0) / 1e6),
        "cost_kind": "reported",
        "client": "laptop",
        "team": "core",
        "client_request_id": "mine",
        "session": "s-1",
        "role": "main",
    }


async def test_filters_select_rows_and_count_only_these(tmp_path: Path) -> None:
    async with gateway(tmp_path, more=CLIENTS, mode="round-robin") as (up, port):
        one = await asked(port, model="up.m", session="s-1", **LAPTOP)
        two = await asked(port, model="other.m", session="s-2", **CI)
        up.queue(answers.error("chat", 400, "the moon is full"))
        bad = await asked(port, model="up.m", session="s-1", **CI)
        cases = {
            "client=laptop": [one],
            "client=ci": [two, bad],
            "session=s-1": [one, bad],
            "session=s-1&client=ci": [bad],
            "provider=up": [one, bad],
            "provider=other": [two],
            "model=m": [one, two, bad],
            "model=up.m": [one, bad],
            "target=up.primary.m": [one, bad],
            "target=up.primary": [one, bad],
            "target=up.m": [one, bad],
            "target=other": [two],
            "target=up.other": [],
            "route=direct": [one, two, bad],
            "protocol=messages": [],
            "protocol=chat": [one, two, bad],
            "status=ok": [one, two],
            "status=error": [bad],
            "status=400": [bad],
            "status=active": [],
            "agent=nobody": [],
            "team=core": [],
            f"q={two[-8:]}": [two],
            "q=OTHER": [two],
            "q=s-2": [two],
            "q=MOON": [bad],
            "q=": [one, two, bad],
            "client=": [one, two, bad],
            "since=1h": [one, two, bad],
            "until=2020-01-01": [],
        }
        found = {query: await get(port, f"requests?{query}") for query in cases}
    assert {query: ids(page) for query, page in found.items()} == cases
    assert {query: page["total"] for query, page in found.items()} == {
        query: len(rows) for query, rows in cases.items()
    }


@pytest.mark.parametrize(
    "text", ["%", "__", "'; DROP TABLE requests; --", "\\", '"', "é漢😀", "\x00", "a" * 5000]
)
async def test_a_hostile_text_is_only_searched_for(tmp_path: Path, text: str) -> None:
    async with gateway(tmp_path) as (_, port):
        await asked(port)
        for name in ("q", "client", "session", "model", "target", "agent", "team", "route", "protocol"):
            found = await get(port, f"requests?{urlencode({name: text})}")
            assert found == {"requests": [], "next": None, "total": 0}, name
        assert (await get(port, "requests"))["total"] == 1


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=x", "limit"),
        ("before=req_unknown", "before"),
        (f"before={'x' * 4000}", "before"),
        ("since=yesterday", "since"),
        ("until=2026-99-99", "until"),
        ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "until"),
        ("status=bad", "status"),
        ("status=20", "status"),
        ("status=%D9%A2%D9%A0%D9%A0", "status"),
        ("group=client", "group"),
        ("sesion=s", "sesion"),
    ],
)
async def test_a_bad_parameter_is_a_400_that_names_it(tmp_path: Path, query: str, param: str) -> None:
    async with gateway(tmp_path) as (_, port):
        await asked(port)
        status, _, named = await refused(port, f"requests?{query}")
    assert (status, named) == (400, param)


async def test_a_request_under_way_is_the_newest_row_and_has_a_plan(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        ended = await asked(port, session="s-1")
        up.queue(Steps([Hang()]))
        body = asking.body("chat", "hi", stream=False, model="auto")
        under_way = await begin(port, "/v1/chat/completions", body, headers={"x-session-id": "s-2"})
        await up.received()
        await up.received()
        found = await get(port, "requests")
        active = await get(port, "requests?status=active")
        older = await get(port, f"requests?before={ids(found)[-1]}")
        others = [await get(port, f"requests?{query}") for query in ("session=s-1", "status=ok", "since=1h")]
        detail = (await get(port, f"requests/{ids(active)[0]}"))["request"]
        await under_way.leave()
    row = found["requests"][1]
    assert (ids(found), found["total"]) == ([ended, row["request"]], 2)
    assert (ids(active), active["total"]) == ([row["request"]], 1)
    assert (row["status"], row["session"], row["target"], row["attempts"]) == (None, "s-2", "up.primary.m", 1)
    assert ids(older) == [ended]
    assert [ids(page) for page in others] == [[ended], [ended], [ended, row["request"]]]
    assert (detail["status"], [step["target"] for step in detail["plan"]["steps"]]) == (
        None,
        ["up.primary.m", "other.primary.m"],
    )


async def test_groups_are_sessions_of_clients_with_their_sums(tmp_path: Path) -> None:
    async with gateway(tmp_path, more=CLIENTS) as (up, port):
        up.answer_with(lambda _: answers.text("chat", "hi", False, counts=COUNTS))
        for session, headers in (("a", LAPTOP), ("b", LAPTOP), ("a", CI), ("a", LAPTOP)):
            await asked(port, session=session, **headers)
        up.queue(answers.error("chat", 400))
        await asked(port, session="b", **LAPTOP)
        found = await get(port, "requests?group=session")
        first = await get(port, "requests?group=session&limit=1")
        second = await get(port, f"requests?group=session&limit=1&before={first['next']}")
        third = await get(port, f"requests?group=session&limit=1&before={second['next']}")
        laptop = await get(port, "requests?group=session&client=laptop")
    shown = [(one["session"], one["client"], one["requests"], one["errors"]) for one in found["groups"]]
    assert shown == [("a", "ci", 1, 0), ("a", "laptop", 2, 0), ("b", "laptop", 2, 1)]
    assert (found["total"], found["next"]) == (3, None)
    pages = [page["groups"][0] for page in (third, second, first)]
    assert pages == found["groups"]
    assert third["next"] is None
    assert (laptop["total"], [one["session"] for one in laptop["groups"]]) == (2, ["a", "b"])
    group = found["groups"][1]
    assert (group["input_tokens"], group["output_tokens"]) == (200, 40)
    assert group["cost"] == pytest.approx(2 * 340 / 1e6)
    assert group["first"] <= group["last"]


async def test_the_detail_has_the_plan_that_explain_gives(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        up.queue(answers.text("chat", "hi", False, counts=COUNTS))
        id = await asked(port, session="s-1")
        shown = (await get(port, f"requests/{id}"))["request"]
        body = asking.body("chat", "hi", stream=False, model="auto")
        explained = await call(
            port,
            "/admin/explain",
            {"protocol": "chat", "body": body, "headers": {"x-session-id": "s-1"}},
            headers=BEARER,
        )
    assert shown["plan"] == explained.json
    (one,) = shown["calls"]
    assert (one["n"], one["kind"], one["target"], one["status"], one["error"]) == (
        1,
        "round",
        "up.primary.m",
        200,
        None,
    )
    assert 0 <= one["start_ms"] <= one["first_byte_ms"] <= one["end_ms"] <= shown["seconds"] * 1000 + 1
    assert (one["input_tokens"], one["output_tokens"], one["cost"]) == (100, 20, shown["cost"])
    assert shown["usage"] == [
        {"part": "input", "tokens": 60, "price": 2.0, "cost": pytest.approx(120e-6)},
        {"part": "cache_read", "tokens": 40, "price": 0.5, "cost": pytest.approx(20e-6)},
        {"part": "output", "tokens": 20, "price": 10.0, "cost": pytest.approx(200e-6)},
    ]
    assert sum(part["cost"] for part in shown["usage"]) == pytest.approx(shown["cost"])
    assert (shown["notices"], shown["captured"], shown["request"]) == ([], False, id)


async def test_a_failed_attempt_is_a_call_with_its_error(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        up.queue(answers.error("chat", 503, "over <b>capacity</b>"))
        id = await asked(port)
        shown = (await get(port, f"requests/{id}"))["request"]
    first, second = shown["calls"]
    assert (first["n"], first["kind"], first["target"], first["status"]) == (
        1,
        "attempt",
        "up.primary.m",
        503,
    )
    assert "over <b>capacity</b>" in first["error"]
    assert (second["kind"], second["target"], second["error"]) == ("round", "other.primary.m", None)
    assert first["start_ms"] <= first["end_ms"] <= second["start_ms"] <= second["end_ms"]
    assert (shown["attempts"], len(shown["failures"])) == (2, 1)


async def test_a_request_that_no_target_answered_has_its_error(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        up.answer_with(lambda _: answers.error("chat", 400, "temperature is too hot"))
        id = await asked(port)
        shown = (await get(port, f"requests/{id}"))["request"]
    assert shown["status"] == 400
    assert "temperature is too hot" in shown["error"]
    assert [one["status"] for one in shown["calls"]] == [400]


async def test_a_refused_request_has_a_detail_without_a_plan(tmp_path: Path) -> None:
    async with gateway(tmp_path, more=CLIENTS) as (_, port):
        id = (await chat(port)).headers["x-request-id"]
        shown = (await get(port, f"requests/{id}"))["request"]
    assert (shown["status"], shown["code"], shown["plan"], shown["calls"]) == (
        401,
        "invalid_api_key",
        None,
        [],
    )
    assert (shown["call"], shown["address"]) == ("POST /v1/chat/completions", "127.0.0.1")


@pytest.mark.parametrize("id", ["req_unknown", "%2e%2e", quote("<script>"), "x" * 3000, quote("'; --")])
async def test_an_unknown_request_is_a_404(tmp_path: Path, id: str) -> None:
    async with gateway(tmp_path) as (_, port):
        answer = await call(port, f"/admin/requests/{id}", method="GET", headers=BEARER)
    assert refusal(answer)[:2] == (404, "unknown_request")


async def test_the_past_is_shown_after_a_restart(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        id = await asked(port)
    async with gateway(tmp_path) as (_, port):
        later = await asked(port)
        found = await get(port, "requests")
        shown = (await get(port, f"requests/{id}"))["request"]
    assert ids(found) == [id, later]
    assert shown["plan"]["route"] == "default"


def rows_of(home: Path, table: str) -> int:
    connection = sqlite3.connect(home / "usage" / "main.sqlite")
    try:
        count: int = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
        return count
    finally:
        connection.close()


async def test_without_details_nothing_of_them_is_written(tmp_path: Path) -> None:
    async with gateway(tmp_path, more="[console]\ndetail_days = 0\n") as (up, port):
        up.queue(answers.text("chat", "hi", False, counts=COUNTS))
        id = await asked(port)
        await call(port, "/v1/chat/completions", b"{")
        found = await get(port, "requests")
        shown = (await get(port, f"requests/{id}"))["request"]
    assert (ids(found), found["total"]) == ([id], 1)
    assert (shown["plan"], shown["usage"]) == (None, [])
    assert [(one["target"], one["start_ms"], one["input_tokens"]) for one in shown["calls"]] == [
        ("up.primary.m", None, 100)
    ]
    assert (rows_of(tmp_path, "details"), rows_of(tmp_path, "uncounted")) == (0, 0)


async def test_without_a_ledger_the_request_log_is_searched(tmp_path: Path) -> None:
    async with gateway(tmp_path, more="[usage]\nenabled = false\n") as (_, port):
        made = [await asked(port, session=name) for name in ("a", "b", "a")]
        found = await get(port, "requests?limit=1")
        before = await get(port, f"requests?limit=1&before={found['next']}")
        chosen = await get(port, "requests?session=a&status=ok")
        unknown = await refused(port, "requests?before=nothing")
        groups = await refused(port, "requests?group=session")
        detail = await refused(port, f"requests/{made[0]}")
    assert (ids(found), found["total"], found["next"]) == ([made[2]], 3, made[2])
    assert ids(before) == [made[1]]
    assert (ids(chosen), chosen["total"]) == ([made[0], made[2]], 2)
    assert (unknown[0], unknown[2]) == (400, "before")
    assert groups[:2] == detail[:2] == (409, "no_ledger")


async def test_a_damaged_detail_is_left_out(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        id = await asked(port)
        await get(port, "requests")
        connection = sqlite3.connect(tmp_path / "usage" / "main.sqlite")
        connection.execute("UPDATE details SET json = '{'")
        connection.commit()
        connection.close()
        shown = (await get(port, f"requests/{id}"))["request"]
        found = await get(port, "requests")
    assert (shown["plan"], shown["request"]) == (None, id)
    assert ids(found) == [id]
