"""The nodes that share a store, each with a row that it renews every two seconds.

A row never holds a token: anyone who reads the store would be an admin. Whether a node is alive is judged by
the clock of the store, which all nodes share.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from routecodex import __version__
from routecodex.canon.store_url import HostPort, parse_redis_url
from routecodex.config import Config, Secret
from routecodex.server.announce import url_of
from routecodex.server.daemon_threads import DaemonThreads
from routecodex.stores.cell import Unchanged
from routecodex.stores.monitored import MonitoredStore
from routecodex.stores.store import Store, StoreError

SPACE = "servers"
BEAT_SECONDS = 2.0
ALIVE_MS = 6000
KEPT_SECONDS = 3600.0
_MOST_NODES = 1000
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation, which are on no machine: the way there is the default route."""
_NODE_OWN = ("host", "port", "id", "advertise_url")

_TWIN = "node id %r is also used by %s; set server.id or ROUTECODEX_SERVER_ID of one of them"

log = logging.getLogger("routecodex.server")


class NodeRow(Struct, frozen=True, kw_only=True):
    """A node as the store has it; `beat_ms` is its last sign of life by the clock of the store.

    `config` is a digest of its configuration, without what differs between nodes and without secrets.
    `instance` tells a node from one that had its id before.
    """

    id: str
    url: str
    version: str
    started_at: float
    workers: int
    config: str
    draining: bool = False
    store: str = "redis"
    beat_ms: int = 0
    instance: str = ""


class FoundNode(Struct, frozen=True):
    """A node of the registry, and whether it is alive."""

    row: NodeRow
    alive: bool

    @property
    def fields(self) -> dict[str, Any]:
        """The node as `daemon status nodes` shows it."""
        row = self.row
        return {
            "id": row.id,
            "url": row.url,
            "alive": self.alive,
            "version": row.version,
            "started_at": row.started_at,
            "workers": row.workers,
            "store": row.store,
            "draining": row.draining,
            "config": row.config,
        }


_rows = Decoder(NodeRow)


async def read_nodes(store: Store, *, takes_writes: bool = True) -> list[FoundNode]:
    """Return the nodes that share the store, by id; StoreError while it is down.

    In a store that takes no writes a node is alive if it was when the last sign of life was written.
    """
    read = await store.read_all(SPACE, most=_MOST_NODES)
    rows = [row for _, stored in read if (row := _decoded(stored.value)) is not None]
    now = store.uptime().ms if takes_writes else max((row.beat_ms for row in rows), default=0)
    found = [FoundNode(row, now - row.beat_ms <= ALIVE_MS) for row in rows]
    return sorted(found, key=lambda node: node.row.id)


def config_digest(config: Config) -> str:
    """Return a digest of a configuration that nodes which behave alike have in common."""
    shared = {**msgspec.to_builtins(config, enc_hook=_without_secret)}
    shared["server"] = {name: value for name, value in shared["server"].items() if name not in _NODE_OWN}
    return blake2b(msgspec.json.encode(shared, order="sorted"), digest_size=8).hexdigest()


def _without_secret(value: Any) -> str:
    if isinstance(value, Secret):
        return "secret"
    raise NotImplementedError(f"{type(value)} in a configuration")


def advertised_url(config: Config, port: int, *, own_address: Callable[[socket.AddressFamily], str]) -> str:
    """Return the URL at which other machines reach this one; for a bind to all addresses its own address.

    That has the family of the bind: a server that listens on :: accepts no IPv4.
    """
    server = config.server
    if server.advertise_url:
        return server.advertise_url
    family = _family_of_all_addresses(server.host)
    return url_of(server.host if family is None else own_address(family), port)


