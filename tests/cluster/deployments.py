"""The store of a stage: where the nodes find it, and its parts that can fail."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.redis_path import RedisPath
from tests.kit.redis_server import RedisServer, close_all
from tests.kit.redis_sets import (
    MASTER,
    is_joined,
    knows_replica,
    master_port,
    start_cluster,
    start_replicated,
    wait_for_replica,
)
from tests.kit.wires import ServerNamespace, Wire, missing_for_wires

_POLL = 0.05
_PATIENCE = 30.0


class Deployment:
    """Servers of Redis, and the settings that a node needs for them."""

    servers: list[RedisServer]
    settings = ""
    remark = ""
    """What a reader of the results must know."""

    async def open(self) -> None:
        """Prepare what needs the event loop."""

    def url(self, number: int) -> str:
        """Return the URL for the node of that number."""
        raise NotImplementedError

    async def close(self) -> None:
        close_all(self.servers)


class SingleRedis(Deployment):
    """One server that writes every change to its disk; each node reaches it by a path of its own.

    A path is a wire into the server's network namespace, or a proxy where namespaces are not allowed.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder / "redis"
        self._namespace: ServerNamespace | None = None
        self._proxies: list[RedisPath] = []
        if missing_for_wires():
            self.remark = f"nodes are cut off by a proxy: {missing_for_wires()}"
            self.server = RedisServer(self._folder, saves=True)
            self._proxies = [RedisPath(self.server.port) for _ in range(nodes)]
            self.paths: Sequence[Wire | RedisPath] = self._proxies
        else:
            self.remark = "nodes are cut off by the wire to the network namespace of Redis"
            self._namespace = ServerNamespace(1 + nodes)
            own, *self.paths = self._namespace.wires
            launcher = self._namespace.launcher
            self.server = RedisServer(self._folder, saves=True, host=own.host, launcher=launcher)
        self.servers = [self.server]

    async def open(self) -> None:
        for proxy in self._proxies:
            await proxy.open()

    def url(self, number: int) -> str:
        path = self.paths[number]
        port = path.port if isinstance(path, RedisPath) else self.server.port
        return f"redis://{path.host}:{port}/0"

    def empty(self) -> None:
        """Delete what the server has written; it does not run."""
        shutil.rmtree(self._folder / "appendonlydir")

    async def close(self) -> None:
        for proxy in self._proxies:
            await proxy.close()
        await super().close()
        if self._namespace is not None:
            self._namespace.close()


class SentinelRedis(Deployment):
    """A master and a replica, watched by three sentinels; counts wait for the replica."""

    settings = "wait_replicas = 1\n"

    def __init__(self, folder: Path) -> None:
        self.servers = start_replicated(folder, saves=True)
        self._pair, self._sentinels = self.servers[:2], self.servers[2:]

    async def open(self) -> None:
        await _until(lambda: all(map(knows_replica, self._sentinels)))

    def url(self, number: int) -> str:
        return f"redis+sentinel://{_hosts(self._sentinels)}/{MASTER}"

    def master_and_replica(self) -> tuple[RedisServer, RedisServer]:
        """Return the servers as a sentinel names them now."""
        port = master_port(self._sentinels[0])
        first, second = self._pair
        return (first, second) if first.port == port else (second, first)

    async def until_failed_over(self, former: RedisServer) -> None:
        """Wait until the sentinels name another master."""
        await _until(lambda: all(master_port(one) != former.port for one in self._sentinels))

    async def replicate(self, former: RedisServer) -> None:
        """Let a former master follow the present one."""
        master, _ = self.master_and_replica()
        with former.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", master.port)
        await asyncio.to_thread(wait_for_replica, master)


class ClusterRedis(Deployment):
    """A cluster of three masters."""

    def __init__(self, folder: Path) -> None:
        self.servers = start_cluster(folder, saves=True)

    def url(self, number: int) -> str:
        return f"redis+cluster://{_hosts(self.servers)}"

    async def until_joined(self) -> None:
        await _until(lambda: all(map(is_joined, self.servers)))


def _hosts(servers: list[RedisServer]) -> str:
    return ",".join(f"127.0.0.1:{one.port}" for one in servers)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(_POLL)
