"""Flame graphs: a box for each frame below its caller, as wide as its share of the time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import stacks
from bench.stacks import BY_NAME, LOOP, OURS, Stack, Stacks, Stage

SMALLEST = 0.003
ROOT = "event loop"
WIDTH_INCHES, ROW_INCHES, HEAD_INCHES = 14.0, 0.19, 0.75
FONT_POINTS = 6.5
# A letter of a fixed-width font is 0.6 of its size wide.
LETTERS = int(WIDTH_INCHES * 72 / (0.6 * FONT_POINTS))
FEWEST_LETTERS = 4


@dataclass(frozen=True, slots=True)
class Box:
    """A frame: start and width as shares of the whole, depth, and stage."""

    label: str
    left: float
    width: float
    depth: int
    stage: Stage


def boxes(seen: Stacks, smallest: float = SMALLEST) -> list[Box]:
    """Return all boxes of at least this width, callers first; of one caller the widest is left."""
    total = sum(seen.values())
    found = [Box(ROOT, 0.0, 1.0, 0, LOOP)]
    if total:
        rows = [(stack, tuple(stacks.stages_along(stack)), count / total) for stack, count in seen.items()]
        found += _below(rows, left=0.0, depth=0, smallest=smallest)
    return found


_Row = tuple[Stack, tuple[Stage, ...], float]


def _below(rows: list[_Row], *, left: float, depth: int, smallest: float) -> Iterator[Box]:
    callees: dict[str, list[_Row]] = {}
    for row in rows:
        if len(row[0]) > depth:
            callees.setdefault(row[0][depth], []).append(row)
    widths = {name: sum(width for _, _, width in group) for name, group in callees.items()}
    for name in sorted(callees, key=lambda name: (-widths[name], name)):
        if widths[name] < smallest:
            return
        group = callees[name]
        yield Box(name.removeprefix(OURS), left, widths[name], depth + 1, group[0][1][depth])
        yield from _below(group, left=left, depth=depth + 1, smallest=smallest)
        left += widths[name]


def fitted(label: str, letters: int) -> str:
    """Shorten a label to the width: drop its module, then truncate it, or return an empty text."""
    if len(label) <= letters:
        return label
    function = label.rpartition(":")[2]
    if len(function) <= letters:
        return function
    return f"{function[: letters - 1]}…" if letters >= FEWEST_LETTERS else ""


def draw(seen: Stacks, path: Path, *, title: str) -> None:
    """Write an SVG: the loop on top, callees below their callers; the colours are the stages."""
    import matplotlib

    matplotlib.use("svg")
    # A fixed salt and no date: the same stacks give the same file. Text stays text, which is smaller.
    with matplotlib.rc_context(
        {
            "svg.hashsalt": "routecodex",
            "svg.fonttype": "none",
            "font.sans-serif": ["DejaVu Sans"],
            "font.monospace": ["DejaVu Sans Mono"],
        }
    ):
        _draw(boxes(seen), path, title=title, shares=stacks.shares(seen))


def _draw(found: list[Box], path: Path, *, title: str, shares: dict[str, float]) -> None:
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    depth = 1 + max(box.depth for box in found)
    height = depth * ROW_INCHES + HEAD_INCHES
    figure = pyplot.figure(figsize=(WIDTH_INCHES, height))
    panel = figure.add_axes((0, 0, 1, depth * ROW_INCHES / height))
    panel.set_axis_off()
    panel.set(xlim=(0, 1), ylim=(depth, 0))
    for stage in dict.fromkeys(box.stage for box in found):
        mine = [box for box in found if box.stage == stage]
        panel.barh(
            [box.depth + 0.5 for box in mine],
            [box.width for box in mine],
            left=[box.left for box in mine],
            height=1,
            color=stage.colour,
            edgecolor="white",
            linewidth=0.5,
        )
    for box in found:
        text = fitted(box.label, int(box.width * LETTERS) - 1)
        if text:
            panel.text(
                box.left + 0.5 / LETTERS,
                box.depth + 0.5,
                text,
                size=FONT_POINTS,
                family="monospace",
                va="center_baseline",
                parse_math=False,
            )
    named = [(name, share) for name, share in shares.items() if share > 0]
    figure.legend(
        handles=[Patch(color=BY_NAME[name].colour, label=f"{name} {share:.0%}") for name, share in named],
        title=title,
        loc="upper center",
        ncols=5,
        fontsize=8,
        title_fontsize=9,
        frameon=False,
        borderaxespad=0.2,
    )
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
