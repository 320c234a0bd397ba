"""Simulates the outage of a provider over a fleet.

python -m bench.fleet                # prints the figures (minutes)
python -m bench.fleet --nodes 100 --keys 50 --rate 200
python -m bench.fleet --write-docs   # writes them into docs/capacity.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.fleet.outage import Fleet, Outage, Outcome
from bench.page import DOCS, put, table

PAGE = DOCS / "capacity.md"


def _spaced(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def figures(fleet: Fleet, outcome: Outcome) -> list[list[str]]:
    """Return the rows of the table."""
    back = outcome.back_after(0.9, fleet.rate)
    most_back = max(outcome.back_by_second.values(), default=0)
    counts = (fleet.nodes, fleet.providers * fleet.keys, fleet.keys)
    first_seconds = (str(outcome.dead_by_second[second]) for second in range(3))
    met = f"{_spaced(outcome.met)} ({outcome.met / outcome.requests:.1%})"
    last = max(outcome.spread, default=0.0) * 1000
    return [
        ["nodes; keys in all; keys of the provider that fails", "; ".join(map(_spaced, counts))],
        ["requests a second on its route, over all nodes", f"{fleet.rate:.0f}"],
        ["requests during the run", _spaced(outcome.requests)],
        ["requests that met a dead key", met],
        ["requests that failed", str(outcome.failed)],
        ["attempts at dead keys, per key", f"{outcome.dead_attempts / fleet.keys:.1f}"],
        ["attempts at dead keys in the first, second and third second", ", ".join(first_seconds)],
        ["news of an open breaker on the last node", f"{last:.0f} ms at most"],
        ["probes", f"{_spaced(outcome.probes)}, at most {outcome.probes_at_once} of a key at a time"],
        ["90 % of the traffic back after the recovery", "never" if back is None else f"in second {back}"],
        ["most requests a second at the recovered provider", str(most_back)],
        ["most requests a second at one recovered key", str(outcome.key_peak)],
        ["changes of health written to the store", _spaced(outcome.writes)],
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulation and print or write its figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet", description="Simulate an outage over a fleet."
    )
    parser.add_argument("--nodes", type=int, default=Fleet.nodes)
    parser.add_argument("--keys", type=int, default=Fleet.keys, help="keys of each provider")
    parser.add_argument("--rate", type=float, default=Fleet.rate, help="requests a second on the route")
    parser.add_argument("--seed", type=int, default=Fleet.seed)
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args(arguments)
    fleet = Fleet(nodes=options.nodes, keys=options.keys, rate=options.rate, seed=options.seed)
    text = "\n".join(table(["Figure", "Value"], figures(fleet, Outage(fleet).run())))
    if options.write_docs:
        put("outage", text, PAGE)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
