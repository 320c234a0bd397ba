"""The request log: whole lines of all workers, within bounds, read from the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.server.logs import RequestLine
from routecodex.server.request_log import RequestLog, tail
from tests.cli.process import ROOT, serve
from tests.kit import asking
from tests.kit.raw_client import call
from tests.server.test_workers import DEMO, lines_to_all

MB = 1024 * 1024


def lines(*names: str, filler: int = 0) -> list[bytes]:
    rows = (
        RequestLine(time="t", request=name, protocol="chat", model="m" * filler, status=200, seconds=0.5)
        for name in names
    )
    return list(map(msgspec.json.encode, rows))


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["request"] for row in rows]


async def test_lines_are_written_as_json_and_read_newest_last(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "new", max_bytes=MB)
    log.append(lines("a", "b"))
    log.append(lines("c"))
    assert names(await log.tail(10)) == ["a", "b", "c"]
    assert names(await log.tail(2)) == ["b", "c"]
    assert await log.tail(0) == []
    await log.close()
    file = tmp_path / "new" / "requests.jsonl"
    assert [msgspec.json.decode(line)["request"] for line in file.read_bytes().splitlines()] == [
        "a",
        "b",
        "c",
    ]
    assert file.stat().st_mode & 0o777 == 0o600


async def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, max_bytes=MB)
    for number in range(500):
        log.append(lines(str(number)))
    await log.close()
    assert names(tail(tmp_path, 1000)) == [str(number) for number in range(500)]


async def test_a_full_file_is_set_aside_and_two_old_ones_are_kept(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, max_bytes=4000)
    for number in range(20):
        log.append(lines(str(number), filler=1000))
        await log.settle()
    await log.close()
    found = sorted(path.name for path in tmp_path.glob("*.jsonl"))
    assert found == ["requests.1.jsonl", "requests.2.jsonl", "requests.jsonl"]
    assert all(path.stat().st_size <= 4000 for path in tmp_path.glob("*.jsonl"))
    assert names(tail(tmp_path, 100)) == [str(number) for number in range(12, 20)]
    assert names(tail(tmp_path, 4)) == ["16", "17", "18", "19"]


async def test_a_batch_larger_than_the_bound_is_written_all_the_same(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, max_bytes=100)
    log.append(lines("a", "b", "c", filler=100))
    await log.close()
    assert names(tail(tmp_path, 10)) == ["a", "b", "c"]


WRITER = """
import asyncio, sys
from pathlib import Path
from msgspec import json
from routecodex.server.logs import RequestLine
from routecodex.server.request_log import RequestLog

