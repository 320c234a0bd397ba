"""Health of all keys, shared with other processes through the store.

A failure or success changes the state in memory at once. A background task applies the same change to the
stored value in one atomic update, so that failures seen by several processes add up, and the result becomes
the state here. When the stamp of the space changes, the values of other processes are read, and unsaved
changes are applied on top.

A request that finds the stored health changed waits for the read that is under way, however many requests
came before it: otherwise a burst would go by the old state. It waits briefly, and none waits again for a read
that did not end in time.

No request waits for a write or fails because of the store: during an outage routing continues with the last
known state, and the changes are saved later. Only a probe waits for the store: another process may hold it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
from msgspec.structs import replace

from routecodex.canon.errors import (
    Overloaded,
    UpstreamError,
    UpstreamOutOfCredit,
    UpstreamRefusedKey,
    UpstreamUnknownModel,
)
from routecodex.gateway.records import KeyHealthRow
from routecodex.gateway.state.probes import PAUSE, Probes
from routecodex.routing import cooldown
from routecodex.routing.cooldown import DEFAULT, Cooldown, CooldownCause, CooldownOptions, HealthState
from routecodex.routing.registry import Selector, Target
from routecodex.stores.store import Store, StoreError
from routecodex.stores.uptime import STORE_CLOCK

SPACE = "health"

MOST = 4096
"""Most cooldowns and most keys stored; the oldest are dropped first."""

_MOST_BYTES = 16 * 1024 * 1024
_MOST_UNSAVED = 64
_TTL = 86_400.0
_CHECK_INTERVAL = 0.02
_READ_WAIT = 0.25

Change = Callable[[HealthState], HealthState]

StoredCooldowns = dict[str, Cooldown]
"""The stored value of a key: cooldowns by model; the empty name stands for the key itself."""

logger = logging.getLogger("routecodex.health")
_decoder = msgspec.json.Decoder(StoredCooldowns)


class KeyHealth:
    """Health of all keys, shared through the store; methods that are not async use memory only.

    `scripted` providers fail only on request, so their cooldowns are short.
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
        self._probes = Probes(store, clock=clock, wait_saved=self._wait_saved)
        self._claims = self._probes.claims
        self._ignored: set[tuple[str, int]] = set()
        self._stamp: int | None = None
        self._is_stale = False
        self._is_late = False
        """The read under way did not end in time: no request waits for it."""
        self._check_at = -math.inf
        self._store_ahead = 0.0
        """Whole seconds by which the clock of the store is ahead of ours."""
        self._store_lock = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None

    @property
    def quiet(self) -> bool:
        """Whether all targets can be used."""
        return not (self._state and self.options.enabled)

    def until(self, target: Target, now: float) -> float:
        """Return the time from which the target can be used; 0.0 for now."""
        if self.quiet:
            return 0.0
        end = cooldown.cooling_until(self._state, target, now, options=self.options)
        return end or max(self._running_probes(target, now).values(), default=0.0)

    def why(self, target: Target, now: float) -> str:
        """Return the reason why the target cannot be used, for people; empty if it can."""
        reason = cooldown.cooldown_reason(self._state, target, now, options=self.options)
        probed = self._running_probes(target, now)
        if reason or not probed:
            return reason
        key = next(iter(probed))
        return f"{key} is being probed ({self._state[key].reason}: {self._state[key].error})"

    def is_limit(self, target: Target, now: float) -> bool:
        """Return whether every cooldown of the target is caused by a limit."""
        reasons = cooldown.causes(self._state, target, now, options=self.options)
        return bool(reasons) and reasons <= {"limited", "quota"}

    def unusable_key(self, target: Target, now: float) -> UpstreamError | None:
        """Return the remembered error of a target whose key is refused, without credit or without the model.

        The key of a scripted provider is never unusable for long.
        """
        if target.provider in self.scripted:
            return None
        entry = cooldown.unusable(self._state, target, now, options=self.options)
        if entry is None:
            return None
        return unusable_key_error(_ERRORS[entry.reason], target, entry.error, status=entry.status)

    def is_usable(self, target: Target, now: float) -> bool:
        """Return whether an attempt may be made without a probe; otherwise `probe` may allow one."""
        if not self._state or not self.options.enabled:
            return True
        return not cooldown.cooling_until(
            self._state, target, now, options=self.options
        ) and not self._needed_probes(target, now)

    async def probe(self, target: Target, now: float, *, by: object = None) -> bool:
        """Claim the only probe of the target across processes; return False if another one holds it.

        `by` makes the attempt, and only it can release the probe again.
        """
        if self.until(target, now):
            return False
        keys = self._needed_probes(target, now)
        try:
            leased = await self._probes.lease(keys, now, by=by)
            return leased and await self._is_still_due(target, now, keys=keys, by=by)
        except BaseException:
            self.release(target, by=by)
            raise

    def release(self, target: Target, *, by: object = None) -> None:
        """Release the probe of an attempt that ended without an outcome."""
        if self._claims:
            self._probes.release(cooldown.health_keys(target), by=by)

    def failed(self, target: Target, error: UpstreamError, *, by: object = None) -> None:
        """Record a failed attempt."""
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
        if not was_out and (reason := self.why(target, now)):
            logger.warning("%s", reason)

    def rest(self, target: Target, seconds: float, reason: str) -> None:
        """Let a key rest whose provider says that nothing is left of a limit, before its next 429."""
        if not self.options.enabled or target.provider in self.scripted:
            return
        selector = Selector(target.provider, target.key)
        impact = cooldown.FailureImpact(
            selector=selector, reason="limited", wait=seconds, error=reason, status=None
        )
        change = partial(cooldown.record_failure, impact=impact, now=self._clock(), options=self.options)
        self._change(_name(selector), change)

    def succeeded(self, target: Target, *, began: float | None = None, by: object = None) -> None:
        """Record a successful attempt; `began` is the time it was sent, now if None."""
        if not self._state and not self._claims:
            return
        self.release(target, by=by)
        now = self._clock()
        state = cooldown.after_success(self._state, target, now, began=began)
        if state is self._state:
            return
        cleared = self._state.keys() - state.keys()
        # This success does not clear failures that another process recorded later.
        since = max(now if began is None else began, *(self._state[key].noted for key in cleared))
        change = partial(cooldown.after_success, target=target, now=math.inf, began=since)
        probed = cooldown.probes(self._state, target, now, options=self.options)
        self._change(f"{target.provider}.{target.key}", change, state)
        for key in cleared:
            self._probes.drop(key)
        for key in probed:
            logger.info("%s works again", key)

    def stale(self) -> bool:
        """Return whether the stored health may have changed; checks the store every 20 ms at most.

        It stays True until the change was read: every request then waits in `refresh` for the same read.
        """
        now = self._monotonic()
        if now < self._check_at:
            return self._is_stale
        self._check_at = now + _CHECK_INTERVAL
        self.save_unsaved()
        self._is_stale = not self._is_late and self._store.stamp(SPACE) != self._stamp
        return self._is_stale

    async def refresh(self) -> None:
        """Read the health that others saved; never raises, and stops waiting for a slow store."""
        reader = self._start_reading()
        if self._is_late:
            return
        done, _ = await asyncio.wait({reader}, timeout=None if self._store.bounds_calls else _READ_WAIT)
        if not done and not self._is_late:
            self._is_stale, self._is_late = False, True

    async def read_latest(self) -> None:
        """Read what others have saved until now; never raises, and stops waiting for a slow store."""
        for _ in range(2):
            # The first read may have begun before now, and so have missed the latest change.
            if self._store.stamp(SPACE) != self._stamp:
                await self.refresh()

    async def load(self) -> None:
        """Load the health saved before the start."""
        with contextlib.suppress(StoreError):
            # A store that cannot be written can still be read.
            await self._store.trim(SPACE, entries=MOST, size=_MOST_BYTES)
        await self._start_reading()

    def save_unsaved(self) -> None:
        """Begin to save changes that could not be saved before."""
        if self._unsaved:
            self._start_writing()

    async def flush(self) -> None:
        """Save unsaved changes; during an outage of the store they stay unsaved."""
        self.save_unsaved()
        running = {task for task in (self._reader, self._writer) if task is not None}
        if running:
            await asyncio.wait(running)
        await self._probes.settle()

    async def reset(self, selector: Selector | None = None) -> int:
        """Remove the cooldowns of a selector, or all, for all processes; return the number removed.

        If that cannot be saved, an error says so and nothing is changed.
        """
        change = partial(cooldown.reset, selector=selector)
        try:
            await self._store.check(SPACE)
            # Changes saved after the reset would bring back what it removed.
            await self.flush()
            await self.read_latest()
            removed = self._state.keys() - change(self._state).keys()
            await self._save_keys({_name(key) for key in removed}, change)
        except StoreError as exc:
            raise Overloaded(
                f"health could not be reset, nothing was changed: {exc}", code="state_not_saved"
            ) from exc
        for key in removed:
            self._probes.drop(key)
        await self.flush()
        return len(removed)

    async def reset_refused_keys(self) -> None:
        """Remove the cooldowns of refused keys and unknown models, which may be new."""
        await self.read_latest()
        state = cooldown.without_refused_keys(self._state)
        removed = self._state.keys() - state.keys()
        for key in removed:
            self._probes.drop(key)
        for name in {_name(key) for key in removed}:
            self._change(name, cooldown.without_refused_keys, state)
        await self.flush()

    def report(self, now: float) -> list[KeyHealthRow]:
        """Return every key in cooldown or in need of a probe, sorted by name."""
        return [row for _, row in self.report_by_key(now)]

    def report_by_key(self, now: float) -> list[tuple[Selector, KeyHealthRow]]:
        """Return the rows of `report`, each with its key."""
        rows = ((key, _row(key, entry, now, self.options)) for key, entry in self._state.items())
        return sorted(((key, row) for key, row in rows if row is not None), key=lambda pair: pair[1].name)

    def _needed_probes(self, target: Target, now: float) -> tuple[Selector, ...]:
        """Return the keys for which an attempt would be a probe."""
        return cooldown.probes(self._state, target, now, options=self.options)

    def _running_probes(self, target: Target, now: float) -> dict[Selector, float]:
        """Return the keys whose running probe the target waits for, with the time to check again."""
        if not self._claims:
            return {}
        ends = ((key, self._probes.end(key, now)) for key in self._needed_probes(target, now))
        return {key: min(end, now + PAUSE) for key, end in ends if end}

    async def _is_still_due(
        self, target: Target, now: float, *, keys: Iterable[Selector], by: object
    ) -> bool:
        """Return whether the attempt may still be made: another process may have probed just before."""
        await self.read_latest()
        needed = set(self._needed_probes(target, now))
        is_out = cooldown.cooling_until(self._state, target, now, options=self.options) > 0
        may_pass = not is_out and needed <= set(keys)
        if not may_pass or not needed:
            self.release(target, by=by)
        return may_pass

    async def _wait_saved(self) -> None:
        """Wait for the write that is running."""
        if self._writer is not None:
            await asyncio.wait({self._writer})

    def _change(self, name: str, change: Change, state: HealthState | None = None) -> None:
        """Apply a change here and start saving it; `state` is the result here where it differs."""
        self._state = _bounded(change(self._state) if state is None else state)
        self._unsaved.setdefault(name, deque(maxlen=_MOST_UNSAVED)).append(change)
        if len(self._unsaved) > MOST:
            del self._unsaved[next(iter(self._unsaved))]
        self._start_writing()

    def _start_reading(self) -> asyncio.Task[None]:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        return self._reader

    def _start_writing(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _read(self) -> None:
        await self._store_lock.acquire()
        try:
            stamp = self._store.stamp(SPACE)
            state: dict[Selector, Cooldown] = {}
            try:
                for name, stored in await self._store.read_all(SPACE, most=MOST):
                    state.update(self._decode_stored(name, stored.value, stored.version))
            except StoreError:
                return
            self._stamp = stamp
            changes = (change for unsaved in self._unsaved.values() for change in unsaved)
            self._state = _bounded(_applied(state, changes))
        finally:
            self._is_stale = self._is_late = False
            self._store_lock.release()

    async def _write(self) -> None:
        await self._store_lock.acquire()
        try:
            while self._unsaved:
                name = next(iter(self._unsaved))
                changes = self._unsaved.pop(name)
                if not await self._save(name, changes):
                    changes.extend(self._unsaved.pop(name, ()))
                    self._unsaved[name] = changes
                    return
        finally:
            self._store_lock.release()

    async def _save(self, name: str, changes: deque[Change]) -> bool:
        try:
            await self._save_key(name, changes)
        except StoreError:
            return False
        return True

    async def _save_keys(self, names: Iterable[str], change: Change) -> None:
        """Change the stored cooldowns of several keys; StoreError if that fails."""
        await self._store_lock.acquire()
        try:
            for name in names:
                await self._save_key(name, (change,))
        finally:
            self._store_lock.release()

    async def _save_key(self, name: str, changes: Iterable[Change]) -> None:
        """Change the stored cooldowns of a key and take over the result; on a StoreError nothing changes."""
        # A refused key stays out until it is replaced, even if no request uses it for a day.
        entries = (entry for key, entry in self._state.items() if _name(key) == name)
        ttl = None if any(entry.reason in cooldown.LASTING for entry in entries) else _TTL
        value = await self._store.update(SPACE, name, partial(self._updated, name, tuple(changes)), ttl=ttl)
        others = {key: entry for key, entry in self._state.items() if _name(key) != name}
        state = {**others, **_decoded(name, value, self._ahead())}
        self._state = _bounded(_applied(state, self._unsaved.get(name, ())))

    def _decode_stored(self, name: str, value: bytes, version: int) -> HealthState:
        """Decode the stored value of a key; one that is not valid is logged once and ignored."""
        try:
            return _decoded(name, value, self._ahead())
        except msgspec.MsgspecError as exc:
            if (name, version) not in self._ignored:
                earlier = self._ignored if len(self._ignored) < MOST else set()
                self._ignored = {*earlier, (name, version)}
                logger.warning("the stored health of %r is ignored: %s", name[:80], exc)
            return {}

    def _updated(self, name: str, changes: Iterable[Change], value: bytes | None) -> bytes | None:
        """Return the stored value of a key after the changes; None without cooldowns."""
        ahead = self._ahead()
        try:
            state = _decoded(name, value, ahead)
        except msgspec.MsgspecError:
            state = {}
        stored = {key.model or "": _moved(entry, ahead) for key, entry in _applied(state, changes).items()}
        return msgspec.json.encode(stored) if stored else None

    def _ahead(self) -> float:
        """Return by how many seconds the clock of the store is ahead of ours; 0.0 if it has none.

        Stored times are those of the store's clock, which all processes share. The number is whole and stays
        while it is nearly right, so that a time comes back exactly as it was saved.
        """
        up = self._store.uptime()
        if up.start.startswith(STORE_CLOCK):
            ahead = up.ms / 1000 - self._clock()
            if abs(ahead - self._store_ahead) > 1.0:
                self._store_ahead = float(round(ahead))
        return self._store_ahead


_UnusableKey = type[UpstreamRefusedKey | UpstreamOutOfCredit | UpstreamUnknownModel]
_ERRORS: dict[CooldownCause, _UnusableKey] = {
    "key refused": UpstreamRefusedKey,
    "quota": UpstreamOutOfCredit,
    "model unknown": UpstreamUnknownModel,
}


def unusable_key_error(
    error_type: _UnusableKey,
    target: Target,
    message: str,
    *,
    status: int | None,
) -> UpstreamError:
    """Return the error for a client, with the details of the key."""
    details = {"provider": target.provider, "key": target.key, "upstream_status": status}
    return error_type(message, provider=target.provider, upstream_status=status, details=details)


def _name(key: Selector) -> str:
    """Return the name under which the cooldowns of a key are stored: without the model."""
    return f"{key.provider}.{key.key}"


def _key(name: str) -> Selector:
    provider, _, key = name.partition(".")
    return Selector(provider, key)


def _decoded(name: str, value: bytes | None, ahead: float) -> HealthState:
    """Return the cooldowns of a stored value, whose clock is so many seconds ahead of ours."""
    stored = _decoder.decode(value) if value is not None else {}
    key = _key(name)
    if not key.provider or not key.key:
        raise msgspec.ValidationError("its name is not of the form provider.key")
    return {
        Selector(key.provider, key.key, model or None): _moved(entry, -ahead)
        for model, entry in stored.items()
    }


def _moved(entry: Cooldown, seconds: float) -> Cooldown:
    """Return a cooldown on a clock that is so many seconds ahead."""
    if not seconds:
        return entry
    return replace(entry, noted=entry.noted + seconds, until=entry.until and entry.until + seconds)


def _applied(state: HealthState, changes: Iterable[Change]) -> HealthState:
    for change in changes:
        state = change(state)
    return state


def _bounded(state: HealthState) -> HealthState:
    if len(state) <= MOST:
        return state
    latest = sorted(state, key=lambda key: state[key].noted)[-MOST:]
    return {key: state[key] for key in latest}


def _row(key: Selector, entry: Cooldown, now: float, options: CooldownOptions) -> KeyHealthRow | None:
    state = cooldown.condition(entry, now, options=options)
    if state is None:
        return None
    end = cooldown.cooldown_end(entry, now, options=options)
    return KeyHealthRow(
        name=str(key),
        state=state,
        seconds=max(0.0, end - now),
        until=end,
        reason=entry.reason,
        strikes=entry.strikes,
        error=entry.error,
        status=entry.status,
    )
