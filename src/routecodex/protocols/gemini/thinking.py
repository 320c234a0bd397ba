"""Thought signatures on this wire: base64, always.

Google's SDKs decode `thoughtSignature` as base64 and write it back in either alphabet (Python: the URL-safe
one). So a seal of ours (seals.py) is itself base64 here, and signatures are compared in one alphabet.

What Gemini models of each generation take, as data: thinking, signatures, results with media.
"""

from __future__ import annotations

import base64
import binascii
import re

from msgspec import Struct

from routecodex.canon.parts import Json
from routecodex.canon.request import Effort, Thinking
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.sealed_signatures import SEAL, returns_to, seal, unseal

_WRAPPED = "cmN4MS"
"""How base64 of anything sealed begins."""
_STANDARD = str.maketrans("-_", "+/")

SKIP_SIGNATURE = "skip_thought_signature_validator"
"""Google's own word for calls of a history that never had a signature."""


def seal_signature(provider: str, signature: str) -> str:
    """The signature as a client gets it: sealed when a provider's name is given."""
    return base64.b64encode(seal(provider, signature).encode()).decode() if provider else signature


def unseal_signature(value: str) -> tuple[str | None, str]:
    """(maker, signature) of what a client sent back; the maker is None when it carries no seal."""
    if value.startswith(SEAL):
        return unseal(value)
    if not value.startswith(_WRAPPED):
        return None, value
    padded = value.translate(_STANDARD) + "=" * (-len(value) % 4)
    try:
        origin, signature = unseal(base64.b64decode(padded).decode())
    except (binascii.Error, UnicodeDecodeError):
        return None, value
    return (origin, signature) if origin is not None else (None, value)


def standard_alphabet(signature: str) -> str:
    """The signature in the standard alphabet, for comparing."""
    return signature.translate(_STANDARD)


def may_return(aim: EncodeOptions, signature: str, *, origin: str | None, same_protocol: bool) -> bool:
    """Whether the signature may go to the upstream that is aimed at."""
    if not returns_to(aim.provider, origin=origin, same_protocol=same_protocol):
        return False
    return origin is not None or aim.is_ours(standard_alphabet(signature))


_GENERATION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_LEVELS: dict[Effort, str] = {
    "none": "minimal",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
_PRO_LEVELS = {"minimal": "low"}

_FIRST_PRO_LEVELS = {"minimal": "low", "medium": "high"}
"""The first Gemini 3 Pro knows low and high only."""
_BUDGETS: dict[Effort, int] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 32768,
    "max": 32768,
}


class ModelTraits(Struct, frozen=True):
    """How to speak to a model; `budgets` are the least and the largest thinking budget it takes."""

    thinks: bool = True
    levels: bool = False
    off: int = 0
    budgets: tuple[int, int] = (0, 24576)
    signs_calls: bool = False
    media_results: bool = False
    json_with_tools: bool = False


def model_traits(model: str) -> ModelTraits:
    """What is known of a model by its name; unknown ones are taken for a 2.5 Flash."""
    found = _GENERATION.search(model)
    if found is None:
        # `gemini-flash-latest` and the like follow the newest generation but still take budgets.
        return ModelTraits(signs_calls=model.endswith("-latest"), thinks="gemma" not in model)
    generation = (int(found[1]), int(found[2] or 0))
    if generation >= (3, 0):
        return ModelTraits(levels=True, signs_calls=True, media_results=True, json_with_tools=True)
    if generation < (2, 5):
        return ModelTraits(thinks=False)
    if "pro" in model:
        return ModelTraits(off=128, budgets=(128, 32768))
    return ModelTraits(budgets=(512, 24576)) if "lite" in model else ModelTraits()


def thinking_config(thinking: Thinking, model: str) -> dict[str, Json]:
    """The thinkingConfig that says the same to this model."""
    known = model_traits(model)
    amount = _level(thinking, model) if known.levels else _budget(thinking, known)
    shown = {"includeThoughts": True} if thinking.enabled and thinking.visible else {}
    return {**amount, **shown}


def _level(thinking: Thinking, model: str) -> dict[str, Json]:
    effort: Effort | None = thinking.effort if thinking.enabled else "none"
    if effort is not None:
        level = _LEVELS[effort]
        if "pro" in model:
            bent = _FIRST_PRO_LEVELS if "gemini-3-pro" in model else _PRO_LEVELS
            level = bent.get(level, level)
        return {"thinkingLevel": level}
    # Gemini 3 still takes budgets, but never a level and a budget together.
    return {} if thinking.budget is None else {"thinkingBudget": thinking.budget}


def _budget(thinking: Thinking, known: ModelTraits) -> dict[str, Json]:
    if not thinking.enabled or thinking.effort == "none":
        return {"thinkingBudget": known.off}
    budget = thinking.budget
    if budget is None and thinking.effort is not None:
        budget = _BUDGETS[thinking.effort]
    if budget is None:
        return {"thinkingBudget": -1} if thinking.adaptive else {}
    least, most = known.budgets
    return {"thinkingBudget": max(least, min(most, budget))}
