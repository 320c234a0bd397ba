"""Several reads of the admin API in one call, over real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.kit.raw_client import call
from tests.server.admin_gateway import running
from tests.server.console_client import BEARER, CLIENTS, PAGE, code_of, config, logged_in
from tests.server.test_admin_forward import two_servers


def batch(*calls: str, **more: str) -> str:
    return "/admin/batch?" + urlencode([*(("get", one) for one in calls), *more.items()])


async def answers(port: int, *calls: str, **more: str) -> list[Any]:
    answer = await call(port, batch(*calls, **more), method="GET", headers=BEARER)
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store"), answer.body
    return [(one["status"], one["body"]) for one in answer.json["answers"]]


async def test_answers_are_those_of_the_single_calls_in_their_order(tmp_path: Path) -> None:
    calls = ("clients", "series?since=2026-01-01&until=2026-01-02&by=provider", "servers", "routes")
    async with running(config(more=CLIENTS), tmp_path) as found:
        alone = [await call(found.port, f"/admin/{one}", method="GET", headers=BEARER) for one in calls]
        assert await answers(found.port, *calls) == [(200, one.json) for one in alone]


async def test_a_part_that_fails_spoils_no_other(tmp_path: Path) -> None:
    wrong = ("requests?limit=x", "nonsense", "requests/none%20known", "requests/none%2Fknown", "status?no=1")
    async with running(config(), tmp_path) as found:
        alone = [await call(found.port, f"/admin/{one}", method="GET", headers=BEARER) for one in wrong]
        parts = await answers(found.port, *wrong, "status")
    assert parts[:-1] == [(one.status, one.json) for one in alone]
    assert [status for status, _ in parts] == [400, 404, 404, 404, 400, 200]
    assert parts[-1][1]["id"] == "main"


async def test_streams_batches_and_too_many_calls_are_refused(tmp_path: Path) -> None:
    async with running(config(), tmp_path) as found:
        parts = await answers(found.port, "events", "batch?get=status")
        assert [(status, body["error"]["param"]) for status, body in parts] == [(400, "get")] * 2
        for path in (batch(), batch(*["status"] * 21), batch("%ff"), batch("status", post="x")):
            answer = await call(found.port, path, method="GET", headers=BEARER)
            assert code_of(answer) == (400, "invalid_request")


async def test_every_part_needs_the_role_of_its_call(tmp_path: Path) -> None:
    async with running(config(more=CLIENTS), tmp_path) as found:
        reader = await logged_in(found.port, key="k-reader")
        parts = (await reader.get(batch("status", "requests/none/capture"))).json["answers"]
        assert [(one["status"], one["body"].get("code")) for one in parts] == [(200, None), (403, "role")]
        nobody = await call(found.port, batch("status"), method="GET", headers=PAGE)
        assert code_of(nobody) == (401, "login_required")
        elsewhere = await reader.get(batch("status"), **{"sec-fetch-site": "same-site"})
        assert code_of(elsewhere) == (403, "cross_site")


async def test_parts_are_answered_by_the_server_that_the_batch_names(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        (status, servers) = await answers(one, "status", "servers", server="second")
        assert (status[0], status[1]["id"]) == (200, "second")
        assert [row["id"] for row in servers[1]["servers"] if row["self"]] == ["main"]
        (merged,) = await answers(one, "requests?limit=1", server="all")
        assert sorted(merged[1]["servers"]) == ["main", "second"]
