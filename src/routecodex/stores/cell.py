"""Cached, stamped access to one kind of stored value.

A cached value is used as long as the store's stamp of its key stays the same, so that a value which another
process writes is seen with the next request. While the store is down, readers get the last known value.

A stored value that cannot be decoded is copied to the space `<space>.corrupt` and logged; a damaged file is
set aside by the store. A process that knows the last value writes that back; for all others it is absent.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Generic, TypeVar

from routecodex.stores.store import DamagedValue, Store, Stored, StoreError

T = TypeVar("T")
R = TypeVar("R")

CACHED_BYTES = 8 * 1024 * 1024


class CorruptValue(Exception):
    """A stored value that its format cannot decode."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw


class Unchanged(Exception):
    """Ends an update that has nothing to write."""


class CellFormat(Generic[T]):
    """The space, the stored form and the log texts of one kind of value.

    `empty` returns the value of a key without a stored one; an empty value is never stored. `decode` raises
    ValueError for a value of another kind. `noun` names the value in the log line "… is not <noun>", and
    `outage` is the consequence of a store that is down. A damaged value that is `guarded` stays in its place
    for readers that do not know it: another process may know what it was.
    """

    def __init__(
        self,
        *,
        space: str,
        empty: Callable[[str], T],
        encode: Callable[[str, T], bytes],
        decode: Callable[[str, bytes], T],
        noun: str,
        outage: str,
        log: logging.Logger,
        guarded: bool = False,
    ) -> None:
        self.space = space
        self.empty = empty
        self.encode = encode
        self.decode = decode
        self.noun = noun
        self.outage = outage
        self.log = log
        self.guarded = guarded


class CellEdit(Generic[T, R]):
    """One read-modify-write of a value; a store may run it in another thread, and more than once.

    `corrupt` is a value that was set aside already and now counts as absent.
    """

    value: T
    result: R
    size: int

    def __init__(
        self, format: CellFormat[T], key: str, change: Callable[[T], tuple[T, R]], *, corrupt: bytes | None
    ) -> None:
        self._format = format
        self._key = key
        self._change = change
        self._corrupt = corrupt

    def apply(self, raw: bytes | None) -> bytes | None:
        """Return the new stored form, None to delete it; raise Unchanged or CorruptValue to write nothing."""
        format, key = self._format, self._key
        empty = format.empty(key)
        before = empty if raw is None or raw == self._corrupt else decode(format, key, raw)
        self.value, self.result = self._change(before)
        self.size = 0
        if self.value == empty and raw is not None:
            return None
        if self.value == before:
            self.size = 0 if raw is None else len(raw)
            raise Unchanged
        encoded = format.encode(key, self.value)
        self.size = len(encoded)
        return encoded


def decode(format: CellFormat[T], key: str, raw: bytes) -> T:
    """Decode a stored value, or raise CorruptValue."""
    try:
        return format.decode(key, raw)
    except (ValueError, RecursionError) as exc:
        raise CorruptValue(raw) from exc


class CachedValue(Generic[T]):
    """The last known value of a key; `stamp` is None when the store may hold a newer one."""

    def __init__(self, value: T, stamp: int | None, expires: float | None, size: int = 0) -> None:
        self.value = value
        self.size = size
        """Bytes of its stored form."""
        self.stamp = stamp
        self.expires = expires
        self.recheck_at = -math.inf


