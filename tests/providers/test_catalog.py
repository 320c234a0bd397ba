"""The catalog: every row has what it needs and loads."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec
import pytest

from routecodex.config import Preset, examine, is_loopback
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS

ROWS = [pytest.param(name, preset, id=name) for name, preset in PRESETS.items()]


@pytest.mark.parametrize(("name", "preset"), ROWS)
def test_a_row_loads_without_a_warning_when_its_key_is_set(name: str, preset: Preset) -> None:
    own = "" if preset.models else "models = { mine = {} }\n"
    url = "" if preset.base_url else 'base_url = "https://mine.openai.azure.com/openai/v1"\n'
    named = f'preset = "{name}"\n' if url else ""
    model = next(iter(preset.models), "mine")
    text = f'[providers.{name}]\n{named}{url}{own}[routing]\ndefault = ["{name}.{model}"]\n'
    environ = {preset.env: "key"} if preset.env else {}
    config, problems = examine(text, environ=environ, presets=PRESETS, dialect_type=Dialect)
    assert problems == []
    assert config is not None
    provider = config.providers[name]
    assert (provider.protocol, provider.auth_style) == (preset.protocol, preset.auth_style)
    assert [key.secret.reveal() for key in provider.keys] == (["key"] if preset.env else [""])
    assert set(preset.models) <= set(provider.models)


@pytest.mark.parametrize(("name", "preset"), ROWS)
def test_a_row_says_what_it_is_and_how_it_is_asked(name: str, preset: Preset) -> None:
    assert preset.about
    assert (preset.env is None) == (preset.auth_style == "none")
    url = urlsplit(preset.base_url or "https://yours.example")
    assert url.scheme == ("http" if preset.env is None else "https")
    assert is_loopback(url.hostname or "") == (preset.env is None)
    for model in preset.models.values():
        assert (model.context_tokens or 0) >= 100_000
        assert model.id == ""


@pytest.mark.parametrize(("name", "preset"), ROWS)
def test_a_dialect_is_one_that_the_codecs_know(name: str, preset: Preset) -> None:
    assert isinstance(msgspec.convert(dict(preset.dialect), Dialect), Dialect)


def test_the_well_known_providers_are_there() -> None:
    assert list(PRESETS) == [
        "openai",
        "openai-responses",
        "anthropic",
        "gemini",
        "glm",
        "glm-anthropic",
        "deepseek",
        "qwen",
        "kimi",
        "minimax",
        "mistral",
        "xai",
        "groq",
        "together",
        "fireworks",
        "openrouter",
        "azure",
        "ollama",
        "lmstudio",
        "vllm",
    ]


def test_anthropic_alone_is_strict_about_thoughts() -> None:
    strict = {"unsigned_thoughts": False, "unthought_turns": False}
    rows = [name for name, preset in PRESETS.items() if preset.dialect.keys() & strict.keys()]
    assert rows == ["anthropic"]
    assert PRESETS["anthropic"].dialect == {**strict, "composed_schemas": False}


def test_openai_and_anthropic_reject_compositions_at_the_root_of_a_schema() -> None:
    rows = [name for name, preset in PRESETS.items() if preset.dialect.get("composed_schemas") is False]
    assert rows == ["openai", "openai-responses", "anthropic", "azure"]
