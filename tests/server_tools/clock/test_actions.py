"""Calls of the clock tool."""

from __future__ import annotations

import json
import logging
from datetime import UTC
from itertools import count
from typing import Any

import pytest

from routecodex.canon.request import Tool
from routecodex.server_tools.clock.actions import DESCRIPTION, ClockActions, declare
from routecodex.server_tools.clock.arguments import SCHEMA
from routecodex.server_tools.clock.network_time import NetworkTime, NtpState
from routecodex.server_tools.clock.task import encode
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.server_tools.clock.timestamps import Zone
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Stored, StoreError
from tests.server_tools.clock.world import DAY, HOUR, RULES, START, Failing, Moving

ITEM = {"dueAt": "2026-01-21T22:30:00+01:00", "task": "water the plants", "tool": "", "arguments": "{}"}
PLAIN = {**ITEM, "repeat": "none", "maxRuns": 0}
DUE = "2026-01-21T21:30:00.000Z"


class World:
    """The tool with a fixed clock and numbered ids."""

    def __init__(self, store: MemoryStore) -> None:
        numbers = count(1)
        self.store = store
        self.now = Moving()
        self.time = NetworkTime(self.now.seconds)
        self.task_store = TaskStore(store, now_ms=self.now)
        self.tool = ClockActions(
            self.task_store,
            time=self.time,
            rules=RULES,
            zone=Zone("UTC", UTC),
            new_id=lambda: f"t{next(numbers)}",
        )

    async def call(
        self, action: str, *items: dict[str, Any], task_id: str = "", session: str | None = "s1"
    ) -> Any:
        arguments = json.dumps({"action": action, "items": items, "taskId": task_id})
        return json.loads(await self.tool.call(arguments, session=session, request_id="r1"))


@pytest.fixture
def world() -> World:
    return World(MemoryStore())


def test_the_declaration_is_strict_under_both_names() -> None:
    expected = Tool("clock", description=DESCRIPTION, parameters=SCHEMA, strict=True)
    assert declare("clock") == expected
    assert declare("routecodex_clock").name == "routecodex_clock"


async def test_get_tells_the_time(world: World) -> None:
    assert await world.call("get", session=None) == {
        "ok": True,
        "action": "get",
        "active": True,
        "nowMs": START,
        "utc": "2026-01-21T20:30:00.000Z",
        "local": "2026-01-21T20:30:00.000+00:00",
        "timezone": "UTC",
        "ntp": {"status": "off", "offsetMs": 0},
    }


async def test_get_tells_the_corrected_time(world: World) -> None:
    world.time.state = NtpState(status="ok", offset_ms=1500, server="time:123", synced_at_ms=7)
    found = await world.call("get")
    assert (found["nowMs"], found["utc"], found["ntp"]) == (
        START + 1500,
        "2026-01-21T20:30:01.500Z",
        {"status": "ok", "offsetMs": 1500, "server": "time:123", "syncedAtMs": 7},
    )


async def test_the_life_of_a_task(world: World) -> None:
    one = {"taskId": "t1", "dueAt": DUE, "task": "water the plants"}
    assert await world.call("schedule", PLAIN) == {"ok": True, "scheduled": [one]}
    assert await world.call("schedule", PLAIN) == {"ok": True, "scheduled": [one]}
    assert await world.call("list") == {"ok": True, "items": [one]}
    changed = {**PLAIN, "dueAt": "", "task": "water the trees"}
    new = {**one, "task": "water the trees"}
    assert await world.call("update", changed, task_id="t1") == {"ok": True, "updated": new}
    assert await world.call("list") == {"ok": True, "items": [new]}
    assert await world.call("cancel", task_id="t1") == {"ok": True, "removed": "t1"}
    assert await world.call("list") == {"ok": True, "items": []}
    assert await world.call("clear") == {"ok": True, "removedCount": 0}
    await world.call("schedule", PLAIN, {**PLAIN, "task": "else"})
    assert await world.call("clear") == {"ok": True, "removedCount": 2}


async def test_a_repeated_task_says_so(world: World) -> None:
    item = {**PLAIN, "repeat": "every 15 minutes", "maxRuns": 4}
    one = {"taskId": "t1", "dueAt": DUE, "task": "water the plants"}
    repeated = {**one, "repeat": "every 15 minutes", "maxRuns": 4}
    assert await world.call("schedule", item) == {"ok": True, "scheduled": [repeated]}
    assert await world.call("list") == {"ok": True, "items": [repeated]}


async def test_sessions_are_apart(world: World) -> None:
    await world.call("schedule", PLAIN)
    assert await world.call("list", session="s2") == {"ok": True, "items": []}
    refused = await world.call("cancel", task_id="t1", session="s2")
    assert refused["error"]["code"] == "unknown_task"


