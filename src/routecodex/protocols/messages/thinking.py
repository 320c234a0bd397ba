"""What Claude models of each generation take, as data: thinking, efforts, sampling, forced calls.

Signatures that a messages client holds for us.

A thought's signature has its own field. The signature of a call has none in this protocol: it travels in a
`redacted_thinking` block beside the call, which clients give back untouched, as `call.<call id>.<signature>`
under the seal of its maker.

How much a messages model shall think, fitted to the other settings of the request.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Reasoning
from routecodex.canon.request import Request, Thinking
from routecodex.protocols import sealed_signatures
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.messages.content import NAME

_MODEL_NAME = re.compile(
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


_NO_THINKING = ModelTraits(thinks=False)
_BUDGET_ONLY = ModelTraits()
_BUDGET_AND_ADAPTIVE = ModelTraits(efforts=_FIRST_EFFORTS)
_ADAPTIVE = ModelTraits(budgets=False, efforts=_EFFORT_LEVELS, sampling=False, shows=False)
_ADAPTIVE_DEFAULT_ON = ModelTraits(
    budgets=False, efforts=_EFFORT_LEVELS, sampling=False, shows=False, unasked=True
)
_ADAPTIVE_BETWEEN_TOOLS = ModelTraits(
    budgets=False, efforts=_EFFORT_LEVELS, sampling=False, shows=False, unasked=True, off="between_tools"
)
_ADAPTIVE_ALWAYS_ON = ModelTraits(
    budgets=False, efforts=_EFFORT_LEVELS, sampling=False, shows=False, unasked=True, off=None
)
_MYTHOS_PREVIEW = ModelTraits(
    budgets=False, efforts=_FIRST_EFFORTS, sampling=False, shows=False, unasked=True, off=None
)

_TRAITS_SINCE: tuple[tuple[str, tuple[int, int], ModelTraits], ...] = (
    ("fable", (0, 0), _ADAPTIVE_ALWAYS_ON),
    ("mythos", (0, 0), _ADAPTIVE_ALWAYS_ON),
    ("opus", (5, 5), _ADAPTIVE_ALWAYS_ON),
    ("sonnet", (5, 5), _ADAPTIVE_BETWEEN_TOOLS),
    ("", (5, 0), _ADAPTIVE_DEFAULT_ON),
    ("", (4, 7), _ADAPTIVE),
    ("", (4, 6), _BUDGET_AND_ADAPTIVE),
    ("", (3, 7), _BUDGET_ONLY),
    ("", (0, 0), _NO_THINKING),
)
"""Family (any when empty), the version it is true from, traits; the first row that fits counts."""


def model_traits(model: str) -> ModelTraits:
    """What is known of a model by its name; one that is no Claude, or of no version, takes budgets."""
    name = model.lower()
    found = _MODEL_NAME.search(name)
    if found is None:
        return _MYTHOS_PREVIEW if "claude-mythos" in name else _BUDGET_ONLY
    family = found["family"] or found["old"] or ""
    version = (int(found["major"]), int(found["minor"] or 0))
    return next(known for kind, since, known in _TRAITS_SINCE if kind in ("", family) and version >= since)


FOREIGN = "made by another provider"
UNSIGNED = "this provider takes none without a signature"

_CALL_PREFIX = "call."


def sealed_signature(provider: str, signature: str | None) -> str:
    """The signature for a client; an unsigned thought is sealed too, so that its maker stays known."""
    return sealed_signatures.seal(provider, signature or "") if provider else signature or ""


def carry_signature(provider: str, call_id: str, *, signature: str) -> str:
    """A call's signature as the data of a `redacted_thinking` block."""
    return sealed_signatures.seal(provider, f"{_CALL_PREFIX}{call_id}.{signature}")


def carried_signature(data: str) -> tuple[str, str, str] | None:
    """(maker, call id, signature) from such data; None when it is an ordinary redacted thought."""
    maker, inner = sealed_signatures.unseal(data)
    if maker is None or not inner.startswith(_CALL_PREFIX):
        return None
    call_id, _, signature = inner[len(_CALL_PREFIX) :].partition(".")
    return maker, call_id, signature


def reasoning_obstacle(part: Reasoning, aim: EncodeOptions, *, source: str) -> str | None:
    """Why a thought may not be sent to the provider aimed at; None when it may."""
    if not sealed_signatures.returns_to(aim.provider, origin=part.origin, same_protocol=source == NAME):
        return FOREIGN
    if not part.signature:
        return None if aim.dialect.unsigned_thoughts else UNSIGNED
    return None if part.origin is not None or aim.is_ours(part.signature) else FOREIGN


Fields = dict[str, Any]

DEFAULT_MAX_TOKENS = 8192
_MIN_BUDGET = 1024

_BUDGETS = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 32000,
    "max": 32000,
}
_EFFORTS = {"minimal": "low"}
_BUDGET_EFFORTS = ((2048, "low"), (12000, "medium"))
_UNRESTRICTED = ModelTraits()
_THINKING_BLOCKS = frozenset({"thinking", "redacted_thinking"})
_RESULT_BLOCKS = frozenset({"tool_result"})


class ThinkingPlan(Struct, frozen=True):
    """The `thinking` field (None: left out), the effort to ask for, and the room for the whole answer."""

    max_tokens: int
    thinking: Fields | None = None
    effort: str | None = None

    @property
    def thinks(self) -> bool:
        return self.thinking is not None and self.thinking["type"] in ("enabled", "adaptive")


