"""Corrected time: the local clock plus the NTP offset, which is saved across restarts.

Servers are queried in the background, never in a request. A failure only changes the status: the last good
offset stays in use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from routecodex.server_tools.clock import ntp
from routecodex.server_tools.clock.ntp import COOKIE_BYTES, MAX_OFFSET_MS, BadReply, Sample, agreed_offset

NTP_SWITCH = "ROUTECODEX_CLOCK_NTP"
_OFF = frozenset({"0", "false", "off", "no"})

log = logging.getLogger("routecodex.clock")


class NtpOptions(Struct, frozen=True, kw_only=True):
    """NTP servers and intervals; `every` and `again` are seconds after a success and after a failure."""

    enabled: bool = True
    servers: tuple[str, ...] = ("pool.ntp.org:123",)
    timeout: float = 0.8
    every: float = 900.0
    again: float = 60.0


class NtpState(Struct, frozen=True, kw_only=True, rename="camel"):
    """State of network time, the format of its file."""

    version: Literal[1] = 1
    status: Literal["off", "unsynced", "ok", "error"] = "unsynced"
    offset_ms: Annotated[int, Meta(ge=-MAX_OFFSET_MS, le=MAX_OFFSET_MS)] = 0
    server: str | None = None
    delay_ms: int | None = None
    synced_at_ms: int | None = None
    checked_at_ms: int | None = None
    last_error: str | None = None


class NtpQuery(Protocol):
    """Queries one server."""

    async def __call__(
        self, server: str, *, timeout: float, clock: Callable[[], float], cookie: bytes
    ) -> Sample: ...


def is_ntp_enabled(enabled: bool, environ: Mapping[str, str]) -> bool:
    """Return whether NTP is on; the environment can turn it off."""
    return enabled and environ.get(NTP_SWITCH, "").strip().lower() not in _OFF


class NetworkTime:
    """The corrected time; `clock` returns seconds since the epoch."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        options: NtpOptions | None = None,
        file: Path | None = None,
        query: NtpQuery = ntp.query_server,
        randomness: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._options = options or NtpOptions(enabled=False)
        self._file = file
        self._query = query
        self._random = randomness or random.SystemRandom()
        self.state = NtpState(status="unsynced" if self._options.enabled else "off")

    def now_ms(self) -> int:
        """Return the corrected time in milliseconds since the epoch."""
        return int(self._clock() * 1000) + self.state.offset_ms

    @property
    def offset_ms(self) -> int:
        return self.state.offset_ms

    def report(self) -> dict[str, Any]:
        """Return the state for the results of the tool."""
        fields: dict[str, Any] = msgspec.to_builtins(self.state)
        return {name: value for name, value in fields.items() if value is not None and name != "version"}

    def restore(self) -> None:
        """Load the offset of an earlier run; a damaged file is set aside."""
        if self._options.enabled and self._file is not None:
            found = read_file(self._file)
            self.state = found if found is not None and found.status != "off" else self.state

    async def sync(self) -> bool:
        """Query all servers concurrently; return whether they agree on a time."""
        checked_at_ms = int(self._clock() * 1000)
        try:
            sample = agreed_offset(await self._samples())
        except BadReply as exc:
            self.state = replace(
                self.state, status="error", last_error=str(exc)[:500], checked_at_ms=checked_at_ms
            )
            log.warning("network time failed, the offset stays %d ms: %s", self.state.offset_ms, exc)
        else:
            self.state = NtpState(
                status="ok",
                offset_ms=round(sample.offset_ms),
                server=sample.server,
                delay_ms=round(sample.delay_ms),
                synced_at_ms=checked_at_ms,
                checked_at_ms=checked_at_ms,
            )
            log.debug("network time from %s: offset %d ms", sample.server, self.state.offset_ms)
        await self._save()
        return self.state.status == "ok"

    async def run(self, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Synchronize now and at intervals, until cancelled; return at once if NTP is off."""
        options = self._options
        pause = options.again
        while options.enabled:
            if await self.sync():
                wait, pause = options.every, options.again
            else:
                wait, pause = pause, min(2 * pause, options.every)
            # Jitter, so that gateways that started together do not query together.
            await sleep(wait * self._random.uniform(0.9, 1.1))

    async def _samples(self) -> list[Sample]:
        outcomes = await asyncio.gather(*map(self._sample, self._options.servers))
        samples = [outcome for outcome in outcomes if isinstance(outcome, Sample)]
        if not samples:
            raise BadReply("; ".join(map(str, outcomes)) or "no servers are configured")
        return samples

    async def _sample(self, server: str) -> Sample | str:
        """Return the sample of a server, or the reason for its failure."""
        cookie = self._random.randbytes(COOKIE_BYTES)
        try:
            return await self._query(server, timeout=self._options.timeout, clock=self._clock, cookie=cookie)
        except (BadReply, OSError) as exc:
            return f"{server}: {exc or type(exc).__name__}"

    async def _save(self) -> None:
        if self._file is None:
            return
        try:
            await asyncio.to_thread(write_file, self._file, self.state)
        except OSError as exc:
            log.error("the state of network time could not be saved: %s: %s", self._file, exc.strerror)


def read_file(path: Path) -> NtpState | None:
    """Read the state; None if the file is missing, or damaged and set aside."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=NtpState)
    except FileNotFoundError:
        return None
    except OSError as exc:
        log.error("the state of network time could not be read: %s: %s", path, exc.strerror)
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        _set_aside(path, str(exc))
        return None


def write_file(path: Path, state: NtpState) -> None:
    """Replace the file atomically."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}-{time.monotonic_ns()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _set_aside(path: Path, reason: str) -> None:
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.corrupt-{number}")):
        number += 1
    try:
        path.rename(aside)
    except OSError as exc:
        log.warning("damaged file %s could not be set aside: %s", path, exc.strerror)
        return
    log.warning("damaged file %s set aside as %s: %s", path, aside.name, reason)
