"""Hears of changes: one subscription on a connection of its own, and a check twice a second.

A message may be lost with its connection, or by a server that drops a slow reader. So everything is unknown
until the subscription is back, and the generations of all stripes in use are compared every 500 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from routecodex.stores.redis.clients import close_client, open_subscriber
from routecodex.stores.redis.failures import StoreGone, error_text
from routecodex.stores.redis.key_names import KeyNames, Stripe
from routecodex.stores.redis.link import RedisLink
from routecodex.stores.redis.stamp_table import StampTable
from routecodex.stores.store import StoreError

CHECK_SECONDS = 0.5
_IN_FLIGHT = 0.15
"""Seconds in which a message that was published before a check arrives."""
_PAUSE, _LONGEST_PAUSE = 0.02, 1.0

log = logging.getLogger("routecodex.stores")


class ChangeWatch:
    """Keeps the table of stamps up to date with the changes of all processes."""

    def __init__(
        self,
        link: RedisLink,
        table: StampTable,
        names: KeyNames,
        *,
        on_lost_data: Callable[[], Awaitable[None]],
    ) -> None:
        self._link = link
        self._table = table
        self._names = names
        self._on_lost_data = on_lost_data
        self._attempts = 0
        self._reader: asyncio.Task[None] | None = None
        self._checker: asyncio.Task[None] | None = None
        self._client: Redis | None = None

    async def restart(self) -> None:
        """Subscribe anew, and then forget what was known; StoreGone if that is not possible."""
        await self._stop_reading()
        client, messages = await self._subscribe()
        # Not before: while the store stays away, the last known state goes on.
        self._table.forget_all()
        self._table.is_live = True
        self._client = client
        self._reader = asyncio.ensure_future(self._read(client, messages))
        if self._checker is None:
            self._checker = asyncio.ensure_future(self._check())

    async def close(self) -> None:
        """End the subscription and the checks."""
        if self._checker is not None:
            self._checker.cancel()
            await asyncio.wait([self._checker])
        await self._stop_reading()

    async def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
            self._reader = None

    async def _subscribe(self) -> tuple[Redis, PubSub]:
        client = open_subscriber(self._link.options, self._attempts, others=self._link.known_servers())
        self._attempts += 1
        messages = client.pubsub()
        try:
            async with asyncio.timeout(self._link.options.timeout):
                await messages.subscribe(self._names.channel)
                while (first := await messages.get_message(timeout=None)) is None or (
                    first["type"] != "subscribe"
                ):
                    continue
        except (RedisError, OSError, TimeoutError) as exc:
            await _close(client, messages)
            shown, channel = self._link.options.address.shown, self._names.channel
            reason = "no answer" if isinstance(exc, TimeoutError) else error_text(exc)
            raise StoreGone(f"{shown}: cannot subscribe to {channel}: {reason}") from exc
        except BaseException:
            await _close(client, messages)
            raise
        return client, messages

    async def _read(self, client: Redis, messages: PubSub) -> None:
        """Read messages; after a lost connection subscribe again, unless the store is down as well."""
        while True:
            try:
                await self._read_all(messages)
            except (RedisError, OSError) as exc:
                log.debug("the subscription to changes was lost: %s", exc)
            finally:
                self._table.is_live = False
                await _close(client, messages)
            client, messages = await self._subscribe_again()
            self._table.forget_all()
            self._table.is_live = True

    async def _read_all(self, messages: PubSub) -> None:
        """Read from the connection itself: PubSub would reconnect without a sign, and costs as much again."""
        connection = messages.connection
        if connection is None:
            return
        while True:
            message = await connection.read_response()
            if message[0] == b"message":
                self._hear(message[2])

    async def _subscribe_again(self) -> tuple[Redis, PubSub]:
        pause = _PAUSE
        while True:
            # While the circuit is open, its probe restarts the watch.
            if not self._link.circuit.is_open:
                with contextlib.suppress(StoreGone):
                    return await self._subscribe()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _hear(self, data: bytes) -> None:
        try:
            space, number, generation, version, _writer, key = data.decode().split(" ", 5)
            self._table.hear(space, int(number), int(generation), key=key, stamp=int(version))
        except ValueError:
            # The check finds what it was about, if a gateway sent it.
            log.warning("a message on %s was not sent by a gateway: %.80r", self._names.channel, data)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._link.circuit.is_open or not self._table.is_live:
                continue
            try:
                await self._compare()
            except StoreError as exc:
                log.debug("the changes of others could not be checked: %s", exc)

    async def _compare(self) -> None:
        await self._link.measure()
        if self._link.lost_data:
            await self._on_lost_data()
            return
        table, era = self._table, self._table.era
        stripes = [stripe for space in table.spaces for stripe in self._names.stripes(space)]
        before = {stripe: table.heard(stripe.space, stripe.number) for stripe in stripes}
        found = await self._link.generations([stripe.generation for stripe in stripes])
        rows = [row for row in zip(stripes, found, strict=True) if _differs(row, table)]
        if rows:
            await asyncio.sleep(_IN_FLIGHT)
        for stripe, generation in rows:
            if era == table.era and table.is_live:
                table.check(stripe.space, stripe.number, generation, before=before[stripe])


def _differs(row: tuple[Stripe, int], table: StampTable) -> bool:
    stripe, generation = row
    return table.heard(stripe.space, stripe.number) != generation


async def _close(client: Redis, messages: PubSub) -> None:
    with contextlib.suppress(RedisError, OSError):
        await messages.aclose()  # type: ignore[no-untyped-call]  # redis-py has no types here
    await close_client(client)
