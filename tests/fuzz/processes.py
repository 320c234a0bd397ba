"""The same input in two processes: one runs the sources, one the build, if there is one for these sources.

A worker (`python -m tests.fuzz.processes`) reads one case per line from standard input and writes its result.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from routecodex import IS_COMPILED, compiled
from tests.fuzz.exchanges import Exchanges, comparable, exchanging
from tests.fuzz.readings import read_requests, read_response
from tests.fuzz.translations import stream_result, whole_result

ROOT = Path(__file__).parents[2]


def is_built() -> bool:
    """Return whether there is a build of these sources."""
    return compiled.matching_build() is not None


class Case(msgspec.Struct, frozen=True):
    """One input: bytes in several reads; with the path of a request, or client and provider of an answer."""

    kind: str
    reads: list[bytes]
    path: str = ""


class Worker:
    """One process that runs cases; the sources if `pure`."""

    def __init__(self, *, pure: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.processes"],
            cwd=ROOT,
            env={**os.environ, "ROUTECODEX_PURE": "1" if pure else "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._read()["compiled"] is not pure

    def run(self, case: Case) -> Any:
        """Return the result of a case."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(case) + b"\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return msgspec.json.decode(self._process.stdout.readline() or b"null")

    def close(self) -> None:
        self._process.communicate(timeout=30)


class Twins:
    """A process of the sources and one of the build."""

    def __enter__(self) -> Twins:
        self._workers = [Worker(pure=True), Worker(pure=False)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.close()

    def run(self, case: Case) -> list[Any]:
        """Return the result of the sources, then that of the build."""
        return [worker.run(case) for worker in self._workers]


def split(data: bytes, at: Sequence[int]) -> list[bytes]:
    """Split the bytes at these offsets."""
    ends = sorted({min(offset, len(data)) for offset in at} | {len(data)})
    starts = [0, *ends[:-1]]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


async def _run(case: Case, exchanges: Exchanges) -> Any:
    if case.kind == "request":
        answer = await exchanges.call(case.path, case.reads[0])
        problems = [line.rpartition("\n")[2] for line in exchanges.problems]
        exchanges.problems.clear()
        return [*comparable(answer, exchanges.sent()), problems]
    if case.kind in ("stream", "whole"):
        client, upstream = case.path.split(" ")
        if case.kind == "whole":
            return whole_result(client, upstream, case.reads[0])
        return stream_result(client, upstream, case.reads)
    read = {"requests": read_requests, "response": read_response}[case.kind]
    return await asyncio.to_thread(read, case.reads)


async def _serve() -> None:
    decoder = msgspec.json.Decoder(Case)
    async with exchanging() as exchanges:
        _write({"compiled": IS_COMPILED})
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            try:
                result = await _run(decoder.decode(line), exchanges)
            except Exception as exc:
                result = ["exception", repr(exc)]
            _write(result)


def _write(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    # Ids that are made at random would differ.
    secrets.token_hex = lambda nbytes=None: "0" * (2 * (nbytes or 32))
    asyncio.run(_serve())
