"""When providers are asked for their models, with a clock of the test."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from routecodex.gateway.state.model_lists import DAY, ModelLists, ModelSource
from routecodex.protocols.codecs import CODECS
from routecodex.providers.http import HttpClient, TlsOptions, origin_of
from routecodex.providers.upstream import Upstream as Provider
from routecodex.stores.memory import MemoryStore
from routecodex.stores.monitored import MonitoredStore
from routecodex.stores.store import Store, StoreError
from tests.kit.steps import Json
from tests.kit.upstream import Upstream


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Lists:
    """The lists of one process, and how often they have changed."""

    def __init__(self, store: Store, clock: Clock, up: Upstream, client: HttpClient) -> None:
        provider = Provider(
            "up",
            codec=CODECS["chat"],
            base_url=f"{up.url}/v1",
            origin=origin_of(up.url, tls=TlsOptions(), environ={}),
            client=client,
            secrets={"k": "secret"},
        )
        self.changes = 0
        self.lists = ModelLists(store, clock=clock)
        self.lists.on_change = self._count
        self.lists.configure({"up": ModelSource("chat here", (provider,), ("k",))})

    def _count(self) -> None:
        self.changes += 1

    async def tick(self) -> None:
        await self.lists.tick()
        await self.lists.settle(20)

    @property
    def names(self) -> list[str] | None:
        listing = self.lists.get("up", "chat here")
        return None if listing is None else [model.name for model in listing.models]


@asynccontextmanager
async def lists_of(clock: Clock, up: Upstream, *, store: Store | None = None) -> AsyncIterator[Lists]:
    client = HttpClient()
    made = Lists(store or MemoryStore(), clock, up, client)
    try:
        yield made
    finally:
        await made.lists.stop()
        await client.close()


def listing(*names: str) -> Json:
    return Json(200, {"data": [{"id": name} for name in names]})


async def test_a_provider_is_asked_once_a_day() -> None:
    clock = Clock()
    async with Upstream() as up, lists_of(clock, up) as lists:
        up.queue(listing("a"), listing("a"), listing("b"))
        seen = []
        for passed in (0.0, DAY - 1, 1.0, DAY - 1, 1.0):
            clock.now += passed
            await lists.tick()
            seen.append((len(up.requests), lists.names, lists.changes))
    assert seen == [(1, ["a"], 1), (1, ["a"], 1), (2, ["a"], 1), (2, ["a"], 1), (3, ["b"], 2)]


async def test_a_provider_that_fails_is_asked_again_soon_then_ever_more_seldom(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    waits = (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0)
    async with Upstream(lambda _: Json(500, {})) as up, lists_of(clock, up) as lists:
        with caplog.at_level(logging.INFO, "routecodex.models"):
            await lists.tick()
            for asked, wait in enumerate(waits, start=1):
                clock.now += wait - 1
                await lists.tick()
                assert len(up.requests) == asked
                clock.now += 1
                await lists.tick()
                assert len(up.requests) == asked + 1
            up.answer_with(lambda _: listing("a"))
            clock.now += 3600
            await lists.tick()
            assert lists.names == ["a"]
            clock.now += DAY - 1
            await lists.tick()
            assert len(up.requests) == len(waits) + 2
    levels = [(record.levelname, record.message.partition(":")[0]) for record in caplog.records]
    assert levels == [
        ("WARNING", "the models of provider 'up' could not be listed"),
        ("INFO", "provider 'up' lists 1 models"),
    ]


async def test_a_process_that_does_not_fetch_follows_the_store() -> None:
    clock, store = Clock(), MemoryStore()
    async with (
        Upstream() as up,
        lists_of(clock, up, store=store) as first,
        lists_of(clock, up, store=store) as second,
    ):
        second.lists.fetches = False
        up.queue(listing("a"), listing("a", "b"), listing("a", "b"))
        await second.tick()
        assert (second.names, len(up.requests)) == (None, 0)
        await first.tick()
        await second.lists.follow()
        assert (second.names, second.changes) == (["a"], 1)
        for _ in range(2):
            first.lists.refresh()
            await first.lists.settle(20)
            await second.lists.follow()
        assert (second.names, second.changes, len(up.requests)) == (["a", "b"], 2, 3)


async def test_a_refresh_replaces_the_one_under_way() -> None:
    clock = Clock()
    async with Upstream() as up, lists_of(clock, up) as lists:
        up.queue(listing("a"), listing("b"), listing("b"))
        lists.lists.refresh()
        lists.lists.refresh()
        await lists.lists.settle(20)
        assert lists.names is not None
        assert len(up.requests) == 1


class BrokenStore(MemoryStore):
    """A store that cannot be written."""

    async def update(self, *_: object, **__: object) -> bytes | None:
        raise StoreError("the disk is full")


async def test_a_list_that_cannot_be_stored_is_used_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    store = MonitoredStore(BrokenStore())
    async with Upstream(lambda _: listing("a")) as up, lists_of(clock, up, store=store) as lists:
        await lists.tick()
        await lists.lists.follow()
        assert lists.names == ["a"]
    assert "could not be stored: the disk is full" in caplog.text
