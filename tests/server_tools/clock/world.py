"""Test clocks, short constructors for tasks, and a store that can fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.arguments import TaskFields
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.edits import EditContext
from routecodex.server_tools.clock.task import SessionTasks, Task
from routecodex.server_tools.clock.task_store import BARE, TaskStore
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Change, StoreError
from routecodex.stores.uptime import SystemUptime

START = 1_769_027_400_000
"""2026-01-21T20:30:00Z"""
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
RULES = DueRules()


class Moving:
    """A clock in milliseconds that the test sets."""

    def __init__(self, now_ms: int = START) -> None:
        self.ms = now_ms

    def __call__(self) -> int:
        return self.ms

    def seconds(self) -> float:
        return self.ms / 1000


class Machine:
    """A machine with a settable time of day and an uptime."""

    def __init__(self, start: str = "boot") -> None:
        self.now = Moving()
        self.start = start
        self.up_ms = 5_000_000

    def up(self) -> SystemUptime:
        return SystemUptime(self.start, self.up_ms)

    def wait(self, ms: int) -> None:
        """Advance both clocks."""
        self.now.ms += ms
        self.up_ms += ms

    def restart(self) -> None:
        self.start, self.up_ms = f"{self.start}, again", 1000


def task(due: int = START, **fields: Any) -> Task:
    """Return a task that was created an hour before START."""
    defaults = {
        "task_id": "t1",
        "session_id": "s1",
        "created_at_ms": START - HOUR,
        "updated_at_ms": START - HOUR,
        "task": "water the plants",
        "delivery_count": 0,
    }
    return Task(due_at_ms=due, **{**defaults, **fields})


def state(*tasks: Task, session: str = "s1") -> SessionTasks:
    return SessionTasks(version=1, session_id=session, tasks=tasks, updated_at_ms=START - HOUR)


def at(now_ms: int = START, *, request_id: str = "r1", rules: DueRules = RULES) -> EditContext:
    return EditContext(now_ms=now_ms, rules=rules, request_id=request_id)


def task_fields(due: int = START, text: str = "water the plants", **fields: Any) -> TaskFields:
    return TaskFields(due_at_ms=due, task=text, **fields)


def files(directory: Path) -> FileStore:
    """Open a file store as the gateway does."""
    return FileStore(directory, bare=BARE)


async def put(
    task_store: TaskStore, *items: TaskFields, now: Callable[[], int], session: str = "s1"
) -> list[str]:
    """Schedule tasks in an earlier request; the ids are t1, t2, … per session."""
    first = len((await task_store.load(session)).tasks) + 1
    ids = [f"t{number}" for number in range(first, first + len(items))]
    context = at(now(), request_id="earlier")
    tasks = await task_store.edit(session, partial(edits.add, items=items, ids=ids, at=context))
    return [found.task_id for found in tasks]


class Failing(MemoryStore):
    """A store whose updates can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        if self.broken:
            raise StoreError("the disk is full: /secret/place")
        return await super().update(space, key, change, ttl=ttl)
