"""Runs the hot path as users do, with modules that count: `python -m compile.training MANIFEST`.

What is run are the pieces that the guard of the benchmark counts, and requests from socket to socket: these
most, as they are what a gateway does all day.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from routecodex import compiled

PIECES = 40
REQUESTS = 1500


def train(*, pieces: int = PIECES, requests: int = REQUESTS) -> None:
    """Runs every piece, and every request, so many times."""
    # Not imported before it is settled which modules these are.
    scripts, whole = import_module("bench.guard.scripts"), import_module("bench.guard.whole")
    for step in scripts.scripts().values():
        for _ in range(pieces):
            step()
    with whole.requests_answered() as steps:
        for _ in range(requests):
            for step in steps.values():
                step()


def main() -> int:
    """Runs with what the manifest tells of; 2 when that is not of these sources."""
    finder = compiled.matching_build(Path(sys.argv[1]))
    if finder is None:
        return 2
    sys.meta_path.insert(0, finder)
    train()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
