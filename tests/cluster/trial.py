"""One stage of the trial: nodes, balancer, store, load and faults together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from tests.cluster import record as rules
from tests.cluster.conversations import (
    CONVERSATIONS,
    DUE_WINDOW_MS,
    HOLD_MAX_MS,
    LEASE_MS,
    LIMIT,
    LIMITED_CLIENTS,
    STORE_TIMEOUT,
    Client,
    limited_key,
)
from tests.cluster.deployments import Deployment
from tests.cluster.exchanges import KEY, TrialClient
from tests.cluster.faults import Fault, Site, StoreT
from tests.cluster.model import TrialModel
from tests.cluster.nodes import Balancer, GatewayNode
from tests.cluster.record import Record
from tests.cluster.rules import judge_cooldown, judge_exchange
from tests.cluster.timeline import Timeline
from tests.kit.gateway import provider
from tests.kit.upstream import Upstream

WORKERS = (1, 2, 1)
_PARALLEL = 12
_LAST_SECONDS = 120.0


@dataclass(frozen=True)
class StagePlan(Generic[StoreT]):
    """The faults of a stage, in turn for that many seconds; each once without."""

    faults: Mapping[str, Fault[StoreT]]
    seconds: float | None = None
    rate: float = 20.0
    pause: float = 3.0
    seed: int = 0


def _config(node: GatewayNode, number: int, up: Upstream, store: Deployment) -> str:
    limited = "".join(
        f'[clients.limited-{one}]\nkey = "{limited_key(one)}"\nlimits = ["{LIMIT} requests/24h"]\n'
        for one in range(LIMITED_CLIENTS)
    )
    return (
        f'[server]\nid = "{node.name}"\nport = {node.port}\nadmin_token = "operator"\n'
        f'[clients.trial]\nkey = "{KEY}"\n{limited}'
        f'[store]\nurl = "{store.url(number)}"\ntimeout_ms = {STORE_TIMEOUT * 1000:.0f}\n{store.settings}'
        '[logging]\nlevel = "warning"\n'
        + provider("first", "chat", up)
        + provider("spare", "chat", up)
        + provider("second", "messages", up)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "spare.m", "second.m"] }]\n'
        f'[server_tools.clock]\nenabled = true\ntime_tag = "off"\nlease_ms = {LEASE_MS}\n'
        f"due_window_ms = {DUE_WINDOW_MS}\nhold_max_ms = {HOLD_MAX_MS}\nntp = {{ enabled = false }}\n"
    )


@dataclass
class Stage(Generic[StoreT]):
    """Everything that runs in a stage."""

    site: Site[StoreT]
    is_over: bool = False

    async def run(self, plan: StagePlan[StoreT]) -> None:
        """Run load and faults until the time is over, then let every conversation end and judge."""
        watching = asyncio.ensure_future(self._watch_logs())
        clients = asyncio.ensure_future(self._converse())
        try:
            await self._disturb(plan)
            self.is_over = True
            await asyncio.wait_for(clients, _LAST_SECONDS)
        finally:
            for task in (clients, watching):
                task.cancel()
            await asyncio.gather(clients, watching, return_exceptions=True)
        self._judge()

    async def _disturb(self, plan: StagePlan[StoreT]) -> None:
        until = time.monotonic() + (plan.seconds or 0.0)
        rounds = itertools.cycle(plan.faults) if plan.seconds else iter(plan.faults)
        for name in rounds:
            await asyncio.sleep(plan.pause)
            if plan.seconds and time.monotonic() > until:
                return
            await plan.faults[name](self.site)
            self.site.record.count(f"faults: {name}")
        await asyncio.sleep(plan.pause)

    async def _converse(self) -> None:
        kinds = itertools.cycle(CONVERSATIONS.values())
        numbers = itertools.count(1)

        async def one_after_the_other() -> None:
            while not self.is_over:
                await next(kinds)(self._client(next(numbers)))

        async with asyncio.TaskGroup() as group:
            for _ in range(_PARALLEL):
                group.create_task(one_after_the_other())

    def _client(self, number: int) -> Client:
        site = self.site
        chance = random.Random(number)
        return Client(number, site.client, site.model, site.timeline, site.record, chance)

    async def _watch_logs(self) -> None:
        while True:
            for node in self.site.nodes:
                node.note_outages()
            await asyncio.sleep(0.05)

    def _judge(self) -> None:
        site, record = self.site, self.site.record
        for exchange in site.client.exchanges:
            judge_exchange(exchange, site.timeline, record)
        for exhaustion in site.model.exhaustions:
            judge_cooldown(exhaustion, site.timeline, record)
        for node in site.nodes:
            record.judge(rules.NO_ERRORS, not node.errors, f"{node.name}: {node.errors[:3]}")


@contextlib.asynccontextmanager
async def _stage(
    folder: Path, store: StoreT, plan: StagePlan[StoreT], record: Record
) -> AsyncIterator[Stage[StoreT]]:
    """Start upstream, nodes and balancer in front of this store; end them all."""
    timeline, model = Timeline(), TrialModel()
    record.remark(store.remark)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        await store.open()
        up = await stack.enter_async_context(Upstream(model.answer))
        nodes = [
            GatewayNode(number, folder, workers=workers, timeline=timeline)
            for number, workers in enumerate(WORKERS)
        ]
        for number, node in enumerate(nodes):
            node.configure(_config(node, number, up, store))
            stack.push_async_callback(node.kill)
        await asyncio.gather(*(node.start() for node in nodes))
        for node in nodes:
            await node.until_ready()
        balancer = Balancer(folder, nodes)
        stack.push_async_callback(balancer.stop)
        await balancer.start()
        client = TrialClient(balancer, rate=plan.rate)
        yield Stage(Site(nodes, store, client, model, timeline, record, random.Random(plan.seed)))


async def run_stage(folder: Path, store: StoreT, plan: StagePlan[StoreT], record: Record) -> None:
    """Run a stage on this store, from the start of its nodes to their end."""
    async with _stage(folder, store, plan, record) as stage:
        await stage.run(plan)
