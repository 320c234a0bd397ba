"""Calls before they are made: what the model wants, and what whoever is asked says to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that exists, with arguments it takes."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Allow:
    """The call may be made."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The call is made with these arguments instead; the answer that called keeps its own."""

    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deny:
    """The call is not made; the model is told why."""

    reason: str = ""


Decision: TypeAlias = Allow | Edit | Deny
Decisions: TypeAlias = Sequence[Decision] | Mapping[str, Decision] | None
"""One for each call in order, or by the id of the call; a call nothing is said about is allowed."""


def decided(decisions: object, calls: Sequence[ToolCall]) -> list[Decision]:
    """The decision on each call; anything that is no decision is refused, so that nothing runs by mistake."""
    if decisions is None:
        return [Allow() for _ in calls]
    if isinstance(decisions, Mapping):
        strangers = decisions.keys() - {call.id for call in calls}
        if strangers:
            raise ValueError(f"before_call_tools decided on {sorted(strangers)!r}, which are no ids of calls")
        found = [decisions.get(call.id, Allow()) for call in calls]
    elif isinstance(decisions, Sequence) and len(decisions) == len(calls):
        found = list(decisions)
    else:
        raise TypeError(f"before_call_tools gave {decisions!r} for {len(calls)} calls; see Decisions")
    for decision in found:
        if not isinstance(decision, Allow | Edit | Deny):
            raise TypeError(f"before_call_tools decided {decision!r}; it takes Allow(), Edit(…) or Deny(…)")
    return found