def plan_thinking(
    request: Request, aim: EncodeOptions, *, messages: list[Fields], notices: Notices
) -> ThinkingPlan:
    """What to ask for, so that the model takes it together with the rest of the request."""
    room = _max_tokens(request, aim, notices)
    known = traits_for(request, aim)
    wanted = request.thinking
    if wanted is None:
        return ThinkingPlan(room, _disabled_field(known, aim) if _forces_tool(request, known) else None)
    if not wanted.enabled or wanted.effort == "none":
        return _plan_disabled(known, room, notices)
    adapts = _is_adaptive(request, wanted, known)
    obstacle = _thinking_obstacle(request, aim, messages, known=known, adapts=adapts)
    if obstacle is not None:
        notices.dropped("thinking", obstacle)
        return ThinkingPlan(room, _disabled_field(known, aim))
    if request.source == NAME and (adapts or wanted.budget is None):
        return ThinkingPlan(
            room, _with_display({"type": "adaptive"}, request) if adapts else None, _effort_name(wanted)
        )
    budget, grown = _budget(request, wanted, aim, room=room)
    if adapts:
        return ThinkingPlan(grown, _adaptive_field(known, wanted), _effort(wanted, known))
    if budget < _MIN_BUDGET:
        notices.dropped("thinking", "no room for it within max_tokens")
        return ThinkingPlan(room)
    field = _with_display({"type": "enabled", "budget_tokens": budget}, request)
    return ThinkingPlan(grown, field, _effort_name(wanted) if request.source == NAME else None)


def traits_for(request: Request, aim: EncodeOptions) -> ModelTraits:
    """What the request must be fitted to; a client of this protocol is taken to know its model."""
    return _UNRESTRICTED if request.source == NAME else model_traits(aim.model)


def _plan_disabled(known: ModelTraits, room: int, notices: Notices) -> ThinkingPlan:
    """As little thinking as the model can do."""
    if not known.thinks:
        return ThinkingPlan(room)
    if known.off is not None:
        return ThinkingPlan(room, {"type": known.off})
    notices.dropped("thinking disabled", "this model always thinks")
    return ThinkingPlan(room, None, "low")


def _disabled_field(known: ModelTraits, aim: EncodeOptions) -> Fields | None:
    """What keeps a model from thinking that would do so unasked."""
    silent = not known.unasked or known.off is None or aim.dialect.reasoning_field == "none"
    return None if silent else {"type": known.off}


def _forces_tool(request: Request, known: ModelTraits) -> bool:
    choice = request.tool_choice
    return choice is not None and choice.mode in ("required", "tool") and known.can_be_forced


def _is_adaptive(request: Request, wanted: Thinking, known: ModelTraits) -> bool:
    """Whether the model shall think as it likes, not by a budget."""
    if request.source == NAME:
        return wanted.adaptive
    return bool(known.efforts) and (wanted.budget is None or not known.budgets)


def _effort_name(wanted: Thinking) -> str | None:
    return _EFFORTS.get(wanted.effort or "", wanted.effort)


def _effort(wanted: Thinking, known: ModelTraits) -> str | None:
    """The effort that says the same to this model; None leaves it to the model."""
    effort, budget = _effort_name(wanted), wanted.budget
    if effort is None and budget is not None:
        effort = next((effort for limit, effort in _BUDGET_EFFORTS if budget <= limit), "high")
    return effort if effort is None or effort in known.efforts else "high"


def _adaptive_field(known: ModelTraits, wanted: Thinking) -> Fields:
    field = {"type": "adaptive"}
    if wanted.visible and not known.shows:
        field["display"] = "summarized"
    return field


def _max_tokens(request: Request, aim: EncodeOptions, notices: Notices) -> int:
    limit = aim.max_output_tokens
    if request.max_tokens is None:
        return limit or DEFAULT_MAX_TOKENS
    if limit is not None and request.max_tokens > limit:
        notices.dropped("part of max_tokens", f"this model writes at most {limit}")
        return limit
    return request.max_tokens


def _thinking_obstacle(
    request: Request, aim: EncodeOptions, messages: list[Fields], *, known: ModelTraits, adapts: bool
) -> str | None:
    """Why the provider would refuse to think now; None when it would not."""
    if aim.dialect.reasoning_field == "none":
        return "this provider has no such setting"
    if not known.thinks:
        return "this model does not think"
    wanted = request.thinking
    if request.source == NAME and (wanted is None or wanted.budget is None):
        return None
    if _forces_tool(request, known):
        return "a forced tool call allows none"
    if not adapts and _continues_without_thinking(messages):
        return "the tool turn under way began without it"
    return None


def _continues_without_thinking(messages: list[Fields]) -> bool:
    """Whether the request continues a tool turn in which no assistant message holds a thought."""
    if not _holds(messages[-1], _RESULT_BLOCKS):
        return False
    for message in reversed(messages):
        if message["role"] == "assistant":
            if _holds(message, _THINKING_BLOCKS):
                return False
        elif not _holds(message, _RESULT_BLOCKS):
            break
    return True


def _holds(message: Fields, kinds: frozenset[str]) -> bool:
    return any(block["type"] in kinds for block in message["content"])


def _budget(request: Request, wanted: Thinking, aim: EncodeOptions, *, room: int) -> tuple[int, int]:
    """(budget, max_tokens): the budget stays below the limit, which grows for it where it may."""
    budget = wanted.budget if wanted.budget is not None else _BUDGETS.get(wanted.effort or "medium", 8192)
    budget = max(budget, _MIN_BUDGET)
    if budget >= room or (request.max_tokens is None and aim.max_output_tokens is None):
        room = min(budget + room, aim.max_output_tokens or budget + room)
    return min(budget, room - 1), room


def _with_display(field: Fields, request: Request) -> Fields:
    wanted = request.thinking
    if request.source == NAME and wanted is not None:
        if not wanted.visible:
            field["display"] = "omitted"
        elif wanted.summary is not None:
            field["display"] = wanted.summary
    return field
