"""LiteLLM's price table as a price file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.accounting import litellm
from routecodex.accounting.price_file import PriceFile, PriceFileError, PriceRow, PriceTier, PriceValues

TODAY = "2026-11-18"
TABLE: dict[str, Any] = {
    "sample_spec": {"litellm_provider": "one of the providers", "input_cost_per_token": 0},
    "claude-x": {
        "litellm_provider": "anthropic",
        "mode": "chat",
        "input_cost_per_token": 3e-06,
        "output_cost_per_token": 1.5e-05,
        "cache_read_input_token_cost": 3e-07,
        "cache_creation_input_token_cost": 3.75e-06,
        "cache_creation_input_token_cost_above_1hr": 6e-06,
        "input_cost_per_token_above_200k_tokens": 6e-06,
        "output_cost_per_token_above_200k_tokens": 2.25e-05,
        "cache_creation_input_token_cost_above_1hr_above_200k_tokens": 1.2e-05,
        "supports_vision": True,
    },
    "gpt-x": {
        "litellm_provider": "openai",
        "input_cost_per_token": 1.25e-06,
        "output_cost_per_token": 1e-05,
        "input_cost_per_token_flex": 6.25e-07,
        "cache_read_input_token_cost_priority": 2.5e-07,
        "input_cost_per_token_batches": 6e-07,
    },
    "zai/glm-x": {"litellm_provider": "zai", "input_cost_per_token": 6e-07, "output_cost_per_token": 2.2e-06},
    "dashscope/qwen-x": {
        "litellm_provider": "dashscope",
        "output_cost_per_reasoning_token": 4e-06,
        "tiered_pricing": [
            {"range": [0, 32000], "input_cost_per_token": 1e-06, "output_cost_per_token": 5e-06},
            {"range": [32000.0, 128000], "input_cost_per_token": 2e-06, "output_cost_per_token": 9e-06},
        ],
    },
    "moonshot/kimi-x": {
        "litellm_provider": "moonshot",
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
    },
    "together_ai/a/b": {
        "litellm_provider": "together_ai",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 0,
    },
    "fireworks_ai/accounts/fireworks/models/x": {
        "litellm_provider": "fireworks_ai",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 1e-06,
    },
    "image-x": {"litellm_provider": "openai", "mode": "image_generation", "input_cost_per_pixel": 1e-08},
    "odd-x": {"litellm_provider": "openai", "input_cost_per_token": "cheap", "output_cost_per_token": 1},
    "minus-x": {"litellm_provider": "openai", "input_cost_per_token": -1e-06, "output_cost_per_token": 1e-06},
    "orphan": {"input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06},
}


def convert(table: Any = TABLE) -> tuple[PriceFile, list[dict[str, str]]]:
    return litellm.convert(json.dumps(table).encode(), source="l.json", today=TODAY)


def row(group: str, model: str) -> PriceRow | None:
    return convert()[0].find((group,), model)


def test_prices_per_token_become_prices_per_million() -> None:
    assert row("anthropic", "claude-x") == PriceRow(
        input=3,
        output=15,
        cache_read=0.3,
        cache_write=3.75,
        cache_write_1h=6,
        tiers=(PriceTier(above=200_000, input=6, output=22.5, cache_write_1h=12),),
        sources=("litellm",),
    )


def test_flex_priority_and_batches_are_modes() -> None:
    found = row("openai", "gpt-x")
    assert found is not None
    assert found.modes == {
        "flex": PriceValues(input=0.625),
        "priority": PriceValues(cache_read=0.25),
        "batch": PriceValues(input=0.6),
    }


def test_ranges_of_dashscope_are_tiers() -> None:
    assert row("qwen", "qwen-x") == PriceRow(
        input=1,
        output=5,
        reasoning=4,
        tiers=(PriceTier(above=32_000, input=2, output=9),),
        sources=("litellm",),
    )


def test_groups_have_our_names_and_models_are_the_rest_of_the_key() -> None:
    file, _ = convert()
    assert {group: list(models) for group, models in file.providers.items()} == {
        "anthropic": ["claude-x"],
        "openai": ["gpt-x"],
        "glm": ["glm-x"],
        "qwen": ["qwen-x"],
        "kimi": ["kimi-x"],
        "together": ["a/b"],
        "fireworks": ["accounts/fireworks/models/x"],
    }
    assert (file.as_of, [source.name for source in file.sources]) == (TODAY, ["litellm"])


def test_rows_without_usable_prices_are_left_out_with_the_reason() -> None:
    assert convert()[1] == [
        {"model": "image-x", "reason": "has no price per token for input and output"},
        {"model": "odd-x", "reason": "input_cost_per_token is not a number"},
        {"model": "minus-x", "reason": "Expected `float` >= 0.0 - at `$.input`"},
        {"model": "orphan", "reason": "litellm_provider is missing"},
    ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "l.json: expected an object, got a list"),
        ({}, "l.json: has no row of LiteLLM's table with prices per token"),
        ({"m": {"litellm_provider": "x"}}, "l.json: has no row of LiteLLM's table with prices per token"),
        ({"m": {"litellm_provider": "x", "tiered_pricing": [{}]}}, "l.json: has no row of LiteLLM's table"),
        ({"version": 1, "providers": {}}, "l.json: "),
    ],
)
def test_another_file_is_refused(table: Any, message: str) -> None:
    with pytest.raises(PriceFileError) as refused:
        convert(table)
    assert refused.value.message.startswith(message)
