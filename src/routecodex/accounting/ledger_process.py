"""A process that writes batches of the usage ledger, for floods of requests.

Binding the values of a row holds the GIL for as long as a small request takes in all. Beyond some thousand
requests a second the thread of the ledger therefore hands its batches to this process, and waits for each. It
is started by the first large batch, and ended when there was none for a minute. A batch that it does not
confirm is written by the thread: rows that are there already are not written again. So are those that come
while it starts, and when too many wait: the thread slows the requests down, so that no row is lost.

    worker → process    length (4 bytes), `WriteCommand` as MessagePack
    process → worker    one byte: 1, ready, or the batch is committed; 0, it is not
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO, Final

import msgspec
from msgspec import Struct

from routecodex.accounting.ledger_file import LedgerBatch, LedgerFile
from routecodex.accounting.ledger_schema import UnknownLedgerVersion

log = logging.getLogger("routecodex.accounting")

LARGE: Final = 400
"""Requests of a batch that is worth a process."""
_IDLE_SECONDS: Final = 60.0
_REST_SECONDS: Final = 60.0
"""Seconds after a failure in which no process is started."""
_ANSWER_SECONDS: Final = 10.0
_END_SECONDS: Final = 5.0
_START_SECONDS: Final = 30.0
MOST_WAITING: Final = 4000
"""Requests in and behind a batch at which the process is too slow, because other processes need its core."""
_MANY_WAITING: Final = 1500
"""Requests in and behind a batch at which the process no longer lets others go first."""
_LENGTH: Final = struct.Struct("<I")
_DONE, _FAILED = b"\x01", b"\x00"


class WriteCommand(Struct, frozen=True, array_like=True):
    """A batch, and the file it belongs to; `waiting` requests are in it or have come since."""

    path: str
    server: str
    timezone: str
    batch: LedgerBatch
    waiting: int = 0


class LedgerProcess:
    """The process as the thread of the ledger sees it."""

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, patience: float = _ANSWER_SECONDS
    ) -> None:
        self._monotonic = monotonic
        self.patience = patience
        """Seconds after which a process that does not answer is taken for one that hangs."""
        self._process: subprocess.Popen[bytes] | None = None
        self._used_at = 0.0
        self._rests_until = 0.0
        self._started_at = 0.0
        self._is_ready = False
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        return None if self._process is None else self._process.pid

    def write(self, command: WriteCommand) -> bool:
        """Write a batch that is large, or that follows a large one soon; return whether it was done."""
        now = self._monotonic()
        if len(command.batch.requests) >= LARGE and now >= self._rests_until:
            self._used_at = now
        elif self._process is None or now - self._used_at > _IDLE_SECONDS:
            self.close()
            return False
        try:
            if not self.is_ready() or command.waiting > MOST_WAITING:
                return False
            return self._send(command)
        except OSError as exc:
            log.info("the usage ledger is written without a process of its own for a while: %s", exc)
            self._rests_until = now + _REST_SECONDS
            self.close(patience=0.0)
            return False

    def is_ready(self) -> bool:
        """Start the process if it does not run, and return whether it takes batches; OSError if it cannot."""
        if self._process is None:
            self._started_at, self._is_ready = self._monotonic(), False
            self._process = subprocess.Popen(  # noqa: S603  # this module, by the interpreter that runs it
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        answers = _pipe(self._process.stdout)
        if not self._is_ready and _is_due(answers, select.POLLIN, 0.0):
            self._is_ready = _answer(answers)
        if not self._is_ready and self._monotonic() - self._started_at > _START_SECONDS:
            raise TimeoutError("the process that writes the ledger does not start")
        return self._is_ready

    def _send(self, command: WriteCommand) -> bool:
        """Send a batch and wait until it is committed; OSError if the process ended or hangs."""
        assert self._process is not None
        commands, answers = _pipe(self._process.stdin), _pipe(self._process.stdout)
        content = self._encoder.encode(command)
        deadline = self._monotonic() + self.patience
        left = memoryview(_LENGTH.pack(len(content)) + content)
        os.set_blocking(commands, False)
        while left:
            self._await(commands, select.POLLOUT, deadline)
            left = left[os.write(commands, left) :]
        self._await(answers, select.POLLIN, deadline)
        return _answer(answers)

    def _await(self, descriptor: int, event: int, deadline: float) -> None:
        if not _is_due(descriptor, event, max(0.0, deadline - self._monotonic())):
            raise TimeoutError("the process that writes the ledger does not answer")

    def close(self, patience: float = _END_SECONDS) -> None:
        """End the process: it ends by itself when nothing more can come, and is killed if it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipe(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    return pipe.fileno()


def _is_due(descriptor: int, event: int, seconds: float) -> bool:
    """Wait for a pipe; `select` does not know descriptors beyond 1023, and connections take many."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(seconds * 1000.0))


def _answer(answers: int) -> bool:
    answer = os.read(answers, 1)
    if not answer:
        raise BrokenPipeError("the process that writes the ledger has ended")
    return answer == _DONE


def serve(commands: BinaryIO, answers: BinaryIO) -> None:
    """Write the batches that come until the worker closes its end, or dies."""
    answers.write(_DONE)
    answers.flush()
    decoder = msgspec.msgpack.Decoder(WriteCommand)
    file: LedgerFile | None = None
    place = ("", "", "")
    pause = Pause()
    while len(head := commands.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        if len(content := commands.read(size)) < size:
            break
        command = decoder.decode(content)
        if file is None or place != (command.path, command.server, command.timezone):
            if file is not None:
                file.close()
            place = (command.path, command.server, command.timezone)
            file = LedgerFile(
                Path(command.path), server=command.server, timezone=command.timezone, pause=pause
            )
        pause.yields = command.waiting < _MANY_WAITING
        answers.write(_DONE if _is_written(file, command.batch) else _FAILED)
        answers.flush()
    if file is not None:
        file.close()


class Pause:
    """Lets other processes have the core between two statements, unless too many requests wait."""

    def __init__(self) -> None:
        self.yields = True
        self._yield: Callable[[], None] | None = getattr(os, "sched_yield", None)

    def __call__(self) -> None:
        if self.yields and self._yield is not None:
            self._yield()


def _is_written(file: LedgerFile, batch: LedgerBatch) -> bool:
    """Write a batch; return False if it could not be written, for a reason that the thread will find too."""
    try:
        file.write(batch)
    except (sqlite3.Error, OSError, UnknownLedgerVersion):
        return False
    return True


def main() -> None:
    """Serve one worker: it ends this process by closing the pipe, so that nothing it has sent is lost."""
    # Sent to the whole group by a terminal, and to the whole service by systemd.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
