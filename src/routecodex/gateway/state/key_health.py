"""The health of all keys as this process knows it, shared with other processes through the store.

What happens is applied at once to the state in memory and kept as a change still to be saved. A background
task applies the changes to what is stored, in one step no other process can come between, so that failures
seen by several of them add up; what comes out is the new state here. What others have saved is read again
when the stamp of the space says so, with the changes not saved yet on top.

No request ever waits for a write or fails for the store: when it is down, routing goes on with what was known
last, and the changes are saved later. Only a probe asks the store first whether another process has sent one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from routecodex.canon.errors import UpstreamError
from routecodex.gateway.records import KeyHealthRow
from routecodex.gateway.state.probes import PAUSE, Probes
from routecodex.routing import cooldown
from routecodex.routing.cooldown import DEFAULT, Cooldown, CooldownOptions, HealthState
from routecodex.routing.registry import Selector, Target
from routecodex.stores.store import Store, StoreError

SPACE = "health"

MOST = 4096
"""Most ailments and most keys remembered; the oldest are forgotten first."""

_MOST_BYTES = 16 * 1024 * 1024
_MOST_UNSAVED = 64
_LIFE = 86_400.0
_LOOK_EVERY = 0.02
_RETRY_AFTER = 5.0
_READ_WAIT = 0.25

Change = Callable[[HealthState], HealthState]

Record = dict[str, Cooldown]
"""What is stored for a key: ailments by model; the empty name stands for the key itself."""

logger = logging.getLogger("routecodex.health")
_records = msgspec.json.Decoder(Record)


class KeyHealth:
    """Which targets can be used now; every call but those to the store is plain memory.

    Providers that are `scripted` fail only when they are told to, and rest no longer than a moment.
    """

    def __init__(
        self,
        store: Store,
        *,
        options: CooldownOptions = DEFAULT,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.scripted: frozenset[str] = frozenset()
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._state: HealthState = {}
        self._unsaved: dict[str, deque[Change]] = {}
        self._probes = Probes(store, clock=clock, saved=self._written, stumble=self._stumble)
        self._claims = self._probes.claims
        self._odd: set[tuple[str, int]] = set()
        self._stamp: int | None = None
        self._look_at = -math.inf
        self._retry_at = -math.inf
        self._is_down = False
        self._in_store = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None

    @property
    def quiet(self) -> bool:
        """Whether nothing is wrong with any target."""
        return not (self._state and self.options.enabled)

    def until(self, target: Target, now: float) -> float:
        """When the target can be used; 0.0 when it can be now."""
        if self.quiet:
            return 0.0
        end = cooldown.cooling_until(self._state, target, now, options=self.options)
        return end or max(self._probed(target, now).values(), default=0.0)

    def why(self, target: Target, now: float) -> str:
        """For people: what keeps the target from use; empty when nothing does."""
        told = cooldown.cooldown_reason(self._state, target, now, options=self.options)
        probed = self._probed(target, now)
        if told or not probed:
            return told
        place = next(iter(probed))
        return f"{place} is being probed ({self._state[place].reason}: {self._state[place].error})"

    def is_limit(self, target: Target, now: float) -> bool:
        """Whether only limits keep the target from use."""
        reasons = cooldown.causes(self._state, target, now, options=self.options)
        return bool(reasons) and reasons <= {"limited", "quota"}

    def claim(self, target: Target, now: float) -> bool:
        """Whether an attempt may go ahead like any other; where it may not, it may still be a probe."""
        if not self._state or not self.options.enabled:
            return True
        return not cooldown.cooling_until(
            self._state, target, now, options=self.options
        ) and not self._needed(target, now)

    async def probe(self, target: Target, now: float, *, by: object = None) -> bool:
        """Whether an attempt may go ahead as the one probe that may pass, of all processes.

        `by` is whoever makes the attempt: nobody else can give the probe up again.
        """
        if self.until(target, now):
            return False
        places = self._needed(target, now)
        if self._is_out_of_reach():
            self._probes.take(places, now, by=by)
            return True
        try:
            won = await self._probes.lease(places, now, by=by)
            return won and await self._is_due(target, now, places=places, by=by)
        except BaseException:
            self.release(target, by=by)
            raise

    def release(self, target: Target, *, by: object = None) -> None:
        """An attempt ended without an outcome: if it was the probe, the next one may be it."""
        if self._claims:
            self._probes.release(cooldown.health_keys(target), by=by)

    def failed(self, target: Target, error: UpstreamError, *, by: object = None) -> None:
        """An attempt failed."""
        self.release(target, by=by)
        impact = cooldown.failure_impact(target, error)
        if impact is None or not self.options.enabled:
            return
        now = self._clock()
        was_out = cooldown.cooling_until(self._state, target, now, options=self.options) > 0
        options = cooldown.short_cooldowns(self.options) if target.provider in self.scripted else self.options
        self._change(
            _name(impact.selector), partial(cooldown.record_failure, impact=impact, now=now, options=options)
        )
        if not was_out and (told := self.why(target, now)):
            logger.warning("%s", told)

    def succeeded(self, target: Target, *, began: float | None = None, by: object = None) -> None:
        """An attempt was answered; `began`, where given, is when it was sent."""
        if not self._state and not self._claims:
            return
        self.release(target, by=by)
        now = self._clock()
        state = cooldown.after_success(self._state, target, now, began=began)
        if state is self._state:
            return
        well = self._state.keys() - state.keys()
        # What another process noted since is not for this success to lift.
        since = max(now if began is None else began, *(self._state[place].noted for place in well))
        saved = partial(cooldown.after_success, target=target, now=math.inf, began=since)
        probed = cooldown.probes(self._state, target, now, options=self.options)
        self._change(f"{target.provider}.{target.key}", saved, state)
        for place in well:
            self._probes.drop(place)
        for place in probed:
            logger.info("%s works again", place)

    def stale(self) -> bool:
        """Whether another process may have changed something; looks at the store every 20 ms at most."""
        now = self._monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY
        if now < self._retry_at or self._in_store.locked():
            return False
        if self._unsaved:
            self._start_writing()
            return False
        return self._store.stamp(SPACE) != self._stamp

    async def refresh(self) -> None:
        """Takes in what others have saved; gives up waiting for a slow store, never raises."""
        await asyncio.wait({self._start_reading()}, timeout=_READ_WAIT)

    async def load(self) -> None:
        """Restores what was saved before the start."""
        try:
            await self._store.trim(SPACE, entries=MOST, size=_MOST_BYTES)
        except StoreError as exc:
            self._stumble(exc)
            return
        await self._start_reading()

    async def flush(self) -> None:
        """Saves what is not saved yet; what a store that is down does not take stays unsaved."""
        self._retry_at = -math.inf
        if self._unsaved:
            self._start_writing()
        under_way = {task for task in (self._reader, self._writer) if task is not None}
        if under_way:
            await asyncio.wait(under_way)
        await self._probes.settle()

    async def reset(self, selector: Selector | None = None) -> int:
        """An operator's word that what is named can be used: saved at once; how many ailments are gone."""
        return await self._heal(partial(cooldown.reset, selector=selector))

    async def forgive_refused(self) -> int:
        """The keys may be new ones: those that were refused can be used again; how many there were."""
        return await self._heal(cooldown.without_refused_keys)

    def report(self, now: float) -> list[KeyHealthRow]:
        """Every key that cannot be used like any other, by name."""
        rows = (_row(place, ailment, now, self.options) for place, ailment in self._state.items())
        return sorted((row for row in rows if row is not None), key=lambda row: row.name)

    def _needed(self, target: Target, now: float) -> tuple[Selector, ...]:
        """Where an attempt would be a probe."""
        return cooldown.probes(self._state, target, now, options=self.options)

    def _probed(self, target: Target, now: float) -> dict[Selector, float]:
        """Where a probe is under way that the target would have to wait for, and when to look again."""
        if not self._claims:
            return {}
        ends = ((place, self._probes.end(place, now)) for place in self._needed(target, now))
        return {place: min(end, now + PAUSE) for place, end in ends if end}

    def _is_out_of_reach(self) -> bool:
        """Whether the store was down a moment ago."""
        return self._monotonic() < self._retry_at

    async def _is_due(self, target: Target, now: float, *, places: Iterable[Selector], by: object) -> bool:
        """Whether there is still a reason to probe, now that nobody else can: others may have done it."""
        if not self._is_out_of_reach() and self._store.stamp(SPACE) != self._stamp:
            await self.refresh()
        needed = set(self._needed(target, now))
        is_out = cooldown.cooling_until(self._state, target, now, options=self.options) > 0
        may_pass = not is_out and needed <= set(places)
        if not may_pass or not needed:
            self.release(target, by=by)
        return may_pass

    async def _written(self) -> None:
        """Waits for what is being saved."""
        if self._writer is not None:
            await asyncio.wait({self._writer})

    def _change(self, name: str, change: Change, state: HealthState | None = None) -> None:
        """Applies a change here, as `state` where it differs, and has it saved."""
        self._state = _bounded(change(self._state) if state is None else state)
        self._unsaved.setdefault(name, deque(maxlen=_MOST_UNSAVED)).append(change)
        if len(self._unsaved) > MOST:
            del self._unsaved[next(iter(self._unsaved))]
        self._start_writing()

    async def _heal(self, cure: Change) -> int:
        await self._start_reading()
        cured = cure(self._state)
        gone = self._state.keys() - cured.keys()
        for place in gone:
            self._probes.drop(place)
        for name in {_name(place) for place in gone}:
            self._change(name, cure, cured)
        await self.flush()
        return len(gone)

    def _start_reading(self) -> asyncio.Task[None]:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        return self._reader

    def _start_writing(self) -> None:
        if (self._writer is None or self._writer.done()) and self._monotonic() >= self._retry_at:
            self._writer = asyncio.create_task(self._write())

    async def _read(self) -> None:
        await self._in_store.acquire()
        try:
            stamp = self._store.stamp(SPACE)
            state: dict[Selector, Cooldown] = {}
            try:
                for name in (await self._store.keys(SPACE))[-MOST:]:
                    stored = await self._store.get(SPACE, name)
                    if stored is not None:
                        state.update(self._opened(name, stored.value, stored.version))
            except StoreError as exc:
                self._stumble(exc)
                return
            self._recover()
            self._stamp = stamp
            self._state = _bounded(
                _applied(state, (c for unsaved in self._unsaved.values() for c in unsaved))
            )
        finally:
            self._in_store.release()

    async def _write(self) -> None:
        await self._in_store.acquire()
        try:
            while self._unsaved:
                name = next(iter(self._unsaved))
                changes = self._unsaved.pop(name)
                if not await self._save(name, changes):
                    changes.extend(self._unsaved.pop(name, ()))
                    self._unsaved[name] = changes
                    return
            self._recover()
        finally:
            self._in_store.release()

    async def _save(self, name: str, changes: deque[Change]) -> bool:
        refused = self._state.get(_key(name))
        # A key that was refused stays out however long nobody asks for it.
        life = None if refused is not None and refused.reason == "key refused" else _LIFE
        try:
            value = await self._store.update(SPACE, name, partial(_saved, name, tuple(changes)), ttl=life)
        except StoreError as exc:
            self._stumble(exc)
            return False
        others = {place: ailment for place, ailment in self._state.items() if _name(place) != name}
        state = {**others, **_decoded(name, value)}
        self._state = _bounded(_applied(state, self._unsaved.get(name, ())))
        return True

    def _opened(self, name: str, value: bytes, version: int) -> HealthState:
        """What is stored for a key; a value that is not ours is told of once and passed over."""
        try:
            return _decoded(name, value)
        except msgspec.MsgspecError as exc:
            if (name, version) not in self._odd:
                self._odd = {(name, version)} if len(self._odd) >= MOST else self._odd | {(name, version)}
                logger.warning("the health stored for %r is ignored: %s", name[:80], exc)
            return {}

    def _stumble(self, exc: StoreError) -> None:
        self._retry_at = self._monotonic() + _RETRY_AFTER
        if not self._is_down:
            self._is_down = True
            logger.error("health is neither saved nor shared for now, routing goes on without: %s", exc)

    def _recover(self) -> None:
        if self._is_down:
            self._is_down = False
            logger.warning("health is saved and shared again")


