"""Steps of the counters for the usual request: to reserve before a call, to settle it, to show what is left.

From the sources the functions leave every step to `SharedCounters`. Where the hot path is compiled,
`compile/limit_steps.c` takes the place of this module; the tests compare it with
`tests/reference/limit_steps.py`. A step that is not usual is left to `SharedCounters` too: when a window must
be moved to a new time (at least once a second), when a limit has no room, and when its use must be reported.

`cells` is a counter file that is mapped and locked, `packed` the limits in it as `limit_packing.pack` wrote
them. `row` and `generation` are those of this process, `now` is in microseconds. A step sets the cell of the
last step to 0, so that every process reads again what it keeps of the cells.
"""

from __future__ import annotations

from routecodex.accounting.limits import HeaderTexts
from routecodex.accounting.windows import Cells

SLOT_SIZE: int = 198
"""Cells of a slot that the steps work on. Not final, or mypyc would inline the value."""


def reserve(
    cells: Cells,
    packed: bytes,
    row: int,
    generation: int,
    now: int,
    input: int,
    output: int,
    nanos: int,
    is_request: bool,
    /,
) -> list[int] | None:
    """Reserve against all limits; return the amounts, or None if nothing was done.

    `is_request`: the request itself is reserved too, not only what a further call may use.
    """
    return None


def settle(
    cells: Cells,
    packed: bytes,
    amounts: list[int],
    row: int,
    generation: int,
    now: int,
    input: int,
    output: int,
    cache_read: int,
    nanos: int,
    /,
) -> bool:
    """Replace reserved amounts, which become 0, by what was used; return False if nothing was done."""
    return False


def header_lines(
    cells: Cells, packed: bytes, texts: HeaderTexts, now: int, is_messages: bool, /
) -> bytes | None:
    """Return the header lines of the tightest limit of each unit; None if they need more than reading."""
    return None
