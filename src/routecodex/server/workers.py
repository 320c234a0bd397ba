"""Several processes on one port: the parent restarts workers and forwards signals."""

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

_EARLY_EXIT_SECONDS = 2.0
_MAX_EARLY_EXITS = 3
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LAST = b"!"


def reserve_port(host: str, port: int) -> socket.socket:
    """Bind a socket that never listens; it reserves the port while workers are replaced."""
    if port:
        # SO_REUSEPORT would share the port with workers of another gateway; an exclusive bind fails.
        _bind(host, port, shared=False).close()
    return _bind(host, port, shared=True)


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


class Worker(Struct, frozen=True):
    """One worker process; the descriptor `parent` becomes readable when the parent is gone."""

    index: int
    parent: int
    parent_pid: int
    ready: Callable[[], None]
    """Called once the worker serves."""

    def spread(self) -> bool:
        """Send SIGHUP to all workers through the parent; return whether it is still there."""
        # The new parent of an orphan is another program, which must not get the signal.
        if os.getppid() != self.parent_pid:
            return False
        os.kill(self.parent_pid, signal.SIGHUP)
        return True


class Workers:
    """N forked workers; one that exits is replaced, unless they keep exiting early.

    `on_ready` is called in the last worker to start, once all serve. Workers ignore Ctrl-C: a terminal sends
    it to every process, and the parent's SIGTERM would be a second signal. SIGHUP is forwarded to all.
    """

    def __init__(
        self, count: int, run: Callable[[Worker], None], *, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        self._count = count
        self._run = run
        self._on_ready = on_ready
        self._pids: dict[int, tuple[int, float]] = {}
        self._stopping = False
        self._early_exits = 0
        self._pid = os.getpid()
        self._in_terminal = sys.stderr.isatty()
        self._parent, self._lifeline = os.pipe()
        # One byte for each worker; the worker that reads the last one calls on_ready.
        self._tokens, tokens = os.pipe()
        os.write(tokens, b"." * (count - 1) + _LAST)
        os.close(tokens)

    def serve(self) -> int:
        """Run until a signal stops it; return the exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._on_sighup)
        for index in range(self._count):
            self._fork(index)
        worst = 0
        while self._pids:
            pid, status = os.wait()
            worst = max(worst, self._on_exit(pid, os.waitstatus_to_exitcode(status)))
        return worst

    def _fork(self, index: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal between the fork and storing the pid would miss the worker or reach it twice.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            if self._stopping:
                return
            pid = os.fork()
            if not pid:
                self._run_worker(index)
            self._pids[pid] = (index, time.monotonic())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _run_worker(self, index: int) -> NoReturn:
        code = 1
        try:
            os.close(self._lifeline)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # Ignored until the loop handles it: a starting worker reads the latest configuration anyway.
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

    def _on_exit(self, pid: int, code: int) -> int:
        index, started = self._pids.pop(pid, (0, 0.0))
        if self._stopping:
            return 0 if code in (0, -signal.SIGTERM) else 1
        early = time.monotonic() - started < _EARLY_EXIT_SECONDS
        self._early_exits = self._early_exits + 1 if early else 0
        if self._early_exits >= _MAX_EARLY_EXITS:
            print("routecodex: workers keep exiting right after their start; giving up", file=sys.stderr)
            self._stop(signal.SIGTERM, None)
            return 1
        print(f"routecodex: worker {index} exited with code {code}; starting another", file=sys.stderr)
        self._fork(index)
        return 0

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopping = True
        self._signal_all(signal.SIGTERM)

    def _on_sighup(self, number: int, frame: object) -> None:
        if self._in_terminal and not sys.stderr.isatty():
            self._stop(number, frame)
        else:
            self._signal_all(signal.SIGHUP)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in list(self._pids):
            # A worker that was just reaped may still be listed.
            with suppress(ProcessLookupError):
                os.kill(pid, number)
