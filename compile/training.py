"""Trains the profile: runs the hot path with an instrumented build. `python -m compile.training MANIFEST`.

It runs the pieces that the guard of the benchmark counts, and many more requests from socket to socket, as
these are the work of a gateway.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from routecodex import compiled

PIECES = 40
REQUESTS = 1500


def train(*, pieces: int = PIECES, requests: int = REQUESTS) -> None:
    """Run every piece and every request this many times."""
    # Imported after the finder of the instrumented build is installed.
    scripts, whole = import_module("bench.guard.scripts"), import_module("bench.guard.whole")
    for step in scripts.scripts().values():
        for _ in range(pieces):
            step()
    with whole.requests_answered() as steps:
        for _ in range(requests):
            for step in steps.values():
                step()


def main() -> int:
    """Run with the build of the manifest; return 2 if it is not of these sources."""
    finder = compiled.matching_build(Path(sys.argv[1]))
    if finder is None:
        return 2
    sys.meta_path.insert(0, finder)
    train()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
