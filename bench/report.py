"""Reports of a run: a table for a terminal, a JSON file, the figures in the docs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.budget import Check
from bench.cells import CELLS
from bench.measure import Findings, Settings
from bench.memory import Memory
from bench.page import PAGE, put, taken
from bench.summary import Row, Table, summarise
from bench.systems import SYSTEMS

RESULTS = Path(__file__).parent / "results"
HEADINGS = (
    "cell",
    "system",
    "rps",
    "±",
    "µs CPU",
    "p50 ms",
    "p99 ms",
    "first byte ms",
    "× nginx",
    "RSS MB",
    "",
)


class Machine(msgspec.Struct, frozen=True):
    """Machine and date of the figures."""

    date: str
    cpu: str
    cores: int
    python: str


class Results(msgspec.Struct):
    """All of a run, as written to bench/results."""

    machine: Machine
    settings: Settings
    findings: Findings
    memory: Memory | None
    checks: list[Check]


def this_machine() -> Machine:
    """Return the facts of this machine, now."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    cpu = models[0] if models else platform.machine()
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return Machine(date, cpu, os.cpu_count() or 1, platform.python_version())


def _number(value: float) -> str:
    """Round to three digits: more are noise."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}".replace(",", " ")
    return f"{value:.3g}"


def _ratio(table: Table, row: Row) -> str:
    nginx = table.get(("nginx", row.cell))
    return f"{row['rps'] / nginx['rps']:.2g}" if nginx is not None and nginx.usable else ""


def _flags(row: Row) -> str:
    noise = "~" if row.noisy else ""
    return noise + (f" {row.errors} errors" if row.errors else "")


def _line(table: Table, row: Row) -> tuple[str, ...]:
    cpu = _number(row["cpu_us"]) if row["cpu_us"] else ""
    times = [row["latency_p50_us"], row["latency_p99_us"], row["ttfb_p50_us"]]
    return (
        row.cell,
        row.system,
        _number(row["rps"]),
        f"{row.spread / 2:.0%}",
        cpu,
        *(f"{time / 1000:.2f}" for time in times),
        _ratio(table, row),
        f"{row['rss_mb']:.0f}" if row["rss_mb"] else "",
        _flags(row),
    )


def _rows(table: Table) -> list[Row]:
    """Sort by cell, then by descending rps."""
    order = list(CELLS)
    return sorted(table.values(), key=lambda row: (order.index(row.cell), -row["rps"]))


def text(findings: Findings, checks: Sequence[Check]) -> str:
    """Return the table and the budget for a terminal."""
    table = summarise(findings.samples)
    lines = [HEADINGS, *(_line(table, row) for row in _rows(table))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    out: list[str] = []
    cell = ""
    for line in lines:
        if out and line[0] != cell:
            out.append("")
        cell = line[0]
        left = [part.ljust(width) for part, width in zip(line[:2], widths[:2], strict=True)]
        right = [part.rjust(width) for part, width in zip(line[2:-1], widths[2:-1], strict=True)]
        out.append("  ".join([*left, *right, line[-1]]).rstrip())
    out += ["", "~ : other processes disturbed every round of it (15 % of the machine; 2 % for p64)"]
    out += [f"left out: {name}: {reason}" for name, reason in findings.skipped.items()]
    return "\n".join([*out, "", *_check_lines(checks)])


def _check_lines(checks: Sequence[Check]) -> list[str]:
    width = max(len(check.text) for check in checks)
    return [f"{check.verdict:<8} {check.text:<{width}}  {check.value}".rstrip() for check in checks]


def write_json(results: Results) -> Path:
    """Write the run below bench/results and return the file."""
    RESULTS.mkdir(exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = RESULTS / f"{stamp}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    return path


def _grid(table: Table, metric: str, *, systems: Sequence[str], cells: Sequence[str]) -> list[str]:
    lines = ["| | " + " | ".join(cells) + " |", "|---" * (len(cells) + 1) + "|"]
    for system in systems:
        rows = [table.get((system, cell)) for cell in cells]
        values = [_number(row[metric]) if row and row.usable else "–" for row in rows]
        name = f"**{SYSTEMS[system].title}**" if system == "ours" else SYSTEMS[system].title
        lines.append(f"| {name} | " + " | ".join(values) + " |")
    return lines


def markdown(results: Results) -> str:
    """Return the figures for the documentation."""
    table = summarise(results.findings.samples)
    cells = [name for name in CELLS if any(cell == name for _, cell in table)]
    systems = [name for name in SYSTEMS if any(system == name for system, _ in table)]
    working = [name for name in systems if name != "direct"]
    machine, settings = results.machine, results.settings
    noisy = sorted({row.cell for row in table.values() if row.noisy}, key=list(CELLS).index)
    parts = [
        taken(machine, f"medians of {settings.rounds} rounds, {settings.seconds:g} s each"),
        "",
        "![Requests per second by system](performance.svg)",
        "",
        "Requests per second:",
        "",
        *_grid(table, "rps", systems=systems, cells=cells),
        "",
        "CPU time of the gateway per request, in µs:",
        "",
        *_grid(table, "cpu_us", systems=working, cells=cells),
        "",
        "Time to the first byte of the body, median, in µs:",
        "",
        *_grid(table, "ttfb_p50_us", systems=systems, cells=cells),
        "",
        "Budget:",
        "",
        "| Rule | Measured | |",
        "|---|---|---|",
        *(f"| {check.text} | {check.value or '–'} | {check.verdict} |" for check in results.checks),
    ]
    if noisy:
        parts += ["", f"Other processes disturbed every round of: {', '.join(noisy)}."]
    return "\n".join(parts)


def write_docs(results: Results, page: Path = PAGE) -> None:
    """Replace the figures in the page; all other text stays."""
    put("figures", markdown(results), page)
