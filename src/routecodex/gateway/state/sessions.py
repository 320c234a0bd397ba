"""What instructions have set for each conversation, kept in the store: written through, shared by processes.

A value is for people to read too:

    {"version": 1, "id": "…", "kind": "session", "force": null, "sticky": "glm.glm-4.7", "allow": [],
     "disable": ["openai.1"], "stop_message": null, "applied": "…", "updated_at": 1760000000.0}

A session that has nothing set has no value. What is in memory is used only as long as the store's stamp of
the key says that nobody has written it since.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from routecodex.canon.errors import GatewayError, Overloaded
from routecodex.gateway.context.identity import Scope, ScopeKind
from routecodex.routing.state import NOTHING_SET, SessionState
from routecodex.stores.store import Store, StoreError

SPACE = "sessions"
CORRUPT_SPACE = "sessions.corrupt"
TTL = 90 * 24 * 3600.0

FORCE_SHOWN = 1800.0
"""How long after the last request of its turn a forced target is still shown, in seconds."""
_FORCE_NOTED = 60.0
CACHED = 10_000
TRIM_EVERY = 500
MOST_ENTRIES = 100_000
MOST_BYTES = 256 * 1024 * 1024

EMPTY = NOTHING_SET

Edit = Callable[[SessionState], SessionState]
Listing = list[tuple[Scope, SessionState]]

log = logging.getLogger("routecodex.sessions")


class StateNotSaved(GatewayError):
    """A change of session state could not be written down, and so was not made."""

    status = 503
    default_code = "state_not_saved"


class Heading(Struct, frozen=True):
    """What a stored value says beside the state itself."""

    version: Literal[1]
    id: str
    kind: ScopeKind


class Corrupt(Exception):
    """A stored value is not the state of a session."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw


class Unchanged(Exception):
    """Ends an update that has nothing to write."""


_headings = msgspec.json.Decoder(Heading)
_states = msgspec.json.Decoder(SessionState)


def encode(scope: Scope, state: SessionState) -> bytes:
    """The stored form of a state, with what is not set in it too."""
    record = {**asdict(Heading(1, scope.id, scope.kind)), **asdict(state)}
    lines = msgspec.json.format(msgspec.json.encode(record), indent=2)
    # Where a person meets it, it stands inside the object of a file store.
    return lines.replace(b"\n", b"\n  ")


def decode(raw: bytes) -> SessionState:
    """The state in a stored value; fields we do not know are passed over."""
    try:
        _headings.decode(raw)
        return _states.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Corrupt(raw) from exc


def says_the_same(one: SessionState, other: SessionState) -> bool:
    """Whether two states differ in their time at most."""
    return one == other or replace(one, updated_at=0.0) == replace(other, updated_at=0.0)


class Cached(NamedTuple):
    """The state last seen; `stamp` is None when another one may have come after it."""

    stamp: int | None
    state: SessionState
    expires: float | None


class Step:
    """One read-modify-write of a session; a store may run it in another thread, and more than once."""

    def __init__(self, scope: Scope, edit: Edit, *, now: float, aside: bytes | None) -> None:
        self.state = EMPTY
        self._scope = scope
        self._edit = edit
        self._now = now
        self._aside = aside

    def __call__(self, raw: bytes | None) -> bytes | None:
        spoiled = raw is not None and raw == self._aside
        before = EMPTY if raw is None or spoiled else decode(raw)
        after = self._edit(before)
        if says_the_same(before, after) and not spoiled:
            self.state = before
            raise Unchanged
        if says_the_same(after, EMPTY):
            self.state = EMPTY
            return None
        if after.updated_at == before.updated_at:
            after = replace(after, updated_at=self._now)
        self.state = after
        return encode(self._scope, after)


