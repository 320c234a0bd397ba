"""Lists of models that providers name themselves, kept in the store for later runs and other processes.

One process of a server asks the providers, in the background: at its start, once a day, and when the
configuration is reloaded. The others read its lists from the store. A provider that cannot be reached keeps
its last list and is asked again soon; no request and no start waits for it, because any name of its models
can be used, listed or not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct
from msgspec.json import Decoder

from routecodex.canon.errors import UpstreamError
from routecodex.providers.model_listing import ListedModel, list_models
from routecodex.providers.upstream import Upstream
from routecodex.stores.cell import Cell, CellFormat
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

SPACE = "models"
DAY = 86_400.0

_TICK = 5.0
_FIRST_RETRY, _LONGEST_RETRY = 60.0, 3600.0
_MOST_CACHED = 1024

logger = logging.getLogger("routecodex.models")


class ModelListing(Struct, frozen=True):
    """The last list of one provider; `source` is the protocol and the address that it came from."""

    source: str = ""
    fetched_at: float = 0.0
    models: tuple[ListedModel, ...] = ()


class ModelSource(Struct, frozen=True):
    """A provider that names its models: its addresses, the configured one first, and its keys."""

    source: str
    upstreams: tuple[Upstream, ...]
    keys: tuple[str, ...]


_EMPTY = ModelListing()
_decoder = Decoder(ModelListing)


def _decode(_key: str, raw: bytes) -> ModelListing:
    return _decoder.decode(raw)


_FORMAT: CellFormat[ModelListing] = CellFormat(
    space=SPACE,
    empty=lambda _key: _EMPTY,
    encode=lambda _key, listing: json.encode(listing),
    decode=_decode,
    noun="a list of models",
    outage="the lists of models cannot be read, the last known stay",
    log=logger,
)


class ModelLists:
    """Lists of models by provider; `on_change` is called when one differs from the last.

    `fetches`: this process asks the providers itself.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.fetches = True
        self._clock = clock
        self._cell: Cell[ModelListing] = Cell(store, _FORMAT, cached=_MOST_CACHED, ttl=None)
        self._sources: Mapping[str, ModelSource] = {}
        self._known: dict[str, ModelListing] = {}
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._ticker: asyncio.Task[None] | None = None

    def configure(self, sources: Mapping[str, ModelSource]) -> None:
        """Use the providers of a configuration; one with another address is asked again."""
        for name in [*self._due]:
            if name not in sources or sources[name].source != self._sources[name].source:
                self._forget(name)
        self._sources = sources
        if self._ticker is not None and self.fetches:
            self._fetch_due()

    def _forget(self, name: str) -> None:
        self._due.pop(name, None)
        self._failures.pop(name, None)
        running = self._fetching.pop(name, None)
        if running is not None:
            running.cancel()

    def get(self, provider: str, source: str) -> ModelListing | None:
        """Return the last list of a provider at this address; None if there has been none."""
        listing = self._known.get(provider)
        return listing if listing is not None and listing.source == source else None

    async def follow(self) -> None:
        """Use the lists that other processes have stored meanwhile."""
        changed = False
        for name in [*self._sources]:
            listing = self._cell.peek(name)
            if listing is None:
                listing = await self._cell.load(name)
            changed = self._use(name, listing) or changed
        if changed:
            self.on_change()

    def _use(self, name: str, listing: ModelListing) -> bool:
        """Keep a list; return whether the models of a configured provider have changed."""
        source = self._sources.get(name)
        if source is None or listing.source != source.source:
            return False
        before = self.get(name, source.source)
        if before is not None and listing.fetched_at < before.fetched_at:
            # The store could not be written: the list in memory is newer.
            return False
        self._known[name] = listing
        return before is None or before.models != listing.models

    def start(self) -> None:
        """Start to ask the providers in the background, and to follow the store."""
        if self._ticker is None:
            if self.fetches:
                self._fetch_due()
            self._ticker = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Stop asking."""
        tasks = [*self._fetching.values(), *([self._ticker] if self._ticker is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def refresh(self) -> None:
        """Ask all providers anew, now."""
        for name in [*self._sources]:
            self._forget(name)
        self._fetch_due()

    async def settle(self, seconds: float) -> None:
        """Wait until the providers under way have answered, but not longer than this."""
        if self._fetching:
            await asyncio.wait([*self._fetching.values()], timeout=seconds)

    async def tick(self) -> None:
        """Ask the providers whose time has come, and use what others have stored."""
        if self.fetches:
            self._fetch_due()
        await self.follow()

    async def _run(self) -> None:
        while True:
            try:
                if self._sources:
                    await self.tick()
            except Exception:
                logger.exception("the lists of models could not be updated")
            await asyncio.sleep(_TICK)

    def _fetch_due(self) -> None:
        now = self._clock()
        for name, source in self._sources.items():
            if self._due.get(name, 0.0) <= now and name not in self._fetching:
                self._due[name] = now + DAY
                task = self._fetching[name] = asyncio.ensure_future(self._fetch(name, source))
                task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._fetching.get(name) is task:
            del self._fetching[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the models of provider %r could not be listed", name, exc_info=error)

    async def _fetch(self, name: str, source: ModelSource) -> None:
        try:
            models = await list_models(source.upstreams, source.keys)
        except UpstreamError as error:
            self._failed(name, source, error)
            return
        self._failures.pop(name, None)
        listing = ModelListing(source.source, self._clock(), models)
        if self._use(name, listing):
            logger.info("provider %r lists %d models", name, len(models))
            self.on_change()
        try:
            await self._cell.edit(name, lambda _before: (listing, None))
        except StoreError as exc:
            logger.warning("the models of provider %r could not be stored: %s", name, exc)

    def _failed(self, name: str, source: ModelSource, error: UpstreamError) -> None:
        """Note when to ask again; people are told of the first failure in a row."""
        count = self._failures[name] = self._failures.get(name, 0) + 1
        wait = min(_FIRST_RETRY * 2.0 ** min(count - 1, 16), _LONGEST_RETRY)
        self._due[name] = self._clock() + wait
        last = self.get(name, source.source)
        state = "any name still works" if last is None else f"its last list of {len(last.models)} stays"
        level = logging.WARNING if count == 1 else logging.DEBUG
        logger.log(level, "the models of provider %r could not be listed: %s; %s", name, error.message, state)
