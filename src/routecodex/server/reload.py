"""A changed configuration, taken up while running: by a look at the file, by SIGHUP, or when asked to.

A file that cannot be used changes nothing; every problem is logged. What only a start can change keeps its
value, and a warning names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct, structs

from routecodex.canon.errors import ConfigError
from routecodex.config import Config, Problem, is_loopback

log = logging.getLogger("routecodex.server")

Load = Callable[[], tuple[Config | None, list[Problem]]]
Stamp = tuple[int, int, int]

_LOOK_SECONDS = 1.0
_ECHO_SECONDS = 5.0

_FIXED = (
    ("server", "host"),
    ("server", "port"),
    ("server", "id"),
    ("server", "admin_token"),
    ("store", "url"),
    ("logging", "format"),
    ("logging", "finish_trace"),
    ("logging", "requests"),
    ("logging", "requests_max_mb"),
)
"""What is settled at the start."""


class ConfigSource(Struct, frozen=True, kw_only=True):
    """Where a configuration comes from: its file, how to read it, what it said and looked like at first."""

    path: Path
    load: Load
    config: Config
    seen: Stamp | None


class ReloadResult(Struct, frozen=True):
    """What became of a reload."""

    reloaded: bool
    problems: tuple[Problem, ...] = ()


def stamp(path: Path) -> Stamp | None:
    """What a file looks like from outside; another one after a change. None when it is not there."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


class Reloader:
    """Keeps a server's configuration in step with its file.

    `running` is the configuration in use; it differs from what was read where the start decided (a free
    port). `adopt` puts a new one to use; `spread` asks the other workers to read the file as well, and says
    whether a SIGHUP will come back for it.
    """

    def __init__(
        self,
        source: ConfigSource,
        *,
        running: Config,
        adopt: Callable[[Config], Awaitable[None]],
        spread: Callable[[], bool] = lambda: False,
    ) -> None:
        self._source = source
        self._seen = source.seen
        self._running = running
        self._adopt = adopt
        self._spread = spread
        self._echo_until = 0.0
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        """Begins to watch the file."""
        self._do(self._watch())

    async def close(self) -> None:
        """Stops watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self) -> None:
        """Reloads because of a SIGHUP; the one that comes back from our own `spread` is no news."""
        is_echo = asyncio.get_running_loop().time() < self._echo_until
        self._echo_until = 0.0
        if not is_echo or self._seen != stamp(self._source.path):
            self._do(self.reload())

    async def reload_all(self) -> ReloadResult:
        """Reloads here, and has the other workers do it."""
        outcome = await self.reload()
        if outcome.reloaded and self._spread():
            self._echo_until = asyncio.get_running_loop().time() + _ECHO_SECONDS
        return outcome

    async def reload(self) -> ReloadResult:
        """Takes the file as it is now, or says what is wrong with it."""
        async with self._one_at_a_time:
            # Seen before it is read: a change in between is noticed at the next look.
            self._seen = stamp(self._source.path)
            found, problems = await asyncio.to_thread(self._source.load)
            if found is None:
                return self._refuse(problems)
            return await self._take(found, problems)

    async def catch_up(self) -> None:
        """Takes the file if it has changed since it was first read, as for a worker that replaces another."""
        now = stamp(self._source.path)
        if now is not None and now != self._seen:
            await self.reload()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            # A file that is gone for a moment is being replaced; it stays as it was until it is back.
            await self.catch_up()

    async def _take(self, found: Config, problems: list[Problem]) -> ReloadResult:
        fixed = list(_restarts(self._source.config, found))
        config = _pinned(found, self._running)
        if not is_loopback(config.server.host) and not config.server.client_keys:
            refusal = Problem(
                ("server", "client_keys"),
                f"there are none, and the gateway listens on {config.server.host}",
                "add client_keys under [server]",
                file=str(self._source.path),
            )
            return self._refuse([*problems, refusal])
        try:
            await self._adopt(config)
        except (ConfigError, OSError, ValueError) as exc:
            return self._refuse([*problems, Problem((), str(exc), file=str(self._source.path))])
        self._running = config
        told = (*problems, *(structs.replace(one, file=str(self._source.path)) for one in fixed))
        _tell(told)
        log.info("configuration reloaded from %s", self._source.path)
        return ReloadResult(True, told)

    def _refuse(self, problems: list[Problem]) -> ReloadResult:
        _tell(problems)
        log.error("configuration not reloaded, the one before stays in use: %s", self._source.path)
        return ReloadResult(False, tuple(problems))

    def _do(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(_guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _guarded(work: Awaitable[object]) -> None:
    try:
        await work
    except Exception:
        log.exception("a reload of the configuration broke; the one before stays in use")


def _tell(problems: Iterable[Problem]) -> None:
    for problem in problems:
        level = logging.ERROR if problem.severity == "error" else logging.WARNING
        log.log(level, "%s", " ".join(str(problem).split()))


def _restarts(before: Config, now: Config) -> Iterator[Problem]:
    """A warning for each change that takes effect at the next start."""
    for table, field in _FIXED:
        if getattr(getattr(before, table), field) != getattr(getattr(now, table), field):
            yield Problem(
                (table, field), "has changed, which takes a restart", "restart the gateway", "warning"
            )


def _pinned(now: Config, running: Config) -> Config:
    """The new configuration with everything that is settled at the start as it was then."""
    tables = {
        table: structs.replace(
            getattr(now, table),
            **{field: getattr(getattr(running, table), field) for at, field in _FIXED if at == table},
        )
        for table in dict(_FIXED)
    }
    return structs.replace(now, **tables)
