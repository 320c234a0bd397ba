"""Clients that are made at run time, kept in the store; and the table of all clients, kept up to date.

All run-time clients are one value of the space `clients`: a change of one is atomic with the check that its
name is free. Every process compares the stamp of that value a few times a second, beside its requests: a
request itself finds its client in a dict. A value that cannot be read never counts as no clients.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from msgspec.json import Decoder
from msgspec.structs import replace

from routecodex.accounting.client_report import LimitUse, UnknownUse, client_row, team_row
from routecodex.accounting.client_settings import ClientSettings, apply_settings, check_name
from routecodex.accounting.client_use import ClientUse
from routecodex.accounting.clients import (
    NO_CLIENTS,
    PREFIX_LENGTH,
    Client,
    ClientKey,
    ClientTable,
    StoredClient,
    StoredClients,
    build_table,
)
from routecodex.canon.errors import BadRequest, ClientError, NotFound, Overloaded
from routecodex.config import ANONYMOUS, Config, is_loopback, key_digest
from routecodex.stores.cell import Cell, CellFormat
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

KEY_PREFIX = "rcx-"
_KEY_BYTES = 32
_SPACE = "clients"
_KEY = "all"
_POLL_SECONDS = 0.2
_MOST_CLIENTS = 10_000
_MOST_KEYS = 8
"""Keys of one client that are remembered, so that an old one is called expired."""
_MOST_VALID = 31
"""Old keys of one client that stay valid beside its newest."""
_MOST_REVOKED = 10_000
_CACHED_BYTES = 64 * 1024 * 1024
_EMPTY = StoredClients()
_DAMAGED = "their file in the store is damaged; see the log"

log = logging.getLogger("routecodex.clients")
_decoder = Decoder(StoredClients)


def _empty(_key: str) -> StoredClients:
    return _EMPTY


def _encode(_key: str, clients: StoredClients) -> bytes:
    return json.encode(clients)


def _decode(_key: str, raw: bytes) -> StoredClients:
    return _decoder.decode(raw)


_FORMAT: CellFormat[StoredClients] = CellFormat(
    space=_SPACE,
    empty=_empty,
    encode=_encode,
    decode=_decode,
    noun="the clients of this gateway",
    outage="the clients of the store cannot be read, the last known stay",
    log=log,
    guarded=True,
)


def _check_new_name(name: str) -> None:
    check_name(name)
    if name == ANONYMOUS:
        raise BadRequest(
            f"name: {name!r} stands for requests without a key; add [clients.{name}] to the file",
            param="name",
            code="invalid_name",
        )


def _exists(name: str, source: str = "store") -> ClientError:
    message = f"client {name!r} exists; `routecodex keys set {name}` changes it"
    if source == "file":
        message = f"client {name!r} exists in the configuration file; change it there"
    return ClientError(message, status=409, code="client_exists")


def _inserted(stored: StoredClients, name: str, client: StoredClient) -> StoredClients:
    """Return the clients with a new one; a key that was revoked is valid again."""
    if name in stored.clients:
        raise _exists(name)
    if len(stored.clients) >= _MOST_CLIENTS:
        message = f"there are {_MOST_CLIENTS} clients already; revoke one"
        raise ClientError(message, status=409, code="too_many_clients")
    digests = {key.digest for key in client.keys}
    revoked = {digest: old for digest, old in stored.revoked.items() if digest not in digests}
    return replace(stored, clients={**stored.clients, name: client}, revoked=revoked)


Edit = Callable[[StoredClients], tuple[StoredClients, Any]]


def new_key() -> str:
    """Return a new key: `rcx-` and 43 characters for 32 random bytes."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def _kept(key: str, now: float) -> ClientKey:
    """Return what is kept of a new key."""
    return ClientKey(digest=key_digest(key), prefix=key[:PREFIX_LENGTH], created_at=now)


def _rotated(client: StoredClient, key: ClientKey, now: float, until: float) -> StoredClient:
    """Return the client with a new key; the oldest of those that have ended are dropped."""
    old = [replace(one, expires_at=min(one.expires_at or until, until)) for one in client.keys]
    valid = [one for one in old if (one.expires_at or until) > now][-_MOST_VALID:]
    room = max(0, _MOST_KEYS - 1 - len(valid))
    ended = [one for one in old if one not in valid][-room:] if room else []
    return replace(client, keys=(*ended, *valid, key))


