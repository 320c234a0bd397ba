"""Clients in the store of a configuration, read without a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from routecodex.accounting.client_store import ClientDirectory
from routecodex.accounting.clients import StoredClients
from routecodex.accounting.counters import LimitCounters
from routecodex.accounting.ledger_file import ledger_path
from routecodex.accounting.ledger_use import LedgerUse
from routecodex.accounting.limit_table import CountedUse, LimitTable, limits_path
from routecodex.accounting.shared_counters import SharedCounters
from routecodex.accounting.stored_counters import StoredCounters
from routecodex.canon.store_url import is_redis_url
from routecodex.cli.config import load_or_exit, with_address
from routecodex.cli.tables import print_problem
from routecodex.config import Config, Problem, open_address
from routecodex.config.problems import quoted, warning
from routecodex.server.daemon_threads import DaemonThreads
from routecodex.server.directories import session_dir, user_dir
from routecodex.server.state_store import open_configured_store
from routecodex.stores.file import FileStore
from routecodex.stores.store import Store

T = TypeVar("T")

_NONE = StoredClients()
_LOOK_SECONDS = 1.0
"""Seconds to look for clients in Redis: a server starts without its store, and soon."""


def with_directory(
    config: Config, work: Callable[[ClientDirectory], Awaitable[T]], *, within: float | None = None
) -> T:
    """Run work on the clients of the configuration and its store, in an event loop of its own.

    TimeoutError if it takes longer than `within` seconds; then it goes on and its result is not used.
    """

    async def run() -> T:
        store = open_configured_store(config.store, session_dir=session_dir(config))
        clients = ClientDirectory(store)
        clients.configure(config)
        counters = _counters(config, store)
        limits = LimitTable(config.usage.timezone)
        clients.limit_use = CountedUse(counters, limits, table=lambda: clients.table, clock=time.time)
        try:
            await clients.refresh()
            if isinstance(counters, StoredCounters):
                await counters.refresh()
            return await work(clients)
        finally:
            await counters.flush()
            counters.close()
            await store.close()

    def run_alone() -> T:
        with asyncio.Runner() as runner:
            # For names: the loop would wait at its end for a resolver that does not answer.
            runner.get_loop().set_default_executor(DaemonThreads())
            return runner.run(run())

    # In a thread: a command may be called where a loop runs already.
    return DaemonThreads().submit(run_alone).result(within)


def _counters(config: Config, store: Store) -> LimitCounters:
    """Return the counters of the server of this configuration, whether it runs or not."""
    if store.groups is not None:
        # The ledger of this machine is that of one node at most: it adds nothing here.
        return StoredCounters(store, store.groups, node=lambda: "", works=lambda: True)
    home = user_dir()
    ledger = ledger_path(config, home)
    past_use = None if ledger is None else LedgerUse(ledger)
    return SharedCounters(limits_path(config, home), past_use=past_use)


def has_stored_clients(config: Config) -> bool:
    """Return whether the store has clients; clients that cannot be read count, because they are guarded."""
    if not _may_have_clients(config):
        return False

    async def look(clients: ClientDirectory) -> bool:
        return bool(clients.stored.clients or clients.unread)

    try:
        return with_directory(config, look, within=_LOOK_SECONDS if is_redis_url(config.store.url) else None)
    except TimeoutError:
        return True


def load_server(path: Path | None, *, host: str | None, port: int | None) -> Config:
    """Return the configuration of a server that may listen on its address, or exit.

    Other machines must not be able to use it without a key. The store is asked for clients once at most.
    """
    known: list[bool] = []

    def is_guarded(config: Config) -> bool:
        if not known:
            known.append(has_stored_clients(config))
        return known[0]

    loaded = load_or_exit(path, with_mode=True, host=host, port=port, is_guarded=is_guarded)
    config = with_address(loaded, host, port)
    # --host may have opened it.
    if not open_address(config) or is_guarded(config):
        return config
    print_problem(
        f"cannot listen on {config.server.host} without client keys\n"
        "    fix: run `routecodex keys add NAME`, add client_keys under [server], or listen on 127.0.0.1"
    )
    raise SystemExit(2)


def stored_clients(config: Config) -> StoredClients:
    """Return the clients of the store; none if they cannot be read."""
    if not _may_have_clients(config):
        return _NONE

    async def look(clients: ClientDirectory) -> StoredClients:
        return clients.stored

    return with_directory(config, look)


def _may_have_clients(config: Config) -> bool:
    """Return whether it is worth opening the store: values in memory have ended with their process."""
    if is_redis_url(config.store.url):
        return True
    store = open_configured_store(config.store, session_dir=session_dir(config))
    return isinstance(store, FileStore) and (store.directory / "clients").is_dir()


def stored_problems(config: Config, stored: StoredClients) -> Iterator[Problem]:
    """Yield a warning for each client of the store that the file hides or leaves without a team."""
    listed = {row.name for row in config.server.client_keys}
    for name, client in stored.clients.items():
        if name in config.clients or name in listed:
            message = f"{quoted(name)} is also a client of the store; the file wins"
            fix = f"remove one: `routecodex keys revoke {name}` once it is not in the file"
            place = ("clients", name) if name in config.clients else ("server", "client_keys")
            yield warning(place, message, fix)
        elif client.team and client.team not in config.teams:
            message = f"{quoted(client.team)}, the team of client {quoted(name)} of the store, is missing"
            fix = f"add [teams.{client.team}], or run `routecodex keys set {name} --team NAME`"
            yield warning(("teams",), message, fix)
