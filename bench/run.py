"""The benchmark's command line: `python -m bench.run`, `--quick` for every change."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import budget, cells, memory, native, page, plot, report
from bench.measure import Settings, cores, measure
from bench.peers import Unavailable
from bench.store_writes import measure_writes
from bench.summary import summarise
from bench.systems import QUICK, SYSTEMS

FULL_ROUNDS, QUICK_ROUNDS = 3, 3
FULL_SECONDS, QUICK_SECONDS = 3.0, 1.0
FULL_WARMUP, QUICK_WARMUP = 0.7, 0.4


def _names(known: Sequence[str], what: str, given: str) -> list[str]:
    chosen = [name for name in given.split(",") if name]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown {what} {unknown[0]!r}: choose from {', '.join(known)}")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Compare RouteCodex with other gateways.")
    parser.add_argument("--quick", action="store_true", help="ours, nginx and direct only; about two minutes")
    parser.add_argument(
        "--cells",
        type=lambda given: _names(list(cells.CELLS), "cell", given),
        help=f"comma list of {', '.join(cells.CELLS)}",
    )
    parser.add_argument(
        "--systems",
        type=lambda given: _names(list(SYSTEMS), "system", given),
        help=f"comma list of {', '.join(SYSTEMS)}",
    )
    parser.add_argument("--rounds", type=int, help=f"default {FULL_ROUNDS}")
    parser.add_argument("--seconds", type=float, help=f"per sample, default {FULL_SECONDS:g}")
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory examination")
    parser.add_argument("--write-docs", action="store_true", help="put the figures into docs/performance.md")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    quick = options.quick
    load_core, gateway_core = cores()
    return Settings(
        rounds=options.rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS),
        seconds=options.seconds or (QUICK_SECONDS if quick else FULL_SECONDS),
        warmup=QUICK_WARMUP if quick else FULL_WARMUP,
        repeats=0 if quick else 4,
        load_core=load_core,
        gateway_core=gateway_core,
    )


def _run(options: argparse.Namespace, folder: Path) -> report.Results:
    quick = options.quick
    settings = _settings(options)
    names = options.systems or (QUICK if quick else tuple(SYSTEMS))
    chosen = [cells.CELLS[name] for name in options.cells or (cells.QUICK if quick else cells.FULL)]
    seen: memory.Memory | None = None
    with native.mock(core=settings.load_core) as mock:
        found = measure(
            [SYSTEMS[name] for name in names], chosen, settings=settings, mock=mock, folder=folder
        )
        if "ours" in names and any(cell.name == "redissticky16" for cell in chosen):
            found.writes = measure_writes()
        examine = "ours" in names and "ours" not in found.skipped and not quick and not options.no_memory
        if examine:
            try:
                seen = memory.examine(SYSTEMS["ours"], settings=settings, mock=mock, folder=folder)
            except Unavailable as error:
                found.skipped["ours (memory)"] = str(error)
    checks = budget.check(found, seen)
    return report.Results(report.this_machine(), settings, found, seen, checks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a rule of the budget fails, 2 if our gateway could not run."""
    options = _parser().parse_args(arguments)
    # Also stop the started processes when a supervisor stops the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        results = _run(options, Path(folder))
    print(report.text(results.findings, results.checks))
    path = report.write_json(results)
    table = summarise(results.findings.samples)
    if table:
        plot.draw(table, path.with_suffix(".svg"))
    print(f"\nwritten: {path} and its plot")
    if options.write_docs and table:
        report.write_docs(results)
        plot.draw(table, page.DOCS / "performance.svg")
    if "ours" in results.findings.skipped:
        return 2
    return 1 if any(check.verdict == "fail" for check in results.checks) else 0


if __name__ == "__main__":
    raise SystemExit(main())