async def main(who, folder):
    log = RequestLog(Path(folder), max_bytes=60_000)
    for number in range(100):
        names = [f"{who}-{number}-{part}" for part in range(3)]
        rows = [RequestLine(time="t", request=name, protocol="chat", model="m" * 50, status=200, seconds=0.5)
                for name in names]
        log.append([json.encode(row) for row in rows])
        await log.settle()
    await log.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_that_write_at_once_neither_tear_lines_nor_rotate_twice(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, writer, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        for writer in ("a", "b")
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    files = [tmp_path / "requests.2.jsonl", tmp_path / "requests.1.jsonl", tmp_path / "requests.jsonl"]
    # 600 lines of about 135 bytes fill one file and begin a second: rotating twice would leave a small one.
    assert [file.exists() for file in files] == [False, True, True]
    lines = b"".join(file.read_bytes() for file in files[1:]).splitlines()
    found = [msgspec.json.decode(line)["request"] for line in lines]
    assert len(found) == 600
    assert set(found) == {f"{writer}-{n}-{part}" for writer in "ab" for n in range(100) for part in range(3)}
    for writer in "ab":
        own = [name for name in found if name.startswith(writer)]
        assert own == [f"{writer}-{n}-{part}" for n in range(100) for part in range(3)]


async def test_a_disk_that_does_not_take_it_is_told_of_once_and_forgiven(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "routecodex.server")
    at = tmp_path / "log"
    at.write_text("a file where the directory should be")
    log = RequestLog(at, max_bytes=MB)
    for name in "abc":
        log.append(lines(name))
        await log.settle()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    at.unlink()
    log.append(lines("d"))
    assert names(await log.tail(10)) == ["d"]
    assert "written again" in caplog.text
    await log.close()


async def test_lines_past_a_bound_are_dropped_while_the_disk_is_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first line is being written; 20 000 more may wait."""
    log = RequestLog(tmp_path, max_bytes=10 * MB)
    waiting = [str(number) for number in range(19_999)]
    log.append(lines("a"))
    log.append(lines(*waiting))
    log.append(lines("d", "e"))
    await log.close()
    assert names(tail(tmp_path, 30_000)) == ["a", *waiting, "d"]
    assert "dropped 1 lines of the request log" in caplog.text


def test_half_a_line_costs_no_other(tmp_path: Path) -> None:
    whole = b'{"request": "a"}\n{"request": "b"}\n'
    (tmp_path / "requests.jsonl").write_bytes(whole + b'{"reque')
    assert names(tail(tmp_path, 10)) == ["a", "b"]
    (tmp_path / "requests.jsonl").write_bytes(whole + b'{"reque\n{"request": "c"}\n[1]\n\xff\n')
    assert names(tail(tmp_path, 10)) == ["a", "b", "c"]


LINE = b'{"request": "%05d"}\n'


@pytest.mark.parametrize("shift", range(len(LINE % 0) + 1))
def test_the_end_is_found_wherever_the_blocks_fall(tmp_path: Path, shift: int) -> None:
    """Files are read in blocks of 64 KiB from the end: the last line moves where these begin."""
    file = tmp_path / "requests.jsonl"
    lines = [LINE % number for number in range(8000)]
    file.write_bytes(b"".join(lines) + b'{"request": "%b"}\n' % (b"x" * shift))
    expected = [*(f"{number:05}" for number in range(8000)), "x" * shift]
    assert names(tail(tmp_path, 15)) == expected[-15:]
    assert names(tail(tmp_path, 10_000)) == expected


def test_a_line_may_be_longer_than_several_blocks(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_bytes(LINE % 1 + b'{"request": "%b"}\n' % (b"x" * 300_000) + LINE % 2)
    assert names(tail(tmp_path, 10)) == ["00001", "x" * 300_000, "00002"]


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    with file.open("wb") as out:
        # A hole reads as zeros, and there is far more of it than anyone would read.
        out.seek(50 * 1024 * MB)
        out.write(b'\n{"request": "a"}\n')
    assert names(tail(tmp_path, 1)) == ["a"]


async def test_every_worker_of_a_server_writes_to_the_same_log(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO, "--workers", "2") as command:
        port = await command.port()
        lines = await lines_to_all(port, 2)
        for line in lines.values():
            body = asking.body("chat", "a secret of mine", stream=False, model="demo.demo-1")
            assert (await line.send("POST", "/v1/chat/completions", body)).status == 200
            await line.close()
        command.signal()
        assert await command.ended() == 0
    folder = tmp_path / "user" / "sessions" / f"127.0.0.1-{port}"
    rows = tail(folder, 10)
    assert [(row["status"], row["target"]) for row in rows] == [(200, "demo.key1.demo-1")] * 2
    assert b"a secret of mine" not in (folder / "requests.jsonl").read_bytes()


async def test_no_request_is_kept_when_the_configuration_says_so(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO + "[logging]\nrequests = false\n") as command:
        port = await command.port()
        body = asking.body("chat", stream=False, model="demo.demo-1")
        assert (await call(port, "/v1/chat/completions", body)).status == 200
        command.signal()
        assert await command.ended() == 0
    assert list(tmp_path.glob("user/sessions/*/requests*")) == []


async def test_requests_are_kept_with_state_in_memory_too(tmp_path: Path) -> None:
    text = DEMO + '[store]\nurl = "memory:"\n'
    async with serve(tmp_path, text) as command:
        port = await command.port()
        headers = {"x-session-id": "s-1"}
        body = asking.body("chat", stream=False, model="demo.demo-1")
        assert (await call(port, "/v1/chat/completions", body, headers=headers)).status == 200
        command.signal()
        assert await command.ended() == 0
    (folder,) = tmp_path.glob("user/sessions/*")
    assert [row["session"] for row in tail(folder, 10)] == ["s-1"]
