"""Recorded counts of the hot path, by version of Python, and the differences."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.guard.counting import Count

FILE = Path(__file__).parent / "recorded.json"
TOLERANCE = 0.05
# Differences that small scripts may have: a single block more is not a change of cost.
SLACK = {"bytecodes": 8, "allocations": 2, "bytes": 256}

Counts = dict[str, Count]


class Move(msgspec.Struct, frozen=True):
    """A figure of a script that differs from its record."""

    script: str
    figure: str
    recorded: int
    counted: int

    @property
    def share(self) -> float:
        """Relative difference to the record; negative if it is less."""
        return (self.counted - self.recorded) / self.recorded if self.recorded else 1.0

    def __str__(self) -> str:
        was = f"{self.recorded:,} {self.figure} recorded"
        return f"{self.script}: {was}, {self.counted:,} now ({self.share:+.1%})"


def version() -> str:
    """Return the Python version: bytecodes differ between minor versions."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def read(file: Path = FILE) -> dict[str, Counts]:
    """Return the recorded figures of every version."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Counts]) if file.exists() else {}


def write(counts: Counts, file: Path = FILE) -> None:
    """Replace the figures of this version; other versions keep theirs."""
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
    """Return every figure that differs from its record by more than the tolerance."""
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
