"""Medians and spread of the samples, per system and cell."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measure import Sample

_CALM = 0.15
"""Share of the machine others may have taken from samples that are used where no better ones are."""

METRICS: dict[str, Callable[[Sample], float]] = {
    "rps": lambda sample: sample.load.rps,
    "cpu_us": lambda sample: sample.cpu_us,
    "latency_p50_us": lambda sample: sample.load.latency_us.p50,
    "latency_p99_us": lambda sample: sample.load.latency_us.p99,
    "ttfb_p50_us": lambda sample: sample.load.ttfb_us.p50,
    "ttfb_p99_us": lambda sample: sample.load.ttfb_us.p99,
    "rss_mb": lambda sample: sample.rss_mb,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One system in one cell: medians, the spread of rps relative to its median, and noise."""

    system: str
    cell: str
    medians: dict[str, float]
    spread: float
    rounds: int
    noisy: bool
    errors: int
    first_error: str

    def __getitem__(self, metric: str) -> float:
        return self.medians[metric]

    @property
    def usable(self) -> bool:
        """Whether a ratio against this row is meaningful."""
        return self.errors == 0 and self.medians["rps"] > 0


Table = dict[tuple[str, str], Row]


def _row(samples: Sequence[Sample]) -> Row:
    quiet = [sample for sample in samples if not sample.noisy]
    calm = [sample for sample in samples if sample.foreign_share <= _CALM]
    used = quiet or calm or list(samples)
    medians = {name: statistics.median(map(read, used)) for name, read in METRICS.items()}
    rates = [sample.load.rps for sample in used]
    spread = (max(rates) - min(rates)) / medians["rps"] if medians["rps"] else 0.0
    failed = [sample for sample in samples if sample.load.errors]
    return Row(
        samples[0].system,
        samples[0].cell,
        medians,
        spread,
        len(used),
        not quiet,
        sum(sample.load.errors for sample in failed),
        failed[0].load.first_error if failed else "",
    )


def summarise(samples: Sequence[Sample]) -> Table:
    """Return a row per system and cell; noisy samples count only without better ones."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.system, sample.cell), []).append(sample)
    return {key: _row(group) for key, group in groups.items()}