class Cell(Generic[T]):
    """Cached, stamped access to one kind of stored value.

    At most `cached` values are held in memory, whose stored forms take at most `cached_bytes` together: some
    values hold texts that clients choose. A stored value lives for `ttl` seconds after its last write.
    With `recheck`, a cached value is used for that many seconds before its stamp is compared again.
    """

    def __init__(
        self,
        store: Store,
        format: CellFormat[T],
        *,
        cached: int,
        cached_bytes: int = CACHED_BYTES,
        ttl: float | None,
        recheck: float = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._format = format
        self._space = format.space
        self._cached = cached
        self._most_bytes = cached_bytes
        self._bytes = 0
        self._ttl = ttl
        self._recheck = recheck
        self._clock = clock
        self._values: OrderedDict[str, CachedValue[T]] = OrderedDict()
        self._damaged: set[str] = set()

    def peek(self, key: str) -> T | None:
        """Return the value if it is known without IO; None means that it has to be loaded."""
        known = self._values.get(key)
        now = 0.0
        if self._recheck:
            now = time.monotonic()
            if known is not None and now < known.recheck_at:
                return known.value
        stamp = self._store.stamp_of(self._space, key)
        if known is None:
            # A cell that rechecks caches absent values too: one that it does not know was never read.
            return self._format.empty(key) if stamp == 0 and not self._recheck else None
        if known.stamp != stamp or (known.expires is not None and known.expires <= self._clock()):
            return None
        if self._recheck:
            known.recheck_at = now + self._recheck
        self._values.move_to_end(key)
        return known.value

    def is_cached(self, key: str) -> bool:
        """Return whether a last known value is in memory; the store may hold a newer one."""
        return key in self._values

    async def load(self, key: str) -> T:
        """Return the value; while the store is down the last known one, empty if none is known."""
        found = await self.find(key)
        return found if found is not None else self._format.empty(key)

    async def find(self, key: str) -> T | None:
        """Return the value; while the store is down the last known one, None if none is known."""
        known = self.peek(key)
        if known is not None:
            return known
        try:
            return await self.read(key)
        except StoreError as exc:
            self._format.log.debug("%s: %s", self._format.outage, exc)
            last = self._values.get(key)
            return last.value if last is not None else None

    async def read(self, key: str) -> T:
        """Read the value from the store; StoreError while it is down."""
        # Taken first, so that it is never newer than the value.
        stamp = self._store.stamp_of(self._space, key)
        self._damaged.discard(key)
        corrupt: bytes | None = None
        with suppress(DamagedValue):
            stored = await self._store.get_intact(self._space, key)
            stamp = self._stamp_with(key, stored, stamp)
            if stored is None:
                value = self._format.empty(key)
                self._remember(key, value, stamp, absent=True)
                return value
            corrupt = stored.value
            with suppress(CorruptValue):
                value = decode(self._format, key, stored.value)
                # A stamp of 0 is older than the value; later it would mean that the value was deleted.
                self._remember(key, value, stamp or None, size=len(stored.value), expires=stored.expires)
                return value
        return await self._replace_damaged(key, stamp, corrupt)

    def _stamp_with(self, key: str, stored: Stored | None, before: int) -> int:
        """Return the stamp that came with the value: a store that did not know the key knows it now."""
        after = self._store.stamp_of(self._space, key)
        return after if after == (0 if stored is None else stored.version) else before

    def is_damaged(self, key: str) -> bool:
        """Return whether the last read found a value that cannot be used and left it where it is."""
        return key in self._damaged

    async def _replace_damaged(self, key: str, stamp: int, corrupt: bytes | None) -> T:
        """Return the value in place of a damaged one; `corrupt` is a value of another kind."""
        format = self._format
        empty = format.empty(key)
        known = self._values.get(key)
        if known is not None and known.value != empty:
            return await self._write_back(key, known.value, corrupt)
        if not format.guarded:
            return await self.edit(key, _keep)
        format.log.error("%s/%.80r is damaged and not used: it is not %s", self._space, key, format.noun)
        self._damaged.add(key)
        self._values[key] = CachedValue(empty, stamp, None)
        return empty

    async def _write_back(self, key: str, value: T, corrupt: bytes | None) -> T:
        """Write the last known value in place of a damaged one, unless another process was first."""

        encoded = self._format.encode(key, value)

        def write_back(raw: bytes | None) -> bytes:
            if raw is not None and raw != corrupt:
                raise Unchanged
            return encoded

        if corrupt is not None:
            await self._set_aside(key, corrupt)
        with suppress(Unchanged):
            await self._store.update(self._space, key, write_back, ttl=self._ttl)
            self._remember(key, value, None, size=len(encoded))
            self._format.log.error(
                "%s/%.80r was damaged: the last known value stays and was written back", self._space, key
            )
            return value
        return await self.read(key)

    async def edit(self, key: str, change: Callable[[T], tuple[T, R]]) -> R:
        """Replace the value in one atomic step and return the result of `change`.

        `change` takes the value and returns the new one and a result. It must be pure: it may run in another
        thread and more than once. On a StoreError, and when it raises itself, nothing has changed. The cache
        is not asked first: a store on another machine may be ahead of its stamp.
        """
        corrupt: bytes | None = None
        known = self._values.get(key)
        if (
            self._format.guarded
            and known is not None
            and known.stamp != self._store.stamp_of(self._space, key)
        ):
            # A damaged value is written back first: the edit must not begin with nothing.
            await self.load(key)
        while True:
            edit = CellEdit(self._format, key, change, corrupt=corrupt)
            try:
                stored = await self._store.update(self._space, key, edit.apply, ttl=self._ttl)
            except Unchanged:
                if key not in self._values:
                    # The next reader reads it again, and without the store this is the last known value.
                    self._remember(key, edit.value, None, size=edit.size, absent=edit.size == 0)
                return edit.result
            except CorruptValue as exc:
                corrupt = exc.raw
            else:
                self._remember(key, edit.value, None, size=edit.size, absent=stored is None)
                return edit.result
            await self._set_aside(key, corrupt)

    async def _set_aside(self, key: str, raw: bytes) -> None:
        """Copy the value to a key that names its content, so that no earlier copy is overwritten."""
        space = f"{self._space}.corrupt"
        await self._store.put(space, f"{key}#{blake2b(raw, digest_size=8).hexdigest()}", raw)
        self._format.log.warning(
            "%s/%.80r is not %s; set aside in %s", self._space, key, self._format.noun, space
        )

    def _remember(
        self,
        key: str,
        value: T,
        stamp: int | None,
        *,
        size: int = 0,
        expires: float | None = None,
        absent: bool = False,
    ) -> None:
        old = self._values.pop(key, None)
        if old is not None:
            self._bytes -= old.size
        if absent and not self._recheck:
            return
        self._values[key] = CachedValue(value, stamp, expires, size)
        self._bytes += size
        while len(self._values) > self._cached or self._bytes > self._most_bytes:
            _, oldest = self._values.popitem(last=False)
            self._bytes -= oldest.size


def _keep(value: T) -> tuple[T, T]:
    return value, value
