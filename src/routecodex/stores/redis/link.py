"""Calls of Redis: bounded in time, judged by the circuit, and its clock.

A pooled connection that the server closed meanwhile is no outage: a call that finds one is sent once more.
For a write that is safe, because its script recognises its id. A call that this process itself delayed (it
was stopped, or very busy) is sent once more too.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError, RedisError, SlotNotCoveredError

from routecodex.canon.store_url import HostPort
from routecodex.stores.redis.call_batches import CallBatches, CallLate
from routecodex.stores.redis.circuit import LONGEST_PAUSE, Circuit
from routecodex.stores.redis.clients import close_client, open_client, run_together
from routecodex.stores.redis.failures import (
    ReplicasBehind,
    StoreGone,
    WritesRefused,
    error_text,
    failure_kind,
)
from routecodex.stores.redis.key_names import KeyNames
from routecodex.stores.redis.options import POOL_SIZE, RedisOptions
from routecodex.stores.redis.scripts import CHECK_TIME, NOTE_RETURN, START_EPOCH, LuaScript
from routecodex.stores.store import CallRefused, DamagedValue, StoreError
from routecodex.stores.uptime import STORE_CLOCK, UNKNOWN, SystemUptime

_LAG = 0.05
"""Seconds that a timer may be late before this process counts as busy itself."""
_PROBE_MS = 60_000
_PROBE_KEYS = 256
"""Keys among which a probe looks for one on each server of a cluster."""
_RETURN_KEPT_MS = 86_400_000
"""Milliseconds that the time of a return is kept: a lease is a day at most."""
_START_SECONDS = 2.0
"""Seconds that the first contact may take, whatever `timeout` allows: a process starts without its store."""
_PROBE_CALLS = 2
"""Calls until a process has noted a return: it may be as late as these."""
_WAIT_SHARE = 0.8
"""Share of the time of a call in which replicas must have a write: what they lack is no outage."""
_SCANNED_AT_ONCE = 1000
_BATCHES = POOL_SIZE // 2
"""Connections for calls that are sent together; the others are for calls that need one for themselves."""

T = TypeVar("T")
Send = Callable[[], Awaitable[T]]


class RedisLink:
    """The way to Redis; `on_return` prepares the store after every outage, before calls are let through."""

    def __init__(
        self, options: RedisOptions, names: KeyNames, *, on_return: Callable[[], Awaitable[None]]
    ) -> None:
        self.options = options
        self.circuit = Circuit(self._come_back)
        self.lost_data = False
        """The server has other data than before the outage: none, or that of an older copy."""
        self._names = names
        self._on_return = on_return
        self._client = open_client(options)
        self._batches: CallBatches | None = None
        self._execute: Callable[..., Awaitable[Any]] = self._client.execute_command
        slots = POOL_SIZE
        if not isinstance(self._client, RedisCluster):
            slots = POOL_SIZE - _BATCHES
            self._batches = CallBatches(self._client, timeout=options.timeout, most=_BATCHES)
            self._execute = self._batches.call
            self.circuit.on_open.append(self._batches.end_all)
        self._slots = asyncio.Semaphore(slots)
        self._epoch = ""
        self._offset_us: float | None = None
        """Microseconds between this machine's monotonic clock and the server's clock."""
        self._returned_ms = 0
        """Server's time at which a process last noted that the server came back."""
        self._started_at: float | None = None
        """Time of the first contact, by the monotonic clock."""
        self._starting: asyncio.Task[None] | None = None
        self._is_started = False

    def uptime(self) -> SystemUptime:
        """Return the server's time; unknown before the first contact."""
        if self._offset_us is None or not self._epoch:
            return UNKNOWN
        return SystemUptime(f"{STORE_CLOCK}{self._epoch}", int(self.now_us() // 1000))

    def was_back_within(self, seconds: float) -> bool:
        """Return whether the server came back less than so many seconds ago, as far as any process knows.

        A process that has just started assumes it until the others have had the time to notice.
        """
        if self._returned_ms and self.now_us() / 1000 - self._returned_ms < seconds * 1000:
            return True
        unnoticed = LONGEST_PAUSE + _PROBE_CALLS * self.options.timeout
        age = 0.0 if self._started_at is None else time.monotonic() - self._started_at
        return age < min(seconds, unnoticed)

    def now_us(self) -> float:
        """Return the server's time in microseconds, as last measured."""
        return time.monotonic() * 1e6 + (self._offset_us or 0.0)

    def deadline_us(self) -> float:
        """Return the server's time until which a write that is sent now may be carried out."""
        return self.now_us() + self.options.timeout * 1e6

    def correct_clock(self, server_us: float) -> None:
        """Use the time that the server has just reported."""
        self._offset_us = server_us - time.monotonic() * 1e6

    async def run(
        self, script: LuaScript, keys: Sequence[str], *args: Any, writes: bool, replicas: int = 0
    ) -> Any:
        """Run a script; StoreError if that is not possible now.

        After StoreGone it is not known whether a write was carried out; after any other error it was not.
        With `replicas`, so many must have the write too; ReplicasBehind if they do not in time.
        """
        if not self._is_started:
            await self.start()
        self.circuit.check(writes=writes)
        if replicas:
            return await self._call(lambda: self._evaluate_and_wait(script, keys, args, replicas))
        return await self._call_together(lambda: self._evaluate(script, keys, args))

    async def run_uncircuited(self, script: LuaScript, keys: Sequence[str], *args: Any) -> Any:
        """Run a script whatever the circuit says: part of the return after an outage."""
        return await self._probe(lambda: self._evaluate(script, keys, args))

    async def accept_data(self) -> None:
        """Go on with the data that the server has now."""
        if not self._epoch:
            await self._probe(self._start_epoch)
        self.lost_data = False

    async def command(self, *args: Any, writes: bool = False) -> Any:
        """Run a command on a key; errors are as in `run`."""
        await self.start()
        self.circuit.check(writes=writes)
        return await self._call_together(lambda: self._execute(*args))

    async def generations(self, keys: Sequence[str]) -> list[int]:
        """Return the generations of stripes, in one round trip."""
        self.circuit.check(writes=False)
        values = await self._call(lambda: self._get_many(keys))
        return [int(value or 0) for value in values]

    async def scan(self, pattern: str) -> list[str]:
        """Return the names of all keys that match; takes many calls on a large server."""
        await self.start()
        self.circuit.check(writes=False)
        client = self._client
        if not isinstance(client, RedisCluster):
            return await self._scan(partial(client.scan, match=pattern, count=_SCANNED_AT_ONCE))
        found: list[str] = []
        for node in client.get_primaries():
            found += await self._scan(
                partial(client.scan, match=pattern, count=_SCANNED_AT_ONCE, target_nodes=node)
            )
        return found

    async def _scan(self, scan: Callable[[int], Awaitable[Any]]) -> list[str]:
        found: list[str] = []
        cursor = 0
        while True:
            reached, names = await self._call(partial(scan, cursor))
            found += [name.decode() for name in names]
            # A cluster returns the cursors of its servers.
            cursor = next(iter(reached.values())) if isinstance(reached, dict) else reached
            if cursor == 0:
                return found

    async def inspect(self) -> dict[str, tuple[Mapping[str, Any], str | None]]:
        """Return the answer of each server to INFO, and its setting `save`, None if it may not be read."""
        await self.start()
        self.circuit.check(writes=False)
        infos = await self._ask_servers("INFO")
        try:
            saves = await self._ask_servers("CONFIG GET", "save")
        except StoreError:
            saves = {}
        return {address: (info, _setting(saves.get(address))) for address, info in infos.items()}

    async def _ask_servers(self, *command: str) -> dict[str, Any]:
        """Return the answer of the server, or of each one of a cluster that takes writes, by address."""
        client = self._client
        if not isinstance(client, RedisCluster):
            return {
                self.options.address.shown: await self._call(partial(self._client.execute_command, *command))
            }
        primaries = {node.name: node for node in client.get_primaries()}
        return {
            name: await self._call(partial(client.execute_command, *command, target_nodes=node))
            for name, node in primaries.items()
        }

    def known_servers(self) -> list[HostPort]:
        """Return the servers of a cluster that is known; none of any other store."""
        if not isinstance(self._client, RedisCluster):
            return []
        return [HostPort(node.host, int(node.port)) for node in self._client.get_nodes()]

    async def measure(self) -> None:
        """Measure the server's clock, and note whether it lost its data."""
        self.circuit.check(writes=False)
        await self._call(self._measure)

    async def close(self) -> None:
        """Close every connection."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self.circuit.close()
        await close_client(self._client)

    async def start(self) -> None:
        """Connect with the first call; other calls wait for that."""
        if self._is_started:
            return
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._connect())
        await asyncio.shield(self._starting)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._come_back()
        except TimeoutError:
            self.circuit.fail(
                StoreGone(f"no answer from {self.options.address.shown} in {_START_SECONDS:g} s")
            )
        except WritesRefused as exc:
            self.circuit.refuse_writes(exc)
        except StoreError as exc:
            self.circuit.fail(exc)
        self._is_started = True

    async def _come_back(self) -> None:
        """Raise StoreGone or WritesRefused, or prepare everything for calls."""
        if self.circuit.is_open:
            # A cluster closes them all, and while only writes are refused others read.
            await self._drop_idle_connections()
        refusal: WritesRefused | None = None
        try:
            await self._probe(self._ping)
        except WritesRefused as exc:
            if self.circuit.status == "read_only":
                # Reads have gone on: what is known stays known.
                raise
            refusal = exc
        if self._is_started and refusal is None:
            await self._probe(self._note_return)
        await self._probe(self._measure)
        if not self._epoch and refusal is None:
            await self._probe(self._start_epoch)
        await self._on_return()
        if refusal is not None:
            raise refusal

    async def _probe(self, send: Send[T]) -> T:
        """Send once, without asking the circuit, which is open."""
        try:
            async with asyncio.timeout(self.options.timeout):
                return await send()
        except TimeoutError as exc:
            raise StoreGone(f"no answer from {self.options.address.shown}") from exc
        except (RedisError, OSError) as exc:
            raise self._translated(exc) from exc

    async def _ping(self) -> None:
        """Write to the server, or to each one of a cluster that takes writes."""
        client = self._client
        keys = [self._names.probe]
        if isinstance(client, RedisCluster):
            await client.initialize()
            for node in client.get_primaries():
                await client.execute_command("PING", target_nodes=node)
            keys = _key_on_each(client, self._names.probe)
        for key in keys:
            await client.execute_command("SET", key, "1", "PX", _PROBE_MS)

    async def _note_return(self) -> None:
        await self._evaluate(NOTE_RETURN, [self._names.returned], (_RETURN_KEPT_MS,))

    async def _measure(self) -> None:
        began = time.monotonic()
        names = [self._names.epoch, self._names.returned]
        epoch, returned, seconds, micros = await self._evaluate(CHECK_TIME, names, ())
        ended = time.monotonic()
        middle = (began + ended) / 2
        self._returned_ms = int(returned or 0)
        if self._started_at is None:
            self._started_at = ended
        self._offset_us = int(seconds) * 1e6 + int(micros) - middle * 1e6
        found = epoch.decode() if epoch is not None else ""
        if self._epoch and found != self._epoch:
            self.lost_data = True
        self._epoch = found

    async def _start_epoch(self) -> None:
        found = await self._evaluate(START_EPOCH, [self._names.epoch], (secrets.token_hex(8),))
        self._epoch = found.decode()

    async def _drop_idle_connections(self) -> None:
        """Close connections that the outage may have left half open: each would delay one call."""
        client = self._client
        # TLS says goodbye, and a server that is frozen or cut off does not answer it.
        with contextlib.suppress(RedisError, OSError):
            if isinstance(client, RedisCluster):
                await client.aclose()
            else:
                await client.connection_pool.disconnect(inuse_connections=False)

    async def _evaluate(self, script: LuaScript, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return await self._execute("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self._execute("EVAL", script.text, len(keys), *keys, *args)

    async def _evaluate_and_wait(
        self, script: LuaScript, keys: Sequence[str], args: Sequence[Any], replicas: int
    ) -> Any:
        """Run a script, then WAIT on the same connection: it counts the writes of that connection alone."""
        limit = time.monotonic() + _WAIT_SHARE * self.options.timeout
        call = ("EVALSHA", script.sha, len(keys), *keys, *args)
        result, count = await run_together(self._client, keys[0], (call, _wait(replicas, limit)))
        if isinstance(result, NoScriptError):
            # This WAIT was for earlier writes of the connection, and has taken its time.
            call = ("EVAL", script.text, len(keys), *keys, *args)
            result, count = await run_together(self._client, keys[0], (call, _wait(replicas, limit)))
        for reply in (result, count):
            if isinstance(reply, Exception):
                raise reply
        if result[0] == b"ok" and count < replicas:
            shown = self.options.address.shown
            raise ReplicasBehind(
                f"{shown}: {count} of {replicas} replicas have the write (store.wait_replicas)"
            )
        return result

    async def _get_many(self, keys: Sequence[str]) -> list[Any]:
        client = self._client
        if not isinstance(client, RedisCluster):
            found: list[Any] = await client.mget(keys) if keys else []
            return found
        pipeline = client.pipeline()
        for key in keys:
            pipeline.get(key)
        replies: list[Any] = await pipeline.execute()
        return replies

    async def _call_together(self, send: Send[T]) -> T:
        """Send a call with others, if there are batches, which bound it in time; else like any other."""
        if self._batches is None:
            return await self._call(send)
        return await self._call(send, sent=self._send_together)

    async def _call(self, send: Send[T], *, sent: Callable[[Send[T]], Awaitable[T]] | None = None) -> T:
        """Send a call, once more if a stale connection or this process itself was the cause of a failure."""
        sent = sent or self._send
        limit = time.monotonic() + self.options.timeout
        try:
            return await sent(send)
        except _SendAgain as again:
            left = limit - time.monotonic()
            is_own_fault = again.was_late or left <= 0
        try:
            # On a stale connection both together may take the time of one call.
            async with asyncio.timeout(None if is_own_fault else left):
                return await sent(send)
        except _SendAgain as again:
            error = StoreGone(f"{self.options.address.shown}: {again.reason}")
            cause: Exception = again
        except TimeoutError as late:
            error = StoreGone(self._late_text)
            cause = late
        self.circuit.fail(error)
        raise error from cause

    async def _send_together(self, send: Send[T]) -> T:
        try:
            return await send()
        except CallLate as exc:
            raise self._late(exc.limit, exc.sent) from exc
        except (RedisError, OSError) as exc:
            raise self._failed(exc) from exc

    async def _send(self, send: Send[T]) -> T:
        loop = asyncio.get_running_loop()
        limit = loop.time() + self.options.timeout
        timeout = asyncio.timeout_at(limit)
        sent = limit
        try:
            async with timeout:
                self.circuit.waiting.add(timeout)
                async with self._slots:
                    sent = loop.time()
                    return await send()
        except TimeoutError as exc:
            raise self._late(limit, sent) from exc
        except (RedisError, OSError) as exc:
            raise self._failed(exc) from exc
        finally:
            self.circuit.waiting.discard(timeout)

    def _late(self, limit: float, sent: float) -> Exception:
        """Return the error of a call that did not end in time; its cause may be this process."""
        now = asyncio.get_running_loop().time()
        error = StoreGone(self._late_text)
        if self.circuit.is_open:
            return error
        if now - limit > _LAG:
            return _SendAgain(self._late_text, was_late=True)
        if limit - sent >= self.options.timeout / 2:
            self.circuit.fail(error)
        return error

    @property
    def _late_text(self) -> str:
        return f"no answer from {self.options.address.shown} in {self.options.timeout:g} s"

    def _failed(self, exc: Exception) -> Exception:
        error = self._translated(exc)
        if isinstance(error, WritesRefused):
            self.circuit.refuse_writes(error)
        if isinstance(error, StoreGone):
            return StoreGone(str(error)) if self.circuit.is_open else _SendAgain(error_text(exc))
        return error

    def _translated(self, exc: Exception) -> StoreError:
        text = f"{self.options.address.shown}: {error_text(exc)}"
        match failure_kind(exc):
            case "connection" | "script":
                return StoreGone(text)
            case "read_only":
                return WritesRefused(text)
            case "damaged":
                return DamagedValue(text)
            case "refused":
                return CallRefused(text)


class _SendAgain(Exception):
    """A call that may be sent once more; `was_late` if this process had no time for it."""

    def __init__(self, reason: str, *, was_late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_late = was_late


def _wait(replicas: int, limit: float) -> tuple[str, int, int]:
    """Return the command that waits for replicas until a limit."""
    return "WAIT", replicas, max(1, int((limit - time.monotonic()) * 1000))


def _key_on_each(client: RedisCluster, name: str) -> list[str]:
    """Return keys that begin with a name, one for each server that has a fair share of the slots."""
    found: dict[str, str] = {}
    for number in range(_PROBE_KEYS):
        key = f"{name}:{number}"
        node = client.get_node_from_key(key)
        if node is None:
            raise SlotNotCoveredError(f"no server has the slot of {key}")
        found.setdefault(node.name, key)
    return list(found.values())


def _setting(found: Any) -> str | None:
    if found is None:
        return None
    values = list(found.values()) if isinstance(found, dict) else list(found)[1:]
    return _decoded(values[0]) if values else None


def _decoded(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
