"""The interface of a store: values by space and key, with versions and expiry.

A value is a JSON text. Every put gives the key a new version that it never had before, even after a deletion.
A put with another expected version than the stored one is rejected, so that two writers cannot overwrite each
other. Expired values are treated as missing.

A space is a lower-case name chosen by the program (`clock`, `sessions`). A key is any text, because it comes
from clients; only text that UTF-8 cannot encode is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from routecodex.stores.uptime import SystemUptime

T = TypeVar("T")

Change = Callable[[bytes | None], bytes | None]
Availability = Literal["up", "down", "read_only"]

_SPACE = re.compile(r"[a-z][a-z0-9._-]{0,63}")


class StoreError(Exception):
    """The store failed or rejected a call; nothing was changed."""


class CallRefused(StoreError):
    """The call itself cannot be carried out; the store works."""


class Conflict(CallRefused):
    """The key has another version than the writer expected."""


class DamagedValue(CallRefused):
    """The stored value cannot be decoded; it was left as it is."""


class Stored(Struct, frozen=True):
    """A stored value; `expires` is in seconds since the epoch, by the clock of this machine."""

    value: bytes
    version: int
    expires: float | None = None


class Place(NamedTuple):
    """Position of a key in the order of writing; keys that were written at one time have an order too."""

    stamp: int
    key: str


OnAvailability = Callable[[Availability, StoreError | None], object]
"""Called when a store can be used again or no more, with the reason."""


GroupChange = Callable[[list[bytes | None]], tuple[list[bytes] | None, T]]
"""Takes several values, and returns the new ones and a result; None for the values writes nothing."""


class GroupUpdates(Protocol):
    """Changes several values of one space in one atomic step, or none of them.

    No process is told of a change: `generation` shows that there was one.
    """

    async def update(
        self, space: str, keys: Sequence[str], change: GroupChange[T], *, id: str, ttl: float
    ) -> T:
        """Apply the change, which may run more than once; one that was made by this id is not repeated."""
        ...

    async def generation(self, space: str) -> int:
        """Return a number that is another one after every change of a group."""
        ...

    async def values(self, space: str, *, most: int) -> dict[str, bytes]:
        """Return the values of a space by key, of very many the most recently written."""
        ...


class ProcessRows(Protocol):
    """One row of every process that shares the store, by topic; nobody is told of a change."""

    async def write(self, topic: str, row: bytes | None) -> None:
        """Replace the row of this process; None removes it."""
        ...

    async def read_others(self, topic: str, *, within: float) -> list[bytes]:
        """Return the rows of other processes that were written in the last `within` seconds."""
        ...


class Store(Protocol):
    """Values by space and key; `kind` names the implementation."""

    @property
    def kind(self) -> str: ...

    @property
    def missed(self) -> int:
        """Number of times that changes of others were noticed only by a check."""
        ...

    @property
    def groups(self) -> GroupUpdates | None:
        """Changes several values at once; None for a store that cannot."""
        ...

    @property
    def processes(self) -> ProcessRows | None:
        """Rows of all processes; None for a store of one machine."""
        ...

    @property
    def settle_seconds(self) -> float:
        """Seconds after a write until other processes on other machines know of it."""
        ...

    @property
    def reads_by_updates(self) -> bool:
        """Whether an update costs one call even if the value is not known: reading it first costs another."""
        ...

    @property
    def bounds_calls(self) -> bool:
        """Whether the store ends calls that take too long: who waits for one needs no timer."""
        ...

    async def get(self, space: str, key: str) -> Stored | None:
        """Return the value; a damaged one is set aside and counts as missing."""
        ...

    async def get_intact(self, space: str, key: str) -> Stored | None:
        """Return the value; DamagedValue if it is damaged, which then stays where it is."""
        ...

    async def put(
        self, space: str, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int:
        """Write the value and return its version; `expected` 0 means that the key must be new."""
        ...

    async def delete(self, space: str, key: str) -> bool:
        """Delete the value; return whether there was one."""
        ...

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        """Apply `change` to the value atomically and return the new value; None deletes.

        `change` may run in another thread and more than once; it must not call the store. Its exceptions are
        raised here, and nothing is changed.
        """
        ...

    async def read_all(self, space: str, *, most: int) -> list[tuple[str, Stored]]:
        """Return the values of the space with their keys, the least recently written first.

        Of more than `most` it returns the most recently written ones. Damaged values are left out.
        """
        ...

    async def keys(self, space: str) -> list[str]:
        """Return every key of the space, the least recently written first.

        The key of a damaged value is among them: the caller may know what the value was.
        """
        ...

    async def recent(self, space: str, *, limit: int, before: Place | None = None) -> list[Place]:
        """Return the places of up to `limit` keys of the space, the most recently written first.

        `before` is the last place of an earlier call, to continue behind it. Damaged values are as in `keys`.
        """
        ...

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        """Delete expired values, then the oldest until both limits hold; return how many were deleted.

        `size` is in bytes and includes the overhead of the store.
        """
        ...

    def stamp(self, space: str) -> int:
        """Return a number that changes with every write to the space and every deletion from it.

        It is cheap enough for every request and raises no error while the store is down. It has no order, may
        change without a write, and does not change when a value expires. It changes only after the new value
        can be read: take the stamp first, then read. A store on another machine returns the last number it
        received.
        """
        ...

    def stamp_of(self, space: str, key: str) -> int:
        """Return the stamp of a single key; 0 if it has no value.

        While that cannot be told, it is a negative number that is never returned twice.
        """
        ...

    def uptime(self) -> SystemUptime:
        """Return a clock that all processes of the store share and nobody sets, to judge leases by."""
        ...

    def was_back_within(self, seconds: float) -> bool:
        """Return whether the store came back from an outage less than so many seconds ago."""
        ...

    def judge(self, listener: OnAvailability) -> bool:
        """Let a store that knows itself whether it can be used tell the listener; False if it does not."""
        ...

    async def spaces(self) -> list[str]:
        """Return the spaces that have values, in any order."""
        ...

    async def describe(self) -> dict[str, Any]:
        """Return facts about the store for people: `version`, `persistence`, `eviction`, `warnings`."""
        ...

    async def check(self, space: str) -> None:
        """Raise StoreError if the space cannot be read and written now; no value changes."""
        ...

    async def close(self) -> None: ...


def is_space(name: str) -> bool:
    """Return whether this is a valid name of a space."""
    return _SPACE.fullmatch(name) is not None


def check_space(space: str) -> None:
    """Raise StoreError for an invalid name of a space."""
    if _SPACE.fullmatch(space) is None:
        raise CallRefused(
            f"{space[:80]!r} is not a valid space: use a lower-case letter, then up to 63 of a-z 0-9 . _ -"
        )


def check_key(key: str) -> None:
    """Raise StoreError for a key that UTF-8 cannot encode."""
    try:
        key.encode()
    except UnicodeEncodeError as exc:
        raise CallRefused(f"the key {key[:80]!r} is not valid Unicode: {exc.reason}") from exc


def check_value(value: bytes) -> None:
    """Raise StoreError for a value that is not one JSON text."""
    try:
        value.decode()
        msgspec.json.decode(value, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as exc:
        raise CallRefused(f"the value is not JSON: {exc}") from exc


def check_version(expected: int | None, old: Stored | None, *, where: str) -> None:
    """Raise Conflict if the stored version is not the expected one."""
    stored = 0 if old is None else old.version
    if expected is not None and expected != stored:
        raise Conflict(f"{where} changed: version {expected} was expected, {stored} is stored; read it again")
