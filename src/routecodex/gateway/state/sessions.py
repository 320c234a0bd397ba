"""Session state set by instructions, kept in the store: written through, shared by processes.

A stored value is readable by people:

    {"version": 1, "id": "…", "kind": "session", "force": null, "sticky": "glm.glm-4.7", "allow": [],
     "disable": ["openai.1"], "stop_message": null, "agents": null, "marks": ["…"],
     "updated_at": 1760000000.0}

With several clients it also has the `client` that it belongs to. A session that has nothing set has no value.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from routecodex.canon.errors import GatewayError, Overloaded
from routecodex.canon.notices import Notices
from routecodex.gateway.context.identity import Scope, ScopeKind
from routecodex.routing.state import NOTHING_SET, SessionState
from routecodex.stores.background_trim import BackgroundTrim
from routecodex.stores.cell import Cell, CellFormat
from routecodex.stores.owned_keys import split_key
from routecodex.stores.store import DamagedValue, Place, Store, StoreError

SPACE = "sessions"
TTL = 90 * 24 * 3600.0

FORCE_SHOWN = 1800.0
"""Seconds that a forced target is still shown after the last request of its turn."""
_FORCE_RENEWAL = 60.0
CACHED = 10_000
TRIM_EVERY = 500
_SMALLEST_READ, _MOST_READ = 100, 1000
"""Sessions that are read at once, and for one page."""
MAX_ENTRIES = 100_000
MAX_BYTES = 256 * 1024 * 1024
_MOST_UNSAVED = 1000

EMPTY = NOTHING_SET

UNKNOWN_SESSION = "the settings of this session are not known now: the store is unavailable"

Edit = Callable[[SessionState], SessionState]
Listing = list[tuple[Scope, SessionState]]

log = logging.getLogger("routecodex.sessions")


class StateNotSaved(GatewayError):
    """A change of session state could not be saved, and so was not made."""

    status = 503
    default_code = "state_not_saved"


class Heading(Struct, frozen=True):
    """The fields of a stored value beside the state itself."""

    version: Literal[1]
    id: str
    kind: ScopeKind


_headings = msgspec.json.Decoder(Heading)
_states = msgspec.json.Decoder(SessionState)


def encode(key: str, state: SessionState) -> bytes:
    """Encode a state with all its fields, those that are not set too."""
    owner, name = split_key(key)
    kind, _, id = name.partition(":")
    client = {"client": owner} if owner else {}
    lines = msgspec.json.format(
        msgspec.json.encode({"version": 1, "id": id, "kind": kind, **client, **asdict(state)}), indent=2
    )
    # People read it inside the JSON object of a file store.
    return lines.replace(b"\n", b"\n  ")


def decode(_key: str, raw: bytes) -> SessionState:
    """Decode a stored state; unknown fields are ignored."""
    _headings.decode(raw)
    return _states.decode(raw)


FORMAT = CellFormat(
    space=SPACE,
    empty=lambda key: EMPTY,
    encode=encode,
    decode=decode,
    noun="the state of a session",
    outage="session state cannot be read, requests continue with the last known state",
    log=log,
)


def is_same(one: SessionState, other: SessionState) -> bool:
    """Return whether two states differ in their time at most."""
    return one == other or replace(one, updated_at=0.0) == replace(other, updated_at=0.0)


class SessionPage(NamedTuple):
    """Sessions with their state, and the cursor of the next page; None after the last one."""

    rows: Listing
    cursor: Place | None


class Sessions:
    """The state of every session; that of a scope which lasts for one request is never stored."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time, cached: int = CACHED) -> None:
        self._store = store
        self._clock = clock
        self._cell = Cell(store, FORMAT, cached=cached, ttl=TTL, clock=clock)
        self._trim = BackgroundTrim(
            store, SPACE, entries=MAX_ENTRIES, size=MAX_BYTES, every=TRIM_EVERY, log=log
        )
        self._unsaved: deque[tuple[Scope, Edit]] = deque(maxlen=_MOST_UNSAVED)
        """Edits that take back a change and wait for the store; of very many the oldest are forgotten."""
        self._saving: asyncio.Task[None] | None = None
        self.refuses_unknown = False
        self._changes_unread = store.reads_by_updates

    def peek(self, scope: Scope) -> SessionState | None:
        """Return the state if it is known without IO; None means that it has to be loaded."""
        return self._cell.peek(scope.key) if scope.lasts else EMPTY

    def may_change_unread(self, scope: Scope) -> bool:
        """Return whether a state that is not known is changed best without reading it first.

        Not one that was known before: it may be known, with the same message applied, when it has been read.
        """
        return self._changes_unread and not self._cell.is_cached(scope.key)

    async def load(self, scope: Scope, notices: Notices | None = None) -> SessionState:
        """Return the state; while the store is down the last known one, or empty with a notice.

        With `refuses_unknown` it is an error that the state is not known.
        """
        if not scope.lasts:
            return EMPTY
        state = await self._cell.find(scope.key)
        if state is not None:
            return state
        if self.refuses_unknown:
            raise Overloaded(f"{UNKNOWN_SESSION}; try again later", code="store_unavailable")
        if notices is not None:
            notices.add(UNKNOWN_SESSION)
        return EMPTY

    async def change(self, scope: Scope, edit: Edit) -> SessionState:
        """Apply `edit` to the state in one atomic step; it is stored when this returns.

        `edit` must be pure: it may run in another thread and more than once. Its exceptions are raised here,
        and nothing is changed. A state that differs in `updated_at` alone is not written; where `edit`
        leaves that time as it was, it becomes now.
        """
        if not scope.lasts:
            return edit(EMPTY)
        try:
            state = await self._cell.edit(scope.key, partial(_edited, edit, now=self._clock()))
        except StoreError as exc:
            raise _not_saved(scope, exc) from exc
        self._trim.wrote()
        return state

    async def take_back(self, scope: Scope, edit: Edit) -> None:
        """Apply an `edit` that takes back a change: now, or when the store is back. Never raises."""
        try:
            await self.change(scope, edit)
        except StateNotSaved:
            self._unsaved.append((scope, edit))

    def save_unsaved(self) -> None:
        """Begin to take back what could not be taken back before."""
        if self._unsaved and (self._saving is None or self._saving.done()):
            self._saving = asyncio.ensure_future(self._save_unsaved())

    async def _save_unsaved(self) -> None:
        while self._unsaved:
            scope, edit = self._unsaved.popleft()
            try:
                await self.change(scope, edit)
            except StateNotSaved:
                self._unsaved.appendleft((scope, edit))
                return

    async def renew_force(self, scope: Scope, state: SessionState) -> SessionState:
        """Renew the time of a state while the turn of its forced target goes on; never raises."""
        force, now = state.force, self._clock()
        if force is None or not scope.lasts or 0 <= now - state.updated_at < _FORCE_RENEWAL:
            return state

        def renew(found: SessionState) -> tuple[SessionState, None]:
            return (replace(found, updated_at=now) if found.force == force else found), None

        with contextlib.suppress(StoreError):
            await self._cell.edit(scope.key, renew)
        return state

    async def load_shown(self, scope: Scope) -> SessionState:
        """Return the state as it is shown to people: without a forced target whose turn is over.

        The user's next message ends a forced target, unless the client dropped the earlier messages.
        """
        return self._without_past_force(await self.load(scope))

    async def page(self, limit: int, cursor: Place | None = None) -> SessionPage:
        """List sessions that have something set, the one written last first, from the cursor on.

        A page may have fewer rows than `limit`, so that no call reads very many sessions.
        """
        try:
            return await self._page(limit, cursor)
        except StoreError as exc:
            log.debug("sessions cannot be listed: %s", exc)
            raise Overloaded(
                "stored sessions cannot be reached now; try again later", code="store_unavailable"
            ) from exc

    async def _page(self, limit: int, cursor: Place | None) -> SessionPage:
        found: Listing = []
        size = max(limit, _SMALLEST_READ)
        for _ in range(-(-_MOST_READ // size)):
            rows = await self._store.recent(SPACE, limit=size, before=cursor)
            for place in rows:
                if len(found) >= limit:
                    return SessionPage(found, cursor)
                found += await self._listed(place.key)
                cursor = place
            if len(rows) < size:
                return SessionPage(found, None)
        return SessionPage(found, cursor)

    async def list_set(self, scopes: Iterable[Scope]) -> Listing:
        """Return those of the scopes that have something set, with their state."""
        found = [(scope, await self.load_shown(scope)) for scope in scopes]
        return [(scope, state) for scope, state in found if _has_settings(state)]

    async def _listed(self, key: str) -> Listing:
        scope = _scope_of(key)
        if scope is None:
            return []
        try:
            state = await self._cell.read(key)
        except StoreError:
            if not await self._is_damaged(key):
                raise
            # A file that can be neither written back nor set aside does not hide the other sessions.
            state = await self._cell.load(key)
        state = self._without_past_force(state)
        return [(scope, state)] if _has_settings(state) else []

    async def _is_damaged(self, key: str) -> bool:
        try:
            await self._store.get_intact(SPACE, key)
        except DamagedValue:
            return True
        return False

    def _without_past_force(self, state: SessionState) -> SessionState:
        if state.force is None or self._clock() - state.updated_at < FORCE_SHOWN:
            return state
        return replace(state, force=None)

    async def settle(self) -> None:
        """Wait for the deletion of old sessions that is running."""
        await self._trim.settle()


def _edited(edit: Edit, before: SessionState, *, now: float) -> tuple[SessionState, SessionState]:
    after = edit(before)
    if is_same(after, EMPTY):
        after = EMPTY
    elif is_same(before, after):
        after = before
    elif after.updated_at == before.updated_at:
        after = replace(after, updated_at=now)
    return after, after


def _has_settings(state: SessionState) -> bool:
    """Return whether anything is set; the marks of applied messages are not a setting."""
    return not is_same(replace(state, marks=()), EMPTY)


def _scope_of(key: str) -> Scope | None:
    kinds: dict[str, ScopeKind] = {"session": "session", "conversation": "conversation", "chain": "chain"}
    owner, name = split_key(key)
    kind, _, id = name.partition(":")
    return Scope(kinds[kind], id, owner) if kind in kinds else None


def _not_saved(scope: Scope, exc: StoreError) -> StateNotSaved:
    log.debug("the state of %s %.80r could not be saved: %s", scope.kind, scope.id, exc)
    return StateNotSaved(
        f"the state of {scope.kind} {scope.id[:80]!r} could not be saved, so nothing of the change was "
        "applied; the gateway's log has the reason"
    )
