"""The usage ledger of real processes: two workers, SIGKILL, a full disk, and a file that others lock."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
from pathlib import Path

import pytest

from routecodex.accounting.ledger_file import reading
from tests.cli.process import Command, serve, until
from tests.kit.raw_client import Answer, call

CONFIG = """
[server]
id = "main"
drain_seconds = 1
[store]
url = "memory:"
[logging]
requests = false
[providers.demo]
protocol = "demo"
pace = 0
models = { "demo" = { price = { input = 1, output = 2 } } }
[routing]
default = ["demo.demo"]
"""
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


def ledger(folder: Path) -> Path:
    return folder / "user" / "usage" / "main.sqlite"


def ids(folder: Path) -> set[str]:
    try:
        with reading(ledger(folder)) as connection:
            return {id for (id,) in connection.execute("SELECT id FROM requests")}
    except FileNotFoundError:
        return set()


async def ask(port: int) -> Answer:
    answer = await call(port, "/v1/chat/completions", BODY)
    assert answer.status == 200, answer.body
    return answer


async def ask_many(port: int, count: int) -> list[str]:
    """Return the ids of requests that were answered, some at the same time."""
    found = [await asyncio.gather(*(ask(port) for _ in range(10))) for _ in range(count // 10)]
    return [answer.headers["x-request-id"] for some in found for answer in some]


async def metric(port: int, name: str) -> float:
    text = (await call(port, "/metrics", method="GET")).body.decode()
    return sum(map(float, re.findall(rf"^{name}\{{[^}}]*\}} ([\d.]+)$", text, re.MULTILINE)))


async def kill(command: Command) -> None:
    """Kill the parent and its workers at once."""
    os.killpg(command.process.pid, signal.SIGKILL)
    await command.ended()


async def test_two_workers_that_are_killed_lose_nothing_that_was_written(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG, "--workers", "2") as command:
        answered = await ask_many(await command.port(), 100)
        await until(lambda: ids(tmp_path) == set(answered), "all requests are in the ledger")
        await kill(command)
    assert ids(tmp_path) == set(answered)
    async with serve(tmp_path, CONFIG, "--workers", "2") as command:
        answered += await ask_many(await command.port(), 20)
        command.signal()
        assert await command.ended() == 0
    assert ids(tmp_path) == set(answered)
    with reading(ledger(tmp_path)) as connection:
        totals = connection.execute("SELECT SUM(requests), SUM(calls) FROM hours").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert totals == (120, 120)


async def test_a_kill_loses_at_most_the_last_batch(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG, "--workers", "2") as command:
        port = await command.port()
        early = await ask_many(port, 50)
        await until(lambda: set(early) <= ids(tmp_path), "the first requests are in the ledger")
        late = await ask_many(port, 10)
        await kill(command)
    assert set(early) <= ids(tmp_path) <= {*early, *late}


async def test_a_clean_stop_writes_the_last_batch(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG, "--workers", "2") as command:
        answered = await ask_many(await command.port(), 50)
        command.signal()
        assert await command.ended() == 0
    assert ids(tmp_path) == set(answered)


async def test_a_full_disk_costs_rows_and_never_a_request(tmp_path: Path) -> None:
    # No file may grow beyond 32 KB, which is less than the empty tables need.
    async with serve(tmp_path, CONFIG, shell="ulimit -f 64") as command:
        port = await command.port()
        await ask_many(port, 20)
        async with asyncio.timeout(10):
            while await metric(port, "routecodex_ledger_lost_total") < 20:
                await asyncio.sleep(0.05)
        assert await metric(port, "routecodex_ledger_rows_total") == 0
        await ask_many(port, 20)
        command.signal()
        assert await command.ended() == 0
    assert command.text.count("the usage ledger") == 1


async def test_a_ledger_that_cannot_be_opened_costs_rows_and_never_a_request(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "usage").write_bytes(b"not a directory")
    async with serve(tmp_path, CONFIG) as command:
        port = await command.port()
        await ask_many(port, 20)
        async with asyncio.timeout(10):
            while await metric(port, "routecodex_ledger_lost_total") < 20:
                await asyncio.sleep(0.05)
        await command.wait_for("the usage ledger .* cannot be written, requests continue without it")


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_ledger_that_another_program_locks_holds_no_request_up(tmp_path: Path, workers: str) -> None:
    async with serve(tmp_path, CONFIG, "--workers", workers) as command:
        port = await command.port()
        answered = await ask_many(port, 10)
        await until(lambda: ids(tmp_path) == set(answered), "the first requests are in the ledger")
        other = sqlite3.connect(ledger(tmp_path), isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        answered += await ask_many(port, 20)
        other.execute("ROLLBACK")
        other.close()
        await until(lambda: ids(tmp_path) == set(answered), "all requests are in the ledger")
