"""Plans the thinking of a request, and carries signatures through messages clients.

The traits of Claude models are data, by family and version (Anthropic docs, "Extended thinking", "Adaptive
thinking", "Effort").

A thinking block has a field for its signature, a call has none. The signature of a call travels in a
`redacted_thinking` block beside it, which clients return unchanged: `call.<call id>.<signature>`, sealed with
the name of its owner.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Reasoning
from routecodex.canon.request import Request, Thinking
from routecodex.protocols import sealed_signatures
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.messages.content import NAME

T = TypeVar("T")
Fields = dict[str, Any]
FOREIGN = "made by another provider"
UNSIGNED = "this provider rejects it without a signature"
DEFAULT_MAX_TOKENS = 8192

_MIN_BUDGET = 1024
"""Least `budget_tokens` (Anthropic API reference)."""

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
_THINKING_BLOCKS = frozenset({"thinking", "redacted_thinking"})
_RESULT_BLOCKS = frozenset({"tool_result"})
_CALL_PREFIX = "call."

_MODEL_NAME = re.compile(
    r"claude-(?:(?P<family>[a-z]+)-)?(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)(?:-(?P<old>[a-z]+))?"
)
"""Matches `claude-opus-4-8`, `claude-opus-4.8-20260101` and the older order `claude-3-7-sonnet-latest`."""

_FIRST_EFFORTS = ("low", "medium", "high", "max")
_EFFORT_LEVELS = ("low", "medium", "high", "xhigh", "max")


class ModelTraits(Struct, frozen=True):
    """Settings that a model accepts.

    `efforts` are those of adaptive thinking; empty if the model accepts budgets only. `visible_by_default`:
    its thinking is readable without `display`. `thinks_by_default`: it thinks without a `thinking` field.
    `temperature_with_top_p`: it accepts both in one request. `off` is the `thinking.type` that disables
    thinking; None if the model always thinks.
    """

    thinks: bool = True
    budgets: bool = True
    efforts: tuple[str, ...] = ()
    sampling: bool = True
    temperature_with_top_p: bool = True
    visible_by_default: bool = True
    thinks_by_default: bool = False
    off: str | None = "disabled"

    @property
    def can_be_forced(self) -> bool:
        """Whether a tool call can be forced: Anthropic rejects that while a model thinks."""
        return self.off == "disabled"


_NO_THINKING = ModelTraits(thinks=False)
_BUDGET_ONLY = ModelTraits()
_BUDGET_ONE_SAMPLER = ModelTraits(temperature_with_top_p=False)
_BUDGET_AND_ADAPTIVE = replace(_BUDGET_ONE_SAMPLER, efforts=_FIRST_EFFORTS)
_ADAPTIVE = ModelTraits(budgets=False, efforts=_EFFORT_LEVELS, sampling=False, visible_by_default=False)
_ADAPTIVE_DEFAULT_ON = replace(_ADAPTIVE, thinks_by_default=True)
_ADAPTIVE_BETWEEN_TOOLS = replace(_ADAPTIVE_DEFAULT_ON, off="between_tools")
_ADAPTIVE_ALWAYS_ON = replace(_ADAPTIVE_DEFAULT_ON, off=None)
_MYTHOS_PREVIEW = replace(_ADAPTIVE_ALWAYS_ON, efforts=_FIRST_EFFORTS)
_UNRESTRICTED = ModelTraits()

_TRAITS_SINCE: tuple[tuple[str, tuple[int, int], ModelTraits], ...] = (
    ("fable", (0, 0), _ADAPTIVE_ALWAYS_ON),
    ("mythos", (0, 0), _ADAPTIVE_ALWAYS_ON),
    ("opus", (5, 5), _ADAPTIVE_ALWAYS_ON),
    ("sonnet", (5, 5), _ADAPTIVE_BETWEEN_TOOLS),
    ("", (5, 0), _ADAPTIVE_DEFAULT_ON),
    ("", (4, 7), _ADAPTIVE),
    ("", (4, 6), _BUDGET_AND_ADAPTIVE),
    ("", (4, 1), _BUDGET_ONE_SAMPLER),
    ("", (3, 7), _BUDGET_ONLY),
    ("", (0, 0), _NO_THINKING),
)
"""Family (empty: any), first version, traits; the first matching row counts."""


_OUTPUT_SINCE: tuple[tuple[str, tuple[int, int], int], ...] = (
    ("haiku", (3, 7), 64_000),
    ("opus", (4, 6), 128_000),
    ("", (5, 0), 128_000),
    ("opus", (4, 5), 64_000),
    ("opus", (4, 0), 32_000),
    ("", (3, 7), 64_000),
    ("", (3, 5), 8192),
    ("", (0, 0), 4096),
)
"""Family (empty: any), first version, longest answer (Anthropic docs, "Models overview")."""


class ThinkingPlan(Struct, frozen=True):
    """The `max_tokens`, `thinking` (None: left out) and effort of a request."""

    max_tokens: int
    thinking: Fields | None = None
    effort: str | None = None

    @property
    def thinks(self) -> bool:
        return self.thinking is not None and self.thinking["type"] in ("enabled", "adaptive")


def plan_thinking(
    request: Request, options: EncodeOptions, *, messages: list[Fields], notices: Notices
) -> ThinkingPlan:
    """Plan the thinking so that the model accepts it with the rest of the request."""
    max_tokens = _max_tokens(request, options, notices)
    traits = traits_for(request, options)
    thinking = request.thinking
    if thinking is None:
        return ThinkingPlan(
            max_tokens, _disabled_field(traits, options) if _forces_tool(request, traits) else None
        )
    if not thinking.enabled or thinking.effort == "none":
        return _plan_disabled(traits, max_tokens, notices)
    adaptive = _is_adaptive(request, thinking, traits)
    obstacle = _thinking_obstacle(request, options, messages, traits=traits, adaptive=adaptive)
    if obstacle is not None:
        notices.dropped("thinking", obstacle)
        return ThinkingPlan(max_tokens, _disabled_field(traits, options))
    if request.source == NAME and (adaptive or thinking.budget is None):
        return ThinkingPlan(
            max_tokens,
            _with_display({"type": "adaptive"}, request) if adaptive else None,
            _effort_name(thinking),
        )
    budget, extended = _budget(request, thinking, options, max_tokens=max_tokens)
    if adaptive:
        return ThinkingPlan(extended, _adaptive_field(traits, thinking), _effort(thinking, traits))
    if budget < _MIN_BUDGET:
        notices.dropped("thinking", "max_tokens leaves no space for it")
        return ThinkingPlan(max_tokens)
    field = _with_display({"type": "enabled", "budget_tokens": budget}, request)
    return ThinkingPlan(extended, field, _effort_name(thinking) if request.source == NAME else None)


def traits_for(request: Request, options: EncodeOptions) -> ModelTraits:
    """Return the traits to encode for; a messages client is trusted to know its model."""
    return _UNRESTRICTED if request.source == NAME else model_traits(options.model)


def model_traits(model: str) -> ModelTraits:
    """Return the traits of a model; one that is not a Claude, or has no version, accepts budgets."""
    name = model.lower()
    found = _MODEL_NAME.search(name)
    if found is None:
        if "claude-mythos" in name:
            return _MYTHOS_PREVIEW
        return _BUDGET_ONE_SAMPLER if "claude" in name else _BUDGET_ONLY
    return _since(found, _TRAITS_SINCE)


def _output_limit(options: EncodeOptions) -> int | None:
    """Return the longest answer of the model: as configured, else as Anthropic states; None if unknown."""
    found = None if options.max_output_tokens else _MODEL_NAME.search(options.model.lower())
    if found is None:
        return options.max_output_tokens
    return _since(found, _OUTPUT_SINCE)


def _since(model: re.Match[str], rows: tuple[tuple[str, tuple[int, int], T], ...]) -> T:
    """Return the value of the first row that fits the model's family and version."""
    family = model["family"] or model["old"] or ""
    version = (int(model["major"]), int(model["minor"] or 0))
    return next(value for kind, since, value in rows if kind in ("", family) and version >= since)


