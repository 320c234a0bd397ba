"""The budget: rules for our gateway, as data, relative to the other systems of the same run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from bench.measure import Findings
from bench.memory import SOAK_REQUESTS, STREAMS, Memory
from bench.store_writes import ratio
from bench.summary import Row, Table, summarise

Verdict = Literal["pass", "fail", "not run"]


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Our rps in a cell is at least `factor` times that of `peer`."""

    cell: str
    peer: str
    factor: float


@dataclass(frozen=True, slots=True)
class Added:
    """The time we add to that of `direct` is within a limit."""

    cell: str
    metric: str
    limit_us: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Our CPU per request in the `large` cell is at most `factor` times that of the `small` one."""

    large: str
    small: str
    factor: float


@dataclass(frozen=True, slots=True)
class Kept:
    """Our rps in a cell is at least `share` of that in another one."""

    cell: str
    of: str
    share: float


@dataclass(frozen=True, slots=True)
class Below:
    """A figure of the gateway alone stays below a limit."""

    figure: str
    limit: float
    unit: str


@dataclass(frozen=True, slots=True)
class Above:
    """A figure of the gateway alone is at least this."""

    figure: str
    limit: float
    unit: str


Rule = AtLeast | Added | Growth | Kept | Below | Above

RULES: tuple[Rule, ...] = (
    AtLeast("n16", "litellm", 80),
    AtLeast("n16", "tensorzero", 2),
    AtLeast("n16", "nginx", 1 / 5),
    AtLeast("s16", "litellm", 300),
    AtLeast("s16", "tensorzero", 10),
    AtLeast("s16", "nginx", 1 / 2),
    AtLeast("m16", "litellm", 150),
    AtLeast("m16", "tensorzero", 4),
    AtLeast("m16", "nginx", 3 / 4),
    AtLeast("A16", "ccr", 8),
    AtLeast("A16", "litellm", 150),
    AtLeast("B4", "litellm", 80),
    AtLeast("B4", "tensorzero", 5),
    AtLeast("B4", "nginx", 1 / 3),
    Added("n1", "latency_p50_us", 500),
    Added("p64", "ttfb_p50_us", 2_000),
    Added("p64", "ttfb_p99_us", 10_000),
    # Four times the bytes: a quarter is allowed for noise before the growth counts as worse than linear.
    Growth("2MB", "B4", 5),
    # Independent of the number of sessions; the same share is allowed for noise.
    Growth("known16", "sticky16", 1.25),
    # Client keys, limits and the usage ledger together, against none of them.
    Kept("budget16", "off16", 0.93),
    Kept("sbudget16", "soff16", 0.93),
    # A node on Redis, against one on files.
    Kept("redis16", "n16", 0.9),
    Kept("redissticky16", "filesticky16", 3),
    # The same without the rest of a request, which both stores have in common.
    Above("writes to Redis, 32 at once", 5, "× those to files"),
    Below("startup", 1.0, "s"),
    Below("idle memory", 80, "MB"),
    # Flat: 100 000 requests add less than a single large body can leave in an allocator.
    Below("memory growth over 100 000 requests", 4, "MB"),
    Below("memory per open stream, 1 000 open", 60, "KB"),
)


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome of a rule: text and verdict."""

    text: str
    verdict: Verdict
    value: str


def figures(findings: Findings, memory: Memory | None) -> dict[str, float]:
    """Return the figures of the gateway alone; an incomplete memory run has none."""
    starts = [start for start in findings.starts if start.system == "ours"]
    known: dict[str, float] = {}
    if starts:
        known["startup"] = statistics.median(start.seconds for start in starts)
        known["idle memory"] = statistics.median(start.rss_mb for start in starts)
    if findings.writes:
        known["writes to Redis, 32 at once"] = ratio(findings.writes, 32)
    if memory is not None and memory.requests >= SOAK_REQUESTS:
        known["memory growth over 100 000 requests"] = memory.growth_mb
    if memory is not None and memory.streams >= STREAMS:
        known["memory per open stream, 1 000 open"] = memory.stream_kb
    return known


def _verdict(holds: bool) -> Verdict:
    return "pass" if holds else "fail"


def _both(left: Row | None, right: Row | None) -> tuple[Row, Row] | None:
    if left is None or right is None or not right.usable:
        return None
    return left, right


def _check(rule: Rule, table: Table, own: dict[str, float]) -> Check:
    match rule:
        case AtLeast(cell, peer, factor):
            text = f"{cell}: at least {factor:.3g} × {peer}'s rps"
            rows = _both(table.get(("ours", cell)), table.get((peer, cell)))
            if rows is None:
                return Check(text, "not run", "")
            ratio = rows[0]["rps"] / rows[1]["rps"]
            return Check(text, _verdict(ratio >= factor and rows[0].usable), f"{ratio:.3g} ×")
        case Added(cell, metric, limit):
            name = metric.removesuffix("_us").replace("_", " ")
            text = f"{cell}: {name} at most {limit / 1000:g} ms over direct"
            rows = _both(table.get(("ours", cell)), table.get(("direct", cell)))
            if rows is None:
                return Check(text, "not run", "")
            added = rows[0][metric] - rows[1][metric]
            return Check(text, _verdict(added <= limit and rows[0].usable), f"{added / 1000:.2f} ms")
        case Growth(large, small, factor):
            text = f"{large}: CPU per request at most {factor:g} × that of {small}"
            rows = _both(table.get(("ours", large)), table.get(("ours", small)))
            if rows is None or rows[1]["cpu_us"] == 0:
                return Check(text, "not run", "")
            ratio = rows[0]["cpu_us"] / rows[1]["cpu_us"]
            return Check(text, _verdict(ratio <= factor and rows[0].usable), f"{ratio:.3g} ×")
        case Kept(cell, of, share):
            text = f"{cell}: at least {share:g} × the rps of {of}"
            rows = _both(table.get(("ours", cell)), table.get(("ours", of)))
            if rows is None:
                return Check(text, "not run", "")
            ratio = rows[0]["rps"] / rows[1]["rps"]
            return Check(text, _verdict(ratio >= share and rows[0].usable), f"{ratio:.3g} ×")
        case Below(figure, limit, unit):
            text = f"{figure} below {limit:g} {unit}"
            if figure not in own:
                return Check(text, "not run", "")
            return Check(text, _verdict(own[figure] < limit), f"{own[figure]:.3g} {unit}")
        case Above(figure, limit, unit):
            text = f"{figure}: at least {limit:g} {unit}"
            if figure not in own:
                return Check(text, "not run", "")
            return Check(text, _verdict(own[figure] >= limit), f"{own[figure]:.3g} {unit.split()[0]}")
        case _:
            assert_never(rule)


def _no_errors(table: Table, memory: Memory | None) -> Check:
    rows = [row for (system, _), row in table.items() if system == "ours"]
    text = "every answer of ours complete and right"
    if not rows and memory is None:
        return Check(text, "not run", "")
    count = sum(row.errors for row in rows) + (memory.errors if memory else 0)
    return Check(text, _verdict(count == 0), f"{count} errors")


def check(findings: Findings, memory: Memory | None, rules: Sequence[Rule] = RULES) -> list[Check]:
    """Return the outcome of every rule, including rules that could not be evaluated."""
    table = summarise(findings.samples)
    own = figures(findings, memory)
    return [_no_errors(table, memory), *(_check(rule, table, own) for rule in rules)]