def _family_of_all_addresses(host: str) -> socket.AddressFamily | None:
    """Return the family whose addresses all are bound; None for a single address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if not address.is_unspecified:
        return None
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def own_address_towards(hosts: Sequence[HostPort], family: socket.AddressFamily) -> str:
    """Return the address of a family from which this machine would reach one of the hosts.

    Nothing is sent to them. It may wait for the resolution of their names. If they have no address of that
    family, it is the loopback address for hosts on this machine, else the one of the default route.
    """
    for host, port in hosts:
        with contextlib.suppress(OSError):
            found = [row[::4] for row in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)]
            for other, address in found:
                if other == family:
                    return _source_towards(address, family)
            if any(ipaddress.ip_address(address[0]).is_loopback for _, address in found):
                return _LOOPBACK[family]
    with contextlib.suppress(OSError):
        return _source_towards((_ELSEWHERE[family], 9), family)
    return socket.gethostname()


def _source_towards(address: tuple[Any, ...], family: socket.AddressFamily) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        found: str = probe.getsockname()[0]
        return found


class NodeRegistry:
    """The row of this node: written now, every two seconds, and at once when the store is back.

    One worker writes it for all. A store that is not shared by several machines has no rows.
    """

    def __init__(
        self,
        store: MonitoredStore,
        *,
        is_first_worker: bool,
        beat: float = BEAT_SECONDS,
        own_address: Callable[[Sequence[HostPort], socket.AddressFamily], str] = own_address_towards,
    ) -> None:
        self._store = store
        self.is_used = store.kind == "redis" and is_first_worker
        """Whether this process writes the row of the node."""
        self._beat = beat
        self._own_address = own_address
        self._draining = False
        self._config: Callable[[], Config] = Config
        self._row: NodeRow | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, config: Callable[[], Config], *, port: int, workers: int) -> None:
        """Start to renew the row; `config` is called each time, because a reload replaces it."""
        if not self.is_used:
            return
        self._config = config
        self._store.on_return.append(self.renew)
        self._task = asyncio.ensure_future(self._run(port, workers))

    def renew(self) -> None:
        """Write the row at once."""
        self._wake.set()

    def drain(self) -> None:
        """Let the row say that this node is stopping."""
        self._draining = True
        self.renew()

    async def close(self) -> None:
        """Remove the row, unless another process has replaced it."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._row is None:
            return
        try:
            await self._store.update(SPACE, self._row.id, partial(_removed, self._row.instance))
        except Unchanged:
            return
        except StoreError as exc:
            log.debug("the row of this node stays in the store for %g s: %s", KEPT_SECONDS, exc)

    async def _run(self, port: int, workers: int) -> None:
        # In a thread: while no name can be resolved, it would hold up requests and the end.
        loop = asyncio.get_running_loop()
        row = self._row = await loop.run_in_executor(DaemonThreads(), self._new_row, port, workers)
        warned = False
        while True:
            self._wake.clear()
            try:
                twin = await self._twin(row)
                await self._write(row)
                if twin is not None and not warned:
                    warned = True
                    log.warning(_TWIN, row.id, twin.url)
            except StoreError as exc:
                log.debug("the row of this node could not be written: %s", exc)
            # Before Python 3.12, wait_for drops a cancellation that comes when it has ended.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat):
                    await self._wake.wait()

    def _new_row(self, port: int, workers: int) -> NodeRow:
        config = self._config()
        config = replace(config, server=replace(config.server, port=port))
        hosts = parse_redis_url(config.store.url).hosts
        return NodeRow(
            id=config.identity,
            url=advertised_url(config, port, own_address=partial(self._own_address, hosts)),
            version=__version__,
            started_at=round(time.time(), 3),
            workers=workers,
            config=config_digest(config),
            store=self._store.kind,
            instance=secrets.token_hex(8),
        )

    async def _write(self, row: NodeRow) -> None:
        current = replace(
            row,
            beat_ms=self._store.uptime().ms,
            config=config_digest(self._config()),
            draining=self._draining,
        )
        await self._store.put(SPACE, row.id, msgspec.json.encode(current), ttl=KEPT_SECONDS)

    async def _twin(self, row: NodeRow) -> NodeRow | None:
        """Return the row of a living process that has the same id and another address."""
        stored = await self._store.get(SPACE, row.id)
        other = None if stored is None else _decoded(stored.value)
        if other is None or other.instance == row.instance or other.url == row.url:
            return None
        return other if self._store.uptime().ms - other.beat_ms <= ALIVE_MS else None


def _removed(instance: str, value: bytes | None) -> None:
    """Return None, which deletes the row; Unchanged if it is that of another process."""
    row = None if value is None else _decoded(value)
    if row is None or row.instance != instance:
        raise Unchanged


def _decoded(value: bytes) -> NodeRow | None:
    try:
        return _rows.decode(value)
    except msgspec.DecodeError:
        return None
