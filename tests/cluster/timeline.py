"""What was broken, where and when: the rules of a trial ask it what excuses an outcome."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "killed",
    "frozen",
    "frozen_beyond_lease",
    "restarted",
    "store",
    "store_beyond_lease",
    "emptied",
    "failover",
]
ALL_NODES = ""
# An outcome a moment after a fault may still be its effect: a circuit closes, a message is found missing.
AFTERMATH = 1.0


@dataclass
class Window:
    """A time in which something was broken at a node, or at all of them."""

    kind: Kind
    node: str
    begin: float
    end: float = math.inf

    def meets(self, begin: float, end: float) -> bool:
        return self.begin <= end and begin <= self.end + AFTERMATH


@dataclass
class Timeline:
    """All windows of a stage, in order of their beginning."""

    windows: list[Window] = field(default_factory=list)

    def open(self, kind: Kind, node: str = ALL_NODES) -> Window:
        window = Window(kind, node, time.monotonic())
        self.windows.append(window)
        return window

    @contextlib.contextmanager
    def during(self, kind: Kind, node: str = ALL_NODES) -> Iterator[Window]:
        window = self.open(kind, node)
        try:
            yield window
        finally:
            close(window)

    def moment(self, kind: Kind) -> None:
        """Note something that happened at once."""
        close(self.open(kind))

    def was(self, *kinds: Kind, begin: float, end: float | None = None, node: str | None = None) -> bool:
        """Return whether one of these happened in that time, at that node or (None) anywhere."""
        last = time.monotonic() if end is None else end
        return any(
            window.kind in kinds
            and window.meets(begin, last)
            and (node is None or window.node in (ALL_NODES, node))
            for window in self.windows
        )

    def end_of(self, kind: Kind, *, begin: float, end: float, node: str) -> float:
        """Return when that was over at a node, if it happened in that time; otherwise `end`."""
        met = [
            window.end
            for window in self.windows
            if window.kind == kind and window.meets(begin, end) and window.node in (ALL_NODES, node)
        ]
        return max([end, *met])


def close(window: Window) -> None:
    window.end = time.monotonic()
