"""`routecodex daemon status clock` and `set clock`, against fake servers and a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from routecodex.cli.tables import moment
from tests.cli.admin_server import AdminServer, admin_server, announce
from tests.cli.process import serve
from tests.gateway.clock_gateway import iso, now_ms, store_tasks, stored_tasks, whole_config
from tests.gateway.continuation_gateway import GatewayHarness
from tests.kit.upstream import Upstream

TASK: dict[str, Any] = {
    "taskId": "t-1",
    "dueAt": "2026-01-21T20:30:00.000Z",
    "task": "water the plants",
    "deliveredAt": None,
    "deliveryCount": 0,
    "repeat": None,
}
DONE: dict[str, Any] = {
    **TASK,
    "taskId": "t-2",
    "task": "feed\nthe cat",
    "deliveredAt": "2026-01-21T20:29:30.000Z",
    "deliveryCount": 1,
    "repeat": "daily",
}
CLOCK = {
    "clock": {"enabled": True, "ntp": {"status": "error", "offsetMs": -12, "lastError": "nobody answers"}},
    "sessions": [{"id": "会话-1", "tasks": [TASK, DONE]}],
}
NOTHING = {"clock": {"enabled": False, "ntp": {"status": "off", "offsetMs": 0}}, "sessions": []}
UNKNOWN = {"error": {"message": "no session has a task 't-9'", "code": "unknown_task"}}


@pytest.fixture
def two(user: Path) -> Iterator[tuple[AdminServer, AdminServer]]:
    with admin_server("alpha", user) as alpha, admin_server("beta", user) as beta:
        alpha.answers["GET /admin/clock"] = (200, CLOCK)
        beta.answers["GET /admin/clock"] = (200, NOTHING)
        beta.answers["POST /admin/clock/cancel"] = alpha.answers["POST /admin/clock/cancel"] = (404, UNKNOWN)
        yield alpha, beta


def daemon(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["daemon", *arguments], prog_name="routecodex")


def servers(result: Result) -> list[dict[str, Any]]:
    return list(msgspec.json.decode(result.stdout)["servers"])


def test_status_as_json_is_what_the_servers_tell(two: tuple[AdminServer, AdminServer]) -> None:
    alpha, beta = two
    result = daemon("status", "clock", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert servers(result) == [
        {"id": "alpha", "url": alpha.url, "alive": True, **CLOCK},
        {"id": "beta", "url": beta.url, "alive": True, **NOTHING},
    ]


def test_status_for_people_is_a_table_of_tasks(two: tuple[AdminServer, AdminServer]) -> None:
    alpha, beta = two
    result = daemon("status", "clock")
    assert result.exit_code == 0
    due, delivered = moment(TASK["dueAt"]), moment(DONE["deliveredAt"])
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        f"alpha  {alpha.url}",
        "clock         on",
        "network time  error, offset -12 ms: nobody answers",
        "",
        "SESSION  DUE                  STATE                          REPEAT  TASK              ID",
        f"会话-1   {due}  waiting                                water the plants  t-1",
        f"会话-1   {due}  delivered {delivered}  daily   feed?the cat      t-2",
        "",
        f"beta  {beta.url}",
        "clock         off",
        "network time  off, offset 0 ms",
        "",
        "no session has clock tasks",
    ]


def test_one_server_can_be_asked_for(two: tuple[AdminServer, AdminServer]) -> None:
    alpha, beta = two
    assert [one["id"] for one in servers(daemon("status", "clock", "--server", "beta", "--json"))] == ["beta"]
    assert (alpha.calls, beta.received()) == ([], [("GET", "/admin/clock", None)])


def test_cancel_removes_the_task_where_it_is(two: tuple[AdminServer, AdminServer]) -> None:
    alpha, beta = two
    alpha.answers["POST /admin/clock/cancel"] = (200, {"removed": "t-1"})
    result = daemon("set", "clock", "--cancel", "t-1")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "alpha: removed t-1\n", "")
    assert alpha.received() == beta.received() == [("POST", "/admin/clock/cancel", {"taskId": "t-1"})]
    as_json = daemon("set", "clock", "--cancel", "t-1", "--json")
    assert [(one["id"], one["removed"]) for one in servers(as_json)] == [("alpha", "t-1"), ("beta", None)]


def test_a_task_that_nobody_has_is_said_once_and_fails(two: tuple[AdminServer, AdminServer]) -> None:
    result = daemon("set", "clock", "--cancel", "t-9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == ("error: no session has a task 't-9'; see `routecodex daemon status clock`\n")


def test_a_server_that_refuses_is_named_and_the_code_says_so(two: tuple[AdminServer, AdminServer]) -> None:
    alpha, beta = two
    refusal = {"error": {"message": "the task could not be cancelled", "code": "state_not_saved"}}
    alpha.answers["POST /admin/clock/cancel"] = (503, refusal)
    beta.answers["POST /admin/clock/cancel"] = (200, {"removed": "t-1"})
    result = daemon("set", "clock", "--cancel", "t-1")
    assert (result.exit_code, result.stdout) == (1, "beta: removed t-1\n")
    assert "alpha: the task could not be cancelled" in result.stderr


def test_nothing_to_cancel_is_wrong_usage(two: tuple[AdminServer, AdminServer]) -> None:
    assert daemon("set", "clock").exit_code == 2


@pytest.mark.parametrize("arguments", [("status", "clock"), ("set", "clock", "--cancel", "t-1")])
def test_with_no_server_running_the_exit_code_is_3(user: Path, arguments: tuple[str, ...]) -> None:
    announce(user, {"id": "dead", "url": "http://127.0.0.1:9", "token": "t", "pid": 2**22 + 1})
    assert daemon(*arguments).exit_code == 3


async def test_a_real_server_shows_its_tasks_and_lets_one_go(user: Path, tmp_path: Path) -> None:
    due = now_ms() + 3_600_000
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        store_tasks(harness.folder, due, due, session="s-9")
        async with serve(tmp_path, whole_config(harness, server='id = "main"\n')) as process:
            await process.port()
            shown = await asyncio.to_thread(daemon, "status", "clock", "--server", "main", "--json")
            gone = await asyncio.to_thread(daemon, "set", "clock", "--cancel", "t1")
            again = await asyncio.to_thread(daemon, "set", "clock", "--cancel", "t1")
    (server,) = servers(shown)
    assert server["clock"] == {"enabled": True, "ntp": {"status": "off", "offsetMs": 0}}
    (session,) = server["sessions"]
    assert (session["id"], [task["taskId"] for task in session["tasks"]]) == ("s-9", ["t1", "t2"])
    assert session["tasks"][0] == {**TASK, "taskId": "t1", "dueAt": iso(due)}
    assert (gone.exit_code, gone.stdout, again.exit_code) == (0, "main: removed t1\n", 1)
    assert [task["taskId"] for task in stored_tasks(harness.folder, "s-9")] == ["t2"]
