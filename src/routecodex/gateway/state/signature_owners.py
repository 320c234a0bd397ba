"""Which provider made which signature: in memory, and in the store for later runs and other processes.

Signatures are remembered by a digest. Every process writes pages of its own, a moment after something new has
come, so that no request waits for it. What others have written is read when a signature is asked for that
nobody here knows, and the stamp of the space says that there is something new.
"""

from __future__ import annotations

import asyncio
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

_LIFE = 30 * 86_400.0
_BYTES = 64 * 1024 * 1024
_PAUSE = 0.25
_READ_WAIT = 0.25

Page = dict[str, list[str]]
"""Digests of signatures in hexadecimal, by the name of their maker."""

logger = logging.getLogger("routecodex.makers")
_pages = msgspec.json.Decoder(Page)


class SignatureOwners:
    """Providers by what they signed; the oldest signatures are forgotten first."""

    def __init__(self, store: Store | None = None, *, most: int = PAGE * PAGES) -> None:
        self.asked_in_vain = False
        """Somebody asked for a signature that is not known here."""
        self._store = store
        self._most = most
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._page: dict[bytes, str] = {}
        self._name = _new_name()
        self._saved = 0
        self._stamp: int | None = None
        self._is_down = False
        self._timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    def made(self, provider: str, signature: str) -> None:
        """Remembers who made a signature."""
        digest = _digest(signature)
        if self._known.get(digest) == provider:
            return
        self._note(digest, provider)
        if self._store is not None:
            self._page[digest] = provider
            self._write_soon()

    def of(self, signature: str) -> str | None:
        """Who made it; None when nobody is known to have."""
        maker = self._known.get(_digest(signature))
        if maker is None:
            self.asked_in_vain = True
        return maker

    async def learn(self) -> bool:
        """Reads what other processes have written since; whether there was anything. Never raises."""
        self.asked_in_vain = False
        if self._store is None or self._store.stamp(SPACE) == self._stamp:
            return False
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read(self._store))
        await asyncio.wait({self._reader}, timeout=_READ_WAIT)
        return True

    async def load(self) -> None:
        """Restores what earlier runs have left, and has the oldest of it forgotten."""
        if self._store is None:
            return
        try:
            await self._store.trim(SPACE, entries=PAGES, size=_BYTES)
        except StoreError as exc:
            self._stumble(exc)
            return
        await self._read(self._store)

    async def flush(self) -> None:
        """Saves what is not saved yet; what a store that is down does not take is lost with the process."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin_writing()
        if self._writer is not None:
            await asyncio.wait({self._writer})

    def _note(self, digest: bytes, provider: str) -> None:
        self._known.pop(digest, None)
        self._known[digest] = provider
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def _write_soon(self) -> None:
        if self._timer is None and (self._writer is None or self._writer.done()):
            self._timer = asyncio.get_running_loop().call_later(_PAUSE, self._begin_writing)

    def _begin_writing(self) -> None:
        self._timer = None
        self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Writes the page until nothing has come meanwhile; a full one is followed by a new one."""
        store = self._store
        assert store is not None
        try:
            while self._saved < len(self._page):
                count = len(self._page)
                await store.put(SPACE, self._name, _encoded(self._page), ttl=_LIFE)
                self._saved = count
                if count == len(self._page) >= PAGE:
                    self._page, self._name, self._saved = {}, _new_name(), 0
                    await store.trim(SPACE, entries=PAGES, size=_BYTES)
        except StoreError as exc:
            self._stumble(exc)
            return
        self._recover()

    async def _read(self, store: Store) -> None:
        stamp = store.stamp(SPACE)
        try:
            for name in await store.keys(SPACE):
                stored = await store.get(SPACE, name)
                for digest, provider in _decoded(stored.value if stored is not None else b"{}"):
                    self._note(digest, provider)
        except StoreError as exc:
            self._stumble(exc)
            return
        for digest, provider in self._page.items():
            self._note(digest, provider)
        self._stamp = stamp
        self._recover()

    def _stumble(self, exc: StoreError) -> None:
        if not self._is_down:
            self._is_down = True
            logger.error("makers of signatures are neither saved nor shared for now: %s", exc)

    def _recover(self) -> None:
        if self._is_down:
            self._is_down = False
            logger.warning("makers of signatures are saved and shared again")


def is_ours(makers: SignatureOwners, provider: str) -> Callable[[str], bool]:
    """Tells whether a signature may go to this provider: not when another one is known to have made it."""

    def check(signature: str) -> bool:
        return makers.of(signature) in (None, provider)

    return check


def made_by(makers: SignatureOwners, provider: str) -> Callable[[str], bool]:
    """Tells whether a signature is known to be this provider's."""

    def check(signature: str) -> bool:
        return makers.of(signature) == provider

    return check


def _new_name() -> str:
    return secrets.token_hex(8)


def _encoded(page: dict[bytes, str]) -> bytes:
    grouped: Page = {}
    for digest, provider in page.items():
        grouped.setdefault(provider, []).append(digest.hex())
    return msgspec.json.encode(grouped)


def _decoded(value: bytes) -> list[tuple[bytes, str]]:
    """What stands on a page; one that is not ours is passed over."""
    try:
        page = _pages.decode(value)
        return [(bytes.fromhex(text), provider) for provider, digests in page.items() for text in digests]
    except ValueError as exc:
        logger.warning("a page of makers is ignored: %s", exc)
        return []


def _digest(signature: str) -> bytes:
    return blake2b(signature.encode("utf-8", "surrogatepass"), digest_size=16).digest()
