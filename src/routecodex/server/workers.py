"""Several processes on one port: the parent restarts workers, watches them and forwards signals."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import NoReturn

from msgspec import Struct

logger = logging.getLogger("routecodex.server")

WATCHDOG_SECONDS = 30.0
"""Silence after which a worker is killed: much longer than a busy machine keeps an event loop waiting."""

_BEATS = 6
"""Heartbeats in that time."""
_STABLE_SECONDS = 60.0
"""A worker that lived this long was sound: its earlier deaths do not count any more."""
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_MOST_FAILED_STARTS = 3
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_READY, _BEAT = b"!", b"."


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


def restart_delay(deaths: int) -> float:
    """Return the seconds to wait after the nth death in a row: none after the first, then ever more."""
    return 0.0 if deaths < 2 else min(_FIRST_DELAY * 2.0 ** min(deaths - 2, 32), _LONGEST_DELAY)


class Heartbeat(Struct, frozen=True):
    """Signs of life of a worker, through a pipe to its parent."""

    descriptor: int
    seconds: float
    """Time between two of them."""

    def send(self, sign: bytes = _BEAT) -> None:
        # A full pipe means that the parent is stopped, a broken one that it is gone: `Worker.parent` says so.
        with suppress(OSError):
            os.write(self.descriptor, sign)


class Worker(Struct, frozen=True):
    """One worker process; the descriptor `parent` becomes readable when the parent is gone."""

    index: int
    parent: int
    parent_pid: int
    heartbeat: Heartbeat

    def ready(self) -> None:
        """Tell the parent that this worker serves."""
        self.heartbeat.send(_READY)

    def spread(self) -> bool:
        """Send SIGHUP to all workers through the parent; return whether it is still there."""
        # The new parent of an orphan is another program, which must not get the signal.
        if os.getppid() != self.parent_pid:
            return False
        os.kill(self.parent_pid, signal.SIGHUP)
        return True


class _Slot:
    """A place for one worker after the other, as the parent sees it."""

    __slots__ = (
        "deaths",
        "index",
        "is_suspect",
        "kill_at",
        "pid",
        "pipe",
        "ready",
        "restart_at",
        "seen",
        "started",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid = 0
        """0 while no process runs."""
        self.pipe = -1
        self.ready = False
        self.started = self.seen = 0.0
        self.kill_at = inf
        self.is_suspect = False
        self.deaths = 0
        """Deaths in a row."""
        self.restart_at = inf

    def hear(self, now: float, *, patience: float) -> None:
        """Read the signs of life that arrived; the next one is due within `patience` seconds."""
        signs = b""
        with suppress(BlockingIOError):
            signs = os.read(self.pipe, 65536)
        if signs:
            self.expect(now, patience)
        self.ready = self.ready or _READY in signs

    def expect(self, now: float, patience: float) -> None:
        """Note a sign of life."""
        self.seen, self.kill_at, self.is_suspect = now, now + patience, False

    def fell(self, now: float) -> None:
        """Note the death of the process, and when to start another."""
        os.close(self.pipe)
        self.pid, self.pipe, self.ready = 0, -1, False
        self.deaths = 1 if now - self.started >= _STABLE_SECONDS else self.deaths + 1
        self.restart_at = now + restart_delay(self.deaths)


class Workers:
    """N forked workers; one that exits, or shows no sign of life for `watchdog` seconds, is replaced.

    One that dies again and again is restarted after ever longer pauses, while the others serve. The parent
    gives up only if none has ever become ready. `on_ready` is called once each worker is ready or has failed.
    Workers ignore Ctrl-C: a terminal sends it to every process, and the parent's SIGTERM would be a second
    signal. SIGHUP is forwarded to all.
    """

    def __init__(
        self,
        count: int,
        run: Callable[[Worker], None],
        *,
        on_ready: Callable[[], None] = lambda: None,
        watchdog: float = WATCHDOG_SECONDS,
    ) -> None:
        self._slots = [_Slot(index) for index in range(count)]
        self._run = run
        self._on_ready = on_ready
        self._watchdog = watchdog or inf
        self._stopping = self._ever_ready = self._announced = False
        self._failed_starts = 0
        self._code = 0
        self._pid = os.getpid()
        self._in_terminal = sys.stderr.isatty()
        self._parent, self._lifeline = os.pipe()
        self._signals, self._wakeup = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(self._wakeup, False)

    def serve(self) -> int:
        """Run until a signal stops it; return the exit code."""
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._on_sighup)
        for slot in self._slots:
            self._fork(slot)
        while not self._stopping or self._living():
            self._wait()
            self._reap()
            self._announce()
            self._kill_silent()
            self._restart()
        signal.set_wakeup_fd(-1)
        return self._code

    def _living(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.pid]

    def _wait(self) -> None:
        """Wait for a signal, a heartbeat, or the time to act."""
        wait = max(0.0, self._next_deadline() - time.monotonic())
        poll = select.poll()
        pipes = {slot.pipe: slot for slot in self._living()}
        for descriptor in (self._signals, *pipes):
            poll.register(descriptor, select.POLLIN)
        found = poll.poll(None if wait == inf else wait * 1000 + 1)
        now = time.monotonic()
        for descriptor, _ in found:
            if descriptor in pipes:
                pipes[descriptor].hear(now, patience=self._watchdog)
            else:
                with suppress(BlockingIOError):
                    os.read(self._signals, 65536)

    def _next_deadline(self) -> float:
        silences = [slot.kill_at for slot in self._living()]
        restarts = [slot.restart_at for slot in self._slots if not slot.pid and not self._stopping]
        return min(*silences, *restarts, inf, inf)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                for slot in self._slots:
                    if slot.pid == pid:
                        self._on_exit(slot, os.waitstatus_to_exitcode(status))

    def _on_exit(self, slot: _Slot, code: int) -> None:
        slot.hear(slot.seen, patience=self._watchdog)
        self._ever_ready = self._ever_ready or slot.ready
        slot.fell(time.monotonic())
        if self._stopping:
            self._code = max(self._code, 0 if code in (0, -signal.SIGTERM) else 1)
            return
        self._failed_starts += 1
        if not self._ever_ready and self._failed_starts >= _MOST_FAILED_STARTS:
            logger.error("no worker becomes ready; giving up")
            self._code = 1
            self._stop(signal.SIGTERM, None)
            return
        delay = restart_delay(slot.deaths)
        when = f" in {delay:g} s, after {slot.deaths} deaths in a row" if delay else ""
        logger.warning("worker %d exited with code %d; starting another%s", slot.index, code, when)

    def _announce(self) -> None:
        ready = [slot for slot in self._slots if slot.ready]
        self._ever_ready = self._ever_ready or bool(ready)
        settled = all(slot.ready or slot.deaths for slot in self._slots)
        if ready and settled and not self._announced and not self._stopping:
            self._announced = True
            self._on_ready()

    def _kill_silent(self) -> None:
        now = time.monotonic()
        for slot in self._living():
            if now < slot.kill_at:
                continue
            if slot.is_suspect:
                silence = now - slot.seen
                logger.error(
                    "worker %d has shown no sign of life for %.3g s; killing it", slot.index, silence
                )
                _signal(slot.pid, signal.SIGKILL)
            # The first time the parent may have been stopped as well (Ctrl-Z): it waits for one more beat.
            slot.is_suspect = not slot.is_suspect
            slot.kill_at = now + self._watchdog / _BEATS

    def _restart(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if not slot.pid and slot.restart_at <= now:
                self._fork(slot)

    def _fork(self, slot: _Slot) -> None:
        _flush_output()
        # A signal between the fork and storing the pid would miss the worker or reach it twice.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            if self._stopping:
                return
            pipe, heartbeat = os.pipe()
            pid = os.fork()
            if not pid:
                os.close(pipe)
                self._run_worker(slot.index, heartbeat)
            os.close(heartbeat)
            os.set_blocking(pipe, False)
            slot.pid, slot.pipe, slot.ready, slot.restart_at = pid, pipe, False, inf
            slot.started = time.monotonic()
            slot.expect(slot.started, self._watchdog)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _run_worker(self, index: int, heartbeat: int) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for descriptor in (self._lifeline, self._signals, self._wakeup):
                os.close(descriptor)
            for slot in self._living():
                os.close(slot.pipe)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # Ignored until the loop handles it: a starting worker reads the latest configuration anyway.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.set_blocking(heartbeat, False)
            seconds = min(self._watchdog, WATCHDOG_SECONDS) / _BEATS
            self._run(Worker(index, self._parent, self._pid, Heartbeat(heartbeat, seconds)))
            code = 0
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            _flush_output()
            os._exit(code)

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopping = True
        self._signal_all(signal.SIGTERM)

    def _on_sighup(self, number: int, frame: object) -> None:
        if self._in_terminal and not sys.stderr.isatty():
            self._stop(number, frame)
        else:
            self._signal_all(signal.SIGHUP)

    def _signal_all(self, number: signal.Signals) -> None:
        for slot in self._living():
            _signal(slot.pid, number)


def _signal(pid: int, number: signal.Signals) -> None:
    # A worker that was just reaped may still be listed.
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _flush_output() -> None:
    """Write what is buffered; the terminal may be closed."""
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
