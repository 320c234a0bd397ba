"""The command in a pseudo-terminal, as a user runs it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import psutil  # type: ignore[import-untyped]  # it has no types of its own

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 30.0
CTRL_C, CTRL_D = "\x03", "\x04"


def environ(user: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command with a user dir of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUTECODEX_")}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        clean.pop(name, None)
    settings = {"ROUTECODEX_USER_DIR": str(user), "PYTHONPATH": str(ROOT / "src"), "TERM": "dumb"}
    return {**clean, **settings, **(more or {})}


class Terminal:
    """A running command: its screen and its keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master
        self._seen = 0

    def type(self, text: str) -> None:
        """Type the text; Enter is `\\n`, and a lone surrogate is a byte that is not UTF-8."""
        os.write(self._master, text.encode("utf-8", "surrogateescape"))

    def shows(self, pattern: str) -> re.Match[str]:
        """Wait until the output since the last match matches the pattern."""
        deadline = time.monotonic() + _PATIENCE
        while (found := re.compile(pattern).search(self.shown, self._seen)) is None:
            assert self._more(deadline - time.monotonic()), f"never showed {pattern!r}:\n{self.shown}"
        self._seen = found.end()
        return found

    def resize(self, columns: int) -> None:
        """Change the width of the window; the command gets SIGWINCH."""
        termios.tcsetwinsize(self._master, (24, columns))

    def sleeps(self) -> None:
        """Wait until the command reads a key: readline misses a Ctrl-C between its prompt and that."""
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            assert self.process.poll() is None
            time.sleep(0.001)

    def ends(self) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + _PATIENCE
        while self._more(deadline - time.monotonic()):
            pass  # read the remaining output
        return self.process.wait(max(deadline - time.monotonic(), 0.1))

    def _more(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(seconds, 0))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


def _sit_down() -> None:
    """Make this the controlling terminal, with Ctrl-C on: background jobs have it switched off."""
    own_stdin = None if os.isatty(0) else os.dup(0)
    os.login_tty(1)
    if own_stdin is not None:
        os.dup2(own_stdin, 0)
        os.close(own_stdin)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def terminal(
    folder: Path,
    *arguments: str,
    user: Path,
    columns: int | None = None,
    more: Mapping[str, str] | None = None,
    stdin: IO[bytes] | None = None,
) -> Iterator[Terminal]:
    """Run `python -m routecodex …` in its own terminal; it is killed at the end if it still runs.

    `more` adds variables to its environment; `stdin` replaces the keyboard.
    """
    master, slave = pty.openpty()
    if columns is not None:
        termios.tcsetwinsize(master, (24, columns))
    process = subprocess.Popen(
        [sys.executable, "-m", "routecodex", *arguments],
        cwd=folder,
        env=environ(user, more),
        stdin=slave if stdin is None else stdin,
        stdout=slave,
        stderr=slave,
        preexec_fn=_sit_down,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(master)


@contextlib.contextmanager
def gateway(folder: Path, config: str, *, user: Path) -> Iterator[str]:
    """Run a gateway in its own process; yield its URL."""
    file = folder / "gateway.toml"
    file.write_text(config, "utf-8")
    file.chmod(0o600)
    process = subprocess.Popen(
        [sys.executable, "-m", "routecodex", "serve", "--config", str(file), "--port", "0"],
        cwd=folder,
        env=environ(user),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        found = re.search(r"routecodex listens on (http://\S+)", line)
        assert found, line
        yield found[1]
    finally:
        process.kill()
        process.communicate()
