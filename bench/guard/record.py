"""Recorded counts of the hot path, a file for each version of Python, and the differences.

`recorded.json` has those of the REFERENCE, which every intended change renews. The record of another version
names the reference that it was made with: it does not count any more when that has been renewed, so that a
change need not be recorded on every Python at once.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench.guard.counting import Count

FOLDER = Path(__file__).parent
REFERENCE = "cpython 3.11"
NONE = f"no record for {{}}, or only one that is older than that of {REFERENCE}; run `make guard-record`"
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


def file_of(python: str, folder: Path = FOLDER) -> Path:
    """Return the file with the record of a version."""
    return folder / ("recorded.json" if python == REFERENCE else f"recorded-{python.replace(' ', '-')}.json")


def read(python: str, folder: Path = FOLDER) -> Counts | None:
    """Return the record of a version; None without one, or if the reference has been renewed since."""
    found = _read(file_of(python, folder))
    made_with = found.pop(_MADE_WITH, None)
    if python != REFERENCE and made_with != _reference_digest(folder):
        return None
    counts = found.get(python)
    return None if counts is None else msgspec.convert(counts, Counts)


def write(counts: Counts, python: str, folder: Path = FOLDER) -> Path:
    """Replace the record of a version and return its file."""
    rows = ",\n".join(f"    {_text(script)}: {_text(count)}" for script, count in counts.items())
    made_with = "" if python == REFERENCE else f"  {_text(_MADE_WITH)}: {_text(_reference_digest(folder))},\n"
    file = file_of(python, folder)
    file.write_text(f"{{\n{made_with}  {_text(python)}: {{\n{rows}\n  }}\n}}\n")
    return file


_MADE_WITH = "made with"


def _read(file: Path) -> dict[str, Any]:
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Any]) if file.exists() else {}


def _reference_digest(folder: Path) -> str:
    counts = _read(file_of(REFERENCE, folder)).get(REFERENCE, {})
    return hashlib.blake2b(msgspec.json.encode(counts, order="sorted"), digest_size=8).hexdigest()


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
