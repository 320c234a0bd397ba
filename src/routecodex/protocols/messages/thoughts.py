"""How much a messages model shall think, fitted to the other settings of the request."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from routecodex.canon.request import Request, Thinking
from routecodex.protocols.codec import Aim
from routecodex.protocols.messages.names import NAME
from routecodex.protocols.notices import Notices

Fields = dict[str, Any]

DEFAULT_MAX_TOKENS = 8192
LEAST_BUDGET = 1024

_BUDGETS = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 32000,
    "max": 32000,
}
_EFFORTS = {"minimal": "low"}
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})


class Plan(Struct, frozen=True):
    """The `thinking` field (None: left out), the effort to ask for, and the room for the whole answer."""

    max_tokens: int
    thinking: Fields | None = None
    effort: str | None = None

    @property
    def thinks(self) -> bool:
        return self.thinking is not None and self.thinking["type"] != "disabled"


def plan(request: Request, aim: Aim, *, messages: list[Fields], notices: Notices) -> Plan:
    """What to ask for, so that the provider takes it together with the rest of the request."""
    room = _room(request, aim, notices)
    wanted = request.thinking
    if wanted is None:
        return Plan(room)
    if not wanted.enabled or wanted.effort == "none":
        return Plan(room, {"type": "disabled"})
    obstacle = _obstacle(request, aim, messages, wanted)
    if obstacle is not None:
        notices.dropped("thinking", obstacle)
        return Plan(room)
    effort = _EFFORTS.get(wanted.effort or "", wanted.effort)
    if wanted.adaptive:
        return Plan(room, _displayed({"type": "adaptive"}, request), effort)
    if request.source == NAME and wanted.budget is None:
        return Plan(room, None, effort)
    budget, grown = _budget(request, wanted, aim, room=room)
    if budget < LEAST_BUDGET:
        notices.dropped("thinking", "no room for it within max_tokens")
        return Plan(room)
    field = _displayed({"type": "enabled", "budget_tokens": budget}, request)
    return Plan(grown, field, effort if request.source == NAME else None)


def _room(request: Request, aim: Aim, notices: Notices) -> int:
    limit = aim.max_output_tokens
    if request.max_tokens is None:
        return limit or DEFAULT_MAX_TOKENS
    if limit is not None and request.max_tokens > limit:
        notices.dropped("part of max_tokens", f"this model writes at most {limit}")
        return limit
    return request.max_tokens


def _obstacle(request: Request, aim: Aim, messages: list[Fields], wanted: Thinking) -> str | None:
    """Why the provider would refuse to think now; None when it would not."""
    if aim.dialect.reasoning_field == "none":
        return "this provider has no such setting"
    if request.source == NAME and wanted.budget is None:
        return None
    choice = request.tool_choice
    if choice is not None and choice.mode in ("required", "tool"):
        return "a forced tool call allows none"
    if not wanted.adaptive and _amid_unthought_tools(messages):
        return "the tool turn under way began without it"
    return None


def _amid_unthought_tools(messages: list[Fields]) -> bool:
    """Whether the request continues a tool turn whose assistant message does not begin with a thought."""
    if len(messages) < 2 or messages[-1]["role"] != "user":
        return False
    if not any(block["type"] == "tool_result" for block in messages[-1]["content"]):
        return False
    return messages[-2]["content"][0]["type"] not in _THOUGHTS


def _budget(request: Request, wanted: Thinking, aim: Aim, *, room: int) -> tuple[int, int]:
    """(budget, max_tokens): the budget stays below the limit, which grows for it where it may."""
    budget = wanted.budget if wanted.budget is not None else _BUDGETS.get(wanted.effort or "medium", 8192)
    budget = max(budget, LEAST_BUDGET)
    if budget >= room or (request.max_tokens is None and aim.max_output_tokens is None):
        room = min(budget + room, aim.max_output_tokens or budget + room)
    return min(budget, room - 1), room


def _displayed(field: Fields, request: Request) -> Fields:
    wanted = request.thinking
    if request.source == NAME and wanted is not None:
        if not wanted.visible:
            field["display"] = "omitted"
        elif wanted.summary is not None:
            field["display"] = wanted.summary
    return field
