"""The interface of a store: values by space and key, with versions and expiry.

A value is a JSON text. Every put gives the key a new version, never one it had before, not even when it was
deleted meanwhile; a put that expects another version than the one stored is refused, so that two writers
cannot undo each other. Expired values are as if they were not there.

A space is a name the program chooses (`clock`, `sessions`), in lower case. A key is any text at all, since it
comes from outside; only text that UTF-8 cannot carry is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import Struct

Change = Callable[[bytes | None], bytes | None]

_SPACE = re.compile(r"[a-z][a-z0-9._-]{0,63}")


class StoreError(Exception):
    """The store could not do what was asked; nothing was changed."""


class Conflict(StoreError):
    """The key has another version than the writer expected."""


class Stored(Struct, frozen=True):
    """A value as it stands in the store; `expires` is seconds since the epoch."""

    value: bytes
    version: int
    expires: float | None = None


class Store(Protocol):
    """Values by space and key."""

    async def get(self, space: str, key: str) -> Stored | None: ...

    async def put(
        self, space: str, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int:
        """Writes the value and gives its version; `expected` 0 means that the key must be new."""
        ...

    async def delete(self, space: str, key: str) -> bool:
        """Whether there was something to delete."""
        ...

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        """Applies `change` to the value as one step no other writer can come between; None deletes.

        `change` may run in another thread and more than once; it must not call the store. What it raises is
        raised here, and nothing is changed.
        """
        ...

    async def keys(self, space: str) -> list[str]:
        """Every key of the space, the least recently written first."""
        ...

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        """Deletes expired values, then the oldest until both limits hold; how many went.

        `size` is in bytes as the store counts them: what it adds to a value counts too.
        """
        ...

    def stamp(self, space: str) -> int:
        """A number that changes whenever anyone writes to the space or deletes from it.

        Cheap enough to ask for every request; a store that is down is no error here. It has no order, may
        change without cause, does not change when a value expires, and is new only once the change can be
        read: who takes the stamp first and reads then misses nothing. A store on another machine tells what
        it has heard so far.
        """
        ...

    def stamp_of(self, space: str, key: str) -> int:
        """The same for a single key; 0 when nothing is stored for it."""
        ...

    async def close(self) -> None: ...


def check_space(space: str) -> None:
    """Refuses a space no store could hold."""
    if _SPACE.fullmatch(space) is None:
        raise StoreError(f"{space[:80]!r} is no space: a lower-case letter, then up to 63 of a-z 0-9 . _ -")


def check_key(key: str) -> None:
    """Refuses a key that UTF-8 cannot carry."""
    try:
        key.encode()
    except UnicodeEncodeError as exc:
        raise StoreError(f"the key {key[:80]!r} is not valid Unicode: {exc.reason}") from exc


def check_value(value: bytes) -> None:
    """Refuses a value that is not one JSON text."""
    try:
        value.decode()
        msgspec.json.decode(value, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as exc:
        raise StoreError(f"the value is not JSON: {exc}") from exc


def check_version(expected: int | None, old: Stored | None, *, where: str) -> None:
    """Refuses a write that expects another version than the one stored."""
    found = 0 if old is None else old.version
    if expected is not None and expected != found:
        raise Conflict(f"{where} changed meanwhile: version {expected} was expected, {found} is stored")
