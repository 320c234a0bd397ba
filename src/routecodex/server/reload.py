"""Reloads the configuration while running: when the file changes, on SIGHUP, or by the admin API.

An invalid file changes nothing; every problem is logged. Settings that need a restart keep their value, with
a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct, structs

from routecodex.canon.errors import ConfigError
from routecodex.config import Config, Problem, open_address

log = logging.getLogger("routecodex.server")

Load = Callable[[], tuple[Config | None, list[Problem]]]
Stamp = tuple[int, int, int]

_POLL_SECONDS = 1.0
_ECHO_SECONDS = 5.0

_NEEDS_RESTART = (
    ("server", "host"),
    ("server", "port"),
    ("server", "id"),
    ("server", "admin_token"),
    ("server", "worker_timeout_ms"),
    ("server", "advertise_url"),
    ("store", "url"),
    ("store", "prefix"),
    ("store", "username"),
    ("store", "password"),
    ("store", "sentinel_username"),
    ("store", "sentinel_password"),
    ("store", "ca_file"),
    ("store", "cert_file"),
    ("store", "key_file"),
    ("store", "verify"),
    ("store", "timeout_ms"),
    ("store", "wait_replicas"),
    ("logging", "format"),
    ("logging", "finish_trace"),
    ("logging", "requests"),
    ("logging", "requests_max_mb"),
)
"""Settings that only a restart changes."""


class ConfigSource(Struct, frozen=True, kw_only=True):
    """The file of a configuration, how to load it, and its content and stamp at the start."""

    path: Path
    load: Load
    config: Config
    stamp: Stamp | None


class FileComparison(Struct, frozen=True):
    """State of the file now: whether it differs from what runs, its problems, and both configurations.

    `now` is None if the file is not valid.
    """

    changed: bool
    problems: list[Problem]
    running: Config
    now: Config | None


class ReloadResult(Struct, frozen=True):
    """The result of a reload."""

    reloaded: bool
    problems: tuple[Problem, ...] = ()


def stamp(path: Path) -> Stamp | None:
    """Return modification time, size and inode of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class Reloader:
    """Keeps the configuration of a server up to date with its file.

    `running` is the configuration in use; it may differ from the file in settings resolved at the start, such
    as a free port. `adopt` applies a new one; `reload_others` makes the other workers reload and returns
    whether all of them have. If not, `spread` sends them a SIGHUP; it returns whether this process will get
    one too. `on_result` is told of every reload.
    """

    def __init__(
        self,
        source: ConfigSource,
        *,
        running: Config,
        adopt: Callable[[Config], Awaitable[None]],
        reload_others: Callable[[], Awaitable[bool]] | None = None,
        spread: Callable[[], bool] = lambda: False,
        has_stored_clients: Callable[[], bool] = lambda: False,
        on_result: Callable[[ReloadResult], None] = lambda result: None,
    ) -> None:
        self._on_result = on_result
        self._has_stored_clients = has_stored_clients
        self._source = source
        self.loaded: Config = source.config
        """The configuration of the file as it was adopted last."""
        self._stamp = source.stamp
        self._running = running
        self._adopt = adopt
        self._reload_others = reload_others
        self._spread = spread
        self._echo_until = 0.0
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        """Start to watch the file."""
        self._start_task(self._watch())

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_sighup(self) -> None:
        """Reload because of a SIGHUP, unless it is the echo of our own `spread`."""
        is_echo = asyncio.get_running_loop().time() < self._echo_until
        self._echo_until = 0.0
        if not is_echo or self._stamp != stamp(self._source.path):
            self._start_task(self.reload())

    async def reload_all(self) -> ReloadResult:
        """Reload in this process and in the other workers; return when all have, or after a bounded wait."""
        result = await self.reload()
        if not result.reloaded or (self._reload_others is not None and await self._reload_others()):
            return result
        if self._spread():
            self._echo_until = asyncio.get_running_loop().time() + _ECHO_SECONDS
        return result

    async def reload(self) -> ReloadResult:
        """Load the file and apply it, or return its problems."""
        async with self._lock:
            # Taken before the file is read, so that a change in between is noticed at the next poll.
            self._stamp = stamp(self._source.path)
            loaded, problems = await asyncio.to_thread(self._source.load)
            result = self._reject(problems) if loaded is None else await self._use(loaded, problems)
            self._on_result(result)
            return result

    async def compare(self) -> FileComparison:
        """Compare the file with what runs."""
        now, problems = await asyncio.to_thread(self._source.load)
        if now is None:
            return FileComparison(True, problems, self._running, None)
        fixed = [structs.replace(one, file=str(self._source.path)) for one in self.restarts(now)]
        return FileComparison(now != self.loaded or bool(fixed), [*problems, *fixed], self._running, now)

    def restarts(self, loaded: Config) -> list[Problem]:
        """Return a warning for each setting that only a restart changes."""
        return list(_restarts(self._source.config, loaded))

    async def catch_up(self) -> None:
        """Reload if the file has changed since it was read, for a worker that replaces another."""
        now = stamp(self._source.path)
        if now is not None and now != self._stamp:
            await self.reload()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            # A missing file is being replaced by an editor: catch_up waits until it is back.
            await self.catch_up()

    async def _use(self, loaded: Config, problems: list[Problem]) -> ReloadResult:
        fixed = self.restarts(loaded)
        config = _pinned(loaded, self._running)
        if open_address(config) and not self._has_stored_clients():
            refusal = Problem(
                ("server", "client_keys"),
                f"is empty, but the gateway listens on {config.server.host}",
                "add client_keys under [server], or run `routecodex keys add NAME`",
                file=str(self._source.path),
            )
            return self._reject([*problems, refusal])
        try:
            await self._adopt(config)
        except (ConfigError, OSError, ValueError) as exc:
            return self._reject([*problems, Problem((), str(exc), file=str(self._source.path))])
        self._running, self.loaded = config, loaded
        shown = (*problems, *(structs.replace(one, file=str(self._source.path)) for one in fixed))
        _log_problems(shown)
        log.info("configuration reloaded from %s", self._source.path)
        return ReloadResult(True, shown)

    def _reject(self, problems: list[Problem]) -> ReloadResult:
        _log_problems(problems)
        log.error("configuration not reloaded, the previous one stays in use: %s", self._source.path)
        return ReloadResult(False, tuple(problems))

    def _start_task(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(_guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _guarded(work: Awaitable[object]) -> None:
    try:
        await work
    except Exception:
        log.exception("reload of the configuration failed; the previous one stays in use")


def _log_problems(problems: Iterable[Problem]) -> None:
    for problem in problems:
        level = logging.ERROR if problem.severity == "error" else logging.WARNING
        log.log(level, "%s", " ".join(str(problem).split()))


def _restarts(before: Config, now: Config) -> Iterator[Problem]:
    """Yield a warning for each change that needs a restart."""
    for table, field in _NEEDS_RESTART:
        if getattr(getattr(before, table), field) != getattr(getattr(now, table), field):
            yield Problem(
                (table, field), "has changed, which needs a restart", "restart the gateway", "warning"
            )


def _pinned(now: Config, running: Config) -> Config:
    """Return the new configuration, with the running values of settings that need a restart."""
    tables = {
        table: structs.replace(
            getattr(now, table),
            **{field: getattr(getattr(running, table), field) for at, field in _NEEDS_RESTART if at == table},
        )
        for table in dict(_NEEDS_RESTART)
    }
    return structs.replace(now, **tables)
