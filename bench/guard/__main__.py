"""The guard's command line: `python -m bench.guard` compares with the record, `--record` replaces it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.guard import record
from bench.guard.record import Counts

ROOT = Path(__file__).parents[2]
COUNT_SECONDS = 60
SETTINGS = ("PYTHON", "ROUTECODEX_")

FIXED = {"PYTHONHASHSEED": "0", "ROUTECODEX_STOPMESSAGE_BD_MODE": "heuristic", "ROUTECODEX_PURE": "1"}
"""Fixed settings, so that the counts do not depend on the environment, `bd` or a C compiler."""
ADVICE = "If the change is intended, run `make guard-record` and commit the record with it."


def counted() -> Counts:
    """Count the cost of every script in a separate process, which earlier work cannot influence."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    done = subprocess.run(
        [sys.executable, "-m", "bench.guard", "--count"],
        cwd=ROOT,
        env=environ | FIXED,
        stdout=subprocess.PIPE,
        timeout=COUNT_SECONDS,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Counts)


def _count() -> Counts:
    from bench.guard.counting import Allocations, count
    from bench.guard.scripts import scripts
    from bench.guard.whole import requests_answered

    allocations = Allocations()
    counts = {name: count(step, allocations) for name, step in scripts().items()}
    with requests_answered() as steps:
        return counts | {name: count(step, allocations) for name, step in steps.items()}


def report(counts: Counts) -> str:
    """Return the figures as a table."""
    width = max(map(len, counts))
    head = f"{'':<{width}}  {'bytecodes':>10}  {'allocations':>11}  {'bytes':>11}"
    rows = (
        f"{name:<{width}}  {count.bytecodes:>10,}  {count.allocations:>11,}  {count.bytes:>11,}"
        for name, count in counts.items()
    )
    return "\n".join([head, *rows])


def _compare(counts: Counts) -> int:
    recorded = record.read(record.version())
    if recorded is None:
        print(f"\n{record.NONE.format(record.version())}")
        return 2
    moves = record.moved(recorded, counts)
    if not moves:
        print(f"\nwithin {record.TOLERANCE:.0%} of the record for {record.version()}")
        return 0
    print("", *moves, ADVICE, sep="\n")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if the work differs from the record, 2 if this version of Python has no record."""
    parser = argparse.ArgumentParser(prog="guard", description="Count the work of the hot path.")
    parser.add_argument("--record", action="store_true", help="save the counts as the new record")
    parser.add_argument("--count", action="store_true", help="count in this process and print JSON")
    options = parser.parse_args(arguments)
    if options.count:
        sys.stdout.buffer.write(msgspec.json.encode(_count()))
        return 0
    counts = counted()
    print(report(counts))
    if not options.record:
        return _compare(counts)
    file = record.write(counts, record.version())
    print(f"\nrecorded for {record.version()}: {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
