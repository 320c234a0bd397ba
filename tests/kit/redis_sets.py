"""Several servers of Redis that belong together: a master with replica and sentinels, or a cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import redis

from bench.ports import free_port
from tests.kit.redis_server import RedisServer

MASTER = "mymaster"
_PATIENCE = 20.0
_SLOTS = 16384


def start_replicated(
    folder: Path, *, saves: bool = False, sentinel_password: str | None = None
) -> list[RedisServer]:
    """Start a master, a replica that has its data, and three sentinels, in this order."""
    master = RedisServer(folder / "master", saves=saves)
    replica = RedisServer(folder / "replica", "--replicaof", f"127.0.0.1 {master.port}", saves=saves)
    servers = [master, replica]
    for number in range(3):
        file = folder / f"sentinel-{number}.conf"
        file.write_text(
            f"sentinel monitor {MASTER} 127.0.0.1 {master.port} 2\n"
            f"sentinel down-after-milliseconds {MASTER} 500\n"
            f"sentinel failover-timeout {MASTER} 2000\n"
            + (f"requirepass {sentinel_password}\n" if sentinel_password else "")
        )
        servers.append(
            RedisServer(folder / f"sentinel-{number}", str(file), sentinel=True, password=sentinel_password)
        )
    wait_for_replica(master)
    return servers


def wait_for_replica(master: RedisServer) -> None:
    """Wait until a replica has the data of this server."""
    until = time.monotonic() + _PATIENCE
    with master.client() as client:
        info: Any = client.info("replication")
        while info.get("connected_slaves", 0) < 1 or info["slave0"]["state"] != "online":
            assert time.monotonic() < until
            time.sleep(0.05)
            info = client.info("replication")


def knows_replica(sentinel: RedisServer) -> bool:
    """Return whether the sentinel has found the replica and the other two sentinels."""
    with sentinel.client() as client:
        rows: Any = client.execute_command("SENTINEL", "REPLICAS", MASTER)
        peers: Any = client.execute_command("SENTINEL", "SENTINELS", MASTER)
        return len(rows) == 1 and len(peers) == 2


def master_port(sentinel: RedisServer) -> int:
    """Return the port of the master that the sentinel names."""
    with sentinel.client() as client:
        found: Any = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return int(found[1])


def start_cluster(folder: Path, *, saves: bool = False) -> list[RedisServer]:
    """Start a cluster of three masters that share all slots."""
    servers = [
        RedisServer(
            folder / str(number),
            *("--cluster-enabled", "yes", "--cluster-port", str(free_port())),
            saves=saves,
        )
        for number in range(3)
    ]
    _join(servers)
    return servers


def _join(servers: list[RedisServer]) -> None:
    for number, server in enumerate(servers):
        with server.client() as client:
            first, last = _SLOTS * number // 3, _SLOTS * (number + 1) // 3 - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for other in servers[:number]:
                with other.client() as peer:
                    bus: Any = peer.config_get("cluster-port")
                meet = ("CLUSTER", "MEET", "127.0.0.1", other.port, bus["cluster-port"])
                client.execute_command(*meet)
    until = time.monotonic() + _PATIENCE
    while not all(is_joined(server) for server in servers):
        assert time.monotonic() < until
        time.sleep(0.05)


def is_joined(server: RedisServer) -> bool:
    """Return whether the server sees a whole cluster of three."""
    with server.client(decode_responses=True) as client:
        try:
            info: Any = client.execute_command("CLUSTER INFO")
        except redis.RedisError:
            return False
        return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3")
