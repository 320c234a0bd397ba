"""State of logins in the store: those that ended early, codes that were used, attempts that failed."""

from __future__ import annotations

import logging
from time import time
from typing import Final

from msgspec.json import Decoder

from routecodex.canon.errors import ClientError, Overloaded
from routecodex.server.login_tokens import CODE_SECONDS, Login, OneTimeCode
from routecodex.stores.store import Conflict, Store, StoreError
from routecodex.wire import json

log = logging.getLogger("routecodex.admin")

_SPACE: Final = "console"
_MOST_FAILURES: Final = 10
_WINDOW: Final = 60.0
_MOST_ENTRIES: Final = 20_000
_MOST_BYTES: Final = 16 * 1024 * 1024
_times = Decoder(list[float])


class LoginState:
    """Logins and attempts that all workers must know of."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since = int(time())
        self._known: tuple[int, dict[str, bool]] = (0, {})

    async def is_revoked(self, login: Login) -> bool:
        """Return whether this login was ended; while the store is down, as far as this worker knows."""
        stamp = self._store.stamp(_SPACE)
        if self._known[0] != stamp or len(self._known[1]) >= _MOST_ENTRIES:
            self._known = (stamp, {})
        known = self._known[1]
        if login.id not in known:
            try:
                known[login.id] = await self._store.get(_SPACE, f"revoked-{login.id}") is not None
            except StoreError as exc:
                log.warning("ended logins of the console cannot be read, this one is accepted: %s", exc)
                return False
        return known[login.id]

    async def revoke(self, login: Login, now: float) -> None:
        """End a login before its time."""
        ttl = max(1.0, login.expires_at - now)
        try:
            await self._store.put(_SPACE, f"revoked-{login.id}", b"true", ttl=ttl)
        except StoreError as exc:
            raise _unavailable("the login could not be ended", exc) from exc

    async def use(self, code: OneTimeCode, now: float) -> bool:
        """Mark a code as used; return False if it was used before."""
        if self._store.kind == "memory" and code.expires_at - CODE_SECONDS < self._since:
            # A store that forgets cannot tell whether a code of an earlier run was used.
            return False
        try:
            await self._store.put(
                _SPACE, f"used-{code.id}", b"true", ttl=max(1.0, code.expires_at - now), expected=0
            )
        except Conflict:
            return False
        except StoreError as exc:
            raise _unavailable("the code cannot be checked", exc) from exc
        return True

    async def admit(self, address: str, now: float) -> None:
        """Count an attempt as failed until `forgive`; reject it after ten failures in a minute.

        It is counted first, so that attempts at the same moment cannot all pass.
        """

        def count(raw: bytes | None) -> bytes:
            recent = _recent(raw, now)
            if len(recent) >= _MOST_FAILURES:
                raise _too_many(recent[0] + _WINDOW - now)
            return json.encode([*recent, now])

        try:
            await self._store.update(_SPACE, f"failed-{address}", count, ttl=_WINDOW)
            await self._store.trim(_SPACE, entries=_MOST_ENTRIES, size=_MOST_BYTES)
        except StoreError as exc:
            raise _unavailable("nobody can log in now", exc) from exc

    async def forgive(self, address: str, at: float) -> None:
        """Take back the attempt of that time: it succeeded."""

        def remove(raw: bytes | None) -> bytes | None:
            rest = [one for one in _recent(raw, at) if one != at]
            return json.encode(rest) if rest else None

        try:
            await self._store.update(_SPACE, f"failed-{address}", remove, ttl=_WINDOW)
        except StoreError as exc:
            log.warning("a login counts as failed for a minute: %s", exc)


def _recent(raw: bytes | None, now: float) -> list[float]:
    return [] if raw is None else [at for at in _times.decode(raw) if now - _WINDOW < at <= now + _WINDOW]


def _too_many(wait: float) -> ClientError:
    return ClientError(
        f"too many wrong logins from this address; try again in {max(1, round(wait))} s",
        status=429,
        code="too_many_logins",
        retry_after=max(1.0, wait),
    )


def _unavailable(what: str, exc: StoreError) -> Overloaded:
    return Overloaded(f"{what}, the store is down: {exc}", code="store_unavailable")
