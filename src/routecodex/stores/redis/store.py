"""A store in Redis or Valkey, shared by any number of processes on any number of machines.

Every change is one script. It carries an id, by which a write that is sent again is recognised, and a
deadline in the server's time, after which a server that was frozen does not carry it out any more. So a write
happens once or not at all: one whose caller was told that it failed is undone when the server is back.

`stamp` and `stamp_of` are memory: no request waits for Redis to learn that nothing has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, TypeVar

from msgspec import Struct

from routecodex.stores.redis import listing
from routecodex.stores.redis.change_watch import ChangeWatch
from routecodex.stores.redis.failures import CallNotSent, StoreGone, WritesRefused
from routecodex.stores.redis.groups import RedisGroups
from routecodex.stores.redis.inspection import described, server_facts
from routecodex.stores.redis.kept_values import KeptValues, KeyLocks
from routecodex.stores.redis.key_names import KeyNames, Stripe
from routecodex.stores.redis.link import RedisLink
from routecodex.stores.redis.options import RedisOptions
from routecodex.stores.redis.process_rows import RedisProcessRows
from routecodex.stores.redis.scripts import READ, READ_MANY, SET_ASIDE, UNDO, WRITE
from routecodex.stores.redis.stamp_table import StampTable
from routecodex.stores.redis.undo_list import FormerValue, LostWrite, UndoList
from routecodex.stores.store import (
    Availability,
    CallRefused,
    Change,
    Conflict,
    DamagedValue,
    OnAvailability,
    Place,
    Stored,
    StoreError,
    check_key,
    check_space,
    check_value,
)
from routecodex.stores.uptime import SystemUptime

MOST_TRIES = 64
"""Times that a change is tried while others write the same key."""
_LONGEST_PAUSE = 0.05
_KEPT_BYTES = 8 * 1024 * 1024
_READ_AT_ONCE = 200
_SETTLE_SECONDS = 0.02
_WAITED = frozenset({"sessions", "clock", "budgets"})
"""Spaces of counts and reservations, whose writes `wait_replicas` is for."""

T = TypeVar("T")

log = logging.getLogger("routecodex.stores")


class KeyWrite(Struct, frozen=True):
    """A write to send; without a value it deletes. `expected` is empty for any version.

    The server keeps what is replaced by a write for any version, or by one with `keeps_former`.
    """

    stripe: Stripe
    key: str
    value: bytes | None
    ttl: float | None
    expected: str
    keeps_former: bool = False

    @property
    def mode(self) -> str:
        """The number of the mode that the script knows."""
        if self.value is None:
            return "1"
        return "2" if self.keeps_former else "0"


class WriteDone(Struct, frozen=True):
    """A write that was carried out: its version, and whether there was a value before."""

    version: int
    existed: bool


class WriteRejected(Struct, frozen=True):
    """A write that was not carried out: the key has another value than expected."""

    stored: Stored | None


class RedisStore:
    """Values in Redis; StoreError of a write means that it was not made, or will be undone."""

    kind = "redis"
    settle_seconds = _SETTLE_SECONDS
    reads_by_updates = True
    bounds_calls = True

    def __init__(
        self,
        options: RedisOptions,
        *,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._writer = secrets.token_hex(4)
        self._names = KeyNames(options.prefix)
        self._table = StampTable()
        self._link = RedisLink(options, self._names, on_return=self._on_return)
        self._watch = ChangeWatch(self._link, self._table, self._names, on_lost_data=self._accept_data)
        self._undo = UndoList()
        self.groups = RedisGroups(self._link, self._names, jitter=jitter)
        self.processes = RedisProcessRows(self._link, self._names, writer=self._writer)
        self._ids = count(1)
        self._jitter = jitter
        self._clock = clock
        self._kept = KeptValues(_KEPT_BYTES)
        self._locks = KeyLocks()
        self._background: set[asyncio.Task[Any]] = set()
        # Called for every request: not even one call more.
        self.stamp = self._table.stamp
        self.stamp_of = self._table.stamp_of
        self._link.circuit.listeners.append(self._on_status)

    @property
    def missed(self) -> int:
        """Number of times that a change was not heard of, and found by a check."""
        return self._table.missed

    @property
    def shown(self) -> str:
        """The address, without user and password."""
        return self._link.options.address.shown

    def uptime(self) -> SystemUptime:
        return self._link.uptime()

    def was_back_within(self, seconds: float) -> bool:
        return self._link.was_back_within(seconds)

    def judge(self, listener: OnAvailability) -> bool:
        self._link.circuit.listeners.append(listener)
        return True

    async def get(self, space: str, key: str) -> Stored | None:
        try:
            return await self.get_intact(space, key)
        except DamagedValue:
            stripe = self._stripe(space, key)
            keys = (*stripe.lists, stripe.value(key), stripe.aside(key))
            if not await self._link.run(SET_ASIDE, keys, *self._about(stripe, key), writes=True):
                # Another process was first.
                return await self.get_intact(space, key)
            log.error("%s/%.80r in Redis is damaged; set aside as %.200r", space, key, stripe.aside(key))
            return None

    async def get_intact(self, space: str, key: str) -> Stored | None:
        stripe = self._stripe(space, key)
        era = await self._era()
        row = await self._link.run(READ, (stripe.generation, stripe.value(key)), writes=False)
        stored = self._stored(row, where=f"{space}/{key[:80]!r}")
        self._learn(stripe, key, stored, int(row[3]), era)
        return stored

    async def put(
        self, space: str, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int:
        stripe = self._stripe(space, key)
        check_value(value)
        source: FormerValue = "replaced" if expected is None else "absent"
        former = None
        if expected:
            kept = self._kept.get(stripe.value(key))
            former = kept if kept is not None and kept.version == expected else None
            source = "value" if former is not None else "replaced"
        wanted = "" if expected is None else str(expected)
        write = KeyWrite(stripe, key, value, ttl, wanted, keeps_former=source == "replaced")
        result = await self._write(write, source=source, former=former)
        if isinstance(result, WriteRejected):
            stored = 0 if result.stored is None else result.stored.version
            raise Conflict(
                f"{space}/{key[:80]!r} changed: version {expected} was expected, {stored} is stored; "
                "read it again"
            )
        return result.version

    async def delete(self, space: str, key: str) -> bool:
        stripe = self._stripe(space, key)
        result = await self._write(KeyWrite(stripe, key, None, None, ""), source="replaced")
        assert isinstance(result, WriteDone)
        return result.existed

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        stripe = self._stripe(space, key)
        name = stripe.value(key)
        await self._locks.hold(name)
        try:
            return await self._update(stripe, key, change, ttl)
        finally:
            self._locks.release(name)

    async def _update(self, stripe: Stripe, key: str, change: Change, ttl: float | None) -> bytes | None:
        """Apply the change to the kept value, and to the stored one as often as that is another.

        What is not known is taken for absent: a write that is rejected returns the value, as a read would.
        """
        old, is_read = self._probable(stripe, key), False
        for attempt in range(MOST_TRIES):
            try:
                value = change(None if old is None else old.value)
            except BaseException:
                if is_read:
                    raise
                # What is kept may be out of date, and the change has rejected that.
                old, is_read = await self.get_intact(stripe.space, key), True
                continue
            if value is not None:
                check_value(value)
            write = KeyWrite(stripe, key, value, ttl, str(0 if old is None else old.version))
            result = await self._write(write, source="absent" if old is None else "value", former=old)
            if isinstance(result, WriteDone):
                return value
            old, is_read = result.stored, True
            if attempt % 2:
                # Only then: what was returned before a pause is out of date after it.
                await asyncio.sleep(self._jitter() * min(0.001 * 2.0**attempt, _LONGEST_PAUSE))
        raise StoreError(f"{stripe.space}/{key[:80]!r} was changed by others {MOST_TRIES} times; try again")

    def _probable(self, stripe: Stripe, key: str) -> Stored | None:
        """Return the value that is probably stored."""
        return self._kept.get(stripe.value(key)) if self._table.stamp_of(stripe.space, key) else None

    async def read_all(self, space: str, *, most: int) -> list[tuple[str, Stored]]:
        """Return all values in two round trips for every 200 of them."""
        places = await self.recent(space, limit=most)
        found: list[tuple[str, Stored]] = []
        by_stripe: dict[Stripe, list[str]] = {}
        for place in reversed(places):
            by_stripe.setdefault(self._stripe(space, place.key), []).append(place.key)
        for stripe, keys in by_stripe.items():
            for start in range(0, len(keys), _READ_AT_ONCE):
                found += await self._read_many(stripe, keys[start : start + _READ_AT_ONCE])
        order = {place.key: at for at, place in enumerate(reversed(places))}
        return sorted(found, key=lambda row: order[row[0]])

    async def _read_many(self, stripe: Stripe, keys: list[str]) -> list[tuple[str, Stored]]:
        era = await self._era()
        names = (stripe.generation, *map(stripe.value, keys))
        generation, *rows = await self._link.run(READ_MANY, names, writes=False)
        found: list[tuple[str, Stored]] = []
        for key, row in zip(keys, rows, strict=True):
            stored = self._stored(row, where=f"{stripe.space}/{key[:80]!r}")
            self._learn(stripe, key, stored, int(generation), era)
            found += [(key, stored)] if stored is not None else []
        return found

    async def keys(self, space: str) -> list[str]:
        places = await self.recent(space, limit=listing.ALL)
        return [place.key for place in reversed(places)]

    async def recent(self, space: str, *, limit: int, before: Place | None = None) -> list[Place]:
        check_space(space)
        await self._era()
        return await listing.recent(
            self._link, self._table, self._names.stripes(space), limit=limit, before=before
        )

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        check_space(space)
        era = await self._era()
        removed, changed = await listing.trim(
            self._link, self._names, space, entries=entries, size=size, writer=self._writer
        )
        for one in changed:
            number = one.stripe.number
            self._table.wrote(space, number, one.generation, key=one.key, stamp=0, era=era)
        return removed

    async def spaces(self) -> list[str]:
        """Return the spaces that have had values, by the names of their generations."""
        names = await self._link.scan(self._names.any_generation)
        return sorted({self._names.space_of(name) for name in names} - {""})

    async def describe(self) -> dict[str, Any]:
        found = await self._link.inspect()
        return described({address: server_facts(*row) for address, row in found.items()})

    async def check(self, space: str) -> None:
        """Write a key beside the values of the space, which ends by itself."""
        check_space(space)
        name = self._names.stripes(space)[0].values.removesuffix("v:") + "check"
        await self._link.command("SET", name, self._writer, "PX", 1000, writes=True)

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        await self._watch.close()
        await self._link.close()

    def _stripe(self, space: str, key: str) -> Stripe:
        check_space(space)
        check_key(key)
        return self._names.stripe(space, key)

    async def _era(self) -> int:
        """Return the era in which a call is sent; the first call begins one."""
        await self._link.start()
        return self._table.era

    def _about(self, stripe: Stripe, key: str) -> tuple[str, str, str, str]:
        """Return the arguments with which every script that writes begins."""
        return self._names.channel, stripe.place, self._writer, key

    def _learn(self, stripe: Stripe, key: str, stored: Stored | None, generation: int, era: int) -> None:
        version = 0 if stored is None else stored.version
        self._table.learn(stripe.space, stripe.number, generation, key=key, stamp=version, era=era)
        self._kept.add(stripe.value(key), stored)

    async def _write(
        self, write: KeyWrite, *, source: FormerValue, former: Stored | None = None
    ) -> WriteDone | WriteRejected:
        """Send a write; it runs to its end even if cancelled, and is undone if its fate is not known."""
        id = f"{self._writer}.{next(self._ids)}"
        if not write.expected:
            task = self._start(self._write_or_undo(write, id, source, former))
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                task.add_done_callback(_note_error)
                raise
        try:
            return await self._write_or_undo(write, id, source, former)
        except asyncio.CancelledError:
            # It may have been sent: it is sent again with its id, unless somebody has changed the key.
            self._start(self._finish(write, id, source, former))
            raise

    async def _finish(self, write: KeyWrite, id: str, source: FormerValue, former: Stored | None) -> None:
        with contextlib.suppress(StoreError):
            await self._write_or_undo(write, id, source, former, may_be_sent=True)

    async def _write_or_undo(
        self,
        write: KeyWrite,
        id: str,
        source: FormerValue,
        former: Stored | None,
        *,
        may_be_sent: bool = False,
    ) -> WriteDone | WriteRejected:
        try:
            return await self._send_write(write, id)
        except StoreGone as exc:
            if isinstance(exc, CallNotSent) and not may_be_sent:
                raise
            # What was sent has this deadline at most.
            until = f"{self._link.deadline_us():.0f}"
            self._undo.add(
                LostWrite(write.stripe, write.key, id, until, source, *self._former_fields(former))
            )
            if not self._link.circuit.is_open:
                self._start(self._undo_now())
            raise

    async def _send_write(self, write: KeyWrite, id: str) -> WriteDone | WriteRejected:
        stripe, key = write.stripe, write.key
        names = (*stripe.lists, stripe.value(key))
        for _ in range(2):
            era = await self._era()
            reply = await self._link.run(
                WRITE,
                names,
                *self._about(stripe, key),
                id,
                f"{self._link.deadline_us():.0f}",
                write.expected,
                "" if write.ttl is None else max(1, round(write.ttl * 1000)),
                write.mode,
                write.value or b"",
                writes=True,
                replicas=self._link.options.wait_replicas if stripe.space in _WAITED else 0,
            )
            if reply[0] != b"late":
                return self._outcome(write, reply, era)
            # The server's clock was set, or is not yet known well.
            self._link.correct_clock(float(reply[1]))
        raise StoreGone(f"{self.shown}: its clock runs away")

    def _outcome(self, write: KeyWrite, reply: list[Any], era: int) -> WriteDone | WriteRejected:
        stripe, key = write.stripe, write.key
        if reply[0] == b"differs":
            stored = self._stored([*reply[1:4], None], where=f"{stripe.space}/{key[:80]!r}")
            self._learn(stripe, key, stored, int(reply[4]), era)
            return WriteRejected(stored)
        version = 0 if write.value is None else int(reply[1])
        if reply[0] == b"done":
            return WriteDone(version, existed=True)
        existed = reply[3] == b"1"
        if write.value is not None or existed:
            self._table.wrote(stripe.space, stripe.number, int(reply[2]), key=key, stamp=version, era=era)
        self._kept.add(stripe.value(key), self._as_stored(write, version))
        return WriteDone(version, existed=existed)

    def _as_stored(self, write: KeyWrite, version: int) -> Stored | None:
        if write.value is None:
            return None
        expires = None if write.ttl is None else self._clock() + write.ttl
        return Stored(write.value, version, expires)

    def _on_status(self, status: Availability, _reason: StoreError | None) -> None:
        # While Redis is down the last known stamps stay: nobody waits for a read that fails.
        self._table.is_frozen = status == "down"

    async def _on_return(self) -> None:
        """Prepare for calls after an outage: undo, forget, hear of changes again."""
        if self._link.lost_data:
            await self._accept_data()
        self._kept.clear()
        self.groups.forget()
        refusal: WritesRefused | None = None
        try:
            await self._undo_lost(self._link.run_uncircuited)
        except WritesRefused as exc:
            refusal = exc
        await self._watch.restart()
        if refusal is not None:
            raise refusal

    async def _accept_data(self) -> None:
        """Go on with what the server has now: the store is the truth, whatever this process knew."""
        await self._link.accept_data()
        self._kept.clear()
        self._table.forget_all()
        log.error("the Redis store lost its data (%s): what was stored before is gone", self.shown)

    async def _undo_now(self) -> None:
        """Undo what was lost without an outage; a failure is one, after which it is undone."""
        try:
            await self._undo_lost(partial(self._link.run, writes=True))
        except WritesRefused as exc:
            self._link.circuit.refuse_writes(exc)
        except StoreError as exc:
            self._link.circuit.fail(exc)

    async def _undo_lost(self, run: Callable[..., Awaitable[Any]]) -> None:
        """Undo all lost writes; StoreGone or WritesRefused if that is not possible now."""
        while (write := self._undo.latest()) is not None:
            names = (*write.stripe.lists, write.stripe.value(write.key))
            about = self._about(write.stripe, write.key)
            try:
                done = await run(
                    UNDO,
                    names,
                    *(*about, write.id, write.source, write.text, write.expires_ms, write.deadline_us),
                )
            except CallRefused as exc:
                # Somebody has put another kind of value in its place: there is nothing to undo.
                log.debug("a write of %s cannot be undone: %s", write.stripe.space, exc)
                done = False
            self._undo.drop(write)
            if done:
                log.info("a write of %s/%.80r that had failed was undone", write.stripe.space, write.key)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _stored(self, row: list[Any], *, where: str) -> Stored | None:
        """Return the value of a row that a script returned; DamagedValue if it has no version."""
        value, version, expires = row[:3]
        if value is None:
            return None
        if version is None or not version.isdigit():
            raise DamagedValue(f"{where} has no version: it was not written by a gateway")
        return Stored(value, int(version), None if expires is None else int(expires) / 1000 + self._ahead())

    def _former_fields(self, former: Stored | None) -> tuple[bytes, str]:
        if former is None:
            return b"", ""
        expires = former.expires
        return former.value, "" if expires is None else f"{(expires - self._ahead()) * 1000:.0f}"

    def _ahead(self) -> float:
        """Return the seconds by which this machine's clock is ahead of the server's.

        What expires does so by the server's clock; who asks compares with the clock of the machine.
        """
        return self._clock() - self._link.now_us() / 1e6


def _note_error(task: asyncio.Task[WriteDone | WriteRejected]) -> None:
    """Take the error of a write whose caller has gone: asyncio would log it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("a write whose caller was cancelled has failed: %s", error)
