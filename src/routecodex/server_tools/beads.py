"""Asks the issue tracker beads (`bd`) whether work is left.

    auto        runs the command; falls back to the messages if its state is unknown (default)
    runtime     runs the command only
    heuristic   reads the messages only

A missing command or project, an error, a time-out and output that cannot be parsed are `unknown`, which never
counts as idle: the model continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from routecodex.canon.parts import Text, ToolResult
from routecodex.canon.request import Request

WorkState = Literal["work", "idle", "unknown"]
BeadsMode = Literal["auto", "runtime", "heuristic"]

RunCommand = Callable[..., Awaitable["bytes | None"]]
"""Runs `bd` with these arguments and returns its output; None if it failed."""

PREFIX = "ROUTECODEX_STOPMESSAGE_BD_"
MAX_BYTES = 4 * 1024 * 1024
RECENT_RESULTS = 10
MAX_CHARACTERS = 20_000
_LIST = ("--no-db", "list", "--json")
_READY = ("--no-db", "ready", "--json")

log = logging.getLogger("routecodex.server_tools")


class BeadsSettings(Struct, frozen=True, kw_only=True):
    """Settings of the beads check; times in seconds."""

    mode: BeadsMode = "auto"
    timeout: float = 2.0
    ttl: float = 5.0
    workdir: str | None = None


def beads_settings(environ: Mapping[str, str]) -> BeadsSettings:
    """Read the settings from the environment; an invalid value is logged and ignored."""
    mode = environ.get(PREFIX + "MODE", "").strip().lower()
    if mode not in ("", "auto", "runtime", "heuristic"):
        log.warning("%sMODE=%r is not auto, runtime or heuristic; using auto", PREFIX, mode)
        mode = ""
    workdir = environ.get(PREFIX + "WORKDIR", "").strip()
    return BeadsSettings(
        mode=cast(BeadsMode, mode or "auto"),
        timeout=_seconds(environ, "TIMEOUT_MS", BeadsSettings().timeout, least=1),
        ttl=_seconds(environ, "CACHE_TTL_MS", BeadsSettings().ttl, least=0),
        workdir=os.path.expanduser(workdir) if workdir else None,
    )


def _seconds(environ: Mapping[str, str], name: str, default: float, *, least: int) -> float:
    value = environ.get(PREFIX + name, "").strip()
    if not value:
        return default
    if not value.isascii() or not value.isdigit() or int(value) < least:
        log.warning(
            "%s%s=%r is not a number of milliseconds; using %g", PREFIX, name, value[:40], default * 1000
        )
        return default
    return int(value) / 1000


class BeadsWork:
    """Caches the state of the work; concurrent requests share one run of the command."""

    def __init__(
        self, settings: BeadsSettings, *, run: RunCommand, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._run = run
        self._clock = clock
        self._cached: tuple[float, WorkState] | None = None
        self._check: asyncio.Task[WorkState] | None = None

    async def is_idle(self, request: Request) -> bool:
        """Return whether it is certain that no work is left."""
        mode = self._settings.mode
        state: WorkState = "unknown" if mode == "heuristic" else await self._cached_state()
        if state == "unknown" and mode != "runtime":
            state = guess_from_texts(request)
        return state == "idle"

    async def _cached_state(self) -> WorkState:
        if self._cached is not None and self._clock() < self._cached[0]:
            return self._cached[1]
        if self._check is None:
            self._check = asyncio.ensure_future(self._run_check())
        # A cancelled request must not cancel the run for the others.
        return await asyncio.shield(self._check)

    async def _run_check(self) -> WorkState:
        state: WorkState = "unknown"
        try:
            async with asyncio.timeout(self._settings.timeout):
                state = await self._query()
        except TimeoutError:
            log.warning("bd did not finish within %g s and was killed", self._settings.timeout)
        finally:
            self._cached = (self._clock() + self._settings.ttl, state)
            self._check = None
        return state

    async def _query(self) -> WorkState:
        listed = _issues(await self._run(*_LIST))
        if listed is None:
            return "unknown"
        if any(issue.get("status") == "in_progress" for issue in listed):
            return "work"
        ready = _issues(await self._run(*_READY))
        if ready is None:
            return "unknown"
        return "work" if ready else "idle"


def _issues(printed: bytes | None) -> list[dict[str, Any]] | None:
    """Parse the issues in the output; None if it is not a list of issues."""
    if printed is None:
        return None
    try:
        return msgspec.json.decode(printed, type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        log.info("bd did not print a list of issues")
        return None


class BeadsCommand:
    """Runs `bd` without a shell, in its own process group, which is killed if the wait for it ends early."""

    def __init__(self, *, environ: Mapping[str, str], workdir: str | None) -> None:
        self._environ = dict(environ)
        self._workdir = workdir

    async def __call__(self, *arguments: str) -> bytes | None:
        """Return the output; None if the command is missing, failed, or printed too much."""
        program = self._program()
        if program is None:
            return None
        try:
            transport, output = await self._start(program, *arguments)
        except OSError as exc:
            log.info("bd cannot be run: %s", exc)
            return None
        complete = False
        try:
            complete = await output.ended
        finally:
            if not complete:
                _kill_group(transport.get_pid())
            transport.close()
            await output.exited
        return bytes(output.data) if complete and transport.get_returncode() == 0 else None

    async def _start(self, *command: str) -> tuple[asyncio.SubprocessTransport, _CommandOutput]:
        """Start the process; one that is no longer wanted then is killed, which event loops do not do."""
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(
            loop.subprocess_exec(
                _CommandOutput,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=self._workdir,
                env=self._environ,
                start_new_session=True,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                transport, output = await starting
                _kill_group(transport.get_pid())
                transport.close()
                await output.exited
            raise

    def _program(self) -> str | None:
        found = shutil.which("bd", path=self._environ.get("PATH"))
        # The process starts in another directory, where a relative path would not be found.
        return os.path.abspath(found) if found else None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class _CommandOutput(asyncio.SubprocessProtocol):
    """The output of a process: `ended` with its output (False: too much or broken), `exited` with itself."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.data = bytearray()
        self.ended: asyncio.Future[bool] = loop.create_future()
        self.exited: asyncio.Future[None] = loop.create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.data += data
        if len(self.data) > MAX_BYTES:
            self._settle(complete=False)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(complete=exc is None)

    def _settle(self, *, complete: bool) -> None:
        if not self.ended.done():
            self.ended.set_result(complete)


_WORK = re.compile(
    r"""\bstatus["']?\s*[:=]\s*["']?in[_ -]progress\b   # JSON, YAML and `bd show`
      | \[in_progress\]                                # a line of `bd list`
      | ^\W*ready\ work\ \([1-9]                       # the head of `bd ready`
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_IDLE = re.compile(r"\W*no open issues\W*", re.IGNORECASE)


def guess_from_texts(request: Request) -> WorkState:
    """Return the state of the work from the newest tool result that mentions it."""
    for text in _results(request):
        if _WORK.search(text):
            return "work"
        # Only a result with nothing else: the same words inside a longer text are not reliable.
        if _IDLE.fullmatch(text):
            return "idle"
    return "unknown"


def _results(request: Request) -> Iterator[str]:
    """Yield the texts of the latest results, the newest first."""
    left = RECENT_RESULTS
    for message in reversed(request.messages):
        for part in reversed(message.parts):
            if not isinstance(part, ToolResult):
                continue
            yield "\n".join(one.text for one in part.parts if isinstance(one, Text))[:MAX_CHARACTERS]
            left -= 1
            if not left:
                return
