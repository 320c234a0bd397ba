"""Several processes on one port: all serve, exited ones are replaced, all stop together."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from routecodex.protocols import grammar
from routecodex.server.workers import restart_delay
from tests.cli.process import ROOT, Command, serve, until
from tests.kit import answers, asking
from tests.kit.gateway import one_target
from tests.kit.raw_client import Answer, Call, begin, call
from tests.kit.steps import Sse
from tests.kit.upstream import Upstream

DEMO = (
    "[server]\nport = 0\ndrain_seconds = 5\n"
    '[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.demo-1]\n'
    '[routing]\ndefault = ["demo.demo-1"]\n'
)


class Line:
    """A kept-alive connection: all its requests reach the same worker."""

    def __init__(self, port: int, *, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.port = port
        self.reader = reader
        self.writer = writer

    async def send(self, method: str, path: str, body: object = None) -> Answer:
        payload = b"" if body is None else msgspec.json.encode(body)
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(payload)}\r\n\r\n"
        self.writer.write(head.encode() + payload)
        return await Call(self.reader, self.writer).rest()

    async def worker(self) -> str:
        shown = (await self.send("GET", "/metrics")).body.decode()
        return shown.partition('worker="')[2].partition('"')[0]

    async def close(self) -> None:
        await Call(self.reader, self.writer).close()


async def lines_to_all(port: int, count: int) -> dict[str, Line]:
    """Open connections until one reaches each worker, as the kernel distributes them."""
    lines: dict[str, Line] = {}
    deadline = asyncio.get_running_loop().time() + 20
    while asyncio.get_running_loop().time() < deadline:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        line = Line(port, reader=reader, writer=writer)
        name = await line.worker()
        if name in lines:
            await line.close()
        lines.setdefault(name, line)
        if len(lines) == count:
            return lines
    raise AssertionError(f"only {sorted(lines)} ever answered")


async def test_all_workers_serve_and_share_what_the_responses_api_remembers(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO, "--workers", "2") as command:
        port = await command.port()
        # Ready means ready: the first connection after the line is accepted.
        assert (await call(port, "/health/ready", method="GET")).status == 200
        lines = await lines_to_all(port, 2)
        assert sorted(lines) == ["0", "1"]
        first = await lines["0"].send("POST", "/v1/responses", asking.body("responses", stream=False))
        grammar.check_json("responses", first.body)
        path = f"/v1/responses/{first.json['id']}"
        assert (await lines["1"].send("GET", path)).json == first.json
        next_body = {"input": "go on", "previous_response_id": first.json["id"], "model": "x"}
        second = await lines["1"].send("POST", "/v1/responses", next_body)
        assert second.json["previous_response_id"] == first.json["id"]
        assert (await lines["1"].send("DELETE", path)).status == 200
        assert (await lines["0"].send("GET", path)).status == 404
        for line in lines.values():
            await line.close()
        command.signal()
        assert await command.ended() == 0
    assert len([line for line in command.err if "listens on" in line]) == 1
    assert "Traceback" not in command.text


async def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO, "--workers", "2") as command:
        port = await command.port()
        before = command.workers()
        assert len(before) == 2
        before[0].kill()
        await command.wait_for("worker . exited with code -9; starting another")
        await until(lambda: len(_living(command)) == 2, "two workers again")
        for line in (await lines_to_all(port, 2)).values():
            await line.close()
        command.signal()
        assert await command.ended() == 0
    assert not any(map(_lives, before))
    assert command.text.count("listens on") == 1


def _lives(worker: psutil.Process) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return bool(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _living(command: Command) -> list[psutil.Process]:
    return [worker for worker in command.workers() if _lives(worker)]


def paced(up: Upstream, release: asyncio.Event) -> str:
    answer = answers.text("chat", "one two three four five six", True)
    assert isinstance(answer, Sse)
    up.answer_with(lambda _: Sse(answer.frames, pace={3: release}))
    return one_target("chat", up).replace("drain_seconds = 1", "drain_seconds = 600")


async def stream(port: int) -> Call:
    under_way = await begin(port, asking.path("messages", stream=True), asking.body("messages", stream=True))
    await under_way.head()
    assert await under_way.piece()
    return under_way


async def refused(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await (await begin(port, "/health", method="GET")).close()
            except ConnectionRefusedError:
                return
            except ConnectionError:
                continue
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["SIGTERM", "ctrl-c"])
async def test_streams_of_all_workers_finish_before_the_end(tmp_path: Path, way: str) -> None:
    release = asyncio.Event()
    async with Upstream() as up, serve(tmp_path, paced(up, release), "--workers", "2") as command:
        port = await command.port()
        streams = [await stream(port) for _ in range(6)]
        if way == "SIGTERM":
            command.signal()
        else:
            # A terminal sends it to every process of the command.
            os.killpg(command.process.pid, signal.SIGINT)
        await refused(port)
        release.set()
        for under_way in streams:
            asking.check("messages", await under_way.rest(), stream=True)
            await under_way.close()
        assert await command.ended() == 0
    assert "Traceback" not in command.text


async def test_a_second_signal_ends_all_workers_at_once(tmp_path: Path) -> None:
    async with Upstream() as up, serve(tmp_path, paced(up, asyncio.Event()), "--workers", "2") as command:
        port = await command.port()
        under_way = await stream(port)
        command.signal()
        await refused(port)
        command.signal()
        assert b"the gateway is shutting down" in (await under_way.rest()).body
        await under_way.close()
        assert await command.ended() == 0


async def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO, "--workers", "2") as command:
        port = await command.port()
        workers = command.workers()
        command.signal(signal.SIGKILL)
        assert await command.ended() == -signal.SIGKILL
        await until(lambda: not any(map(_lives, workers)), "the workers are gone")
        await refused(port)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_port_that_another_gateways_workers_share_is_taken(tmp_path: Path, workers: str) -> None:
    async with serve(tmp_path, DEMO, "--workers", "2") as command:
        port = await command.port()
        async with serve(tmp_path, DEMO, "--port", str(port), "--workers", workers) as second:
            assert await second.ended() == 1
        assert second.err[0] == f"error: cannot listen on 127.0.0.1:{port}: Address already in use"


async def test_workers_that_cannot_start_say_why_and_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "gopher://127.0.0.1:9")
    text = DEMO + (
        '[providers.up]\nprotocol = "chat"\nbase_url = "https://192.0.2.1:9/v1"\nauth = [{ value = "k" }]\n'
        "[providers.up.models.m]\n"
    )
    async with serve(tmp_path, text, "--workers", "2") as command:
        assert await command.ended() != 0
    assert "https_proxy names a 'gopher' proxy" in command.text
    assert "giving up" in command.text
    assert "listens on" not in command.text
    assert "Traceback" not in command.text


@pytest.mark.parametrize(
    ("deaths", "delay"), [(0, 0.0), (1, 0.0), (2, 0.5), (3, 1.0), (4, 2.0), (8, 30.0), (10**6, 30.0)]
)
def test_a_worker_that_keeps_dying_is_restarted_ever_later(deaths: int, delay: float) -> None:
    assert restart_delay(deaths) == delay


async def test_a_worker_that_keeps_dying_does_not_end_the_others(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO, "--workers", "2") as command:
        port = await command.port()
        sound = command.workers()[1]
        for pause in ("", " in 0.5 s, after 2 deaths in a row", " in 1 s, after 3 deaths in a row"):
            victim = await _replaced(command, sound)
            victim.kill()
            await command.wait_for(f'worker 0 exited with code -9; starting another{pause}("|$)')
            assert _lives(sound)
            assert (await call(port, "/health/ready", method="GET")).status == 200
        await _replaced(command, sound)
        for line in (await lines_to_all(port, 2)).values():
            await line.close()
        command.signal()
        assert await command.ended() == 0
    assert "giving up" not in command.text


async def _replaced(command: Command, sound: psutil.Process) -> psutil.Process:
    """Wait for the worker beside the sound one."""
    await until(lambda: len(_living(command)) == 2, "two workers")
    return next(worker for worker in _living(command) if worker.pid != sound.pid)


WATCHED = DEMO.replace("[server]\n", "[server]\nworker_timeout_ms = 2000\n")


async def test_a_worker_that_is_stopped_is_killed_and_replaced(tmp_path: Path) -> None:
    async with serve(tmp_path, WATCHED, "--workers", "2") as command:
        port = await command.port()
        stopped, sound = command.workers()
        stopped.suspend()
        await command.wait_for("worker 0 has shown no sign of life for .* s; killing it")
        await command.wait_for("worker 0 exited with code -9; starting another")
        await _replaced(command, sound)
        assert _lives(sound)
        for line in (await lines_to_all(port, 2)).values():
            await line.close()
        command.signal()
        assert await command.ended() == 0


async def test_a_stopped_worker_does_not_keep_the_gateway_from_ending(tmp_path: Path) -> None:
    async with serve(tmp_path, WATCHED, "--workers", "2") as command:
        await command.port()
        stopped = command.workers()[0]
        stopped.suspend()
        command.signal()
        assert await command.ended() == 1
    assert not _lives(stopped)


async def test_a_pause_of_the_whole_command_is_no_silence_of_its_workers(tmp_path: Path) -> None:
    async with serve(tmp_path, WATCHED, "--workers", "2") as command:
        port = await command.port()
        workers = command.workers()
        os.killpg(command.process.pid, signal.SIGSTOP)
        await asyncio.sleep(4)  # twice the time that a worker may be silent
        os.killpg(command.process.pid, signal.SIGCONT)
        for line in (await lines_to_all(port, 2)).values():
            await line.close()
        assert command.workers() == workers
        command.signal()
        assert await command.ended() == 0
    assert "no sign of life" not in command.text


async def test_the_gateway_is_ready_when_one_worker_is_and_another_cannot_start(tmp_path: Path) -> None:
    run = (
        "import os, sys, time\n"
        "from routecodex.server.workers import Workers\n"
        "def run(worker):\n"
        "    if worker.index == 0:\n"
        "        raise SystemExit(3)\n"
        "    worker.ready()\n"
        "    os.read(worker.parent, 1)\n"
        "Workers(2, run, on_ready=lambda: print('ready', flush=True), watchdog=0).serve()\n"
        "print('ended')\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", run, env=environ, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.terminate()
    assert await process.stdout.readline() == b"ended\n"
    await process.wait()
