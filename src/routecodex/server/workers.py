"""Several processes on one port: the parent keeps them running and passes signals on."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable

_QUICK_DEATH = 2.0
_MAX_QUICK_DEATHS = 3


def reserve_port(host: str, port: int) -> socket.socket:
    """A bound socket that never listens: it holds the port while workers come and go."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((host, port))
    return held


class Workers:
    """N forked workers; one that dies is replaced, unless it keeps dying at once."""

    def __init__(self, count: int, run: Callable[[int], None]) -> None:
        self._count = count
        self._run = run
        self._pids: dict[int, tuple[int, float]] = {}
        self._stopping = False
        self._quick_deaths = 0

    def serve(self) -> int:
        """Runs until told to stop; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for index in range(self._count):
            self._fork(index)
        worst = 0
        while self._pids:
            try:
                pid, status = os.wait()
            except InterruptedError:
                continue
            worst = max(worst, self._ended(pid, os.waitstatus_to_exitcode(status)))
        return worst

    def _fork(self, index: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._pids[pid] = (index, time.monotonic())
            return
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._run(index)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _ended(self, pid: int, code: int) -> int:
        index, born = self._pids.pop(pid, (0, 0.0))
        if self._stopping:
            return 0 if code == 0 else 1
        if time.monotonic() - born < _QUICK_DEATH:
            self._quick_deaths += 1
            if self._quick_deaths >= _MAX_QUICK_DEATHS:
                print("routecodex: workers keep dying at once; giving up", file=sys.stderr)
                self._stop(signal.SIGTERM, None)
                return 1
        print(f"routecodex: worker {index} ended with {code}; starting another", file=sys.stderr)
        self._fork(index)
        return 0

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopping = True
        for pid in list(self._pids):
            os.kill(pid, signal.SIGTERM)
