"""The command in its own process, as a user runs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own

ROOT = Path(__file__).resolve().parents[2]
READY = r"routecodex listens on (http://\S+:(\d+))"
_PATIENCE = 20.0


class Command:
    """A running command: its output, line by line, and its exit code."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        self._news = asyncio.Condition()
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            asyncio.ensure_future(self._read(process.stdout, self.out)),
            asyncio.ensure_future(self._read(process.stderr, self.err)),
        ]

    async def _read(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        while line := await stream.readline():
            lines.append(line.decode().rstrip("\n"))
            async with self._news:
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    @property
    def text(self) -> str:
        """All output on stderr."""
        return "\n".join(self.err)

    async def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until stdout or stderr has a line that matches; fail when the command has ended without."""

        def find() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, line) for line in (*self.out, *self.err))), None)

        def has_ended() -> bool:
            return all(reader.done() for reader in self._readers)

        with contextlib.suppress(TimeoutError):
            async with self._news:
                await asyncio.wait_for(self._news.wait_for(lambda: find() or has_ended()), _PATIENCE)
        found = find()
        assert found is not None, f"never said {pattern!r}:\n{self.text}"
        return found

    async def port(self) -> int:
        """Wait until the gateway listens; return its port."""
        return int((await self.wait_for(READY))[2])

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the end and for all output; return the exit code."""
        code = await asyncio.wait_for(self.process.wait(), _PATIENCE)
        await asyncio.wait_for(asyncio.gather(*self._readers), _PATIENCE)
        return code

    def workers(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children())

    async def kill(self) -> None:
        """Kill the command and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.ended()


@contextlib.asynccontextmanager
async def running(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None, shell: str = ":"
) -> AsyncIterator[Command]:
    """Run `python -m routecodex …` with its own user dir; it is killed at the end if it still runs.

    `shell` is a command that prepares the process, such as `ulimit -n 64`.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUTECODEX_")}
    settings = {"ROUTECODEX_USER_DIR": str(folder / "user"), "PYTHONPATH": str(ROOT / "src")}
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        f'{shell} && exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "routecodex",
        *arguments,
        cwd=folder,
        env={**clean, **settings, **(environ or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=1024 * 1024,
    )
    command = Command(process)
    try:
        yield command
    finally:
        await command.kill()


def serve(
    folder: Path, config: str, *more: str, shell: str = ":"
) -> contextlib.AbstractAsyncContextManager[Command]:
    """Run `routecodex serve` with this configuration, on a free port."""
    file = folder / "gateway.toml"
    file.write_text(config, "utf-8")
    file.chmod(0o600)
    return running(folder, "serve", "--config", str(file), "--port", "0", *more, shell=shell)


async def until(condition: Callable[[], object], description: str) -> None:
    """Wait until the condition holds."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"never happened: {description}"
        await asyncio.sleep(0.02)
