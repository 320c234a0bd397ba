"""Checks this machine: the port of the gateway, the disk that holds its state, the clock."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from routecodex.cli.admin_client import AdminClient, AdminRefused, AnnouncedServer, Unreachable
from routecodex.cli.checks.result import CheckResult, failed, passed, skipped, warned
from routecodex.config import Config
from routecodex.config.model import ServerConfig
from routecodex.config.server_tools import NtpConfig
from routecodex.server_tools.clock import ntp
from routecodex.server_tools.clock.network_time import NTP_SWITCH, is_ntp_enabled

_NO_CONFIG = "not checked, because the configuration cannot be used"
_ANOTHER_PORT = "stop that program, or set another port under [server]"


def check_port(config: Config | None, servers: Iterable[AnnouncedServer]) -> CheckResult:
    """Check that the gateway can listen on its port, or does."""
    if config is None:
        return skipped("port", _NO_CONFIG)
    server = config.server
    if server.port == 0:
        return passed("port", "the gateway takes any free port")
    running = next((one for one in servers if urlsplit(one.url).port == server.port and _answers(one)), None)
    if running is not None:
        return passed("port", f"the gateway {running.id} (pid {running.pid}) listens on {running.url}")
    return _try_port(server)


def _answers(server: AnnouncedServer) -> bool:
    try:
        AdminClient(server).status()
    except AdminRefused:
        return True
    except Unreachable:
        return False
    return True


def _try_port(server: ServerConfig) -> CheckResult:
    place = f"{server.host}:{server.port}"
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as exc:
        return _refused_port(place, exc)
    return passed("port", f"{place} is free")


def _refused_port(place: str, exc: OSError) -> CheckResult:
    if exc.errno == errno.EADDRINUSE:
        return failed("port", f"{place} is used by another program", _ANOTHER_PORT)
    if exc.errno == errno.EACCES:
        message = f"this user may not listen on {place}"
        return failed("port", message, "set a port of 1024 or more under [server]")
    message = f"cannot listen on {place}: {exc.strerror or exc}"
    return failed("port", message, "set host under [server] to an address of this machine")


LEAST_FREE = 64 * 1024 * 1024
"""Bytes below which state, logs and stored answers may fail to be written."""
LOW_FREE = 1024 * 1024 * 1024
_SPACE_FIX = "free some space, or set ROUTECODEX_USER_DIR to a directory on a larger disk"


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write below the folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def check_disk(folders: Iterable[Path], *, free: Callable[[Path], int] = free_bytes) -> CheckResult:
    """Check that the folders of the gateway's state can be written and have space left."""
    least: tuple[int, Path] | None = None
    for folder in dict.fromkeys(folders):
        existing = next((one for one in (folder, *folder.parents) if os.path.lexists(one)), folder)
        if not existing.is_dir():
            message = f"{folder} cannot be created: {existing} is not a directory"
            return failed("disk", message, "set ROUTECODEX_USER_DIR to another directory")
        if not os.access(existing, os.W_OK | os.X_OK):
            message = f"{folder} cannot be written by this user"
            return failed(
                "disk", message, f"correct the permissions of {existing}, or set ROUTECODEX_USER_DIR"
            )
        space = free(existing)
        least = (space, folder) if least is None else min(least, (space, folder))
    assert least is not None, "there is always the user dir"
    return _judge_space(*least)


def _judge_space(space: int, folder: Path) -> CheckResult:
    message = f"{space / 1024**3:.1f} GB are free at {folder}"
    if space >= LOW_FREE:
        return passed("disk", message)
    message = f"only {space // 1024**2} MB are free at {folder}"
    return (warned if space >= LEAST_FREE else failed)("disk", message, _SPACE_FIX)


GOOD_OFFSET = 2.0
"""Seconds by which a clock may differ from network time without any effect."""
BAD_OFFSET = 60.0
_CLOCK_FIX = "turn on time synchronisation of this machine, such as `timedatectl set-ntp true`"
_NO_ANSWER_FIX = "allow UDP port 123, or set server_tools.clock.ntp.servers to a server that can be reached"


async def check_clock(
    options: NtpConfig, environ: Mapping[str, str], *, offline: bool, clock: Callable[[], float] = time.time
) -> CheckResult:
    """Compare the clock of this machine with that of the configured time servers."""
    if offline:
        return skipped("clock", "not compared with network time, because of --offline")
    if not is_ntp_enabled(options.enabled, environ):
        message = f"not compared: network time is off ({NTP_SWITCH} or server_tools.clock.ntp.enabled)"
        return skipped("clock", message)
    queries = [
        ntp.query_server(
            server, timeout=options.timeout_ms / 1000, clock=clock, cookie=os.urandom(ntp.COOKIE_BYTES)
        )
        for server in options.servers
    ]
    found = await asyncio.gather(*queries, return_exceptions=True)
    return _judge_clock(list(zip(options.servers, found, strict=True)))


def _judge_clock(found: list[tuple[str, ntp.Sample | BaseException]]) -> CheckResult:
    samples = [sample for _, sample in found if isinstance(sample, ntp.Sample)]
    wrong = next((exc for _, exc in found if isinstance(exc, ntp.LargeOffset)), None)
    if not samples and wrong is not None:
        return failed("clock", f"the clock of this machine is wrong: {wrong}", _CLOCK_FIX)
    try:
        sample = ntp.agreed_offset(samples)
    except ntp.BadReply as exc:
        reasons = [f"{server}: {one or type(one).__name__}" for server, one in found if one not in samples]
        message = f"cannot be compared with network time ({'; '.join(reasons) or exc})"
        return warned("clock", message, _NO_ANSWER_FIX)
    return _judge_offset(sample)


def _judge_offset(sample: ntp.Sample) -> CheckResult:
    seconds = abs(sample.offset_ms) / 1000
    way = "slow" if sample.offset_ms > 0 else "fast"
    if seconds <= GOOD_OFFSET:
        return passed("clock", f"differs from {sample.server} by {seconds:.2f} s")
    message = f"is {seconds:.1f} s {way}, compared with {sample.server}"
    if seconds <= BAD_OFFSET:
        return warned("clock", message, _CLOCK_FIX)
    message += "; certificates and short-lived keys may be rejected"
    return failed("clock", message, _CLOCK_FIX)
