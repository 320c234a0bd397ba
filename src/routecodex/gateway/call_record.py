"""One call of a provider that produced tokens: where it went, what it used, what it cost."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from routecodex.accounting.cost import Cost, TargetPrice
from routecodex.canon.events import Usage
from routecodex.routing.registry import Target

CallKind: TypeAlias = Literal["round", "attempt", "internal"]
"""`round`: an answer for the client, or a part of one. `attempt`: produced tokens that the client never got,
because another call was made instead. `internal`: made by the gateway itself, such as a search."""


class CallRecord:
    """One call; `status` is that of its HTTP response, 499 if the client disconnected.

    It took `ms` and ended at `ended`, on the monotonic clock.
    """

    __slots__ = ("cost", "ended", "kind", "ms", "price", "status", "target", "usage")

    def __init__(
        self,
        kind: CallKind,
        target: Target,
        usage: Usage,
        *,
        cost: Cost,
        status: int,
        ms: float,
        ended: float = 0.0,
        price: TargetPrice | None = None,
    ) -> None:
        self.kind: Final = kind
        self.target: Final = target
        self.usage: Final = usage
        self.price: Final = price
        self.cost: Final = cost
        self.status: Final = status
        self.ms: Final = ms
        self.ended: Final = ended
