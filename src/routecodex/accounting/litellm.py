"""Converts LiteLLM's price table, `model_prices_and_context_window.json`.

    {"zai/glm-4.7": {"litellm_provider": "zai", "input_cost_per_token": 6e-07,
                     "output_cost_per_token": 2.2e-06}}

Its prices are per token. The group is the provider, the model is the rest of the key behind `provider/`. Rows
that are not priced by text tokens (images, audio) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from routecodex.accounting import price_file
from routecodex.accounting.price_file import FileRow, PriceFile, PriceFileError, PriceSource

GROUPS: Mapping[str, str] = {
    "zai": "glm",
    "dashscope": "qwen",
    "moonshot": "kimi",
    "together_ai": "together",
    "fireworks_ai": "fireworks",
}
"""Groups of ours by LiteLLM's name for the provider, where they differ."""

_NAMES = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cache_read",
    "cache_creation_input_token_cost": "cache_write",
    "cache_creation_input_token_cost_above_1hr": "cache_write_1h",
    "output_cost_per_reasoning_token": "reasoning",
}
_MODES = {"flex": "flex", "priority": "priority", "batches": "batch"}
_TIER = re.compile(r"(?P<name>.+)_above_(?P<size>\d+)k_tokens\Z")
_MODE = re.compile(r"(?P<name>.+)_(?P<mode>flex|priority|batches)\Z")
_SAMPLE = "sample_spec"
"""The row of LiteLLM's table that explains its fields."""


def convert(data: bytes, *, source: str, today: str) -> tuple[PriceFile, list[dict[str, str]]]:
    """Return the prices of a table as of today, and the rows that were left out with the reason."""
    table = price_file.decode(data, dict[str, dict[str, Any]], source=source)
    rows: dict[str, dict[str, FileRow]] = {}
    skipped: list[dict[str, str]] = []
    for key, fields in table.items():
        if key == _SAMPLE:
            continue
        try:
            group, model, row = _convert_row(key, fields)
        except ValueError as exc:
            skipped.append({"model": key, "reason": str(exc)})
            continue
        rows.setdefault(group, {})[model] = row
    if not rows:
        raise PriceFileError(f"{source}: has no row of LiteLLM's table with prices per token")
    sources = (PriceSource(name="litellm", date=today, repository="BerriAI/litellm", licence="MIT"),)
    return price_file.build(rows, as_of=today, sources=sources), skipped


def _convert_row(key: str, fields: Mapping[str, Any]) -> tuple[str, str, FileRow]:
    provider = fields.get("litellm_provider")
    if not isinstance(provider, str) or not provider:
        raise ValueError("litellm_provider is missing")
    values: dict[str, Any] = {"from": ["litellm"], "tiers": _listed_tiers(fields), "modes": {}}
    tiers: dict[int, dict[str, float]] = {}
    for name, value in fields.items():
        if name in _NAMES:
            values[_NAMES[name]] = _per_million(name, value)
        elif (tier := _TIER.match(name)) and tier["name"] in _NAMES:
            size = int(tier["size"]) * 1000
            tiers.setdefault(size, {})[_NAMES[tier["name"]]] = _per_million(name, value)
        elif (mode := _MODE.match(name)) and mode["name"] in _NAMES:
            prices = values["modes"].setdefault(_MODES[mode["mode"]], {})
            prices[_NAMES[mode["name"]]] = _per_million(name, value)
    values["tiers"] += [{"above": size, **prices} for size, prices in sorted(tiers.items())]
    values = {**_first_tier(fields), **values}
    missing = [name for name in ("input", "output") if name not in values]
    if missing:
        raise ValueError(f"has no price per token for {' and '.join(missing)}")
    row = _typed(values)
    return GROUPS.get(provider, provider), key.removeprefix(f"{provider}/"), row


def _typed(values: dict[str, Any]) -> FileRow:
    try:
        return msgspec.convert(values, FileRow)
    except msgspec.ValidationError as exc:
        raise ValueError(str(exc)) from exc


def _listed_tiers(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tiers of `tiered_pricing` (DashScope): prices by a range of input sizes."""
    return [{"above": start, **prices} for start, prices in _ranges(fields) if start]


def _first_tier(fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the prices of the range that begins at 0."""
    return next((prices for start, prices in _ranges(fields) if start == 0), {})


def _ranges(fields: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    listed = fields.get("tiered_pricing")
    found = []
    for entry in listed if isinstance(listed, list) else ():
        limits = entry.get("range") if isinstance(entry, dict) else None
        if not isinstance(limits, list) or not limits or not isinstance(limits[0], int | float):
            raise ValueError("tiered_pricing has an entry without a range")
        prices = {_NAMES[name]: _per_million(name, value) for name, value in entry.items() if name in _NAMES}
        found.append((int(limits[0]), prices))
    return found


def _per_million(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number")
    return round(value * 1_000_000, 9)
