"""The beads check: whether work is left."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
import uvloop

from routecodex.canon.parts import Part, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.server_tools import beads
from routecodex.server_tools.beads import (
    BeadsCommand,
    BeadsSettings,
    BeadsWork,
    beads_settings,
    guess_from_texts,
)

LIST = ("--no-db", "list", "--json")
READY = ("--no-db", "ready", "--json")
OPEN = b'[{"id": "bd-1", "status": "open"}]'
DOING = b'[{"id": "bd-1", "status": "closed"}, {"id": "bd-2", "status": "in_progress"}]'
DONE = "No open issues"


def request_with_results(*results: str, role: str = "tool") -> Request:
    parts: tuple[Part, ...] = tuple(ToolResult(f"c{at}", (Text(text),)) for at, text in enumerate(results))
    calls = tuple(ToolCall(f"c{at}", "shell", "{}") for at in range(len(results)))
    return Request(
        model="m",
        source="chat",
        messages=(Message("user", (Text("go"),)), Message("assistant", calls), Message(role, parts)),  # type: ignore[arg-type]  # a table's word
    )


NOTHING = request_with_results()


class Fake:
    """A scripted `bd` that records its arguments."""

    def __init__(self, **prints: bytes | None) -> None:
        self.prints = prints
        self.asked: list[tuple[str, ...]] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def __call__(self, *words: str) -> bytes | None:
        self.asked.append(words)
        await self.goes_on.wait()
        return self.prints[words[1]]


STATES: list[tuple[bytes | None, bytes | None, bool, int]] = [
    (DOING, b"[]", False, 1),
    (OPEN, OPEN, False, 2),
    (b"[]", OPEN, False, 2),
    (b"[]", b"[]", True, 2),
    (OPEN, b" [] \n", True, 2),
    (None, b"[]", False, 1),
    (b"[]", None, False, 2),
    (b"", b"[]", False, 1),
    (b"[]", b"null", False, 2),
    (b"[]", b"{}", False, 2),
    (b"[]", b"[1]", False, 2),
    (b"[]", b"no ready work", False, 2),
    (b"[]", b"[]\xff", False, 2),
    (b"[" * 100_000, b"[]", False, 1),
]


@pytest.mark.parametrize(("listed", "ready", "idle", "runs"), STATES)
async def test_only_two_empty_lists_are_idle(
    listed: bytes | None, ready: bytes | None, idle: bool, runs: int
) -> None:
    fake = Fake(list=listed, ready=ready)
    assert await BeadsWork(BeadsSettings(), run=fake).is_idle(NOTHING) is idle
    assert fake.asked == [LIST, READY][:runs]


MODES: list[tuple[beads.BeadsMode, bytes | None, str, bool]] = [
    ("auto", b"[]", "status: in_progress", True),
    ("auto", None, DONE, True),
    ("auto", None, "nothing of interest", False),
    ("auto", OPEN, DONE, False),
    ("runtime", None, DONE, False),
    ("runtime", b"[]", "status: in_progress", True),
    ("heuristic", b"[]", "nothing of interest", False),
    ("heuristic", OPEN, DONE, True),
]


@pytest.mark.parametrize(("mode", "printed", "said", "idle"), MODES)
async def test_the_mode_says_who_is_asked(
    mode: beads.BeadsMode, printed: bytes | None, said: str, idle: bool
) -> None:
    fake = Fake(list=printed, ready=printed)
    assert await BeadsWork(BeadsSettings(mode=mode), run=fake).is_idle(request_with_results(said)) is idle
    assert bool(fake.asked) is (mode != "heuristic")


async def test_an_answer_is_known_until_its_time_is_over() -> None:
    now = [100.0]
    fake = Fake(list=b"[]", ready=b"[]")
    work = BeadsWork(BeadsSettings(ttl=5.0), run=fake, clock=lambda: now[0])
    assert await work.is_idle(NOTHING)
    fake.prints = {"list": DOING}
    now[0] = 104.9
    assert await work.is_idle(NOTHING)
    assert len(fake.asked) == 2
    now[0] = 105.0
    assert not await work.is_idle(NOTHING)
    assert len(fake.asked) == 3


async def test_without_a_cache_every_request_asks() -> None:
    fake = Fake(list=b"[]", ready=b"[]")
    work = BeadsWork(BeadsSettings(ttl=0.0), run=fake)
    for _ in range(3):
        assert await work.is_idle(NOTHING)
    assert len(fake.asked) == 6


async def test_those_who_ask_at_once_share_one_run_and_who_leaves_takes_nothing_away() -> None:
    fake = Fake(list=b"[]", ready=b"[]")
    fake.goes_on.clear()
    work = BeadsWork(BeadsSettings(ttl=0.0), run=fake)
    asking = [asyncio.create_task(work.is_idle(NOTHING)) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.wait([asking[0]])
    fake.goes_on.set()
    assert await asyncio.gather(*asking[1:]) == [True] * 19
    assert fake.asked == [LIST, READY]
    assert asking[0].cancelled()


async def test_one_that_hangs_is_unknown_and_known_to_be_so_for_a_while() -> None:
    fake = Fake(list=b"[]", ready=b"[]")
    fake.goes_on.clear()
    work = BeadsWork(BeadsSettings(timeout=0.01, ttl=60.0), run=fake)
    assert not await work.is_idle(NOTHING)
    assert await work.is_idle(request_with_results(DONE))
    assert fake.asked == [LIST]


SETTINGS: list[tuple[dict[str, str], BeadsSettings]] = [
    ({}, BeadsSettings()),
    ({"MODE": " Runtime "}, BeadsSettings(mode="runtime")),
    ({"MODE": "heuristic"}, BeadsSettings(mode="heuristic")),
    ({"MODE": "sometimes"}, BeadsSettings()),
    ({"TIMEOUT_MS": "250", "CACHE_TTL_MS": "0"}, BeadsSettings(timeout=0.25, ttl=0.0)),
    ({"TIMEOUT_MS": "0", "CACHE_TTL_MS": "-1"}, BeadsSettings()),
    ({"TIMEOUT_MS": "soon", "CACHE_TTL_MS": "²"}, BeadsSettings()),
    ({"WORKDIR": "/srv/project"}, BeadsSettings(workdir="/srv/project")),
    ({"WORKDIR": "  "}, BeadsSettings()),
]


@pytest.mark.parametrize(("given", "expected"), SETTINGS)
def test_the_environment_says_how(given: dict[str, str], expected: BeadsSettings) -> None:
    assert (
        beads_settings({f"ROUTECODEX_STOPMESSAGE_BD_{name}": value for name, value in given.items()})
        == expected
    )


GUESSES: list[tuple[tuple[str, ...], beads.WorkState]] = [
    ((), "unknown"),
    (("status: in_progress",), "work"),
    (("Status: IN_PROGRESS\nPriority: 1",), "work"),
    (('{"id": "bd-7", "status": "in_progress"}',), "work"),
    (("bd-7 [P1] [task] [in_progress] - mend the roof",), "work"),
    (("📋 Ready work (3 issues with no blockers):\n1. …",), "work"),
    (("status: open",), "unknown"),
    (("work in progress",), "unknown"),
    (("\n✨ No open issues\n\n",), "idle"),
    (("no open issues",), "idle"),
    (("There are no open issues with this design",), "unknown"),
    (("No open issues\nbut status: in_progress",), "work"),
    (("No ready work found (all issues have blocking dependencies)",), "unknown"),
    (("[]",), "unknown"),
    (("status: in_progress", "No open issues"), "idle"),
    (("No open issues", "status: in_progress"), "work"),
    (("No open issues", "12 files changed"), "idle"),
    (("No open issues", *["a file"] * beads.RECENT_RESULTS), "unknown"),
]


@pytest.mark.parametrize(("results", "state"), GUESSES)
def test_results_of_tools_tell_of_work(results: tuple[str, ...], state: beads.WorkState) -> None:
    assert guess_from_texts(request_with_results(*results)) == state
    assert guess_from_texts(request_with_results(*results, role="user")) == state


def test_what_people_and_models_say_proves_nothing() -> None:
    said = Request(
        model="m",
        source="chat",
        messages=(Message("user", (Text(DONE),)), Message("assistant", (Text("status: in_progress"),))),
    )
    assert guess_from_texts(said) == "unknown"


Script = Callable[[str], BeadsCommand]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Write a Python script named `bd` and return its PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "project").mkdir()

    def make(body: str) -> BeadsCommand:
        file = tmp_path / "bin" / "bd"
        file.write_text(f"#!{sys.executable}\nimport os, signal, subprocess, sys, time\n{body}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        environ = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
        return BeadsCommand(environ=environ, workdir=str(tmp_path / "project"))

    return make


async def test_the_command_is_run_in_its_directory_with_its_words_alone(
    script: Script, tmp_path: Path
) -> None:
    run = script("print(sys.argv[1:], os.getcwd(), sys.stdin.read()); print('noise', file=sys.stderr)")
    printed = await run("--no-db", "; echo $HOME")
    assert printed == f"['--no-db', '; echo $HOME'] {tmp_path / 'project'} \n".encode()


async def test_a_command_that_fails_has_printed_nothing(script: Script) -> None:
    assert await script("print('[]'); sys.exit(1)")() is None


async def test_a_command_that_is_killed_has_printed_nothing(script: Script) -> None:
    assert await script("print('[]', flush=True); os.kill(os.getpid(), signal.SIGKILL)")() is None


async def test_a_command_that_prints_too_much_is_ended(script: Script) -> None:
    assert await script("while True: sys.stdout.write('x' * 100_000)")() is None


async def test_no_command_and_no_directory_give_nothing(script: Script, tmp_path: Path) -> None:
    assert await BeadsCommand(environ={"PATH": str(tmp_path)}, workdir=None)() is None
    script("print('[]')")
    there = {"PATH": str(tmp_path / "bin")}
    assert await BeadsCommand(environ=there, workdir=str(tmp_path / "nowhere"))() is None
    (tmp_path / "bin" / "bd").write_text("no program")
    assert await BeadsCommand(environ=there, workdir=None)() is None


async def test_one_that_hangs_is_ended_with_all_it_has_started(script: Script, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    run = script(
        f"child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(note)!r} + '.new', {str(note)!r})\n"
        "time.sleep(600)"
    )
    running = asyncio.create_task(run())
    while not note.exists():
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    for pid in map(int, note.read_text().split()):
        while _lives(pid):
            await asyncio.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_a_child_that_keeps_the_pipe_does_not_hold_us(script: Script, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    run = script(
        f"child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid)); print('[]')"
    )
    work = BeadsWork(BeadsSettings(timeout=1.0), run=run)
    assert not await work.is_idle(NOTHING)
    while _lives(int(note.read_text())):
        await asyncio.sleep(0.01)


async def test_a_real_command_tells_of_idleness_and_of_work(script: Script) -> None:
    idle = BeadsWork(BeadsSettings(mode="runtime", timeout=20.0), run=script("print('[]')"))
    assert await idle.is_idle(NOTHING)
    lists = "print('[]' if 'ready' in sys.argv else '[{\"status\": \"in_progress\"}]')"
    busy = BeadsWork(BeadsSettings(mode="runtime", timeout=20.0), run=script(lists))
    assert not await busy.is_idle(NOTHING)


async def test_the_process_has_a_group_of_its_own(script: Script) -> None:
    printed = await script("print(os.getpgid(0), os.getpid())")()
    assert printed is not None
    group, pid = map(int, printed.split())
    assert group == pid != os.getpgid(0)


def test_it_is_the_same_in_the_loop_the_gateway_runs_in(script: Script) -> None:
    async def ask() -> tuple[bool, bool]:
        idle = await BeadsWork(BeadsSettings(timeout=20.0), run=script("print('[]')")).is_idle(NOTHING)
        hangs = await BeadsWork(BeadsSettings(timeout=0.3), run=script("time.sleep(600)")).is_idle(NOTHING)
        return idle, hangs

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == (True, False)


@pytest.mark.parametrize("timeout", [0.0, 0.0001, 0.0005, 0.001, 0.002, 0.005])
@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_one_that_is_given_up_while_it_starts_does_not_stay(
    script: Script, timeout: float, loop: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    work = BeadsWork(BeadsSettings(timeout=timeout), run=script("time.sleep(600)"))
    before = psutil.Process().children()
    with asyncio.Runner(loop_factory=loop) as runner:
        assert not runner.run(work.is_idle(NOTHING))
    assert psutil.Process().children() == before
