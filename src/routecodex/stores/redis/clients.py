"""Makes clients of redis-py: for one server, for the master that sentinels name, for a cluster.

The retries of the library are off: they repeat writes, and with them a call to a server that is gone takes
seconds to fail. RESP2 is enough, and the one protocol that every proxy speaks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode, PipelineCommand
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, RedisError, SlotNotCoveredError

from routecodex.canon.store_url import HostPort
from routecodex.stores.redis.options import POOL_SIZE, RedisOptions

RedisClient = Redis | RedisCluster


def connection_settings(options: RedisOptions) -> dict[str, Any]:
    """Return what every connection to the data has in common."""
    address = options.address
    settings: dict[str, Any] = {
        "socket_timeout": None,
        "socket_connect_timeout": options.timeout,
        "socket_keepalive": True,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "username": address.username or None,
        "password": address.password or None,
        **_tls_settings(options),
    }
    return settings if address.mode == "cluster" else {**settings, "db": address.db}


def _tls_settings(options: RedisOptions) -> dict[str, Any]:
    if not options.address.tls:
        return {}
    return {
        "ssl": True,
        "ssl_cert_reqs": "required" if options.verify else "none",
        "ssl_check_hostname": options.verify,
        "ssl_ca_certs": options.ca_file,
        "ssl_certfile": options.cert_file,
        "ssl_keyfile": options.key_file or options.cert_file,
    }


def open_client(options: RedisOptions) -> RedisClient:
    """Return the client for calls; it connects with the first one."""
    settings = connection_settings(options)
    match options.address.mode:
        case "single":
            return _single(options.address.hosts[0], settings, POOL_SIZE)
        case "sentinel":
            return _sentinel(options, settings, POOL_SIZE)
        case "cluster":
            nodes = [ClusterNode(*host) for host in options.address.hosts]
            return RedisCluster(startup_nodes=nodes, max_connections=POOL_SIZE, **settings)


def open_subscriber(options: RedisOptions, attempt: int, *, others: Sequence[HostPort] = ()) -> Redis:
    """Return a client with one connection, for the subscription.

    Any server of a cluster passes on what is published at any other; `attempt` chooses the next one of those
    in the URL and the `others` that are known.
    """
    settings = connection_settings(options)
    if options.address.mode == "sentinel":
        return _sentinel(options, settings, 1)
    hosts = tuple(dict.fromkeys((*options.address.hosts, *others)))
    return _single(hosts[attempt % len(hosts)], settings, 1)


def _single(host: HostPort, settings: dict[str, Any], size: int) -> Redis:
    return Redis(host=host.host, port=host.port, max_connections=size, **settings)


class ConcurrentSentinel(Sentinel):
    """Asks all sentinels at once and takes the first answer that names the master.

    redis-py asks one after the other. The first one that does not answer, often that of the machine that took
    the master with it, uses up the time of a call, every time.
    """

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        asked = [asyncio.ensure_future(self._ask(one, service_name)) for one in self.sentinels]
        failures: list[str] = []
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    return await answer
                except (RedisError, OSError) as exc:
                    failures.append(str(exc))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise MasterNotFoundError(f"No master found for {service_name!r}: {', '.join(failures)}")

    async def _ask(self, sentinel: Redis, service_name: str) -> tuple[str, int]:
        masters: Any = await sentinel.sentinel_masters()
        state = masters.get(service_name)
        if not state or not self.check_master_state(state, service_name):
            settings = sentinel.connection_pool.connection_kwargs
            problem = "takes it for down" if state else "does not know it"
            raise MasterNotFoundError(f"{HostPort(settings['host'], settings['port'])} {problem}")
        return state["ip"], state["port"]


def _sentinel(options: RedisOptions, settings: dict[str, Any], size: int) -> Redis:
    sentinel = ConcurrentSentinel(  # type: ignore[no-untyped-call]  # redis-py has no types here
        list(options.address.hosts),
        sentinel_kwargs={
            "socket_timeout": options.timeout,
            "socket_connect_timeout": options.timeout,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "username": options.address.sentinel_username or None,
            "password": options.address.sentinel_password or None,
            **_tls_settings(options),
        },
    )
    client: Redis = sentinel.master_for(options.address.master, max_connections=size, **settings)
    return client


async def run_together(client: RedisClient, key: str, calls: Sequence[Sequence[Any]]) -> list[Any]:
    """Run calls in turn on one connection to the server of the key; errors are among the results."""
    if not isinstance(client, RedisCluster):
        pipeline = client.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(*call)
        results: list[Any] = await pipeline.execute(raise_on_error=False)
        return results
    await client.initialize()
    node = client.get_node_from_key(key)
    if node is None:
        raise SlotNotCoveredError(f"no server has the slot of {key}")
    commands = [PipelineCommand(number, *call) for number, call in enumerate(calls)]
    await node.execute_pipeline(commands)
    moved = next((one.result for one in commands if isinstance(one.result, MovedError)), None)
    if moved is not None:
        await client.nodes_manager.move_slot(moved)
        raise moved
    return [command.result for command in commands]


async def close_client(client: RedisClient) -> None:
    """Close the connections of a client, also those to its sentinels."""
    with contextlib.suppress(RedisError, OSError):
        await client.aclose()
    pool = None if isinstance(client, RedisCluster) else client.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        for sentinel in pool.sentinel_manager.sentinels:
            with contextlib.suppress(RedisError, OSError):
                await sentinel.aclose()
