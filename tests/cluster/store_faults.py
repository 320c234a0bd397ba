"""What happens to Redis, and to the paths between it and a node."""

from __future__ import annotations

import asyncio

from tests.cluster.conversations import STORE_TIMEOUT
from tests.cluster.deployments import ClusterRedis, SentinelRedis, SingleRedis
from tests.cluster.faults import (
    LONG,
    SHORT,
    Fault,
    Site,
    exhaust_provider,
    freeze_node_beyond_lease,
    freeze_node_briefly,
    kill_node,
    restart_node,
)


async def kill_redis(site: Site[SingleRedis]) -> None:
    with site.timeline.during("store"):
        site.store.server.kill()
        await asyncio.sleep(LONG)
        await asyncio.to_thread(site.store.server.start)
        await site.until_ready()


async def freeze_redis(site: Site[SingleRedis]) -> None:
    with site.timeline.during("store"):
        site.store.server.freeze()
        await asyncio.sleep(LONG)
        site.store.server.thaw()
        await site.until_ready()


async def empty_redis(site: Site[SingleRedis]) -> None:
    """Restart Redis without its data."""
    with site.timeline.during("store"), site.timeline.during("emptied"):
        site.store.server.kill()
        site.store.empty()
        await asyncio.sleep(SHORT)
        await asyncio.to_thread(site.store.server.start)
        await site.until_ready()


async def cut_node_off(site: Site[SingleRedis]) -> None:
    """Cut one node off from Redis, which the others still use, for longer than a lease."""
    number = site.chance.randrange(len(site.nodes))
    node, path = site.nodes[number], site.store.paths[number]
    with site.timeline.during("store", node.name), site.timeline.during("store_beyond_lease", node.name):
        path.cut()
        await asyncio.sleep(LONG)
        path.repair()
        await node.until_ready()


async def stall_node(site: Site[SingleRedis]) -> None:
    """Let no byte pass between one node and Redis, without closing a connection."""
    number = site.chance.randrange(len(site.nodes))
    node, path = site.nodes[number], site.store.paths[number]
    with site.timeline.during("store", node.name):
        path.stall()
        await asyncio.sleep(SHORT)
        path.repair()
        await node.until_ready()


async def lose_answers(site: Site[SingleRedis]) -> None:
    """Let a node's calls reach Redis, and no answer reach the node: what it writes then must be undone."""
    number = site.chance.randrange(len(site.nodes))
    node, path = site.nodes[number], site.store.paths[number]
    with site.timeline.during("store", node.name):
        path.lose_answers()
        await asyncio.sleep(1.5 * STORE_TIMEOUT)
        path.repair()
        await node.until_ready()


async def kill_master(site: Site[SentinelRedis]) -> None:
    """Kill the master; it comes back as a replica of the one that the sentinels have chosen."""
    master, _ = site.store.master_and_replica()
    with site.timeline.during("store"), site.timeline.during("failover"):
        master.kill()
        await site.store.until_failed_over(master)
        await asyncio.to_thread(master.start)
        await site.store.replicate(master)
        await site.until_ready()


async def freeze_master(site: Site[SentinelRedis]) -> None:
    """Freeze the master until the sentinels have chosen another: for a moment there are two."""
    master, _ = site.store.master_and_replica()
    with site.timeline.during("store"), site.timeline.during("failover"):
        master.freeze()
        await site.store.until_failed_over(master)
        master.thaw()
        await asyncio.sleep(SHORT)
        await site.store.replicate(master)
        await site.until_ready()


async def kill_one_of_cluster(site: Site[ClusterRedis]) -> None:
    server = site.chance.choice(site.store.servers)
    with site.timeline.during("store"):
        server.kill()
        await asyncio.sleep(LONG)
        await asyncio.to_thread(server.start)
        await site.store.until_joined()
        await site.until_ready()


async def freeze_one_of_cluster(site: Site[ClusterRedis]) -> None:
    server = site.chance.choice(site.store.servers)
    with site.timeline.during("store"):
        server.freeze()
        await asyncio.sleep(LONG)
        server.thaw()
        await site.store.until_joined()
        await site.until_ready()


SINGLE: dict[str, Fault[SingleRedis]] = {
    "a node killed": kill_node,
    "Redis frozen": freeze_redis,
    "a provider answers 429": exhaust_provider,
    "a node cut off from Redis": cut_node_off,
    "a node frozen beyond its leases": freeze_node_beyond_lease,
    "Redis killed": kill_redis,
    "Redis does not reach a node": lose_answers,
    "a node restarted": restart_node,
    "a node's path to Redis stalled": stall_node,
    "a node frozen briefly": freeze_node_briefly,
    "Redis restarted without its data": empty_redis,
}
SENTINEL: dict[str, Fault[SentinelRedis]] = {
    "master killed": kill_master,
    "a node killed": kill_node,
    "a provider answers 429": exhaust_provider,
    "master frozen": freeze_master,
    "a node restarted": restart_node,
}
CLUSTER: dict[str, Fault[ClusterRedis]] = {
    "a server of the cluster killed": kill_one_of_cluster,
    "a node killed": kill_node,
    "a provider answers 429": exhaust_provider,
    "a server of the cluster frozen": freeze_one_of_cluster,
    "a node restarted": restart_node,
    "a node frozen beyond its leases": freeze_node_beyond_lease,
}
