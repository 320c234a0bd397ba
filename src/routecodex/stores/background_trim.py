"""Trims a space now and then, beside the requests that write to it."""

from __future__ import annotations

import asyncio
import logging

from routecodex.stores.store import Store, StoreError


class BackgroundTrim:
    """Trims a space after every so many writes; no request waits for it, and a failure is only logged."""

    def __init__(
        self, store: Store, space: str, *, entries: int, size: int, every: int, log: logging.Logger
    ) -> None:
        self._store = store
        self._space = space
        self._entries = entries
        self._size = size
        self._every = every
        self._log = log
        self._writes = 0
        self._task: asyncio.Task[None] | None = None

    def wrote(self) -> None:
        """Count a write, and start a trim when it is due."""
        self._writes += 1
        if self._writes >= self._every and (self._task is None or self._task.done()):
            self._writes = 0
            self._task = asyncio.create_task(self._trim())

    async def settle(self) -> None:
        """Wait for the trim that is running."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _trim(self) -> None:
        try:
            await self._store.trim(self._space, entries=self._entries, size=self._size)
        except StoreError as exc:
            self._log.debug("old values of %s cannot be deleted: %s", self._space, exc)
