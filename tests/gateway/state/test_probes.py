"""One probe among all processes: leased in the store, renewed, released, taken over from the dead."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamRejected
from routecodex.gateway.state.key_health import KeyHealth
from routecodex.gateway.state.probes import LEASE_SECONDS, PAUSE, SPACE, Probes
from routecodex.routing.registry import Selector, Target
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Change, StoreError
from tests.cli.process import ROOT, serve
from tests.gateway.state.probe_child import TARGET
from tests.kit import answers, asking
from tests.kit.gateway import provider
from tests.kit.raw_client import call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Upstream
from tests.server.test_workers import Line, lines_to_all

PLACE = Selector("glm", "primary", "glm-4.7")
CHILD = Path(__file__).with_name("probe_child.py")
BROKEN = UpstreamFailed("it broke", upstream_status=500)


class Clock:
    """A clock that only moves when a test sets it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Faulty(MemoryStore):
    """A store that can be down or silent for one space, and records the spaces written to."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.slow = SPACE
        self.ready = asyncio.Event()
        self.ready.set()
        self.written: list[str] = []

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        self.written.append(space)
        if space == self.slow:
            await self.ready.wait()
        if self.down:
            raise StoreError("the disk is full")
        return await super().update(space, key, change, ttl=ttl)


@pytest.fixture
def clock() -> Clock:
    return Clock()


Start = Callable[[], KeyHealth]


@pytest.fixture
async def start(tmp_path: Path, clock: Clock) -> AsyncIterator[Start]:
    """Start one worker after the other, each with its own store on the same directory."""
    stores: list[FileStore] = []
    workers: list[KeyHealth] = []

    def one_more() -> KeyHealth:
        stores.append(FileStore(tmp_path, clock=clock))
        workers.append(KeyHealth(stores[-1], clock=clock, monotonic=clock))
        return workers[-1]

    yield one_more
    for worker in workers:
        await worker.flush()
    for store in stores:
        await store.close()


async def half_open(health: KeyHealth, clock: Clock, target: Target = TARGET) -> None:
    """Open the breaker with three failures and let its cooldown end."""
    for _ in range(3):
        health.failed(target, BROKEN)
    await health.flush()
    clock.now += 5.0


async def pair(start: Start, clock: Clock) -> tuple[KeyHealth, KeyHealth]:
    """Two workers that both know a target as half-open."""
    one, two = start(), start()
    await half_open(one, clock)
    await two.load()
    return one, two


def rest(health: KeyHealth, clock: Clock) -> float:
    return max(0.0, health.until(TARGET, clock.now) - clock.now)


async def test_only_one_of_two_workers_may_probe(start: Start, clock: Clock) -> None:
    one, two = await pair(start, clock)
    assert [health.is_usable(TARGET, clock.now) for health in (one, two)] == [False, False]
    assert await one.probe(TARGET, clock.now)
    assert rest(two, clock) == 0, "it has not read the store yet"
    assert not await two.probe(TARGET, clock.now)
    assert rest(two, clock) == PAUSE
    assert two.why(TARGET, clock.now) == "glm.primary.glm-4.7 is being probed (failing: it broke)"
    clock.now += PAUSE
    assert not await two.probe(TARGET, clock.now)


async def test_workers_that_request_a_probe_concurrently_share_one(start: Start, clock: Clock) -> None:
    one, two = await pair(start, clock)
    requests = (health.probe(TARGET, clock.now, by=object()) for health in (one, two) * 3)
    assert sorted(await asyncio.gather(*requests)) == [False] * 5 + [True]


async def test_the_success_of_a_probe_opens_the_target_for_all(
    start: Start, clock: Clock, tmp_path: Path
) -> None:
    one, two = await pair(start, clock)
    assert await one.probe(TARGET, clock.now)
    assert not await two.probe(TARGET, clock.now)
    one.succeeded(TARGET)
    await one.flush()
    clock.now += PAUSE
    assert await two.probe(TARGET, clock.now), "the lease brings the new state"
    assert two.quiet
    await two.flush()
    assert list((tmp_path / SPACE).glob("*.json")) == []


async def test_the_failure_of_a_probe_is_saved_before_another_worker_may_probe(clock: Clock) -> None:
    store = Faulty()
    one, two = (KeyHealth(store, clock=clock, monotonic=clock) for _ in range(2))
    await half_open(one, clock)
    await two.load()
    assert await one.probe(TARGET, clock.now)
    store.written.clear()
    store.slow = "health"
    store.ready.clear()
    one.failed(TARGET, BROKEN)
    while not store.written:
        await asyncio.sleep(0)
    assert not await two.probe(TARGET, clock.now)
    assert rest(two, clock) == PAUSE
    store.ready.set()
    await one.flush()
    clock.now += PAUSE
    assert not await two.probe(TARGET, clock.now)
    assert rest(two, clock) == 10.0 - PAUSE
    await two.flush()
    assert store.written == ["health", SPACE, SPACE, SPACE, SPACE]


async def test_a_probe_without_an_outcome_goes_to_another_worker(start: Start, clock: Clock) -> None:
    one, two = await pair(start, clock)
    assert await one.probe(TARGET, clock.now)
    one.failed(TARGET, UpstreamRejected("no", upstream_status=400))
    await one.flush()
    assert await two.probe(TARGET, clock.now)
    assert not await one.probe(TARGET, clock.now)


async def test_a_worker_that_takes_its_probe_again_does_not_lose_it(start: Start, clock: Clock) -> None:
    one, two = await pair(start, clock)
    for _ in range(3):
        assert await one.probe(TARGET, clock.now)
        one.release(TARGET)
    assert await one.probe(TARGET, clock.now), "while the last one is still on its way back"
    await one.flush()
    assert not await two.probe(TARGET, clock.now)


async def test_a_request_cancelled_while_it_takes_a_probe_holds_no_lease(clock: Clock) -> None:
    store = Faulty()
    one, two = (KeyHealth(store, clock=clock, monotonic=clock) for _ in range(2))
    await half_open(one, clock)
    await two.load()
    store.ready.clear()
    request = asyncio.ensure_future(one.probe(TARGET, clock.now))
    while SPACE not in store.written:
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait({request})
    store.ready.set()
    await one.flush()
    assert await store.keys(SPACE) == []
    assert await two.probe(TARGET, clock.now)
    await two.flush()


async def test_a_reset_by_the_operator_releases_the_probe(start: Start, clock: Clock) -> None:
    one, two = await pair(start, clock)
    assert await one.probe(TARGET, clock.now)
    assert await one.reset() == 1
    await half_open(two, clock)
    assert await two.probe(TARGET, clock.now)


@pytest.mark.parametrize("how", ["down", "silent"])
async def test_without_a_store_a_worker_uses_its_own_state(clock: Clock, how: str) -> None:
    store = Faulty()
    health = KeyHealth(store, clock=clock, monotonic=clock)
    await half_open(health, clock)
    store.down = how == "down"
    if how == "silent":
        store.ready.clear()
    assert await health.probe(TARGET, clock.now)
    assert not await health.probe(TARGET, clock.now)
    health.release(TARGET)
    assert await health.probe(TARGET, clock.now)
    health.release(TARGET)
    store.down = False
    store.ready.set()
    await health.flush()
    assert await health.probe(TARGET, clock.now)
    await health.flush()
    assert await store.keys(SPACE) == [str(PLACE)], "a store that is back is used at once"


@pytest.mark.parametrize("value", [b"{}", b"7", b'{"by": "x", "until": 1e300}', b'{"by": "x", "until": 1}'])
async def test_an_invalid_lease_does_not_block_probes(clock: Clock, value: bytes) -> None:
    store = MemoryStore()
    await store.put(SPACE, str(PLACE), value)
    health = KeyHealth(store, clock=clock, monotonic=clock)
    await half_open(health, clock)
    assert await health.probe(TARGET, clock.now)
    await health.flush()


async def test_a_long_probe_keeps_its_lease(clock: Clock) -> None:
    store = MemoryStore(clock=clock)

    async def saved() -> None:
        return None

    probes = Probes(store, clock=clock, wait_saved=saved, ttl=0.03)
    assert await probes.lease((PLACE,), clock.now, by=None)
    for _ in range(3):
        clock.now += 0.02
        stored = await store.get(SPACE, str(PLACE))
        while stored is None or msgspec.json.decode(stored.value)["until"] != clock.now + 0.03:
            await asyncio.sleep(0.001)
            stored = await store.get(SPACE, str(PLACE))
    probes.release((PLACE,), by=None)
    await probes.settle()
    assert await store.keys(SPACE) == []


@contextlib.asynccontextmanager
async def child(folder: Path, *, ahead: float) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(CHILD),
        str(folder),
        str(ahead),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await line_of(process) == b"ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await asyncio.wait_for(process.stdout.readline(), 20)


def request_probe(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def test_one_of_several_processes_may_probe_and_another_takes_over_when_it_is_killed(
    tmp_path: Path,
) -> None:
    clock, store = Clock(time.time()), FileStore(tmp_path)
    mine = KeyHealth(store, clock=clock, monotonic=clock)
    await half_open(mine, clock)
    ahead = 5.5
    async with child(tmp_path, ahead=ahead) as one, child(tmp_path, ahead=ahead) as two:
        for process in (one, two):
            request_probe(process)
        answers_of = {process: await line_of(process) for process in (one, two)}
        assert sorted(answers_of.values()) == [b"no\n", b"yes\n"]
        holder = next(process for process, may in answers_of.items() if may == b"yes\n")
        assert not await mine.probe(TARGET, clock.now)
        holder.kill()
        await holder.wait()
        clock.now += PAUSE
        assert not await mine.probe(TARGET, clock.now), "nobody knows yet that it is dead"
        # The processes use the real time, however long they took to start.
        clock.now = time.time() + ahead + LEASE_SECONDS + PAUSE
        assert await mine.probe(TARGET, clock.now)
    await mine.flush()
    await store.close()


TEXT_ANSWER = answers.text("chat", "hi", True)


def workers_config(first: Upstream, second: Upstream, folder: Path) -> str:
    return (
        "[server]\nport = 0\ndrain_seconds = 1\n"
        + provider("first", "chat", first)
        + provider("second", "chat", second)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "second.m"] }]\n'
        + f'[store]\nurl = "file:{folder}"\n'
    )


async def test_two_workers_of_a_server_send_one_probe(tmp_path: Path) -> None:
    clock, folder = Clock(time.time() - 6.0), tmp_path / "store"
    store = FileStore(folder)
    await half_open(KeyHealth(store, clock=clock, monotonic=clock), clock, Target("first", "primary", "m"))
    await store.close()
    event = asyncio.Event()
    assert isinstance(TEXT_ANSWER, Sse)
    slow = Sse(TEXT_ANSWER.frames, pace={0: event})
    body = asking.body("chat", stream=True, model="auto")

    async def target(line: Line) -> str:
        return (await line.send("POST", "/v1/chat/completions", body)).headers["x-routecodex-target"]

    async with (
        Upstream(lambda _: slow) as first,
        Upstream(lambda _: TEXT_ANSWER) as second,
        serve(tmp_path, workers_config(first, second, folder), "--workers", "2") as command,
    ):
        lines = await lines_to_all(await command.port(), 2)
        probe = asyncio.ensure_future(target(lines["0"]))
        await first.received()
        assert [await target(lines["1"]) for _ in range(4)] == ["second.primary.m"] * 4
        event.set()
        assert await probe == "first.primary.m"
        while await target(lines["1"]) != "first.primary.m":
            assert len(first.requests) == 1
        assert len(first.requests) == 2
        for line in lines.values():
            await line.close()
    assert "Traceback" not in command.text


BROKEN_ANSWER = Json(500, {"error": {"message": "it broke"}})


async def opened_a_while_ago(folder: Path) -> None:
    """Store a breaker that another process opened and whose cooldown has just ended."""
    clock, store = Clock(time.time() - 6.0), FileStore(folder)
    health = KeyHealth(store, clock=clock, monotonic=clock)
    await health.reset()
    await half_open(health, clock, Target("first", "primary", "m"))
    await store.close()


async def test_a_burst_on_three_processes_sends_one_probe_for_each_half_open_window(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    body = asking.body("chat", stream=False, model="auto")

    async def burst(ports: list[int]) -> Counter[tuple[int, str]]:
        calls = (call(port, "/v1/chat/completions", body) for port in ports * 12)
        found = await asyncio.gather(*calls)
        return Counter((answer.status, answer.headers["x-routecodex-target"]) for answer in found)

    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(Upstream(lambda _: BROKEN_ANSWER))
        second = await stack.enter_async_context(Upstream(lambda _: answers.text("chat", "hi", False)))
        config = workers_config(first, second, folder)
        commands = []
        for name in "abc":
            (tmp_path / name).mkdir()
            commands.append(await stack.enter_async_context(serve(tmp_path / name, config)))
        ports = [await command.port() for command in commands]
        probes = []
        for _ in range(5):
            await opened_a_while_ago(folder)
            before = len(first.requests)
            assert await burst(ports) == {(200, "second.primary.m"): 36}
            probes.append(len(first.requests) - before)
    # A process that was refused the probe of a window asks again a second later, after the next one began.
    assert (probes[0], max(probes)) == (1, 1), probes
