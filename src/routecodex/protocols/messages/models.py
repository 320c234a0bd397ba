"""What Claude models of each generation take, as data: thinking, efforts, sampling, forced calls."""

from __future__ import annotations

import re

from msgspec import Struct

_NAME = re.compile(
    r"claude-(?:(?P<family>[a-z]+)-)?(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)(?:-(?P<old>[a-z]+))?"
)
"""`claude-opus-4-8`, `claude-opus-4.8-20260101`, and the old order: `claude-3-7-sonnet-latest`."""

_FIRST_EFFORTS = ("low", "medium", "high", "max")
_EFFORT_LEVELS = ("low", "medium", "high", "xhigh", "max")


class ModelTraits(Struct, frozen=True):
    """How to speak to a model; `efforts` are those it thinks by as it likes (none: it takes budgets only).

    `shows`: its thoughts can be read without asking for it. `unasked`: it thinks when nothing is said of it.
    `off` is the type that stops its thinking; None where nothing does.
    """

    thinks: bool = True
    budgets: bool = True
    efforts: tuple[str, ...] = ()
    sampling: bool = True
    shows: bool = True
    unasked: bool = False
    off: str | None = "disabled"

    @property
    def can_be_forced(self) -> bool:
        """Whether it can be made to call a tool, which no model does while it thinks."""
        return self.off == "disabled"


_SILENT = ModelTraits(thinks=False)
_BUDGETED = ModelTraits()
_BOTH = ModelTraits(efforts=_FIRST_EFFORTS)
_ADAPTIVE = ModelTraits(budgets=False, efforts=_EFFORT_LEVELS, sampling=False, shows=False)
_UNASKED = ModelTraits(budgets=False, efforts=_EFFORT_LEVELS, sampling=False, shows=False, unasked=True)
_BETWEEN = ModelTraits(
    budgets=False, efforts=_EFFORT_LEVELS, sampling=False, shows=False, unasked=True, off="between_tools"
)
_ALWAYS = ModelTraits(
    budgets=False, efforts=_EFFORT_LEVELS, sampling=False, shows=False, unasked=True, off=None
)
_PREVIEW = ModelTraits(
    budgets=False, efforts=_FIRST_EFFORTS, sampling=False, shows=False, unasked=True, off=None
)

_ROWS: tuple[tuple[str, tuple[int, int], ModelTraits], ...] = (
    ("fable", (0, 0), _ALWAYS),
    ("mythos", (0, 0), _ALWAYS),
    ("opus", (5, 5), _ALWAYS),
    ("sonnet", (5, 5), _BETWEEN),
    ("", (5, 0), _UNASKED),
    ("", (4, 7), _ADAPTIVE),
    ("", (4, 6), _BOTH),
    ("", (3, 7), _BUDGETED),
    ("", (0, 0), _SILENT),
)
"""Family (any when empty), the version it is true from, traits; the first row that fits counts."""


def model_traits(model: str) -> ModelTraits:
    """What is known of a model by its name; one that is no Claude, or of no version, takes budgets."""
    name = model.lower()
    found = _NAME.search(name)
    if found is None:
        return _PREVIEW if "claude-mythos" in name else _BUDGETED
    family = found["family"] or found["old"] or ""
    version = (int(found["major"]), int(found["minor"] or 0))
    return next(known for kind, since, known in _ROWS if kind in ("", family) and version >= since)
