"""The command of `make fuzz`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz import runs

FINDINGS = Path(__file__).parents[2] / "fuzz-findings"


def main() -> int:
    """Fuzz; return 1 after a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the gateway.")
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(runs.TARGETS)}; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=None, help="default: the time, which is printed")
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to repeat a finding")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    names = runs.available(options.targets)
    left = sorted(set(options.targets or runs.TARGETS) - set(names))
    print(
        f"seed {seed}" + (f"; not run without a build (`make compile`): {', '.join(left)}" if left else ""),
        flush=True,
    )
    found = [name for name in names if not _run(name, seed, options.seconds / len(names), options.first)]
    return 1 if found else 0


def _run(name: str, seed: int, seconds: float, first: int) -> bool:
    try:
        inputs = asyncio.run(runs.run(name, seed=seed, seconds=seconds, first=first))
    except runs.Found as found:
        traceback.print_exc()
        file = runs.save(found, name, FINDINGS)
        print(f"{name}: FOUND, saved as {file}; again: python -m tests.fuzz --seed {seed} {name}", flush=True)
        return False
    print(f"{name}: {inputs} inputs", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
