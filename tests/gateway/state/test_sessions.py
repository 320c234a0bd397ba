"""Session state across requests, processes, restarts, kills and broken disks."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from routecodex.canon.errors import BadRequest, Overloaded
from routecodex.canon.notices import Notices
from routecodex.gateway.context.identity import Scope, ScopeKind
from routecodex.gateway.state import sessions as sessions_module
from routecodex.gateway.state.sessions import (
    EMPTY,
    FORCE_SHOWN,
    SPACE,
    TTL,
    UNKNOWN_SESSION,
    Sessions,
    StateNotSaved,
)
from routecodex.routing.state import ForcedTarget, SessionState, StopMessageState
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Store, Stored, StoreError
from tests.gateway.state.session_child import SCOPE, TIMES, used_once_more

CORRUPT_SPACE = "sessions.corrupt"
CHILD = Path(__file__).with_name("session_child.py")
ONE = Scope("session", "one")
FULL = SessionState(
    force=ForcedTarget("glm.glm-4.7", "turn-1"),
    sticky="glm.glm-4.7",
    allow=("glm", "openai"),
    disable=("openai.1", "anthropic.primary"),
    stop_message=StopMessageState(text="立即执行", max_repeats=3, used=1, updated_at=5.0, last_used_at=6.5),
    marks=("mark",),
    updated_at=7.0,
)


class Clock:
    """A clock that only moves when a test sets it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A store that records its calls, and fails on demand."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if name in ("stamp_of", "stamp", "close"):
            return call

        async def watched(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if self.broken:
                raise StoreError("file store: No space left on device: /secret/place; free some space")
            return await call(*args, **kwargs)

        return watched


STORES: dict[str, Callable[[Path, Clock], Store]] = {
    "memory": lambda directory, clock: MemoryStore(clock=clock),
    "file": lambda directory, clock: FileStore(directory, clock=clock),
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, directory: Path, clock: Clock) -> AsyncIterator[Watched]:
    opened = STORES[request.param](directory, clock)
    yield Watched(opened)
    await opened.close()


@pytest.fixture
async def files(directory: Path, clock: Clock) -> AsyncIterator[FileStore]:
    opened = FileStore(directory, clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
def sessions(store: Watched, clock: Clock) -> Sessions:
    return Sessions(store, clock=clock)


def setting(**fields: Any) -> Callable[[SessionState], SessionState]:
    return lambda state: replace(state, **fields)


def to(state: SessionState) -> Callable[[SessionState], SessionState]:
    return lambda _: state


async def test_an_unset_session_is_empty_and_needs_no_read(sessions: Sessions, store: Watched) -> None:
    assert sessions.peek(ONE) == EMPTY
    assert await sessions.load(ONE) == EMPTY
    assert (await sessions.page(10)).rows == []
    assert store.calls == ["recent"]


async def test_every_field_is_stored(sessions: Sessions, store: Watched, clock: Clock) -> None:
    assert await sessions.change(ONE, to(FULL)) == FULL
    assert await sessions.load(ONE) == FULL
    assert await Sessions(store, clock=clock).load(ONE) == FULL


async def test_a_change_is_stamped_with_its_time_unless_it_brings_its_own(
    sessions: Sessions, clock: Clock
) -> None:
    first = await sessions.change(ONE, setting(sticky="glm.glm-4.7"))
    assert first == SessionState(sticky="glm.glm-4.7", updated_at=clock.now)
    second = await sessions.change(ONE, setting(sticky="glm.glm-4.6", updated_at=3.0))
    assert second.updated_at == 3.0


async def test_a_loaded_state_is_cached_until_it_is_written(sessions: Sessions, store: Watched) -> None:
    await sessions.change(ONE, setting(sticky="a.b"))
    loaded = await sessions.load(ONE)
    store.calls.clear()
    assert sessions.peek(ONE) == loaded
    assert await sessions.load(ONE) == loaded
    assert store.calls == []


async def test_a_write_of_another_process_is_visible_at_once(sessions: Sessions, store: Watched) -> None:
    other = Sessions(store)
    await sessions.change(ONE, setting(sticky="a.b"))
    await sessions.load(ONE)
    await other.change(ONE, setting(sticky="c.d"))
    assert sessions.peek(ONE) is None
    assert (await sessions.load(ONE)).sticky == "c.d"
    await other.change(ONE, to(EMPTY))
    assert sessions.peek(ONE) is None
    assert await sessions.load(ONE) == EMPTY
    assert sessions.peek(ONE) == EMPTY


async def test_a_write_that_comes_between_stamp_and_reading_is_not_missed(store: Watched) -> None:
    """A reader overtaken by a write does not cache an old state as new."""
    writer, reader = Sessions(store), Sessions(store)
    await writer.change(ONE, setting(sticky="a.b"))
    states = await asyncio.gather(
        *(reader.load(ONE) for _ in range(20)), writer.change(ONE, setting(sticky="c.d"))
    )
    assert {state.sticky for state in states} <= {"a.b", "c.d"}
    assert (await reader.load(ONE)).sticky == "c.d"


async def test_an_equal_state_is_not_written(sessions: Sessions, store: Watched) -> None:
    await sessions.change(ONE, setting(sticky="a.b"))
    before = store.inner.stamp_of(SPACE, ONE.key)
    again = await sessions.change(ONE, setting(sticky="a.b"))
    later = await sessions.change(ONE, setting(updated_at=9.0))
    assert again == later == await sessions.load(ONE)
    assert store.inner.stamp_of(SPACE, ONE.key) == before


async def test_a_session_with_nothing_left_has_no_value(sessions: Sessions, store: Watched) -> None:
    await sessions.change(ONE, setting(sticky="a.b"))
    assert await sessions.change(ONE, setting(sticky=None)) == EMPTY
    assert await store.keys(SPACE) == []
    assert sessions.peek(ONE) == EMPTY


async def test_the_mark_of_the_message_applied_last_is_kept_alone(
    sessions: Sessions, store: Watched, clock: Clock
) -> None:
    await sessions.change(ONE, setting(sticky="a.b", marks=("mark",)))
    stored = await sessions.change(ONE, setting(sticky=None))
    assert stored == SessionState(marks=("mark",), updated_at=clock.now)
    assert await store.keys(SPACE) == [ONE.key]


async def test_an_error_in_an_edit_is_raised_and_changes_nothing(sessions: Sessions) -> None:
    before = await sessions.change(ONE, setting(sticky="a.b"))

    def refuse(state: SessionState) -> SessionState:
        raise BadRequest("no such provider")

    with pytest.raises(BadRequest, match="no such provider"):
        await sessions.change(ONE, refuse)
    assert await sessions.load(ONE) == before


async def test_a_state_lives_ninety_days_after_its_last_write(
    sessions: Sessions, store: Watched, clock: Clock
) -> None:
    await sessions.change(ONE, setting(sticky="a.b"))
    clock.now += TTL - 1
    await sessions.change(ONE, setting(sticky="c.d"))
    clock.now += TTL - 1
    assert (await sessions.load(ONE)).sticky == "c.d"
    clock.now += 2
    assert await sessions.load(ONE) == EMPTY
    assert (await sessions.page(10)).rows == []


async def test_a_request_without_a_session_is_never_stored(sessions: Sessions, store: Watched) -> None:
    scope = Scope("request", "req-1")
    assert await sessions.change(scope, setting(sticky="a.b")) == SessionState(sticky="a.b")
    assert sessions.peek(scope) == EMPTY
    assert await sessions.load(scope) == EMPTY
    assert await sessions.change(scope, setting(allow=("glm",))) == SessionState(allow=("glm",))
    assert store.calls == []


async def test_kinds_and_ids_do_not_see_each_other(sessions: Sessions) -> None:
    kinds: list[ScopeKind] = ["session", "conversation", "chain"]
    ids = ["one", "One", "o ne", "../one", "one\x00", "一", "x" * 10_240, "x" * 10_241, "session:one"]
    scopes = [Scope(kind, id) for kind in kinds for id in ids]
    for number, scope in enumerate(scopes):
        await sessions.change(scope, setting(sticky=str(number)))
    assert [(await sessions.load(scope)).sticky for scope in scopes] == [str(n) for n in range(len(scopes))]
    listed = (await sessions.page(1000)).rows
    assert [scope for scope, _ in listed] == scopes[::-1]


async def test_the_list_has_the_newest_first_and_no_more_than_asked(sessions: Sessions, clock: Clock) -> None:
    scopes = [Scope("session", str(number)) for number in range(5)]
    for scope in scopes:
        await sessions.change(scope, setting(sticky="a.b"))
    await sessions.change(scopes[0], setting(sticky="c.d"))
    assert (await sessions.page(2)).rows == [
        (scopes[0], SessionState(sticky="c.d", updated_at=clock.now)),
        (scopes[4], SessionState(sticky="a.b", updated_at=clock.now)),
    ]
    assert (await sessions.page(0)).rows == []


async def test_sessions_come_in_pages(sessions: Sessions, store: Watched) -> None:
    for number in range(7):
        await sessions.change(Scope("session", str(number)), setting(sticky="a.b"))
    ids, cursor, pages = [], None, 0
    while True:
        page = await sessions.page(3, cursor)
        ids += [scope.id for scope, _ in page.rows]
        cursor, pages = page.cursor, pages + 1
        if cursor is None:
            break
        # Written between two pages: the later ones neither repeat it nor miss another.
        await sessions.change(Scope("session", f"new-{pages}"), setting(sticky="a.b"))
    assert (ids, pages) == (["6", "5", "4", "3", "2", "1", "0"], 3)


async def test_no_change_waits_for_old_sessions_to_be_deleted(
    store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()
    trims: list[int] = []

    async def trim(*args: Any, **kwargs: Any) -> int:
        trims.append(1)
        await release.wait()
        return 0

    monkeypatch.setattr(sessions_module, "TRIM_EVERY", 1)
    monkeypatch.setattr(store, "trim", trim, raising=False)
    sessions = Sessions(store)
    for number in range(5):
        await sessions.change(Scope("session", str(number)), setting(sticky="a.b"))
    await asyncio.sleep(0)
    assert len(trims) == 1, "one at a time"
    release.set()
    await sessions.settle()


async def test_the_cache_is_bounded(store: Watched, clock: Clock) -> None:
    sessions = Sessions(store, clock=clock, cached=2)
    scopes = [Scope("session", str(number)) for number in range(3)]
    for scope in scopes:
        await sessions.change(scope, setting(sticky="a.b"))
        await sessions.load(scope)
    known = [sessions.peek(scope) is not None for scope in scopes]
    assert known == [False, True, True]
    assert (await sessions.load(scopes[0])).sticky == "a.b"


async def test_old_sessions_are_trimmed_now_and_then(
    store: Watched, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "TRIM_EVERY", 3)
    monkeypatch.setattr(sessions_module, "MAX_ENTRIES", 2)
    sessions = Sessions(store, clock=clock)
    for number in range(3):
        await sessions.change(Scope("session", str(number)), setting(sticky="a.b"))
    await sessions.settle()
    assert store.calls == ["update", "update", "update", "trim"]
    assert [scope.id for scope, _ in (await sessions.page(10)).rows] == ["2", "1"]


async def test_a_failed_trim_has_no_effect(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    async def trim(*args: Any, **kwargs: Any) -> int:
        raise StoreError("no room")

    monkeypatch.setattr(sessions_module, "TRIM_EVERY", 1)
    monkeypatch.setattr(store, "trim", trim, raising=False)
    sessions = Sessions(store)
    assert (await sessions.change(ONE, setting(sticky="a.b"))).sticky == "a.b"
    await sessions.settle()


async def test_a_file_can_be_read_by_a_person(files: FileStore, directory: Path, clock: Clock) -> None:
    await Sessions(files, clock=clock).change(ONE, to(FULL))
    envelope = json.loads((directory / SPACE / "session%3aone.json").read_text("utf-8"))
    assert envelope["key"] == "session:one"
    assert envelope["expires"] == clock.now + TTL
    assert envelope["value"] == {
        "version": 1,
        "id": "one",
        "kind": "session",
        "force": msgspec.to_builtins(FULL.force),
        "sticky": "glm.glm-4.7",
        "allow": ["glm", "openai"],
        "disable": ["openai.1", "anthropic.primary"],
        "stop_message": {
            "text": "立即执行",
            "max_repeats": 3,
            "used": 1,
            "updated_at": 5.0,
            "last_used_at": 6.5,
        },
        "agents": None,
        "marks": ["mark"],
        "updated_at": 7.0,
    }
    text = (directory / SPACE / "session%3aone.json").read_text("utf-8")
    assert '  "value": {\n    "version": 1,\n    "id": "one",\n' in text
    assert "立即执行" in text


async def test_fields_of_a_later_release_are_ignored(sessions: Sessions, store: Watched) -> None:
    value = b'{"version":1,"id":"one","kind":"session","sticky":"a.b","mood":{"x":1},"updated_at":5}'
    await store.put(SPACE, ONE.key, value)
    assert await sessions.load(ONE) == SessionState(sticky="a.b", updated_at=5.0)


WRONG_SHAPES = [
    b"[]",
    b"null",
    b'"text"',
    b"{}",
    b'{"version":2,"id":"one","kind":"session"}',
    b'{"version":1,"id":"one","kind":"session","allow":"secret"}',
    b'{"version":1,"id":"one","kind":"session","stop_message":{"used":1}}',
]


@pytest.mark.parametrize("value", WRONG_SHAPES, ids=range(len(WRONG_SHAPES)))
@pytest.mark.parametrize("use", ["load", "change", "clear", "list"])
async def test_an_invalid_value_is_set_aside_and_the_session_starts_empty(
    sessions: Sessions,
    store: Watched,
    value: bytes,
    use: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await store.put(SPACE, ONE.key, value)
    if use == "load":
        assert await sessions.load(ONE) == EMPTY
    elif use == "list":
        assert (await sessions.page(5)).rows == []
    elif use == "clear":
        assert await sessions.change(ONE, to(EMPTY)) == EMPTY
    else:
        assert (await sessions.change(ONE, setting(sticky="a.b"))).sticky == "a.b"
    (aside,) = await store.keys(CORRUPT_SPACE)
    stored: Stored = await store.get(CORRUPT_SPACE, aside)
    assert aside.startswith("session:one#")
    assert stored.value == value
    assert stored.expires is None
    assert "is not the state of a session; set aside in sessions.corrupt" in caplog.text
    assert "secret" not in caplog.text
    assert await store.keys(SPACE) == ([ONE.key] if use == "change" else [])


async def test_two_broken_values_of_a_session_are_both_kept(sessions: Sessions, store: Watched) -> None:
    for value in (b"[1]", b"[2]", b"[1]"):
        await store.put(SPACE, ONE.key, value)
        assert await sessions.load(ONE) == EMPTY
    stored = [(await store.get(CORRUPT_SPACE, key)).value for key in await store.keys(CORRUPT_SPACE)]
    assert sorted(stored) == [b"[1]", b"[2]"]


@pytest.mark.parametrize("content", [b"", b'{"version": 1, "expires": nu', b"\x00" * 64, b"\xff\xfe", b"[]"])
@pytest.mark.parametrize("use", ["load", "change"])
async def test_a_corrupt_file_is_set_aside_and_the_session_starts_empty(
    files: FileStore, directory: Path, content: bytes, use: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / SPACE / "session%3aone.json"
    await Sessions(files).change(ONE, setting(sticky="a.b"))
    path.write_bytes(content)
    sessions = Sessions(files)
    if use == "load":
        assert await sessions.load(ONE) == EMPTY
    else:
        assert (await sessions.change(ONE, setting(allow=("glm",)))).sticky is None
    assert path.with_name(path.name + ".corrupt-1").read_bytes() == content
    assert "set aside" in caplog.text


@pytest.mark.parametrize("id", ["one", "T", "Ü" * 80], ids=["plain", "escaped", "hashed"])
@pytest.mark.parametrize("content", [b'{"broken', b"", b"[]"])
async def test_listing_keeps_what_the_process_knows_of_a_damaged_file(
    files: FileStore, directory: Path, id: str, content: bytes
) -> None:
    scope, sessions = Scope("session", id), Sessions(files)
    state = await sessions.change(scope, setting(sticky="a.b"))
    (path,) = (directory / SPACE).glob("*.json")
    path.write_bytes(content)
    stranger = directory / SPACE / "session%3astranger.json"
    stranger.write_bytes(content)
    listed = (await sessions.page(10)).rows
    assert await sessions.load(scope) == state
    assert listed == ([] if path.name.startswith("~") else [(scope, state)])
    assert (await sessions.page(10)).rows == [(scope, state)]
    assert await Sessions(files).load(scope) == state, "it was written back"
    assert [file.with_name(f"{file.name}.corrupt-1").read_bytes() for file in (path, stranger)] == [
        content,
        content,
    ]
    assert not stranger.exists()


async def test_a_damaged_file_that_cannot_be_replaced_hides_no_other_session(directory: Path) -> None:
    files = FileStore(directory, lock_wait=0.01)
    sessions, two = Sessions(files), Scope("session", "two")
    rows = {scope: await sessions.change(scope, setting(sticky="a.b")) for scope in (ONE, two)}
    for id in ("one", "stranger"):
        (directory / SPACE / f"session%3a{id}.json").write_bytes(b"{")
    (directory / SPACE / ".lock").unlink()
    (directory / SPACE / ".lock").mkdir()
    assert dict((await sessions.page(10)).rows) == rows
    assert (directory / SPACE / "session%3aone.json").read_bytes() == b"{"
    await files.close()


async def test_pages_have_every_session_once_when_files_share_their_times(
    files: FileStore, directory: Path
) -> None:
    sessions = Sessions(files)
    ids = {f"s-{number}" for number in range(301)}
    for number, id in enumerate(sorted(ids)):
        await sessions.change(Scope("session", id), setting(sticky="a.b"))
        os.utime(directory / SPACE / f"session%3a{id}.json", ns=(number // 150, number // 150))
    found: list[str] = []
    page = await sessions.page(100)
    while True:
        found += [scope.id for scope, _ in page.rows]
        if page.cursor is None:
            break
        page = await sessions.page(100, page.cursor)
    assert (len(found), set(found)) == (301, ids)


async def test_a_file_edited_by_hand_is_read_again(files: FileStore, directory: Path) -> None:
    sessions = Sessions(files)
    await sessions.change(ONE, setting(sticky="a.b"))
    await sessions.load(ONE)
    path = directory / SPACE / "session%3aone.json"
    path.write_text(path.read_text().replace("a.b", "c.d"))
    assert (await sessions.load(ONE)).sticky == "c.d"


async def test_a_disk_that_is_full_refuses_the_change_and_nothing_is_applied(
    sessions: Sessions, store: Watched
) -> None:
    before = await sessions.change(ONE, setting(sticky="a.b"))
    store.broken = True
    with pytest.raises(StateNotSaved) as refused:
        await sessions.change(ONE, setting(sticky="c.d"))
    error = refused.value
    assert (error.status, error.code, error.kind) == (503, "state_not_saved", "overloaded")
    assert error.message == (
        "the state of session 'one' could not be saved, so nothing of the change was applied; "
        "the gateway's log has the reason"
    )
    store.broken = False
    assert await sessions.load(ONE) == before


async def test_an_unreadable_store_yields_the_cached_state_or_a_notice(
    sessions: Sessions, store: Watched
) -> None:
    known = await sessions.change(ONE, setting(sticky="a.b"))
    two = Scope("session", "two")
    await Sessions(store).change(two, setting(sticky="c.d"))
    store.broken = True
    for scope, state, lines in ((ONE, known, ()), (two, EMPTY, (UNKNOWN_SESSION,))):
        notices = Notices()
        assert [await sessions.load(scope, notices) for _ in range(3)] == [state] * 3
        assert notices.lines() == lines
    store.broken = False
    assert (await sessions.load(two)).sticky == "c.d"
    await Sessions(store).change(two, setting(sticky="e.f"))
    store.broken = True
    assert (await sessions.load(two)).sticky == "c.d"


async def test_a_list_that_cannot_be_read_is_an_error(sessions: Sessions, store: Watched) -> None:
    store.broken = True
    with pytest.raises(Overloaded) as refused:
        await sessions.page(5)
    assert refused.value.code == "store_unavailable"
    assert "/secret/place" not in refused.value.message


async def test_a_missing_directory_yields_the_cached_state(files: FileStore, directory: Path) -> None:
    sessions = Sessions(files)
    known = await sessions.change(ONE, setting(sticky="a.b"))
    (directory / SPACE).rename(directory / "elsewhere")
    (directory / SPACE).write_text("no directory")
    assert await sessions.load(ONE) == known
    with pytest.raises(StateNotSaved):
        await sessions.change(ONE, setting(sticky="c.d"))
    (directory / SPACE).unlink()
    (directory / "elsewhere").rename(directory / SPACE)
    assert await sessions.load(ONE) == known


async def test_changes_at_the_same_time_lose_nothing(sessions: Sessions) -> None:
    await asyncio.gather(*(sessions.change(SCOPE, used_once_more) for _ in range(100)))
    state = await sessions.load(SCOPE)
    assert state.stop_message is not None
    assert state.stop_message.used == 100


async def start(command: str, directory: Path) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, CHILD, command, directory, stdout=PIPE)


async def test_changes_of_several_processes_lose_nothing(files: FileStore, directory: Path) -> None:
    processes = [await start("count", directory) for _ in range(4)]
    assert [await process.wait() for process in processes] == [0, 0, 0, 0]
    state = await Sessions(files).load(SCOPE)
    assert state.stop_message is not None
    assert state.stop_message.used == 4 * TIMES == 200


async def test_a_returned_change_survives_a_kill(files: FileStore, directory: Path) -> None:
    process = await start("scribble", directory)
    assert process.stdout is not None
    for _ in range(5):
        number = int(await process.stdout.readline())
    process.kill()
    number = max([number, *map(int, (await process.stdout.read()).split())])
    await process.wait()
    state = await Sessions(files).load(SCOPE)
    assert state.stop_message is not None
    assert state.stop_message.used in (number, number + 1)


async def test_a_restart_keeps_everything(directory: Path) -> None:
    first = FileStore(directory)
    await Sessions(first).change(ONE, to(FULL))
    await first.close()
    second = FileStore(directory)
    assert await Sessions(second).load(ONE) == FULL
    assert (await Sessions(second, clock=lambda: FULL.updated_at).page(5)).rows == [(ONE, FULL)]
    await second.close()


async def test_nothing_of_a_request_reaches_the_disk(files: FileStore, directory: Path) -> None:
    await Sessions(files).change(Scope("request", "req-1"), to(FULL))
    assert not directory.exists()


async def test_secrets_of_a_state_stay_out_of_the_log(
    sessions: Sessions, store: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await sessions.change(ONE, to(replace(FULL, sticky="my-secret")))
    store.broken = True
    with pytest.raises(StateNotSaved):
        await sessions.change(ONE, setting(sticky="my-secret-2"))
    assert "my-secret" not in caplog.text


async def test_a_session_with_only_the_last_message_mark_is_stored_but_not_listed(
    sessions: Sessions,
) -> None:
    scope = Scope("session", "s-1")
    await sessions.change(scope, setting(sticky="a.b", marks=("mark",)))
    assert [found for found, _ in (await sessions.page(9)).rows] == [scope]
    await sessions.change(scope, setting(sticky=None))
    assert (await sessions.page(9)).rows == []
    assert (await sessions.load(scope)).marks == ("mark",)


FORCED = SessionState(force=ForcedTarget("glm.2", "mark"), marks=("mark",))


async def test_a_force_is_shown_only_while_its_turn_goes_on(sessions: Sessions, clock: Clock) -> None:
    forced = await sessions.change(ONE, lambda state: FORCED)
    for _ in range(4):
        clock.now += FORCE_SHOWN - 1
        assert [state.force for _, state in (await sessions.page(10)).rows] == [forced.force]
        await sessions.renew_force(ONE, await sessions.load(ONE))
    clock.now += FORCE_SHOWN
    assert (await sessions.page(10)).rows == []
    assert (await sessions.load_shown(ONE)).force is None
    assert (await sessions.load(ONE)).force == forced.force, "what it is, it is"


async def test_the_time_of_a_running_turn_is_stored_at_intervals(
    sessions: Sessions, store: Watched, clock: Clock
) -> None:
    forced = await sessions.change(ONE, lambda state: FORCED)
    store.calls.clear()
    clock.now += 59
    await sessions.renew_force(ONE, forced)
    await sessions.renew_force(ONE, replace(forced, force=None))
    assert store.calls == []
    clock.now += 1
    await sessions.renew_force(ONE, forced)
    assert await sessions.load(ONE) == replace(forced, updated_at=clock.now)
    await sessions.change(ONE, lambda state: replace(state, force=None, sticky="glm.2"))
    clock.now += 61
    await sessions.renew_force(ONE, forced)
    assert (await sessions.load(ONE)).updated_at == clock.now - 61


async def test_a_turn_goes_on_when_the_store_is_down(
    sessions: Sessions, store: Watched, clock: Clock
) -> None:
    forced = await sessions.change(ONE, lambda state: FORCED)
    store.broken = True
    clock.now += 61
    assert await sessions.renew_force(ONE, forced) == forced
