"""What routing is asked, and what it answers."""

from __future__ import annotations

from msgspec import Struct

from routecodex.routing.registry import Selector, Step, Target
from routecodex.routing.sieve import Cooling, Removed

DEFAULT = "default"


class Asked(Struct, frozen=True, kw_only=True):
    """What routing knows of a request.

    `route` is what the classifier made of it, `why` its reason, `hint` the route a host asked for. `affinity`
    names the conversation, if it can be told. `turn` is the mark of the newest message of the person.
    `tried` has failed this request already; `must` is the only route that can still answer it.
    """

    model: str
    tokens: int = 0
    route: str = DEFAULT
    why: str = "no rule names another route"
    hint: str | None = None
    must: str | None = None
    ignore_sticky: bool = False
    affinity: str | None = None
    turn: str | None = None
    tried: frozenset[Target] = frozenset()
    max_wait: float = 0.0


class Plan(Struct, frozen=True, kw_only=True):
    """The targets of one request in the order to try them, and every reason.

    `cooling` may be waited for when `steps` is empty. `only` is the provider that a person insists on.
    `clears_sticky` says that the session's sticky target is of no use any more.
    """

    route: str
    steps: tuple[Step, ...]
    reason: str
    notices: tuple[str, ...] = ()
    removed: tuple[Removed, ...] = ()
    cooling: tuple[Cooling, ...] = ()
    only: str | None = None
    clears_sticky: bool = False


class Destination(Struct, frozen=True):
    """Where the body's model or the request's class points: targets outright, or a route."""

    route: str
    why: str
    targets: tuple[Target, ...] = ()
    name: str = ""


class Orders(Struct, frozen=True):
    """The rules in force for one request, names made definite."""

    force: str | None
    sticky: str | None
    sticky_is_ours: bool
    allow: tuple[str, ...]
    allow_is_ours: bool
    disabled: tuple[Selector, ...]
