"""The calls on clients and teams, from JSON to JSON: for the admin API, and for `keys` without a server."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from routecodex.accounting.client_settings import ClientSettings
from routecodex.accounting.client_store import ClientDirectory
from routecodex.accounting.timestamps import parse_duration
from routecodex.canon.errors import BadRequest
from routecodex.wire import json

Reply = dict[str, Any]

_DIGEST = re.compile(r"[0-9A-Fa-f]{64}\Z")
_LONGEST_OVERLAP = 366 * 86_400


class NewClient(ClientSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client to make; with `key_sha256` it keeps a key that it has already, and gets no new one.

    `dry_run`: the client is checked and not made.
    """

    name: str
    key_sha256: str | None = None
    dry_run: bool = False


class Rotation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time for which the keys of a client stay valid beside its new one."""

    overlap: str = "24h"


class NoSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The empty body of a call without settings."""


_new_clients = Decoder(NewClient)
_settings = Decoder(ClientSettings)
_rotations = Decoder(Rotation)
_nothing = Decoder(NoSettings)


class ClientCalls:
    """Carries out calls on the clients of a directory, as they are in the store now."""

    def __init__(self, clients: ClientDirectory) -> None:
        self._clients = clients

    async def list(self) -> Reply:
        """Return all clients."""
        await self._clients.refresh()
        return {"clients": await self._clients.rows()}

    async def show(self, name: str) -> Reply:
        """Return one client."""
        await self._clients.refresh()
        return {"client": await self._clients.row(name)}

    async def teams(self) -> Reply:
        """Return all teams."""
        await self._clients.refresh()
        return {"teams": await self._clients.team_rows()}

    async def add(self, body: bytes) -> Reply:
        """Make a client; the answer has its key, this once, unless it brought one."""
        new = json.read(body, _new_clients)
        digest = new.key_sha256
        if digest is not None and not _DIGEST.match(digest):
            raise BadRequest("key_sha256: is not a SHA-256 of 64 hex digits", param="key_sha256")
        key = await self._clients.add(new.name, new, digest=digest, dry_run=new.dry_run)
        if new.dry_run:
            return {"client": None, "key": None}
        return {"client": await self._clients.row(new.name), "key": key}

    async def change(self, name: str, body: bytes) -> Reply:
        """Change settings of a client."""
        settings = json.read(body, _settings)
        if settings == ClientSettings():
            raise BadRequest("no change was sent; set one of the fields of a client")
        await self._clients.change(name, settings)
        return {"client": await self._clients.row(name)}

    async def rotate(self, name: str, body: bytes) -> Reply:
        """Give a client a new key, and keep the old ones for a while."""
        text = json.read(body, _rotations).overlap
        overlap = 0 if text.strip() == "0" else parse_duration(text)
        if overlap is None or overlap > _LONGEST_OVERLAP:
            message = f"overlap: {text[:80]!r} is not a duration of at most 366 days, such as 24h"
            raise BadRequest(message, param="overlap", code="invalid_overlap")
        key = await self._clients.rotate(name, overlap)
        return {"client": await self._clients.row(name), "key": key}

    async def revoke(self, name: str, body: bytes) -> Reply:
        """Remove a client."""
        json.read(body, _nothing)
        await self._clients.revoke(name)
        return {"revoked": True}

    async def reset(self, name: str, body: bytes) -> Reply:
        """Set the windows of a client's limits to 0."""
        json.read(body, _nothing)
        await self._clients.refresh()
        await self._clients.reset(name)
        return {"client": await self._clients.row(name)}