def _name(place: Selector) -> str:
    return f"{place.provider}.{place.key}"


def _key(name: str) -> Selector:
    provider, _, key = name.partition(".")
    return Selector(provider, key)


def _decoded(name: str, value: bytes | None) -> HealthState:
    record = _records.decode(value) if value is not None else {}
    key = _key(name)
    if not key.provider or not key.key:
        raise msgspec.ValidationError("it has not the name of a key")
    return {Selector(key.provider, key.key, model or None): ailment for model, ailment in record.items()}


def _saved(name: str, changes: Iterable[Change], value: bytes | None) -> bytes | None:
    """What to store for a key after the changes; nothing when it is well."""
    try:
        state = _decoded(name, value)
    except msgspec.MsgspecError:
        state = {}
    record = {place.model or "": ailment for place, ailment in _applied(state, changes).items()}
    return msgspec.json.encode(record) if record else None


def _applied(state: HealthState, changes: Iterable[Change]) -> HealthState:
    for change in changes:
        state = change(state)
    return state


def _bounded(state: HealthState) -> HealthState:
    if len(state) <= MOST:
        return state
    latest = sorted(state, key=lambda place: state[place].noted)[-MOST:]
    return {place: state[place] for place in latest}


def _row(place: Selector, ailment: Cooldown, now: float, options: CooldownOptions) -> KeyHealthRow | None:
    state = cooldown.condition(ailment, now, options=options)
    if state is None:
        return None
    end = cooldown.cooldown_end(ailment, now, options=options)
    return KeyHealthRow(
        name=str(place),
        state=state,
        seconds=max(0.0, end - now),
        until=end,
        reason=ailment.reason,
        strikes=ailment.strikes,
        error=ailment.error,
        status=ailment.status,
    )
