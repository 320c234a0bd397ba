"""Reads the Redis store of a configuration without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from routecodex.canon.errors import ConfigError
from routecodex.canon.store_url import is_redis_url
from routecodex.cli.config import config_path, examine_file
from routecodex.cli.tables import print_problem
from routecodex.config import Config
from routecodex.server import announce
from routecodex.server.directories import session_dir, user_dir
from routecodex.server.node_registry import SPACE, FoundNode, read_nodes
from routecodex.server.state_store import open_configured_store
from routecodex.stores.store import Store, StoreError

T = TypeVar("T")
_INVALID = 2


class StoreUnreachable(Exception):
    """The store that names the nodes cannot be read; a warning has said so."""


class Cluster(Struct, frozen=True):
    """The admin token and the nodes of a configuration; `refusal` says why the store takes no writes.

    Then nodes cannot show signs of life: those that look dead may be running.
    """

    token: str
    nodes: list[dict[str, Any]]
    refusal: str


def cluster_of(path: Path | None) -> Cluster | None:
    """Return the cluster of the configuration; None if it names no Redis store.

    StoreUnreachable if the store cannot be read. An invalid file ends the command if the user has named it:
    the servers of this machine may be other ones than those that were meant.
    """
    file = config_path(path)
    config, problems = examine_file(file, stored_clients=True)
    if config is None:
        errors = [problem for problem in problems if problem.severity == "error"]
        if path is not None:
            print_problem(f"nothing was done: {errors[0]}")
            raise SystemExit(_INVALID)
        print_problem(f"nodes are not looked for: {errors[0]}", severity="warning")
        return None
    if not is_redis_url(config.store.url):
        return None
    try:
        nodes, refusal = with_store(config, _read)
    except (StoreError, ConfigError) as exc:
        print_problem(f"the nodes in the store cannot be listed: {exc}", severity="warning")
        raise StoreUnreachable from exc
    if refusal:
        text = f"the store takes no writes, so that nodes show no sign of life: {refusal}"
        print_problem(text, severity="warning")
    return Cluster(announce.admin_token(config, user_dir()), [node.fields for node in nodes], refusal)


async def _read(store: Store) -> tuple[list[FoundNode], str]:
    """Return the nodes and, if all of them look dead, why the store takes no writes."""
    nodes = await read_nodes(store)
    if nodes and not any(node.alive for node in nodes):
        try:
            await store.check(SPACE)
        except StoreError as exc:
            return nodes, str(exc)
    return nodes, ""


def with_store(config: Config, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run work on the store of the configuration, in an event loop of its own."""

    async def run() -> T:
        store = open_configured_store(config.store, session_dir=session_dir(config))
        try:
            return await work(store)
        finally:
            await store.close()

    return run_alone(run)


def run_alone(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine in a thread of its own: a command may be called where a loop runs already."""

    async def run() -> T:
        return await work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()