class Sessions:
    """The state of every conversation; one that lasts for its request only is never stored."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time, cached: int = CACHED) -> None:
        self._store = store
        self._clock = clock
        self._cache: OrderedDict[str, Cached] = OrderedDict()
        self._most = cached
        self._writes = 0
        self._unreadable = False

    def peek(self, scope: Scope) -> SessionState | None:
        """The state, when it is known without reading; None means that it has to be loaded."""
        if not scope.lasts:
            return EMPTY
        key = scope.key
        stamp = self._store.stamp_of(SPACE, key)
        found = self._cache.get(key)
        if found is None:
            return EMPTY if stamp == 0 else None
        # Nothing stored any more: deleted by another process, or the store is down; only reading tells.
        if stamp == 0 or found.stamp != stamp:
            return None
        if found.expires is not None and found.expires <= self._clock():
            return None
        self._cache.move_to_end(key)
        return found.state

    async def load(self, scope: Scope) -> SessionState:
        """The state, empty when none is set; a store that is down gives the state last seen."""
        known = self.peek(scope)
        if known is not None:
            return known
        key = scope.key
        try:
            state = await self._read(key)
        except StoreError as exc:
            self._tell_unreadable(exc)
            last = self._cache.get(key)
            return last.state if last is not None else EMPTY
        self._unreadable = False
        return state

    async def change(self, scope: Scope, edit: Edit) -> SessionState:
        """Applies `edit` to the state as one step no other writer can come between; stored when it returns.

        `edit` must be pure: it may run in another thread and more than once. What it raises is raised here,
        and nothing is changed. A state that differs in `updated_at` alone is not written; where `edit`
        leaves that time as it was, it becomes now.
        """
        if not scope.lasts:
            return edit(EMPTY)
        # What is in memory is not asked first: a store on another machine may know better than its stamp.
        try:
            state = await self._write(scope, edit)
        except StoreError as exc:
            raise _not_saved(scope, exc) from exc
        await self._trim_now_and_then()
        return state

    async def go_on(self, scope: Scope, state: SessionState) -> SessionState:
        """Notes, now and then, that the turn a target is forced for still goes on; never raises."""
        force, now = state.force, self._clock()
        if force is None or not scope.lasts or 0 <= now - state.updated_at < _FORCE_NOTED:
            return state

        def noted(raw: bytes | None) -> bytes:
            found = EMPTY if raw is None else decode(raw)
            if found.force != force:
                raise Unchanged
            return encode(scope, replace(found, updated_at=now))

        with contextlib.suppress(Unchanged, Corrupt, StoreError):
            await self._store.update(SPACE, scope.key, noted, ttl=TTL)
        return state

    async def look(self, scope: Scope) -> SessionState:
        """The state as people are shown it: without a force that is over.

        The next message of the person ends it, but not where the client has dropped what came before.
        """
        return self._without_past_force(await self.load(scope))

    async def list(self, limit: int) -> Listing:
        """The sessions that have something set, the one written last first."""
        try:
            keys = await self._store.keys(SPACE)
            found: Listing = []
            for key in reversed(keys):
                if len(found) >= limit:
                    break
                found += await self._listed(key)
        except StoreError as exc:
            raise _unavailable(exc) from exc
        return found

    async def by_id(self, id: str) -> Listing:
        """What is set for an id as it is listed: one entry for each kind of scope that has it."""
        kinds: tuple[ScopeKind, ...] = ("session", "conversation", "chain")
        try:
            return [found for kind in kinds for found in await self._listed(Scope(kind, id).key)]
        except StoreError as exc:
            raise _unavailable(exc) from exc

    async def _listed(self, key: str) -> Listing:
        scope = _scope_of(key)
        if scope is None:
            return []
        state = self._without_past_force(await self._read(key))
        # The mark alone says what was heard last, and nothing that is in force.
        return [] if says_the_same(replace(state, applied=None), EMPTY) else [(scope, state)]

    def _without_past_force(self, state: SessionState) -> SessionState:
        if state.force is None or self._clock() - state.updated_at < FORCE_SHOWN:
            return state
        return replace(state, force=None)

    async def _read(self, key: str) -> SessionState:
        """What the store has; the stamp is taken first, so that it is never newer than the state."""
        stamp = self._store.stamp_of(SPACE, key)
        stored = await self._store.get(SPACE, key)
        if stored is None:
            self._cache.pop(key, None)
            return EMPTY
        try:
            state = decode(stored.value)
        except Corrupt as found:
            await self._start_clean(key, found.raw)
            return EMPTY
        self._remember(key, Cached(stamp, state, stored.expires))
        return state

    async def _write(self, scope: Scope, edit: Edit) -> SessionState:
        aside: bytes | None = None
        while True:
            step = Step(scope, edit, now=self._clock(), aside=aside)
            try:
                await self._store.update(SPACE, scope.key, step, ttl=TTL)
            except Unchanged:
                return step.state
            except Corrupt as found:
                aside = found.raw
                await self._set_aside(scope.key, aside)
                continue
            self._writes += 1
            self._remember(scope.key, Cached(None, step.state, None))
            return step.state

    async def _start_clean(self, key: str, raw: bytes) -> None:
        """Puts a value that is no state where it can be looked at, and takes it out of the way."""

        def without_it(found: bytes | None) -> None:
            if found != raw:
                raise Unchanged

        await self._set_aside(key, raw)
        try:
            await self._store.update(SPACE, key, without_it)
        except Unchanged:
            return

    async def _set_aside(self, key: str, raw: bytes) -> None:
        """Copies the value under a name made of its content: nothing set aside before is overwritten."""
        name = f"{key}#{blake2b(raw, digest_size=8).hexdigest()}"
        await self._store.put(CORRUPT_SPACE, name, raw)
        log.warning("%s/%.80r is not the state of a session; set aside in %s", SPACE, key, CORRUPT_SPACE)

    def _remember(self, key: str, cached: Cached) -> None:
        if cached.state == EMPTY:
            self._cache.pop(key, None)
            return
        self._cache[key] = cached
        self._cache.move_to_end(key)
        if len(self._cache) > self._most:
            self._cache.popitem(last=False)

    def _tell_unreadable(self, exc: StoreError) -> None:
        """Once for each time the store goes down: every request meets it."""
        if not self._unreadable:
            log.error("session state cannot be read, requests go on with what was last known: %s", exc)
        self._unreadable = True

    async def _trim_now_and_then(self) -> None:
        if self._writes < TRIM_EVERY:
            return
        self._writes = 0
        try:
            await self._store.trim(SPACE, entries=MOST_ENTRIES, size=MOST_BYTES)
        except StoreError as exc:
            log.error("old sessions cannot be deleted: %s", exc)


def _scope_of(key: str) -> Scope | None:
    kinds: dict[str, ScopeKind] = {"session": "session", "conversation": "conversation", "chain": "chain"}
    kind, _, id = key.partition(":")
    return Scope(kinds[kind], id) if kind in kinds else None


def _not_saved(scope: Scope, exc: StoreError) -> StateNotSaved:
    log.error("the state of %s %.80r could not be saved: %s", scope.kind, scope.id, exc)
    return StateNotSaved(
        f"the state of {scope.kind} {scope.id[:80]!r} could not be saved, so nothing of the change was "
        "applied; the gateway's log has the reason"
    )


def _unavailable(exc: StoreError) -> Overloaded:
    log.error("sessions cannot be listed: %s", exc)
    return Overloaded("stored sessions cannot be reached now; try again later", code="store_unavailable")
