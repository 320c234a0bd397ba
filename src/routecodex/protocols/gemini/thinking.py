"""Thought signatures, and the thinking settings that each generation of Gemini models takes.

Google's SDKs decode `thoughtSignature` as base64 and write it back in either alphabet (Python: the URL-safe
one). So a sealed signature (sealed_signatures) is base64 here, and signatures are compared in one alphabet.
"""

from __future__ import annotations

import base64
import binascii
import re

from msgspec import Struct

from routecodex.canon.parts import Json
from routecodex.canon.request import Effort, Thinking
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.gemini.content import standard_base64
from routecodex.protocols.sealed_signatures import SEAL, returns_to, seal, unseal

_SEALED_PREFIX = "cmN4MS"
"""The start of every sealed signature in base64."""
_STANDARD = str.maketrans("-_", "+/")

SKIP_SIGNATURE = "skip_thought_signature_validator"
"""Google's placeholder for calls of a history without a signature (Google's docs, thought signatures)."""


REDACTED = "redacted:"
"""Marks the sealed signature of redacted thinking, for which Gemini has no field."""


def seal_signature(provider: str, signature: str) -> str:
    """Return the signature for the client, sealed if a provider's name is given."""
    return base64.b64encode(seal(provider, signature).encode()).decode() if provider else signature


def unseal_signature(value: str) -> tuple[str | None, str]:
    """Return (owner, signature) of a value that a client sent; the owner is None if it is not sealed."""
    if value.startswith(SEAL):
        return unseal(value)
    if not value.startswith(_SEALED_PREFIX):
        return None, value
    try:
        origin, signature = unseal(base64.b64decode(standard_base64(value)).decode())
    except (binascii.Error, UnicodeDecodeError):
        return None, value
    return (origin, signature) if origin is not None else (None, value)


def standard_alphabet(signature: str) -> str:
    """Return the signature in the standard base64 alphabet, for comparison."""
    return signature.translate(_STANDARD)


def may_return(options: EncodeOptions, signature: str, *, origin: str | None, same_protocol: bool) -> bool:
    """Return whether the signature may go to this upstream."""
    if not returns_to(options.provider, origin=origin, same_protocol=same_protocol):
        return False
    return origin is not None or options.accepts_signature(standard_alphabet(signature))


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
"""Gemini 3 Pro Preview takes only low and high (Google's docs, thinking levels)."""
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
    """Capabilities of a model; `budgets` is its range of thinking budgets, `off` the budget for no thinking.

    Google's docs, thinking: 2.5 Pro cannot turn thinking off, so its `off` is its smallest budget; Gemini 3
    takes levels. Google's docs, file input methods: models before 2.5 do not fetch files by URL.
    """

    thinks: bool = True
    levels: bool = False
    off: int = 0
    budgets: tuple[int, int] = (0, 24576)
    signs_calls: bool = False
    media_results: bool = False
    json_with_tools: bool = False
    fetches_urls: bool = True


def model_traits(model: str) -> ModelTraits:
    """Return the traits of a model by its name; an unknown one is treated as a 2.5 Flash."""
    found = _GENERATION.search(model)
    if found is None:
        # `gemini-flash-latest` and similar aliases follow the newest generation, which still takes budgets.
        gemma = "gemma" in model
        return ModelTraits(signs_calls=model.endswith("-latest"), thinks=not gemma, fetches_urls=not gemma)
    generation = (int(found[1]), int(found[2] or 0))
    if generation >= (3, 0):
        return ModelTraits(levels=True, signs_calls=True, media_results=True, json_with_tools=True)
    if generation < (2, 5):
        return ModelTraits(thinks=False, fetches_urls=False)
    if "pro" in model:
        return ModelTraits(off=128, budgets=(128, 32768))
    return ModelTraits(budgets=(512, 24576)) if "lite" in model else ModelTraits()


def thinking_config(thinking: Thinking, model: str) -> dict[str, Json]:
    """Return the thinkingConfig for this model."""
    traits = model_traits(model)
    amount = _level(thinking, model) if traits.levels else _budget(thinking, traits)
    visible = {"includeThoughts": True} if thinking.enabled and thinking.visible else {}
    return {**amount, **visible}


def _level(thinking: Thinking, model: str) -> dict[str, Json]:
    effort: Effort | None = thinking.effort if thinking.enabled else "none"
    if effort is not None:
        level = _LEVELS[effort]
        if "pro" in model:
            levels = _FIRST_PRO_LEVELS if "gemini-3-pro" in model else _PRO_LEVELS
            level = levels.get(level, level)
        return {"thinkingLevel": level}
    # Gemini 3 still takes budgets, but rejects a level and a budget together (Google's docs, thinking).
    return {} if thinking.budget is None else {"thinkingBudget": thinking.budget}


def _budget(thinking: Thinking, traits: ModelTraits) -> dict[str, Json]:
    if not thinking.enabled or thinking.effort == "none":
        return {"thinkingBudget": traits.off}
    budget = thinking.budget
    if budget is None and thinking.effort is not None:
        budget = _BUDGETS[thinking.effort]
    if budget is None:
        return {"thinkingBudget": -1} if thinking.adaptive else {}
    smallest, largest = traits.budgets
    return {"thinkingBudget": max(smallest, min(largest, budget))}
