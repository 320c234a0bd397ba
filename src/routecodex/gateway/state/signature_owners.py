"""Owners of signatures: the provider of each, in memory and in the store for later runs and other processes.

Signatures are stored as digests. Every process writes its own pages: in the background, and to a store that
several machines share before the answer with the signature ends, because the next request may reach another
one. The pages of other processes are read when an unknown signature is looked up and the stamp of the space
has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from routecodex.stores.store import Store, StoreError

SPACE = "makers"
PAGE = 1024
PAGES = 64
_SHORT_PAGE = 128
"""Signatures of a page that is written with every answer."""

_LIFE = 30 * 86_400.0
_BYTES = 64 * 1024 * 1024
_PAUSE = 0.25
_READ_WAIT = 0.25

Page = dict[str, list[str]]
"""Digests of signatures in hexadecimal, by provider."""

logger = logging.getLogger("routecodex.makers")
_pages = msgspec.json.Decoder(Page)


class SignatureOwners:
    """Providers by signature; the oldest signatures are dropped first."""

    def __init__(self, store: Store | None = None, *, most: int = PAGE * PAGES) -> None:
        self.has_unknown = False
        """A signature was looked up that is not known here."""
        self.unsaved = False
        """A signature must be saved before the answer ends that it came with."""
        self._is_shared = store is not None and store.processes is not None
        self._page_size = _SHORT_PAGE if self._is_shared else PAGE
        self._pages = max(1, most // self._page_size)
        self._round: asyncio.Future[bool] | None = None
        """Ends with the write that is running; says whether it was made."""
        self._store = store
        self._most = most
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._page: dict[bytes, str] = {}
        self._name = _new_name()
        self._saved = 0
        self._stamp: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    def record(self, provider: str, signature: str) -> None:
        """Record the provider of a signature."""
        digest = _digest(signature)
        if self._known.get(digest) == provider:
            return
        self._add(digest, provider)
        if self._store is not None:
            self._page[digest] = provider
            self.unsaved = self._is_shared
            self._schedule_write()

    def owner_of(self, signature: str) -> str | None:
        """Return the provider of a signature; None if it is unknown."""
        owner = self._known.get(_digest(signature))
        if owner is None:
            self.has_unknown = True
        return owner

    async def learn(self) -> bool:
        """Read the pages that other processes wrote since; return whether there were any. Never raises."""
        self.has_unknown = False
        if self._store is None or self._store.stamp(SPACE) == self._stamp:
            return False
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read(self._store))
        await asyncio.wait({self._reader}, timeout=None if self._store.bounds_calls else _READ_WAIT)
        return True

    async def load(self) -> None:
        """Load the pages of earlier runs, and delete the oldest."""
        if self._store is None:
            return
        with contextlib.suppress(StoreError):
            # A store that cannot be written can still be read.
            await self._store.trim(SPACE, entries=self._pages, size=_BYTES)
        await self._read(self._store)

    async def save(self) -> None:
        """Write what was recorded until now; in an outage this process alone has it. Never raises."""
        page, count = self._page, len(self._page)
        while self._page is page and self._saved < count:
            if self._timer is not None:
                self._timer.cancel()
            if self._writer is None or self._writer.done():
                self._begin_writing()
            if self._round is None:
                self._round = asyncio.get_running_loop().create_future()
            if not await asyncio.shield(self._round):
                return

    async def flush(self) -> None:
        """Save unsaved signatures; those that a store outage refuses are lost with the process."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin_writing()
        if self._writer is not None:
            await asyncio.wait({self._writer})

    def _add(self, digest: bytes, provider: str) -> None:
        self._known.pop(digest, None)
        self._known[digest] = provider
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def _schedule_write(self) -> None:
        if self._timer is None and (self._writer is None or self._writer.done()):
            self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._begin_writing)

    def _begin_writing(self) -> None:
        self._timer = None
        self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Write the page until no signature came meanwhile; a full page is followed by a new one."""
        store = self._store
        assert store is not None
        try:
            while self._saved < len(self._page):
                count = len(self._page)
                await store.put(SPACE, self._name, _encoded(self._page), ttl=_LIFE)
                self._saved = count
                self.unsaved = self._is_shared and count < len(self._page)
                is_full = count == len(self._page) >= self._page_size
                if is_full:
                    self._page, self._name, self._saved = {}, _new_name(), 0
                self._end_round(True)
                if is_full:
                    await store.trim(SPACE, entries=self._pages, size=_BYTES)
        except StoreError as exc:
            logger.debug("the owners of signatures cannot be saved now: %s", exc)
        finally:
            self._end_round(False)

    def _end_round(self, is_written: bool) -> None:
        ended, self._round = self._round, None
        if ended is not None and not ended.done():
            ended.set_result(is_written)

    async def _read(self, store: Store) -> None:
        stamp = store.stamp(SPACE)
        try:
            for _, stored in await store.read_all(SPACE, most=self._pages):
                for digest, provider in _decoded(stored.value):
                    self._add(digest, provider)
        except StoreError as exc:
            logger.debug("the owners of signatures cannot be read now: %s", exc)
            return
        for digest, provider in self._page.items():
            self._add(digest, provider)
        self._stamp = stamp


def may_return_to(owners: SignatureOwners, provider: str) -> Callable[[str], bool]:
    """Return a check whether a signature may go to this provider: not if another one made it."""

    def check(signature: str) -> bool:
        return owners.owner_of(signature) in (None, provider)

    return check


def is_owned_by(owners: SignatureOwners, provider: str) -> Callable[[str], bool]:
    """Return a check whether a signature is known to be this provider's."""

    def check(signature: str) -> bool:
        return owners.owner_of(signature) == provider

    return check


def _new_name() -> str:
    return secrets.token_hex(8)


def _encoded(page: dict[bytes, str]) -> bytes:
    grouped: Page = {}
    for digest, provider in page.items():
        grouped.setdefault(provider, []).append(digest.hex())
    return msgspec.json.encode(grouped)


def _decoded(value: bytes) -> list[tuple[bytes, str]]:
    """Return the digests and providers of a page; a page that cannot be read is skipped."""
    try:
        page = _pages.decode(value)
        return [(bytes.fromhex(text), provider) for provider, digests in page.items() for text in digests]
    except ValueError as exc:
        logger.warning("a page of signature owners is ignored: %s", exc)
        return []


def _digest(signature: str) -> bytes:
    return blake2b(signature.encode("utf-8", "surrogatepass"), digest_size=16).digest()
