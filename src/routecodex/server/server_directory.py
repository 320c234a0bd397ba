"""The servers that the console can show: those of this machine, and the nodes that share the store."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from msgspec import Struct

from routecodex import __version__
from routecodex.canon.errors import NotFound
from routecodex.server import announce
from routecodex.server.announce import Announcement
from routecodex.server.node_registry import FoundNode, read_nodes
from routecodex.stores.monitored import MonitoredStore
from routecodex.stores.store import StoreError

log = logging.getLogger("routecodex.admin")

_LONGEST_SHOWN = 80


class KnownServer(Struct, frozen=True, kw_only=True):
    """A server, its address, and the admin token that it accepts; `fields` are its row in the list.

    `ledger` is the file of its usage, if it is on this machine. `shares_store`: it is a node of the store of
    this server.
    """

    id: str
    url: str
    token: str
    is_alive: bool
    is_self: bool
    fields: dict[str, Any]
    ledger: str | None = None
    shares_store: bool = False

    def __repr__(self) -> str:
        return f"KnownServer({self.id!r}, {self.url!r})"


class ServerDirectory:
    """Finds servers by id; `home` is the user dir, where those of this machine announce themselves.

    `about` is this server. A node of the store accepts its token: all nodes have the same. While the store is
    down, the nodes are those that were listed last.
    """

    def __init__(self, about: Announcement, *, store: MonitoredStore, home: Path | None) -> None:
        self._about = about
        self._store = store
        self._home = home
        self._nodes: list[FoundNode] = []

    @property
    def own_id(self) -> str:
        """Id of this server."""
        return self._about.id

    async def all(self) -> list[KnownServer]:
        """Return this server, the announced ones of this machine, and the nodes of the store, by id."""
        rows = [] if self._home is None else await asyncio.to_thread(announce.read, self._home)
        nodes = [node.fields for node in await self._read_nodes()]
        running = {fields["id"] for fields in nodes if fields["alive"]}
        # A server that was killed leaves its file behind; the node of its id may run on another machine now.
        others = [
            row for row in rows if row.id != self._about.id and (row.id not in running or announce.alive(row))
        ]
        local = {row.id: row for row in (self._about, *others)}
        listed = {row.id: self._fields(row) for row in local.values()}
        for fields in nodes:
            # A node says itself how other machines reach it; a server of this machine is reached directly.
            listed[fields["id"]] = {"self": False, **fields, **listed.get(fields["id"], {})}
        shared = {self._about.id, *(fields["id"] for fields in nodes)}
        return [
            self._known(fields, local.get(id), is_node=id in shared) for id, fields in sorted(listed.items())
        ]

    async def find(self, id: str) -> KnownServer:
        """Return the server of this id; reject an id that no server has."""
        known = await self.all()
        found = next((server for server in known if server.id == id), None)
        if found is None:
            names = ", ".join(server.id for server in known)
            raise NotFound(
                f"no server {id[:_LONGEST_SHOWN]!r} is known; there are {names}", code="unknown_server"
            )
        return found

    def _known(self, fields: dict[str, Any], row: Announcement | None, *, is_node: bool) -> KnownServer:
        return KnownServer(
            id=fields["id"],
            url=fields["url"],
            token=self._about.token if row is None else row.token,
            is_alive=fields["alive"],
            is_self=fields["self"],
            fields=fields,
            ledger=None if row is None else row.ledger,
            shares_store=is_node,
        )

    def _fields(self, row: Announcement) -> dict[str, Any]:
        is_self = row is self._about
        return {
            "id": row.id,
            "url": row.url,
            "version": __version__ if is_self else row.version,
            "alive": is_self or announce.alive(row),
            "self": is_self,
        }

    async def _read_nodes(self) -> list[FoundNode]:
        """Return the nodes that share the store with this one; none if it is not shared."""
        if self._store.kind == "redis":
            try:
                self._nodes = await read_nodes(self._store, takes_writes=self._store.works)
            except StoreError as exc:
                log.debug("the nodes in the store cannot be listed: %s", exc)
        return self._nodes
