"""Limits of clients, teams and provider keys, ready for counting."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

from routecodex.accounting.cost import format_usd
from routecodex.accounting.limit_slot import LimitSlot
from routecodex.accounting.windows import CalendarWindow, NoWindow, RollingWindow, Window
from routecodex.canon.events import Usage
from routecodex.config.limit_text import NANO_USD, LimitText, LimitUnit, parse_limit
from routecodex.config.teams import LimitConfig, rate_limits

CountedUnit: TypeAlias = LimitUnit | Literal["concurrent"]
LimitCode: TypeAlias = Literal["budget_exceeded", "rate_limit_exceeded", "concurrency_exceeded"]

HeaderTexts: TypeAlias = Sequence[tuple[bytes, bytes] | None]
"""For each limit the texts in front of the two numbers of its header lines; None if it has none."""

_HOUR: Final = 3600
_SHORT_PERIODS: Final = ("minute", "hour")
_ROUTE: Final = "route:"
_NEVER: Final = 1 << 62


class Limit:
    """One limit of one owner: at most `max` of a unit (money in 10⁻⁹ USD) in a window.

    `digest` identifies what it counts, not how much it allows: a limit that is raised keeps its use. `row` is
    the limit as configured, None for `concurrent`. `slot` is its place in the counters of this process.
    `skips`: at the limit, targets are skipped as if they were cooling down, and the request is not refused.
    """

    __slots__ = (
        "code",
        "digest",
        "enforced",
        "max",
        "models",
        "on_exceeded",
        "owner",
        "route",
        "row",
        "skips",
        "slot",
        "text",
        "unit",
        "warn_above",
        "window",
    )

    def __init__(
        self,
        owner: str,
        *,
        text: str,
        unit: CountedUnit,
        max: int,
        window: Window,
        identity: str,
        code: LimitCode,
        row: LimitConfig | None = None,
    ) -> None:
        self.owner: Final = owner
        self.text: Final = text
        self.unit: Final = unit
        self.max: Final = max
        self.window: Final = window
        self.digest: Final = _digest(f"{owner}\n{identity}")
        self.code: Final = code
        self.warn_above: Final = math.ceil(max * row.warn_at) if row is not None else _NEVER
        self.enforced: Final = row is None or row.mode == "enforce"
        self.models: Final = row.models if row is not None else ()
        action = row.on_exceeded if row is not None else "refuse"
        self.route: Final = action.removeprefix(_ROUTE) if action.startswith(_ROUTE) else ""
        self.on_exceeded: Final = "route" if self.route else action
        self.skips: Final = bool(self.models) or owner.startswith("key:")
        self.row: Final = row
        self.slot: LimitSlot | None = None

    def covers(self, provider: str, model: str) -> bool:
        """Return whether it counts what this target is used for."""
        return not self.models or any(
            fnmatchcase(model, pattern) or fnmatchcase(f"{provider}.{model}", pattern)
            for pattern in self.models
        )

    def used_by(self, usage: Usage, nanos: int | None) -> int:
        """Return how much of it an answer has used, apart from the request itself; `nanos` is its cost."""
        return amount_of(self.unit, usage.input, usage.output, nanos=nanos, cache_read=usage.cache_read)

    def show(self, amount: int) -> float | int:
        """Return an amount for JSON: USD as a decimal number, anything else as a whole one."""
        return amount / NANO_USD if self.unit == "usd" else amount

    def describe(self, amount: int) -> str:
        """Return an amount for people."""
        return f"${format_usd(amount)}" if self.unit == "usd" else str(amount)

    @property
    def label(self) -> str:
        """The limit with its models, which tell it apart from others of its owner."""
        return f"{self.text} for {' '.join(self.models)}" if self.models else self.text

    @property
    def name(self) -> str:
        """Owner and limit for people: `client laptop $20/day`, `client laptop $5/day for claude-opus-*`."""
        return f"{self.owner.replace(':', ' ', 1)} {self.label}"


def amount_of(unit: CountedUnit, input: int, output: int, *, nanos: int | None, cache_read: int = 0) -> int:
    """Return the amount of a unit in an answer; that of `requests` and `concurrent` is 0."""
    if unit == "usd":
        return nanos or 0
    if unit == "input":
        return max(input, 0)
    if unit == "output":
        return max(output, 0)
    if unit == "tokens":
        return max(input, 0) + max(output, 0)
    return max(input - cache_read, 0) + max(output, 0) if unit == "uncached" else 0


def make_limits(
    owner: str, rows: Iterable[LimitConfig], *, concurrent: int | None = None, timezone: str = "UTC"
) -> tuple[Limit, ...]:
    """Return the limits of an owner (`client:NAME`, `team:NAME`); `timezone` is that of calendar windows.

    The texts were checked when the configuration was loaded: one that cannot be read is left out.
    """
    made: list[Limit] = []
    seen: Counter[str] = Counter()
    for row in rows:
        parsed = parse_limit(row.limit)
        if isinstance(parsed, LimitText):
            identity = _identity(parsed, row, timezone)
            seen[identity] += 1
            made.append(
                _make(owner, parsed, row, identity=f"{identity}\n{seen[identity]}", timezone=timezone)
            )
    if concurrent is not None:
        made.append(_make_concurrent(owner, concurrent))
    return tuple(made)


def key_limits(
    provider: str, key: str, *, rpm: int | None, tpm: int | None, concurrent: int | None
) -> tuple[Limit, ...]:
    """Return the known limits of a provider's key; a key at its limit is skipped."""
    return make_limits(f"key:{provider}.{key}", rate_limits(rpm, tpm), concurrent=concurrent)


def _identity(parsed: LimitText, row: LimitConfig, timezone: str) -> str:
    window = f"{parsed.seconds}s"
    if parsed.period is not None:
        window = f"{parsed.period} {row.timezone or timezone}"
    return f"{parsed.unit}\n{window}\n{','.join(row.models)}"


def _make(owner: str, parsed: LimitText, row: LimitConfig, *, identity: str, timezone: str) -> Limit:
    return Limit(
        owner,
        text="/".join(" ".join(part.split()) for part in row.limit.split("/")),
        unit=parsed.unit,
        max=parsed.amount,
        window=_window(parsed, row.timezone or timezone),
        identity=identity,
        code="budget_exceeded" if _is_budget(parsed) else "rate_limit_exceeded",
        row=row,
    )


def _make_concurrent(owner: str, concurrent: int) -> Limit:
    return Limit(
        owner,
        text=f"{concurrent} concurrent",
        unit="concurrent",
        max=concurrent,
        window=NoWindow(),
        identity="concurrent",
        code="concurrency_exceeded",
    )


def _window(parsed: LimitText, timezone: str) -> Window:
    if parsed.period is None:
        return RollingWindow(parsed.seconds)
    return CalendarWindow(parsed.period, _zone(timezone))


def _zone(name: str) -> tzinfo | None:
    return None if name == "UTC" else ZoneInfo(name)


def _is_budget(parsed: LimitText) -> bool:
    """Return whether it is a budget, not a rate: money, or a window longer than an hour."""
    if parsed.unit == "usd":
        return True
    return parsed.seconds > _HOUR if parsed.period is None else parsed.period not in _SHORT_PERIODS


def _digest(text: str) -> int:
    """Return 63 bits that identify a limit, never 0."""
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1) | 1


def by_target(limits: Sequence[Limit], provider: str, model: str) -> tuple[Limit, ...]:
    """Return the limits that a request to this target falls under."""
    return tuple(limit for limit in limits if limit.covers(provider, model))
