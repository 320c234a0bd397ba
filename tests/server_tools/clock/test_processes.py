"""Real processes on real files: at once, and killed in between."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from routecodex.server_tools.clock.deliveries import Deliveries
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.stores.uptime import SystemUptime, uptime
from tests.server_tools.clock.world import RULES, START, Moving, files, put, task_fields

CHILD = Path(__file__).with_name("child.py")


class Here:
    """This process on the same files."""

    def __init__(self, directory: Path) -> None:
        self.now = Moving()
        self.passed = 0
        self.store = files(directory)
        self.task_store = TaskStore(self.store, now_ms=self.now)
        self.deliveries = Deliveries(self.task_store, rules=RULES, now_ms=self.now, up=self.up)

    def up(self) -> SystemUptime:
        """The real clock of the machine, which the other processes share, and the time we say has passed."""
        start, ms = uptime()
        return SystemUptime(start, ms + self.passed)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    opened = Here(tmp_path)
    yield opened
    await opened.deliveries.close()
    await opened.store.close()


async def start(command: str, directory: Path, name: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, CHILD, command, directory, name, str(START), stdout=PIPE
    )


async def heard(process: Process) -> Any:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


async def test_killed_between_reservation_and_commit_it_is_delivered_later_and_once(
    here: Here, tmp_path: Path
) -> None:
    await put(here.task_store, task_fields(), now=here.now)
    process = await start("hold", tmp_path, "dead")
    assert await heard(process) == ["t1"]
    process.kill()
    await process.wait()
    assert await here.deliveries.reserve("s1", "r1") is None
    here.now.ms += 10 * RULES.lease_ms
    assert await here.deliveries.reserve("s1", "r1") is None, "a clock that jumps has not let it go"
    here.passed += RULES.lease_ms
    found = await here.deliveries.reserve("s1", "r2")
    assert found is not None
    assert [(one.task_id, one.delivery_count) for one in await here.deliveries.commit(found)] == [("t1", 1)]
    here.passed += RULES.lease_ms
    assert await here.deliveries.reserve("s1", "r3") is None


async def test_processes_that_compete_deliver_every_task_once(here: Here, tmp_path: Path) -> None:
    ids = await put(here.task_store, *(task_fields(START, f"task {n}") for n in range(5)), now=here.now)
    racing = await asyncio.gather(*(start("compete", tmp_path, name) for name in "abc"))
    said = await asyncio.gather(*(heard(process) for process in racing))
    assert [await process.wait() for process in racing] == [0, 0, 0]
    assert sorted(task_id for each in said for task_id in each) == ids
    assert [one.delivery_count for one in (await here.task_store.load("s1")).tasks] == [1] * 5


async def test_no_process_undoes_what_another_has_scheduled(here: Here, tmp_path: Path) -> None:
    writing = await asyncio.gather(*(start("schedule", tmp_path, name) for name in "ab"))
    assert [await heard(process) for process in writing] == ["done"] * 2
    assert [await process.wait() for process in writing] == [0, 0]
    found = {one.task_id for one in (await here.task_store.load("s1")).tasks}
    assert found == {f"{name}-{number}" for name in "ab" for number in range(20)}
