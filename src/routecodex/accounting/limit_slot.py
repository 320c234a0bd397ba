"""The place of a limit in the counters of this process."""

from __future__ import annotations

from typing import Final

from routecodex.accounting.windows import WindowState


class LimitSlot:
    """State of the window, and what is reserved: by all processes, and by this one (`own`, in `own_cell`).

    The values are those of the cells while `epoch` is that of the file.
    """

    __slots__ = ("at", "epoch", "own", "own_cell", "reserved", "state")

    def __init__(self, at: int, state: WindowState) -> None:
        self.at: Final = at
        self.state: Final = state
        self.epoch = -1
        self.reserved = 0
        self.own = 0
        self.own_cell = 0
