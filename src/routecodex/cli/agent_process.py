"""Runs an agent in the foreground: the terminal is its own, signals reach it, its exit code is ours.

The agent stays in our process group, so the terminal signals it directly: Ctrl-C and the like are not
passed on a second time. A signal that a process sends to us alone is passed on. When the agent suspends
itself, so do we: the shell waits for us and would not get its prompt back otherwise.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_WAITED_FOR = (*_PASSED_ON, signal.SIGCHLD)
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and programs that it starts would ignore too."""
_BY_SIGNAL = 128


def run_in_foreground(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the program to its end; return its exit code, 128 + n if signal n ended it; raises OSError."""
    with _blocked():
        # Our mask and ignored signals would be inherited.
        pid = os.posix_spawn(argv[0], list(argv), environ, setsigmask=(), setsigdef=_RESTORED)
        return _wait(pid)


@contextmanager
def _blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    try:
        yield
    finally:
        # A signal that came after the end of the agent has nobody to reach.
        while signal.sigpending() & set(_WAITED_FOR):
            signal.sigwait(_WAITED_FOR)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int) -> int:
    while True:
        number, from_terminal = _next_signal()
        if number != signal.SIGCHLD:
            if not from_terminal:
                os.kill(pid, number)
            continue
        waited, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if waited and os.WIFSTOPPED(status):
            _suspend(pid)
        elif waited:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _BY_SIGNAL - code


def _next_signal() -> tuple[int, bool]:
    """Wait for a signal; return it, and whether the terminal sent it to the agent as well."""
    if sys.platform != "darwin":
        info = signal.sigwaitinfo(_WAITED_FOR)
        # Positive codes are the kernel's; a process that calls kill() has SI_USER, 0.
        return info.si_signo, info.si_code > 0
    number = signal.sigwait(_WAITED_FOR)
    return number, number in (signal.SIGINT, signal.SIGQUIT) and _owns_terminal()


def _owns_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _suspend(pid: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)
