"""Recommended models: rows fit the catalog, and every model is described and can do what its route is for."""

from __future__ import annotations

import pytest

from routecodex.config.model import ClassifierConfig
from routecodex.providers.catalog import PRESETS, preset_rows
from routecodex.providers.recommended_models import (
    ROUTES,
    RecommendedModels,
    recommended_models,
    recommended_rows,
)

ROWS = [pytest.param(row, id=f"{row.preset}-{row.protocol or 'any'}") for row in recommended_rows()]
NO_MODEL = {
    "volcengine-agent",
    "byteplus-coding",
    "qianfan",
    "qianfan-token",
    "azure",
    "bedrock",
    "bedrock-mantle",
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_a_preset_and_its_sources(row: RecommendedModels) -> None:
    assert row.preset in PRESETS
    assert row.protocol is None or row.protocol in PRESETS[row.preset].by_protocol
    assert row.source
    assert all(row.source)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_describes_exactly_the_models_that_it_names(row: RecommendedModels) -> None:
    assert set(row.models) == set(row.by_route.values())
    assert set(row.by_route) <= set(ROUTES)


@pytest.mark.parametrize("row", ROWS)
def test_a_route_has_another_model_only_where_it_is_better_suited(row: RecommendedModels) -> None:
    default = row.models[row.default]
    assert all(model != row.default for route, model in row.by_route.items() if route != "default")
    if row.vision is not None:
        assert (default.vision, row.models[row.vision].vision) == (False, True)
    if row.longcontext is not None:
        size = row.models[row.longcontext].context_tokens or 0
        assert size > max(default.context_tokens or 0, ClassifierConfig().longcontext_tokens)
    if row.thinking is not None:
        assert row.models[row.thinking].reasoning


def test_every_preset_with_a_key_has_a_row_unless_its_models_have_names_of_the_customer() -> None:
    keyed = {row.preset for row in preset_rows() if row.env}
    assert keyed - {row.preset for row in recommended_rows()} == NO_MODEL


def test_the_protocol_chooses_the_row_where_models_differ() -> None:
    by_protocol = [recommended_models("openai", protocol) for protocol in ("chat", "responses")]
    assert [row.default if row else None for row in by_protocol] == ["gpt-5", "gpt-5.4"]
    assert recommended_models("ollama", "chat") is None


@pytest.mark.parametrize("row", ROWS)
def test_sizes_agree_with_those_of_the_preset(row: RecommendedModels) -> None:
    for preset in (PRESETS[row.preset], *PRESETS[row.preset].others):
        if row.protocol in (None, preset.protocol):
            known = {name: preset.models[name] for name in row.models if name in preset.models}
            assert {name: one.vision for name, one in known.items()} == {
                name: row.models[name].vision for name in known
            }
