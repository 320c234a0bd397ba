"""The tasks of all sessions."""

from __future__ import annotations

from routecodex.server_tools.clock.task_store import TaskOverview, TaskStore
from routecodex.stores.memory import MemoryStore
from tests.server_tools.clock.world import HOUR, RULES, START, Moving, put, task_fields


async def test_people_see_every_session_and_cancel_by_id_alone() -> None:
    now = Moving()
    task_store = TaskStore(MemoryStore(), now_ms=now)
    overview = TaskOverview(task_store, rules=RULES, now_ms=now)
    for session in "abc":
        await put(task_store, task_fields(START + HOUR, f"of {session}"), now=now, session=session)
    await put(task_store, task_fields(START, "over"), now=now, session="d")
    now.ms += RULES.retention_ms + 1
    found = await overview.sessions(2)
    assert [(one.session_id, [task.task for task in one.tasks]) for one in found] == [
        ("c", ["of c"]),
        ("b", ["of b"]),
    ]
    gone = await overview.cancel("t1")
    assert gone is not None
    assert (gone.session_id, gone.task) == ("a", "of a")
    assert [one.session_id for one in await overview.sessions(10)] == ["c", "b"]
    assert await overview.cancel("t9") is None