@pytest.mark.parametrize("action", ["schedule", "cancel", "clear", "update"])
async def test_without_a_session_nothing_can_be_kept(world: World, action: str) -> None:
    assert await world.call(action, PLAIN, task_id="t1", session=None) == {
        "ok": False,
        "error": {
            "code": "missing_session",
            "message": "this request does not belong to a session, so tasks cannot be stored",
        },
    }
    assert await world.call("list", session=None) == {"ok": True, "items": []}


async def test_one_bad_item_rejects_the_batch(world: World) -> None:
    for bad, code in [
        ("2026-01-21T22:30:00", "due_at_without_offset"),
        ("2020-01-01T00:00:00Z", "already_expired"),
    ]:
        refused = await world.call("schedule", PLAIN, {**PLAIN, "dueAt": bad, "task": "else"})
        assert (refused["ok"], refused["error"]["code"]) == (False, code)
    assert await world.call("list") == {"ok": True, "items": []}
    assert await world.task_store.sessions() == []


async def test_arguments_that_are_not_json_are_told(world: World) -> None:
    found = json.loads(await world.tool.call('{"action": "get"', session="s1", request_id="r1"))
    assert (found["ok"], found["error"]["code"]) == (False, "invalid_json")


async def test_delivered_tasks_stay_in_the_list_until_retention_ends(world: World) -> None:
    await world.call("schedule", PLAIN)
    state = await world.task_store.load("s1")
    text = encode(state).replace(b'"deliveryCount": 0', b'"deliveredAtMs": %d, "deliveryCount": 1' % START)
    await world.store.put("clock", "s1", text)
    one = {"taskId": "t1", "dueAt": DUE, "task": "water the plants"}
    delivered = {**one, "deliveredAt": "2026-01-21T20:30:00.000Z"}
    world.now.ms = START + HOUR + RULES.retention_ms
    assert await world.call("list") == {"ok": True, "items": [delivered]}
    world.now.ms += 1
    assert await world.call("list") == {"ok": True, "items": []}


async def test_a_failed_write_is_an_error_and_nothing_is_half_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Failing()
    world = World(store)
    await world.call("schedule", PLAIN)
    store.broken = True
    failed = {
        "ok": False,
        "error": {
            "code": "store_unavailable",
            "message": "the tasks could not be saved; nothing was changed",
        },
    }
    other = {**PLAIN, "task": "else"}
    assert [
        await world.call("schedule", PLAIN, other),
        await world.call("update", other, task_id="t1"),
        await world.call("cancel", task_id="t1"),
        await world.call("clear"),
    ] == [failed] * 4
    store.broken = False
    assert [one["task"] for one in (await world.call("list"))["items"]] == ["water the plants"]
    assert caplog.messages == [], "the store itself says that it is down"


class Unreadable(MemoryStore):
    def stamp_of(self, space: str, key: str) -> int:
        return 1

    async def get(self, space: str, key: str) -> Stored | None:
        raise StoreError("gone")


async def test_a_list_that_cannot_be_read_is_an_error() -> None:
    found = await World(Unreadable()).call("list")
    assert found["error"] == {
        "code": "store_unavailable",
        "message": "the tasks could not be read; nothing was changed",
    }


async def test_the_log_has_counts_and_no_text_above_debug(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "routecodex.clock")
    await world.call("schedule", PLAIN, {**PLAIN, "dueAt": "2026-01-22T22:30:00Z"})
    await world.call("list")
    await world.call("cancel", task_id="t1")
    await world.call("cancel", task_id="t1")
    await world.call("clear")
    await world.tool.clear("s1", request_id="r2")
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == [
        "r1: clock schedule for session 's1': 2 tasks, earliest due 2026-01-21T21:30:00.000Z, saved",
        "r1: clock cancel for session 's1': 1 tasks, earliest due 2026-01-22T22:30:00.000Z, saved",
        "r1: clock refused (unknown_task) for session 's1'",
        "r1: clock clear for session 's1': 0 tasks, earliest due none, saved",
        "r2: clock clear for session 's1': 0 tasks removed, saved",
    ]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG] == [
        "r1: task t1 of session 's1': 'water the plants'",
        "r1: task t2 of session 's1': 'water the plants'",
        "r1: clock list for session 's1': 2 tasks",
    ]


async def test_every_change_forgets_what_is_over(world: World) -> None:
    await world.call("schedule", PLAIN)
    world.now.ms += DAY
    await world.call("schedule", {**PLAIN, "dueAt": "2026-01-25T00:00:00Z"})
    assert [one.task_id for one in (await world.task_store.load("s1")).tasks] == ["t2"]


async def test_a_person_can_clear_and_look(world: World) -> None:
    await world.call("schedule", PLAIN, {**PLAIN, "task": "else"})
    assert [one.task_id for one in await world.tool.tasks("s1")] == ["t1", "t2"]
    assert await world.tool.clear("s1", request_id="r2") == 2
    assert await world.tool.tasks("s1") == ()
