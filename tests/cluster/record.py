"""The figures of a trial, the rules that were judged and those that were broken."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

ANSWERED = "every request answered, or failed by a fault"
GRAMMATICAL = "every answer grammatical"
STICKY = "sticky target seen on every node within 1 s"
NOT_TOO_MANY = "no stopMessage use too many"
NOT_LOST = "no stopMessage use lost but by a kill"
TOLD = "every reminder told"
TOLD_ONCE = "no reminder told twice but after a kill or freeze"
COOLDOWN = "cooldown seen on every node within 1 s"
RESPONSES = "stored response found on every node"
BUDGET = "no client above its limit, each up to it"
CLEAN_ENDS = "nodes end cleanly"
NO_ERRORS = "nodes log no error"
UNKNOWN_RESPONSE = "previous_response_not_found"
COOLDOWN_SEEN = 1.0
"""Seconds until every node knows of a cooldown."""
RULES = (
    *(ANSWERED, GRAMMATICAL, STICKY, NOT_TOO_MANY, NOT_LOST, TOLD, TOLD_ONCE, COOLDOWN, RESPONSES),
    BUDGET,
    *(CLEAN_ENDS, NO_ERRORS),
)


@dataclass
class Record:
    """Counts and durations by figure; how often each rule was judged, and what broke it."""

    counts: Counter[str] = field(default_factory=Counter)
    durations: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    judged: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    broken: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def count(self, figure: str, times: int = 1) -> None:
        self.counts[figure] += times

    def remark(self, text: str) -> None:
        """Note what a reader of the results must know."""
        if text:
            self.remarks.append(text)

    def took(self, figure: str, seconds: float) -> None:
        self.durations[figure].append(seconds)

    def judge(self, rule: str, holds: bool, description: str = "") -> None:
        """Note that a rule was judged, and what broke it."""
        self.judged[rule] += 1
        if not holds:
            self.broken[rule].append(description)
