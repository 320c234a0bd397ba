"""Several processes on one port: the parent keeps them running and passes signals on."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from msgspec import Struct

_QUICK_DEATH = 2.0
_MAX_QUICK_DEATHS = 3
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LAST = b"!"


def reserve_port(host: str, port: int) -> socket.socket:
    """A bound socket that never listens: it holds the port while workers come and go."""
    if port:
        # Another gateway's workers would let ours in beside them: only an exclusive try finds them.
        _bound(host, port, shared=False).close()
    return _bound(host, port, shared=True)


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held


class Worker(Struct, frozen=True):
    """One worker as it sees itself; `parent` becomes readable when the parent is gone."""

    index: int
    parent: int
    parent_pid: int
    ready: Callable[[], None]
    """To be called once it serves."""

    def spread(self) -> bool:
        """Sends a SIGHUP to all workers by way of the parent; whether there is one."""
        # An orphan's parent is somebody else, who may take the signal for something else.
        if os.getppid() != self.parent_pid:
            return False
        os.kill(self.parent_pid, signal.SIGHUP)
        return True


class Workers:
    """N forked workers; one that dies is replaced, unless they keep dying at once.

    `on_ready` is called, in the last of them, when all serve for the first time. Workers do not see Ctrl-C:
    a terminal sends it to every process, and the parent's word would be a second signal. A SIGHUP is passed
    on to all of them.
    """

    def __init__(
        self, count: int, run: Callable[[Worker], None], *, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        self._count = count
        self._run = run
        self._on_ready = on_ready
        self._pids: dict[int, tuple[int, float]] = {}
        self._stopping = False
        self._quick_deaths = 0
        self._pid = os.getpid()
        self._watched = sys.stderr.isatty()
        self._parent, self._lifeline = os.pipe()
        # One token for each worker that becomes ready; whoever draws the last one tells the world.
        self._tokens, tokens = os.pipe()
        os.write(tokens, b"." * (count - 1) + _LAST)
        os.close(tokens)

    def serve(self) -> int:
        """Runs until told to stop; the exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._hang_up)
        for index in range(self._count):
            self._fork(index)
        worst = 0
        while self._pids:
            pid, status = os.wait()
            worst = max(worst, self._ended(pid, os.waitstatus_to_exitcode(status)))
        return worst

    def _fork(self, index: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal between the fork and the note of its pid would miss the worker, or act twice.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            if self._stopping:
                return
            pid = os.fork()
            if not pid:
                self._be_worker(index)
            self._pids[pid] = (index, time.monotonic())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _be_worker(self, index: int) -> NoReturn:
        code = 1
        try:
            os.close(self._lifeline)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # Until it listens for it: a worker that starts reads the latest configuration anyway.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._run(Worker(index, self._parent, self._pid, self._ready))
            code = 0
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _ready(self) -> None:
        if os.read(self._tokens, 1) == _LAST:
            self._on_ready()

    def _ended(self, pid: int, code: int) -> int:
        index, born = self._pids.pop(pid, (0, 0.0))
        if self._stopping:
            return 0 if code in (0, -signal.SIGTERM) else 1
        quick = time.monotonic() - born < _QUICK_DEATH
        self._quick_deaths = self._quick_deaths + 1 if quick else 0
        if self._quick_deaths >= _MAX_QUICK_DEATHS:
            print("routecodex: workers keep dying at once; giving up", file=sys.stderr)
            self._stop(signal.SIGTERM, None)
            return 1
        print(f"routecodex: worker {index} ended with {code}; starting another", file=sys.stderr)
        self._fork(index)
        return 0

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopping = True
        self._tell(signal.SIGTERM)

    def _hang_up(self, number: int, frame: object) -> None:
        if self._watched and not sys.stderr.isatty():
            self._stop(number, frame)
        else:
            self._tell(signal.SIGHUP)

    def _tell(self, number: signal.Signals) -> None:
        for pid in list(self._pids):
            # One that was just collected may still stand on the list.
            with suppress(ProcessLookupError):
                os.kill(pid, number)
