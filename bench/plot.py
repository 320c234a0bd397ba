"""Chart of a run: requests per second of each system, by cell."""

from __future__ import annotations

from pathlib import Path

from bench.cells import CELLS
from bench.summary import Table
from bench.systems import SYSTEMS

COLOURS = {
    "ours": "#d1495b",
    "direct": "#c9ccd1",
    "nginx": "#7d8597",
    "tensorzero": "#3a7ca5",
    "portkey": "#81a88d",
    "ccr": "#b08968",
    "litellm": "#9d79bc",
}
COLUMNS = 3


def draw(table: Table, path: Path) -> None:
    """Write an SVG, one panel per cell; the scale is logarithmic, as systems differ by a factor of 1000."""
    import matplotlib

    matplotlib.use("svg")
    # A fixed salt and no date: the same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "routecodex"
    from matplotlib import pyplot

    cells = [name for name in CELLS if any(cell == name for _, cell in table)]
    height = -(-len(cells) // COLUMNS)
    figure, panels = pyplot.subplots(height, COLUMNS, figsize=(5 * COLUMNS, 2.6 * height), squeeze=False)
    for panel in panels.flat[len(cells) :]:
        panel.set_axis_off()
    for panel, name in zip(panels.flat, cells, strict=False):
        rows = [table[system, name] for system in SYSTEMS if (system, name) in table]
        rows = [row for row in reversed(rows) if row.usable]
        rates = [row["rps"] for row in rows]
        bars = panel.barh(
            [SYSTEMS[row.system].title for row in rows], rates, color=[COLOURS[row.system] for row in rows]
        )
        panel.bar_label(bars, labels=[f"{rate:,.0f}" for rate in rates], padding=3, fontsize=8)
        panel.set_xscale("log")
        panel.set_xlim(1, max([10.0, *rates]) * 8)
        panel.set_title(f"{name}: {CELLS[name].title}", fontsize=9, loc="left")
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("requests per second, one core, logarithmic", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