def _max_tokens(request: Request, options: EncodeOptions, notices: Notices) -> int:
    limit = options.max_output_tokens
    if request.max_tokens is None:
        # Codex sends no limit, and fails a turn that meets one.
        return _output_limit(options) or DEFAULT_MAX_TOKENS
    if limit is not None and request.max_tokens > limit:
        notices.dropped("part of max_tokens", f"this model writes at most {limit} tokens")
        return limit
    return request.max_tokens


def _plan_disabled(traits: ModelTraits, max_tokens: int, notices: Notices) -> ThinkingPlan:
    """Plan the least thinking that the model is capable of."""
    if not traits.thinks:
        return ThinkingPlan(max_tokens)
    if traits.off is not None:
        return ThinkingPlan(max_tokens, {"type": traits.off})
    notices.dropped("thinking disabled", "this model always thinks")
    return ThinkingPlan(max_tokens, None, "low")


def _disabled_field(traits: ModelTraits, options: EncodeOptions) -> Fields | None:
    """Return the field that disables thinking in a model that thinks by default."""
    needless = not traits.thinks_by_default or traits.off is None or options.dialect.reasoning_field == "none"
    return None if needless else {"type": traits.off}


def _forces_tool(request: Request, traits: ModelTraits) -> bool:
    choice = request.tool_choice
    return choice is not None and choice.mode in ("required", "tool") and traits.can_be_forced


