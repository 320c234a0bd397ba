"""What happens to nodes and providers during a trial; each fault leaves all nodes ready."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.cluster import record as rules
from tests.cluster.conversations import LEASE_MS
from tests.cluster.deployments import Deployment
from tests.cluster.exchanges import TrialClient
from tests.cluster.model import TrialModel
from tests.cluster.nodes import GatewayNode
from tests.cluster.record import COOLDOWN_SEEN, Record
from tests.cluster.timeline import Timeline

SHORT, LONG = 0.4 * LEASE_MS / 1000, 2 * LEASE_MS / 1000
_EXHAUSTED_SECONDS = 2.5

StoreT = TypeVar("StoreT", bound=Deployment)


@dataclass
class Site(Generic[StoreT]):
    """All that a fault may touch."""

    nodes: list[GatewayNode]
    store: StoreT
    client: TrialClient
    model: TrialModel
    timeline: Timeline
    record: Record
    chance: random.Random

    def any_node(self) -> GatewayNode:
        return self.chance.choice(self.nodes)

    async def until_ready(self) -> None:
        """Wait until every node says that its store is up."""
        begin = time.monotonic()
        for node in self.nodes:
            await node.until_ready()
        self.record.took("from the return of Redis until all nodes are ready", time.monotonic() - begin)


Fault = Callable[[Site[StoreT]], Awaitable[None]]


async def kill_node(site: Site[StoreT]) -> None:
    node = site.any_node()
    with site.timeline.during("killed", node.name):
        await node.kill()
        await asyncio.sleep(1)
        await node.start()
        await node.until_ready()


async def restart_node(site: Site[StoreT]) -> None:
    """Restart a node as a deployment does: no request is lost."""
    node = site.any_node()
    code = await node.stop()
    site.record.judge(rules.CLEAN_ENDS, code == 0, f"{node.name} ended with {code}")
    await node.start()
    await node.until_ready()


async def freeze_node_briefly(site: Site[StoreT]) -> None:
    node = site.any_node()
    with site.timeline.during("frozen", node.name):
        node.freeze()
        await asyncio.sleep(SHORT)
        node.thaw()
        await node.until_ready()


async def freeze_node_beyond_lease(site: Site[StoreT]) -> None:
    node = site.any_node()
    with site.timeline.during("frozen_beyond_lease", node.name):
        node.freeze()
        await asyncio.sleep(LONG)
        node.thaw()
        await node.until_ready()


async def exhaust_provider(site: Site[StoreT]) -> None:
    """Let the first provider answer 429 to one request: a second later no node calls it any more.

    Nothing is asked in that second: the other nodes cannot find out by themselves.
    """
    async with site.client.quiet():
        site.model.exhaust("first")
        await site.client.ask("hello", is_paced=False)
        await asyncio.sleep(COOLDOWN_SEEN)
    await asyncio.sleep(_EXHAUSTED_SECONDS)
    site.model.recover()
