"""The command of `make cluster-test`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.cluster.deployments import ClusterRedis, SentinelRedis, SingleRedis
from tests.cluster.record import RULES, Record
from tests.cluster.store_faults import CLUSTER, SENTINEL, SINGLE
from tests.cluster.trial import WORKERS, StagePlan, run_stage

SHARES = {"single": 0.6, "sentinel": 0.2, "cluster": 0.2}
_SHOWN = 5


async def run_named(
    name: str, folder: Path, record: Record, *, seconds: float, rate: float, seed: int
) -> None:
    """Run the stage of that name."""
    match name:
        case "single":
            plan = StagePlan(SINGLE, seconds, rate, seed=seed)
            await run_stage(folder, SingleRedis(folder, len(WORKERS)), plan, record)
        case "sentinel":
            sentinels = StagePlan(SENTINEL, seconds, rate, seed=seed)
            await run_stage(folder, SentinelRedis(folder), sentinels, record)
        case _:
            servers = StagePlan(CLUSTER, seconds, rate, seed=seed)
            await run_stage(folder, ClusterRedis(folder), servers, record)


def report(record: Record) -> str:
    """Return the table of rules and figures."""
    lines = [*record.remarks, "", f"{'rule':<52}{'judged':>8}{'broken':>8}"]
    lines += [f"{rule:<52}{record.judged[rule]:>8}{len(record.broken[rule]):>8}" for rule in RULES]
    lines += ["", f"{'figure':<60}{'count':>8}"]
    lines += [f"{name:<60}{count:>8}" for name, count in sorted(record.counts.items())]
    for name, values in sorted(record.durations.items()):
        middle = sorted(values)[len(values) // 2]
        lines.append(f"{name:<60}{middle:>7.2f} s, at most {max(values):.2f} s")
    for rule, found in record.broken.items():
        lines += [f"broken: {rule}", *(f"  {line}" for line in found[:_SHOWN])] if found else []
    return "\n".join(lines)


async def _ended_by_signals(stage: Coroutine[Any, Any, None]) -> None:
    """Run a stage; a signal ends it with all its processes."""
    task = asyncio.ensure_future(stage)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


def main() -> int:
    """Run the stages; return 1 if a rule was broken or never judged, 130 after a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description="Try three nodes while everything fails."
    )
    parser.add_argument("stages", nargs="*", choices=[*SHARES, []], help="default: all")
    parser.add_argument("--minutes", type=float, default=10.0, help="of all stages, default %(default)g")
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second, default %(default)g")
    parser.add_argument("--seed", type=int, default=None, help="default: the time, which is printed")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    names = options.stages or list(SHARES)
    whole, record = sum(SHARES[name] for name in names), Record()
    for name in names:
        seconds = options.minutes * 60 * SHARES[name] / whole
        print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
            stage = run_named(name, Path(folder), record, seconds=seconds, rate=options.rate, seed=seed)
            try:
                asyncio.run(_ended_by_signals(stage))
            except asyncio.CancelledError:
                print("ended by a signal", file=sys.stderr)
                return 130
    print(report(record))
    unjudged = [rule for rule in RULES if not record.judged[rule]]
    for rule in unjudged:
        print(f"never judged: {rule}")
    return 1 if unjudged or any(record.broken.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