def _is_adaptive(request: Request, thinking: Thinking, traits: ModelTraits) -> bool:
    """Whether to use adaptive thinking, not a budget."""
    if request.source == NAME:
        return thinking.adaptive
    return bool(traits.efforts) and (thinking.budget is None or not traits.budgets)


def _thinking_obstacle(
    request: Request, options: EncodeOptions, messages: list[Fields], *, traits: ModelTraits, adaptive: bool
) -> str | None:
    """Return the reason why the provider would reject thinking; None if it would accept it.

    Anthropic docs, "Extended thinking": not with forced tool use, and with a budget the assistant turn of a
    tool loop must begin with a thinking block.
    """
    if options.dialect.reasoning_field == "none":
        return "this provider has no such setting"
    if not traits.thinks:
        return "this model does not support it"
    thinking = request.thinking
    if request.source == NAME and (thinking is None or thinking.budget is None):
        return None
    if _forces_tool(request, traits):
        return "it is not accepted with a forced tool call"
    if not adaptive and _continues_without_thinking(messages):
        return "the current tool turn began without it"
    return None


def _continues_without_thinking(messages: list[Fields]) -> bool:
    """Whether the request continues a tool turn without any thinking block."""
    # Claude Code puts system messages between and behind the others.
    newest_first = [message for message in reversed(messages) if message["role"] != "system"]
    if not newest_first or not _holds(newest_first[0], _RESULT_BLOCKS):
        return False
    for message in newest_first:
        if message["role"] == "assistant":
            if _holds(message, _THINKING_BLOCKS):
                return False
        elif not _holds(message, _RESULT_BLOCKS):
            break
    return True


def _holds(message: Fields, kinds: frozenset[str]) -> bool:
    return any(block["type"] in kinds for block in message["content"])


def _budget(
    request: Request, thinking: Thinking, options: EncodeOptions, *, max_tokens: int
) -> tuple[int, int]:
    """Return (budget, max_tokens): the budget must be below the limit, which grows for it where possible."""
    budget = (
        thinking.budget if thinking.budget is not None else _BUDGETS.get(thinking.effort or "medium", 8192)
    )
    budget = max(budget, _MIN_BUDGET)
    limit = _output_limit(options)
    if budget >= max_tokens or (request.max_tokens is None and limit is None):
        max_tokens = min(budget + max_tokens, limit or budget + max_tokens)
    return min(budget, max_tokens - 1), max_tokens


def _adaptive_field(traits: ModelTraits, thinking: Thinking) -> Fields:
    field = {"type": "adaptive"}
    if thinking.visible and not traits.visible_by_default:
        field["display"] = "summarized"
    return field


def _effort(thinking: Thinking, traits: ModelTraits) -> str | None:
    """Return the equivalent effort of this model; None leaves it to the model."""
    effort, budget = _effort_name(thinking), thinking.budget
    if effort is None and budget is not None:
        effort = next((effort for limit, effort in _BUDGET_EFFORTS if budget <= limit), "high")
    return effort if effort is None or effort in traits.efforts else "high"


def _effort_name(thinking: Thinking) -> str | None:
    return _EFFORTS.get(thinking.effort or "", thinking.effort)


def _with_display(field: Fields, request: Request) -> Fields:
    thinking = request.thinking
    if request.source == NAME and thinking is not None:
        if not thinking.visible:
            field["display"] = "omitted"
        elif thinking.summary is not None:
            field["display"] = thinking.summary
    return field


def reasoning_obstacle(part: Reasoning, options: EncodeOptions, *, source: str) -> str | None:
    """Return the reason why reasoning may not be sent to the provider; None if it may."""
    if not sealed_signatures.returns_to(options.provider, origin=part.origin, same_protocol=source == NAME):
        return FOREIGN
    if not part.signature:
        return None if options.dialect.unsigned_thoughts else UNSIGNED
    return None if part.origin is not None or options.accepts_signature(part.signature) else FOREIGN


def sealed_signature(provider: str, signature: str | None) -> str:
    """Seal a signature for a client; an empty one too, so that its owner stays known."""
    return sealed_signatures.seal(provider, signature or "") if provider else signature or ""


def carry_signature(provider: str, call_id: str, *, signature: str) -> str:
    """Return the data of the `redacted_thinking` block with a call's signature."""
    return sealed_signatures.seal(provider, f"{_CALL_PREFIX}{call_id}.{signature}")


def carried_signature(data: str) -> tuple[str, str, str] | None:
    """Return (owner, call id, signature) from such data; None if the block is ordinary redacted thinking."""
    owner, inner = sealed_signatures.unseal(data)
    if owner is None or not inner.startswith(_CALL_PREFIX):
        return None
    call_id, _, signature = inner[len(_CALL_PREFIX) :].partition(".")
    return owner, call_id, signature
