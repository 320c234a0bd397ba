"""Counters of limits: one atomic step reserves against all limits of a request, or against none.

`LimitCounters` is the contract; `SharedCounters` (shared_counters.py) fills it for the processes of one
machine. Times are microseconds since the epoch, amounts are units of the limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from typing import Final, Literal, Protocol, TypeAlias

from routecodex.accounting.limits import HeaderTexts, Limit

PastUse: TypeAlias = Callable[[Limit, int], Iterable[tuple[int, int]]]
"""Yields time and amount of what a limit counts since a time, from the ledger."""
LimitEventName: TypeAlias = Literal["limit_warn", "limit_exceeded"]


class CountersUnavailable(Exception):
    """The counters cannot be used now; the message says why."""


class LimitFigures:
    """State of one limit: what is used, what requests in flight have reserved, and when it resets."""

    __slots__ = ("limit", "reserved", "resets_at", "used")

    def __init__(self, limit: Limit, used: int, reserved: int, resets_at: int | None) -> None:
        self.limit: Final = limit
        self.used: Final = used
        self.reserved: Final = reserved
        self.resets_at: Final = resets_at

    @property
    def taken(self) -> int:
        """The amount used; of requests at the same time those that run, because nothing is used of them."""
        return self.reserved if self.limit.unit == "concurrent" else self.used

    @property
    def remaining(self) -> int:
        """The amount that a request could still reserve."""
        return max(self.limit.max - self.used - self.reserved, 0)


class LimitEvent:
    """A limit was used beyond its warning, or to its end, for the first time in its window."""

    __slots__ = ("figures", "name")

    def __init__(self, name: LimitEventName, figures: LimitFigures) -> None:
        self.name: Final = name
        self.figures: Final = figures


class LimitReservation:
    """Amounts that one request has reserved, by limit; `events` are those of settling it.

    `generation` says in which row of the counters the amounts are.
    """

    __slots__ = ("amounts", "events", "generation", "limits")

    def __init__(self, limits: Sequence[Limit], amounts: list[int], *, generation: int = 0) -> None:
        self.limits: Final = limits
        self.amounts: Final = amounts
        self.generation: Final = generation
        self.events: list[LimitEvent] = []

    def part(self, first: int, end: int) -> LimitReservation:
        """Return a part of it, which is settled apart."""
        return LimitReservation(self.limits[first:end], self.amounts[first:end], generation=self.generation)


class LimitRefusal:
    """A reservation that was refused: the state of the limit that has no room for `amount`.

    `frees_at` is when it has enough room, None if waiting does not help.
    """

    __slots__ = ("amount", "events", "exceeded", "frees_at")

    def __init__(self, exceeded: LimitFigures, *, amount: int, frees_at: int | None) -> None:
        self.exceeded: Final = exceeded
        self.amount: Final = amount
        self.frees_at: Final = frees_at
        self.events: list[LimitEvent] = []


Reserved: TypeAlias = LimitReservation | LimitRefusal


class PreparedStep(Protocol):
    """Limits that requests reserve against together, prepared for the counters of one machine.

    Each call does its work, or nothing: then that of `LimitCounters` is due.
    """

    def reserve(
        self, input: int, output: int, nanos: int, now: int, *, is_request: bool
    ) -> LimitReservation | None:
        """Reserve one call against all limits."""

    def settle(
        self, reserved: LimitReservation, input: int, output: int, cache_read: int, nanos: int, now: int
    ) -> bool:
        """Replace a reservation by what was used in all."""

    def header_lines(self, texts: HeaderTexts, now: int, *, is_messages: bool) -> bytes | None:
        """Return header lines with what is left."""


class LimitCounters(Protocol):
    """Counts the use of limits for all processes that share them.

    `past_use` yields what is known of a limit that the counters do not have.
    """

    past_use: PastUse | None

    def reserve(
        self, limits: Sequence[Limit], amounts: list[int], now: int, *, exempt: Set[Limit] = frozenset()
    ) -> Reserved | Awaitable[Reserved]:
        """Reserve amounts against all limits, or none: each must have room for what is used and reserved.

        A limit in shadow mode, or that is exempt, never refuses. CountersUnavailable if they cannot be used.
        """

    def settle(
        self, reservation: LimitReservation, used: Sequence[int], now: int, *, last: bool = True
    ) -> None:
        """Replace the reserved amounts by those used; `concurrent` stays reserved until `last`."""

    def prepare(self, limits: Sequence[Limit]) -> PreparedStep | None:
        """Return the limits prepared for the usual request; None if there is nothing to gain."""

    def latest(self, limits: Sequence[Limit]) -> list[LimitFigures]:
        """Return the state of limits after the last step of this process that had to do with them."""

    def figures(self, limits: Sequence[Limit], now: int) -> list[LimitFigures]:
        """Return the state of limits."""

    def reset(self, limits: Sequence[Limit], now: int) -> None:
        """Set the use of limits to 0; reservations stay."""

    async def refresh(self) -> None:
        """Read what processes on other machines have counted, for `figures`."""

    def use_loop(self, defer: Callable[[Callable[[], None]], object] | None) -> None:
        """Take a function that calls another one at the end of this turn of the event loop."""

    def beat(self) -> None:
        """Show that this process is alive, and drop reservations of processes that are not."""

    async def flush(self) -> None:
        """Wait until everything is counted that was settled."""

    def close(self) -> None:
        """Release the reservations of this process."""
