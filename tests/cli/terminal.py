"""The command in a pseudo-terminal, as a person sees and uses it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 30.0
CTRL_C, CTRL_D = "\x03", "\x04"


def environ(user: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command with a user dir of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUTECODEX_")}
    clean.pop("NO_COLOR", None)
    settings = {"ROUTECODEX_USER_DIR": str(user), "PYTHONPATH": str(ROOT / "src"), "TERM": "dumb"}
    return {**clean, **settings, **(more or {})}


class Terminal:
    """A running command: what it has shown, and the keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master
        self._seen = 0

    def type(self, text: str) -> None:
        """Types the text; Enter is `\\n`, and a lone surrogate a byte that is no text."""
        os.write(self._master, text.encode("utf-8", "surrogateescape"))

    def shows(self, pattern: str) -> re.Match[str]:
        """Waits until what was not seen yet matches, and has then seen it."""
        deadline = time.monotonic() + _PATIENCE
        while (found := re.compile(pattern).search(self.shown, self._seen)) is None:
            assert self._more(deadline - time.monotonic()), f"never showed {pattern!r}:\n{self.shown}"
        self._seen = found.end()
        return found

    def sleeps(self) -> None:
        """Waits until the command waits for a key: readline misses a Ctrl-C between its prompt and that."""
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            assert self.process.poll() is None
            time.sleep(0.001)

    def ends(self) -> int:
        """Waits for the end; the exit code."""
        deadline = time.monotonic() + _PATIENCE
        while self._more(deadline - time.monotonic()):
            """What it says last is read too."""
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
    """Makes the terminal the process's own, with Ctrl-C as in any: a background job has it switched off."""
    os.login_tty(0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def terminal(folder: Path, *arguments: str, user: Path) -> Iterator[Terminal]:
    """`python -m routecodex …` in a terminal of its own; killed when left, if it still runs."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "routecodex", *arguments],
        cwd=folder,
        env=environ(user),
        stdin=slave,
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
    """A gateway in a process of its own; its URL."""
    file = folder / "gateway.toml"
    file.write_text(config, "utf-8")
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
