"""The tasks of every session in the store: files as people find them, damage, failures."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.due_timer import ExpirySweep, SweepReport
from routecodex.server_tools.clock.task import encode, no_tasks
from routecodex.server_tools.clock.task_store import SPACE, TaskOverview, TaskStore
from routecodex.stores import file_format
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import StoreError
from tests.server_tools.clock.world import (
    HOUR,
    RULES,
    START,
    Failing,
    Moving,
    at,
    files,
    put,
    state,
    task,
    task_fields,
)

LATER = task_fields(START + HOUR)
ADD = partial(edits.add, items=[LATER], ids=["t1"], at=at())


@pytest.fixture
def now() -> Moving:
    return Moving()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    opened = files(tmp_path)
    yield opened
    await opened.close()


@pytest.mark.parametrize("session", ["s1", "Session/1", "../../etc", "ntp-state", "", "会话", "x" * 1000])
async def test_the_file_of_a_session_is_its_state_and_nothing_else(
    store: FileStore, tmp_path: Path, now: Moving, session: str
) -> None:
    shelf = TaskStore(store, now_ms=now)
    await put(shelf, LATER, now=now, session=session)
    path = tmp_path / "clock" / file_format.encode_name(session)
    assert json.loads(path.read_text()) == {
        "version": 1,
        "sessionId": session,
        "tasks": [
            {
                "taskId": "t1",
                "sessionId": session,
                "dueAtMs": START + HOUR,
                "createdAtMs": START,
                "updatedAtMs": START,
                "task": "water the plants",
                "deliveryCount": 0,
            }
        ],
        "updatedAtMs": START,
    }
    assert path.read_text().startswith('{\n  "version": 1,\n  "sessionId": ')
    assert await shelf.sessions() == [session]
    assert await TaskStore(store, now_ms=now).load(session) == await shelf.load(session)


async def test_a_session_without_tasks_has_no_file(store: FileStore, tmp_path: Path, now: Moving) -> None:
    shelf = TaskStore(store, now_ms=now)
    await put(shelf, LATER, now=now)
    assert await shelf.edit("s1", edits.clear) == 1
    assert not (tmp_path / "clock" / "s1.json").exists()
    assert await shelf.load("s1") == no_tasks("s1")
    assert await shelf.edit("s1", edits.clear) == 0


async def test_an_edit_that_changes_nothing_writes_nothing(store: FileStore, now: Moving) -> None:
    shelf = TaskStore(store, now_ms=now)
    await put(shelf, LATER, now=now)
    stamp, heard = shelf.stamp_of("s1"), list[str]()
    shelf.listen(heard.append)
    now.ms += 1000
    assert len(await shelf.edit("s1", ADD)) == 1
    assert (shelf.stamp_of("s1"), heard) == (stamp, [])
    await shelf.edit("s1", edits.clear)
    assert heard == ["s1"]


async def test_what_is_known_is_not_read_again_until_somebody_writes(tmp_path: Path, now: Moving) -> None:
    here, there = files(tmp_path), files(tmp_path)
    ours, theirs = TaskStore(here, now_ms=now), TaskStore(there, now_ms=now)
    assert ours.peek("s1") == no_tasks("s1")
    await put(ours, LATER, now=now)
    found = await ours.load("s1")
    assert ours.peek("s1") is found
    await put(theirs, task_fields(START + HOUR, "else"), now=now)
    assert ours.peek("s1") is None
    assert [one.task for one in (await ours.load("s1")).tasks] == ["water the plants", "else"]
    await theirs.edit("s1", edits.clear)
    assert await ours.load("s1") == no_tasks("s1")
    await here.close()
    await there.close()


async def test_only_so_many_sessions_are_remembered(now: Moving) -> None:
    shelf = TaskStore(MemoryStore(), now_ms=now, cached=2)
    for session in "abc":
        await put(shelf, LATER, now=now, session=session)
        await shelf.load(session)
    assert [shelf.peek(session) is None for session in "abc"] == [True, False, False]


DAMAGED = {
    "no JSON": b"{",
    "empty": b"",
    "zeros": b"\0" * 64,
    "another shape": b'{"hello": "world"}',
    "a list": b"[1, 2]\n",
    "another version": b'{"version":2,"sessionId":"s1","tasks":[],"updatedAtMs":0}',
    "of another session": encode(state(task(), session="s2")),
    "a task without an id": encode(state(task())).replace(b'"taskId"', b'"id"'),
    "no UTF-8": encode(state(task())).replace(b"water", b"\xff"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
async def test_a_damaged_file_is_set_aside_byte_for_byte_and_named(
    store: FileStore, tmp_path: Path, now: Moving, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "clock" / "s1.json"
    path.parent.mkdir()
    path.write_bytes(content)
    shelf = TaskStore(store, now_ms=now)
    with caplog.at_level(logging.WARNING):
        assert await shelf.load("s1") == no_tasks("s1")
    assert path.with_name("s1.json.corrupt-1").read_bytes() == content
    assert [str(path) in message for message in caplog.messages] == [True]
    await put(shelf, LATER, now=now)
    assert [one.task_id for one in (await shelf.load("s1")).tasks] == ["t1"]


async def test_a_sweep_sets_damaged_files_aside_and_leaves_the_state_of_network_time(
    store: FileStore, tmp_path: Path, now: Moving
) -> None:
    shelf = TaskStore(store, now_ms=now)
    await put(shelf, LATER, now=now)
    for name, content in [("broken.json", "{"), ("other.json", "[]"), ("ntp-state.json", "{")]:
        (tmp_path / "clock" / name).write_text(content)
    assert await ExpirySweep(shelf, rules=RULES, now_ms=now).sweep() == SweepReport(sessions=1, tasks=1)
    assert await shelf.sessions() == ["s1"]
    assert sorted(path.name for path in (tmp_path / "clock").iterdir()) == [
        ".lock",
        "broken.json.corrupt-1",
        "ntp-state.json",
        "other.json.corrupt-1",
        "s1.json",
    ]


@pytest.mark.parametrize("how", ["list", "sweep", "cancel"])
async def test_listing_keeps_the_tasks_of_a_damaged_file_that_the_process_knows(
    store: FileStore, tmp_path: Path, now: Moving, how: str
) -> None:
    shelf = TaskStore(store, now_ms=now)
    await put(shelf, LATER, now=now)
    (tmp_path / "clock" / "s1.json").write_text('{"broken')
    overview = TaskOverview(shelf, rules=RULES, now_ms=now)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "list": lambda: overview.sessions(10),
        "sweep": ExpirySweep(shelf, rules=RULES, now_ms=now).sweep,
        "cancel": lambda: overview.cancel("of-nobody"),
    }
    await calls[how]()
    other = TaskStore(store, now_ms=now)
    assert [task.task_id for task in (await other.load("s1")).tasks] == ["t1"]
    assert (tmp_path / "clock" / "s1.json.corrupt-1").read_text() == '{"broken'


@pytest.mark.parametrize("how", ["load", "edit"])
async def test_a_store_without_files_sets_other_values_aside_too(
    now: Moving, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    shelf = TaskStore(store, now_ms=now)
    await store.put(SPACE, "s1", b'{"hello": "world"}')
    if how == "load":
        assert await shelf.load("s1") == no_tasks("s1")
        assert await store.get(SPACE, "s1") is None
    else:
        await shelf.edit("s1", ADD)
        assert len((await shelf.load("s1")).tasks) == 1
    (aside,) = await store.keys("clock.corrupt")
    kept = await store.get("clock.corrupt", aside)
    assert kept is not None
    assert kept.value == b'{"hello": "world"}'
    assert caplog.messages == ["clock/'s1' is not the tasks of a session; set aside in clock.corrupt"]


async def test_a_failed_write_leaves_everything_as_it_was(now: Moving) -> None:
    store = Failing()
    shelf = TaskStore(store, now_ms=now)
    await put(shelf, LATER, now=now)
    before = await shelf.load("s1")
    store.broken = True
    with pytest.raises(StoreError):
        await shelf.edit("s1", edits.clear)
    assert await shelf.load("s1") == before


async def test_many_tasks_are_told(now: Moving, caplog: pytest.LogCaptureFixture) -> None:
    shelf = TaskStore(MemoryStore(), now_ms=now)
    await put(shelf, *(task_fields(START + HOUR, f"task {n}") for n in range(1001)), now=now)
    assert caplog.messages == ["session 's1' has 1001 tasks; every request of it looks at all"]
