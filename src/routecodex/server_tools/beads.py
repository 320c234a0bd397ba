"""Asks the issue tracker beads (bd) whether work is left.

Whether the issue tracker beads (`bd`) still has work: asked of the command, or read from the messages.

    auto        the command; the messages when it tells nothing (default)
    runtime     the command alone
    heuristic   the messages alone

Only what is certain counts as idle: no command, no project, an error, a time-out or an answer that cannot be
read is `unknown`, and then the model goes on.
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
"""Runs `bd` with these words; what it printed, None when it did not end well."""

PREFIX = "ROUTECODEX_STOPMESSAGE_BD_"
MOST_BYTES = 4 * 1024 * 1024
RECENT_RESULTS = 10
MOST_CHARACTERS = 20_000
_LIST = ("--no-db", "list", "--json")
_READY = ("--no-db", "ready", "--json")

log = logging.getLogger("routecodex.server_tools")


class BeadsSettings(Struct, frozen=True, kw_only=True):
    """How the state of the work is found out; times in seconds."""

    mode: BeadsMode = "auto"
    timeout: float = 2.0
    ttl: float = 5.0
    workdir: str | None = None


def beads_settings(environ: Mapping[str, str]) -> BeadsSettings:
    """What the environment says; a value that means nothing is told and passed over."""
    given = environ.get(PREFIX + "MODE", "").strip().lower()
    if given not in ("", "auto", "runtime", "heuristic"):
        log.warning("%sMODE=%r is none of auto, runtime, heuristic: auto", PREFIX, given)
        given = ""
    workdir = environ.get(PREFIX + "WORKDIR", "").strip()
    return BeadsSettings(
        mode=cast(BeadsMode, given or "auto"),
        timeout=_seconds(environ, "TIMEOUT_MS", BeadsSettings().timeout, least=1),
        ttl=_seconds(environ, "CACHE_TTL_MS", BeadsSettings().ttl, least=0),
        workdir=os.path.expanduser(workdir) if workdir else None,
    )


def _seconds(environ: Mapping[str, str], name: str, default: float, *, least: int) -> float:
    given = environ.get(PREFIX + name, "").strip()
    if not given:
        return default
    if not given.isascii() or not given.isdigit() or int(given) < least:
        log.warning("%s%s=%r is no number of milliseconds: %g", PREFIX, name, given[:40], default * 1000)
        return default
    return int(given) / 1000


class BeadsWork:
    """What is known of the work: the command is run by one request at a time, for all that ask meanwhile."""

    def __init__(
        self, settings: BeadsSettings, *, run: RunCommand, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._run = run
        self._clock = clock
        self._known: tuple[float, WorkState] | None = None
        self._asking: asyncio.Task[WorkState] | None = None

    async def is_idle(self, request: Request) -> bool:
        """Whether it is certain that there is nothing left to do."""
        mode = self._settings.mode
        state: WorkState = "unknown" if mode == "heuristic" else await self._told()
        if state == "unknown" and mode != "runtime":
            state = guess_from_texts(request)
        return state == "idle"

    async def _told(self) -> WorkState:
        if self._known is not None and self._clock() < self._known[0]:
            return self._known[1]
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        # Whoever leaves does not take the answer away from the others.
        return await asyncio.shield(self._asking)

    async def _ask(self) -> WorkState:
        state: WorkState = "unknown"
        try:
            async with asyncio.timeout(self._settings.timeout):
                state = await self._asked()
        except TimeoutError:
            log.warning("bd did not answer within %g s; its process was ended", self._settings.timeout)
        finally:
            self._known = (self._clock() + self._settings.ttl, state)
            self._asking = None
        return state

    async def _asked(self) -> WorkState:
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
    """The issues in what was printed; None when it is no list of them."""
    if printed is None:
        return None
    try:
        return msgspec.json.decode(printed, type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        log.info("bd printed no list of issues")
        return None


class BeadsCommand:
    """`bd` as a process: without a shell, in a group of its own that ends with the wait for it."""

    def __init__(self, *, environ: Mapping[str, str], workdir: str | None) -> None:
        self._environ = dict(environ)
        self._workdir = workdir

    async def __call__(self, *words: str) -> bytes | None:
        """What it printed; None when there is no such command, or it failed, or printed too much."""
        program = self._program()
        if program is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            transport, heard = await loop.subprocess_exec(
                _CommandOutput,
                program,
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=self._workdir,
                env=self._environ,
                start_new_session=True,
            )
        except OSError as exc:
            log.info("bd cannot be run: %s", exc)
            return None
        whole = False
        try:
            whole = await heard.over
        finally:
            if not whole:
                _end_group(transport.get_pid())
            transport.close()
            await heard.exited
        return bytes(heard.printed) if whole and transport.get_returncode() == 0 else None

    def _program(self) -> str | None:
        found = shutil.which("bd", path=self._environ.get("PATH"))
        # It is run in another directory than the one it was looked for in.
        return os.path.abspath(found) if found else None


def _end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class _CommandOutput(asyncio.SubprocessProtocol):
    """What a process prints: `over` when it has ended and said all, or too much; `exited` when it is gone."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.printed = bytearray()
        self.over: asyncio.Future[bool] = loop.create_future()
        self.exited: asyncio.Future[None] = loop.create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.printed += data
        if len(self.printed) > MOST_BYTES:
            self._settle(whole=False)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(whole=exc is None)

    def _settle(self, *, whole: bool) -> None:
        if not self.over.done():
            self.over.set_result(whole)


_WORK = re.compile(
    r"""\bstatus["']?\s*[:=]\s*["']?in[_ -]progress\b   # JSON, YAML and what bd shows of an issue
      | \[in_progress\]                                # a line of `bd list`
      | ^\W*ready\ work\ \([1-9]                       # the head of `bd ready`
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_IDLE = re.compile(r"\W*no open issues\W*", re.IGNORECASE)


def guess_from_texts(request: Request) -> WorkState:
    """What the newest result of a tool that tells anything of the work says of it."""
    for text in _results(request):
        if _WORK.search(text):
            return "work"
        # Only a result that says this and nothing else; the words inside a text prove nothing.
        if _IDLE.fullmatch(text):
            return "idle"
    return "unknown"


def _results(request: Request) -> Iterator[str]:
    """The texts of the latest results, the newest first."""
    left = RECENT_RESULTS
    for message in reversed(request.messages):
        for part in reversed(message.parts):
            if not isinstance(part, ToolResult):
                continue
            yield "\n".join(one.text for one in part.parts if isinstance(one, Text))[:MOST_CHARACTERS]
            left -= 1
            if not left:
                return
