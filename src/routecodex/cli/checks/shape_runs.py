"""Sends the shapes of an agent through the gateway to each target."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from routecodex.cli.checks.gateway_in_use import GatewayInUse
from routecodex.cli.checks.result import CheckResult, skipped
from routecodex.cli.checks.shapes.shape import AgentShapes, RequestShape, ShapeInput, ShapeName
from routecodex.cli.checks.verdicts import TargetFacts, Verdict, judge
from routecodex.config import Config
from routecodex.config.providers import ProviderConfig
from routecodex.providers.http.origin import is_loopback

_AT_ONCE = 4
"""Targets that are tried at the same time."""


def target_facts(config: Config, name: str) -> TargetFacts:
    """Return the facts of a target `provider.model`."""
    provider, _, model = name.partition(".")
    row = config.providers[provider]
    return TargetFacts(provider=provider, model=model, config=row, keys=key_places(provider, row))


def key_places(name: str, row: ProviderConfig) -> str:
    """Return the variables, files or tables that hold the keys of a provider."""
    return ", ".join(dict.fromkeys(key.secret.source or f"providers.{name}.auth" for key in row.keys))


def leaves_machine(row: ProviderConfig) -> bool:
    """Whether requests to the provider leave this machine."""
    from urllib.parse import urlsplit

    return row.protocol != "demo" and not is_loopback(urlsplit(row.base_url).hostname or "")


async def run_agent(
    agent: str, shapes: AgentShapes, targets: Sequence[TargetFacts], *, gateway: GatewayInUse, offline: bool
) -> AsyncIterator[CheckResult]:
    """Yield the result of every shape for every target, in order and as soon as it is known."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def run(target: TargetFacts, results: asyncio.Queue[CheckResult | None]) -> None:
        try:
            async with slots:
                async for result in _run_target(agent, shapes, target, gateway=gateway, offline=offline):
                    results.put_nowait(result)
        finally:
            results.put_nowait(None)

    queues: list[asyncio.Queue[CheckResult | None]] = [asyncio.Queue() for _ in targets]
    runs = [
        asyncio.ensure_future(run(target, results)) for target, results in zip(targets, queues, strict=True)
    ]
    try:
        for one, results in zip(runs, queues, strict=True):
            while (result := await results.get()) is not None:
                yield result
            await one
    finally:
        for one in runs:
            one.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


async def _run_target(
    agent: str, shapes: AgentShapes, target: TargetFacts, *, gateway: GatewayInUse, offline: bool
) -> AsyncIterator[CheckResult]:
    place = f"{agent}.{target.provider}.{target.model}"
    blocked = ""
    if offline and leaves_machine(target.config):
        blocked = f"{target.provider} is not on this machine, and --offline is set"
    given = ShapeInput(
        model=f"{target.provider}.{target.model}",
        key=gateway.key,
        session=f"doctor-{uuid.uuid4()}",
        turn_id=str(uuid.uuid4()),
    )
    for name in shapes.shapes:
        if blocked:
            yield skipped(f"{place}.{name}", blocked)
            continue
        verdict, given = await _run_shape(name, given, shapes, target=target, gateway=gateway)
        yield CheckResult(f"{place}.{name}", verdict.status, verdict.message, verdict.fix)
        blocked = f"not sent, because {name} failed" if verdict.blocks else ""


async def _run_shape(
    name: ShapeName,
    given: ShapeInput,
    shapes: AgentShapes,
    *,
    target: TargetFacts,
    gateway: GatewayInUse,
) -> tuple[Verdict, ShapeInput]:
    """Send one shape, and what follows it; return the values for the next shapes too."""
    verdict = await _send(name, shapes.shapes[name](given), shapes, target=target, gateway=gateway)
    if name == "tool_call" and verdict.answer is not None:
        given = replace(given, turn=verdict.answer.turn)
    after = shapes.after.get(name)
    if after is None or verdict.status == "fail" or verdict.answer is None:
        return verdict, given
    summary = replace(given, summary=verdict.answer.text)
    following = await _send("text", after(summary), shapes, target=target, gateway=gateway)
    if following.status == "ok":
        return verdict, given
    return replace(following, message=f"the turn after it: {following.message}"), given


async def _send(
    name: ShapeName,
    shape: RequestShape,
    shapes: AgentShapes,
    *,
    target: TargetFacts,
    gateway: GatewayInUse,
) -> Verdict:
    reply = await gateway.post(shape.path, shape.headers, shape.body)
    return judge(name, shape, reply, agent=shapes, target=target)