def _with_client(stored: StoredClients, name: str, client: StoredClient | None) -> StoredClients:
    """Return the clients with this one, or without it; keys that it has no more count as revoked."""
    before = stored.clients.get(name)
    clients = {other: row for other, row in stored.clients.items() if other != name}
    if client is not None:
        clients[name] = client
    had = () if before is None else before.keys
    kept = {key.digest for key in (() if client is None else client.keys)}
    dropped = {key.digest: name for key in had if key.digest not in kept}
    revoked = dict(list({**stored.revoked, **dropped}.items())[-_MOST_REVOKED:])
    return replace(stored, clients=clients, revoked=revoked)


class ClientDirectory:
    """The clients of file and store; `table` is always the latest known.

    `watch` keeps it up to date with other processes. `limit_use` supplies what is used of limits. While the
    store does not work (`works`), a key that is not known may be one that was made meanwhile.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        works: Callable[[], bool] = lambda: True,
    ) -> None:
        self.table: ClientTable = NO_CLIENTS
        self.use = ClientUse(store, clock=clock)
        self.limit_use: LimitUse = UnknownUse()
        self._clock = clock
        self._works = works
        self._cell: Cell[StoredClients] = Cell(store, _FORMAT, cached=1, cached_bytes=_CACHED_BYTES, ttl=None)
        self._config = Config()
        self._stored = _EMPTY
        self._unread = "they have not been read yet"
        self._watching: asyncio.Task[None] | None = None

    @property
    def stored(self) -> StoredClients:
        """The clients of the store, as far as they are known."""
        return self._stored

    @property
    def unread(self) -> str:
        """The reason why the clients of the store are not known; empty if they are."""
        return self._unread

    def configure(self, config: Config) -> None:
        """Use the clients and teams of this configuration from now on."""
        self._config = config
        self._rebuild()

    def _rebuild(self) -> None:
        config = self._config
        # Without a word to the contrary, a gateway that only this machine reaches starts without its store.
        fails_closed = (
            bool(self._damage)
            or config.store.on_down == "refuse"
            or config.has_clients
            or not is_loopback(config.server.host)
        )
        incomplete = self._unread if fails_closed else ""
        self.table = build_table(config, self._stored, incomplete=incomplete, works=self._works)

    @property
    def _damage(self) -> bool:
        return self._unread == _DAMAGED

    async def refresh(self) -> None:
        """Read the clients of the store again if they have changed."""
        known = self._cell.peek(_KEY)
        if known is not None and known is self._stored and not self._unread:
            return
        try:
            stored = await self._cell.read(_KEY)
            unread = _DAMAGED if self._cell.is_damaged(_KEY) else ""
        except StoreError as exc:
            stored, unread = self._stored, self._unread and f"the store cannot be read ({exc})"
        changed = (stored, unread) != (self._stored, self._unread)
        self._stored, self._unread = stored, unread
        if changed:
            self._rebuild()

    def start(self) -> None:
        """Start to watch the store."""
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        """Stop watching, and write what is unsaved."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        await self.use.save(at_once=True)
        await self.use.show(at_end=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self.refresh()
                await self.use.save()
                await self.use.show()
            except Exception:
                log.exception("the clients of the store could not be read; the last known stay")

    async def settle(self) -> None:
        """Wait until every process that watches the store knows the last change."""
        await asyncio.sleep(2 * _POLL_SECONDS)

    async def rows(self) -> list[dict[str, Any]]:
        """Return all clients as they are shown, by name; Overloaded if those of the store are not known."""
        if self._unread:
            raise self._not_known()
        await self.limit_use.refresh()
        used, elsewhere = await self.use.last_used(), await self.use.running_elsewhere()
        return [self._row(client, used, elsewhere) for _, client in sorted(self.table.clients.items())]

    async def row(self, name: str) -> dict[str, Any]:
        """Return one client as it is shown; NotFound for an unknown one."""
        client = self.client(name)
        await self.limit_use.refresh()
        return self._row(client, await self.use.last_used(), await self.use.running_elsewhere())

    def _row(self, client: Client, used: dict[str, float], elsewhere: dict[str, int]) -> dict[str, Any]:
        return client_row(
            client,
            self.table,
            use=self.limit_use,
            now=self._clock(),
            last_used_at=used.get(client.name),
            in_flight=self.use.in_flight(client.name) + elsewhere.get(client.name, 0),
        )

    def _not_known(self, consequence: str = "") -> Overloaded:
        text = f"{consequence}the clients of the store are not known, {self._unread}"
        return Overloaded(text, code="store_unavailable")

    async def team_rows(self) -> list[dict[str, Any]]:
        """Return all teams as they are shown, by name."""
        await self.limit_use.refresh()
        return [team_row(name, self.table, use=self.limit_use) for name in sorted(self.table.teams)]

    def client(self, name: str) -> Client:
        """Return a client by name; NotFound for an unknown one, if the clients of the store are known."""
        found = self.table.clients.get(name)
        if found is None and self._unread:
            raise self._not_known()
        if found is None:
            known = ", ".join(sorted(self.table.clients)[:20]) or "there are none"
            raise NotFound(f"no client is called {name[:80]!r}; clients: {known}", code="unknown_client")
        return found

    async def add(
        self, name: str, settings: ClientSettings, *, digest: str | None = None, dry_run: bool = False
    ) -> str | None:
        """Make a client and return its key, which is shown this once; None for one that brings its digest.

        Its name and its key must be free. `dry_run` only checks that.
        """
        _check_new_name(name)
        key, now = new_key() if digest is None else None, self._clock()
        kept = _kept(key, now) if key is not None else ClientKey(digest=(digest or "").lower())
        made = StoredClient(keys=(kept,), created_at=now)
        client = apply_settings(made, settings, config=self._config, now=now)
        await self._prepare()
        if name in self.table.clients:
            raise _exists(name, self.table.clients[name].source)
        holder = self.table.holder_of(kept.digest)
        if holder is not None:
            message = f"the key of {name!r} is that of client {holder.name!r}"
            raise ClientError(message, status=409, code="key_exists")
        if not dry_run:
            await self._edit(lambda stored: (_inserted(stored, name, client), None))
        return key

    async def change(self, name: str, settings: ClientSettings) -> None:
        """Change the settings of a client of the store."""
        now = self._clock()
        await self._change(name, lambda row: apply_settings(row, settings, config=self._config, now=now))

    async def rotate(self, name: str, overlap: float) -> str:
        """Give a client a new key and return it; the others stay valid for `overlap` seconds."""
        key, now = new_key(), self._clock()
        await self._change(name, lambda row: _rotated(row, _kept(key, now), now, now + overlap))
        return key

    async def revoke(self, name: str) -> None:
        """Remove a client; its keys are refused as revoked from now on."""
        await self._prepare(name)

        def edit(stored: StoredClients) -> tuple[StoredClients, None]:
            return _with_client(stored, name, None), None

        await self._edit(edit)
        await self.use.forget(name)

    async def reset(self, name: str) -> None:
        """Set the windows of a client to 0."""
        self.client(name)
        await self.limit_use.reset(name)

    async def _change(self, name: str, change: Callable[[StoredClient], StoredClient]) -> None:
        await self._prepare(name)

        def edit(stored: StoredClients) -> tuple[StoredClients, None]:
            row = stored.clients.get(name)
            if row is None:
                raise NotFound(f"client {name!r} was revoked meanwhile", code="unknown_client")
            return _with_client(stored, name, change(row)), None

        await self._edit(edit)

    async def _prepare(self, name: str | None = None) -> None:
        """Read the newest clients; reject a change of one that the configuration file names."""
        await self.refresh()
        if self._unread:
            raise self._not_known("nothing was changed: ")
        if name is not None and self.client(name).source == "file":
            raise ClientError(
                f"client {name!r} is in the configuration file; change it there",
                status=409,
                code="client_in_file",
            )

    async def _edit(self, edit: Edit) -> None:
        try:
            await self._cell.edit(_KEY, edit)
        except StoreError as exc:
            raise Overloaded(
                f"the client could not be saved, nothing was changed: {exc}", code="state_not_saved"
            ) from exc
        await self.refresh()
