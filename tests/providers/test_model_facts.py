from __future__ import annotations

import pytest

from routecodex.config.providers import ModelConfig
from routecodex.providers.catalog import known_model, preset_rows
from routecodex.providers.model_facts import facts_of

SIZES: list[tuple[str, str | None, int | None]] = [
    ("gpt-4.1", "openai", 1_047_576),
    ("glm-4.7", "zai", 204_800),
    ("glm-4.7", None, 204_800),
    ("GLM-4.7", None, 204_800),
    ("z-ai/glm-4.7", None, 204_800),
    ("z-ai/glm-4.7", "openrouter", 202_752),
    ("gpt-oss-120b", None, 131_072),
    ("some-model-of-mine", None, None),
    ("some-model-of-mine", "openai", None),
    ("some-model-of-mine", "no-such-preset", None),
]


@pytest.mark.parametrize(("name", "preset", "context"), SIZES)
def test_the_size_of_a_known_name_is_that_of_its_provider_or_its_maker(
    name: str, preset: str | None, context: int | None
) -> None:
    known = known_model(name, preset=preset, protocol="chat")
    assert (known.context_tokens if known is not None else None) == context


def test_abilities_are_known_where_a_source_knows_them() -> None:
    assert facts_of("gpt-4o-2024-08-06", "openai") == ModelConfig(
        context_tokens=128_000, max_output_tokens=16_384, vision=True, tools=True, reasoning=False
    )
    unsure = facts_of("gpt-5.3", "openai")
    assert unsure == ModelConfig(context_tokens=128_000)


def test_every_group_of_prices_of_a_preset_has_facts() -> None:
    groups = {row.prices for row in preset_rows() if row.prices is not None}
    assert groups
    names = {
        "anthropic": "claude-haiku-4-5",
        "gemini": "gemini-2.5-flash",
        "kimi": "kimi-k2.5",
        "minimax": "MiniMax-M2",
        "xiaomi": "mimo-v2.5",
    }
    for group, name in names.items():
        assert group in groups
        assert facts_of(name, group) is not None
