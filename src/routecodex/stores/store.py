"""The interface of a store: values by space and key, with versions and expiry.

A value is a JSON text. Every put gives the key a new version; a put that expects another version than the one
stored is refused, so that two writers cannot undo each other. Expired values are as if they were not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

Change = Callable[[bytes | None], bytes | None]


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
        """Applies `change` to the value as one step no other writer can come between; None deletes."""
        ...

    async def keys(self, space: str) -> list[str]:
        """Every key of the space, the least recently written first."""
        ...

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        """Deletes expired values, then the oldest until both limits hold; how many went."""
        ...

    async def close(self) -> None: ...
