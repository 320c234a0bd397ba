"""What was recorded of the hot path's work, by version of Python, and what has moved away from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.guard.counting import Count

FILE = Path(__file__).parent / "recorded.json"
TOLERANCE = 0.05
# What a small script may move by: a single block more is not yet a change of cost.
SLACK = {"bytecodes": 8, "allocations": 2, "bytes": 256}

Counts = dict[str, Count]


class Move(msgspec.Struct, frozen=True):
    """A figure of a script that is no longer what was recorded."""

    script: str
    figure: str
    recorded: int
    counted: int

    @property
    def share(self) -> float:
        """How much more than recorded; below zero where it is less."""
        return (self.counted - self.recorded) / self.recorded if self.recorded else 1.0

    def __str__(self) -> str:
        was = f"{self.recorded:,} {self.figure} recorded"
        return f"{self.script}: {was}, {self.counted:,} now ({self.share:+.1%})"


def version() -> str:
    """What the figures depend on: bytecodes differ from one minor version to the next."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def read(file: Path = FILE) -> dict[str, Counts]:
    """The figures of every version that was recorded."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Counts]) if file.exists() else {}


def write(counts: Counts, file: Path = FILE) -> None:
    """Puts the figures of this version in the place of those it had; other versions keep theirs."""
    rows = [
        f"  {_text(name)}: {{\n"
        + ",\n".join(f"    {_text(script)}: {_text(count)}" for script, count in known.items())
        + "\n  }"
        for name, known in sorted((read(file) | {version(): counts}).items())
    ]
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def _text(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def moved(recorded: Mapping[str, Count], counted: Mapping[str, Count]) -> list[Move]:
    """Every figure that is more than the tolerance away from its record, in either direction."""
    none = Count(0, 0, 0)
    moves = [
        Move(script, figure, getattr(recorded.get(script, none), figure), getattr(count, figure))
        for script, count in {**dict.fromkeys(recorded, none), **counted}.items()
        for figure in SLACK
    ]
    return [
        move
        for move in moves
        if abs(move.counted - move.recorded) > max(SLACK[move.figure], TOLERANCE * move.recorded)
    ]
