"""A process of its own on the tasks of s1: `python child.py <command> <directory> <name> <now ms>`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.arguments import TaskFields
from routecodex.server_tools.clock.deliveries import Deliveries
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.edits import EditContext
from routecodex.server_tools.clock.task_store import BARE, TaskStore
from routecodex.stores.file import FileStore

RULES = DueRules()


def report(what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


async def hold(deliveries: Deliveries, task_store: TaskStore, name: str, now_ms: int) -> None:
    """Reserves and then does nothing until it is killed."""
    reservation = await deliveries.reserve("s1", name)
    report(reservation.task_ids if reservation is not None else [])
    await asyncio.sleep(600)


async def compete(deliveries: Deliveries, task_store: TaskStore, name: str, now_ms: int) -> None:
    """Reserves and commits or gives back, many times at once; says what it delivered."""
    delivered: list[str] = []

    async def request(number: int) -> None:
        reservation = await deliveries.reserve("s1", f"{name}-{number}")
        if reservation is None:
            return
        if number % 2:
            await deliveries.roll_back(reservation)
        else:
            delivered.extend(task.task_id for task in await deliveries.commit(reservation))

    for turn in range(10):
        await asyncio.gather(*(request(turn * 4 + number) for number in range(4)))
    report(delivered)


async def schedule(deliveries: Deliveries, task_store: TaskStore, name: str, now_ms: int) -> None:
    """Sets twenty tasks, one write each."""
    at = EditContext(now_ms=now_ms, rules=RULES, request_id=name)
    for number in range(20):
        item = TaskFields(due_at_ms=now_ms + 3_600_000, task=f"{name} {number}")
        await task_store.edit("s1", partial(edits.add, items=[item], ids=[f"{name}-{number}"], at=at))
    report("done")


COMMANDS = {"hold": hold, "compete": compete, "schedule": schedule}


async def main(command: str, directory: str, name: str, now_ms: str) -> None:
    store = FileStore(Path(directory), bare=BARE)
    task_store = TaskStore(store, now_ms=lambda: int(now_ms))
    deliveries = Deliveries(task_store, rules=RULES, now_ms=lambda: int(now_ms))
    await COMMANDS[command](deliveries, task_store, name, int(now_ms))
    await deliveries.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
