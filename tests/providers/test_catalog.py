"""The catalog: every row has what it needs and loads; presets of earlier versions are as they were."""

from __future__ import annotations

import re
import subprocess
import sys
from urllib.parse import urlsplit

import msgspec
import pytest

from routecodex.config import Preset, ProviderConfig, examine, is_loopback
from routecodex.config.presets import near_presets
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS, PresetRow, preset_rows

NAMES = [pytest.param(name, PRESETS[name], id=name) for name in PRESETS]
ROWS = [pytest.param(row, id=row.preset) for row in preset_rows()]
ADDRESSES = [
    pytest.param(row, protocol, id=f"{row.preset}-{protocol}")
    for row in preset_rows()
    for protocol in row.base_url
]
FILLED = {"resource": "mine", "region": "eu-1"}


def configured(name: str, more: str = "", *, env: str = "") -> ProviderConfig:
    """Load a provider of this preset, without a problem."""
    url = PRESETS[name].base_url
    parts = [f'{key} = "{value}"' for key, value in FILLED.items() if f"{{{key}}}" in url]
    text = "\n".join(
        [
            "[providers.p]",
            f'preset = "{name}"',
            *parts,
            more,
            "models = { mine = {} }",
            "[routing]",
            'default = ["p.mine"]',
        ]
    )
    environ = {env: "key"} if env else {}
    config, problems = examine(text, environ=environ, presets=PRESETS, dialect_type=Dialect)
    assert problems == []
    assert config is not None
    return config.providers["p"]


@pytest.mark.parametrize(("row", "protocol"), ADDRESSES)
def test_every_address_of_a_row_loads_without_a_warning(row: PresetRow, protocol: str) -> None:
    one = configured(row.preset, f'protocol = "{protocol}"', env=next(iter(row.env), ""))
    expected = re.sub(r"\{(\w+)\}", lambda found: FILLED[found[1]], row.base_url[one.protocol])
    assert (one.protocol, one.base_url) == (protocol, expected)
    assert [key.secret.reveal() for key in one.keys] == (["key"] if row.env else [""])


@pytest.mark.parametrize("row", ROWS)
def test_the_first_protocol_of_a_row_is_its_default(row: PresetRow) -> None:
    one = configured(row.preset, env=next(iter(row.env), ""))
    assert one.protocol == next(iter(row.base_url))
    assert PRESETS[row.preset].models.keys() <= one.models.keys()


@pytest.mark.parametrize("row", ROWS)
def test_every_variable_of_a_row_can_hold_the_key(row: PresetRow) -> None:
    for name in row.env:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]+", name)
        assert [key.env for key in configured(row.preset, env=name).keys] == [name]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_says_what_it_is_where_it_is_and_who_says_so(row: PresetRow) -> None:
    assert row.name
    assert row.source
    assert all(row.source)
    assert (row.env == ()) == (row.auth == "none") == (row.region == "local")
    assert row.prices is None or row.plan == "usage"
    for url in map(urlsplit, row.base_url.values()):
        assert url.scheme == ("https" if row.env else "http")
        assert is_loopback(url.hostname or "") == (row.region == "local")


@pytest.mark.parametrize(("name", "preset"), NAMES)
def test_models_have_sizes_and_dialects_are_known_to_the_codecs(name: str, preset: Preset) -> None:
    for one in (preset, *preset.others):
        assert isinstance(msgspec.convert(dict(one.dialect), Dialect), Dialect)
        for model in one.models.values():
            assert (model.context_tokens or 0) >= 100_000
            assert model.id == ""


def test_no_name_is_used_twice() -> None:
    names = [name for row in preset_rows() for name in (row.preset, *row.aliases)]
    assert len(preset_rows()) == 64
    assert sorted(set(names)) == sorted(names)
    assert list(PRESETS) == names


BEFORE = {
    "openai": ("chat", "https://api.openai.com/v1", "OPENAI_API_KEY", "bearer"),
    "openai-responses": ("responses", "https://api.openai.com/v1", "OPENAI_API_KEY", "bearer"),
    "anthropic": ("messages", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "x-api-key"),
    "gemini": (
        "gemini",
        "https://generativelanguage.googleapis.com",
        "GEMINI_API_KEY",
        "x-goog-api-key",
    ),
    "glm": ("chat", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY", "bearer"),
    "glm-anthropic": ("messages", "https://api.z.ai/api/anthropic", "ZAI_API_KEY", "x-api-key"),
    "deepseek": ("chat", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "bearer"),
    "qwen": (
        "chat",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        "DASHSCOPE_API_KEY",
        "bearer",
    ),
    "kimi": ("chat", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "bearer"),
    "minimax": ("messages", "https://api.minimax.io/anthropic", "MINIMAX_API_KEY", "x-api-key"),
    "mistral": ("chat", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", "bearer"),
    "xai": ("responses", "https://api.x.ai/v1", "XAI_API_KEY", "bearer"),
    "groq": ("chat", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "bearer"),
    "together": ("chat", "https://api.together.ai/v1", "TOGETHER_API_KEY", "bearer"),
    "fireworks": ("chat", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "bearer"),
    "openrouter": ("chat", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "bearer"),
    "azure": ("chat", "https://mine.openai.azure.com/openai/v1", "AZURE_OPENAI_API_KEY", "api-key"),
    "ollama": ("chat", "http://127.0.0.1:11434/v1", "", "none"),
    "lmstudio": ("chat", "http://127.0.0.1:1234/v1", "", "none"),
    "vllm": ("chat", "http://127.0.0.1:8000/v1", "", "none"),
}
"""Presets of version 1.0, with the upstream that they gave."""


@pytest.mark.parametrize("name", BEFORE)
def test_presets_of_earlier_versions_give_the_same_upstream(name: str) -> None:
    protocol, url, env, style = BEFORE[name]
    one = configured(name, env=env)
    assert (one.protocol, one.base_url, one.auth_style) == (protocol, url, style)
    assert [key.env or "" for key in one.keys] == [env]


def test_an_azure_address_of_your_own_needs_no_resource() -> None:
    text = (
        '[providers.azure]\npreset = "azure"\nbase_url = "https://mine.openai.azure.com/openai/v1"\n'
        'models = { mine = {} }\n[routing]\ndefault = ["azure.mine"]\n'
    )
    environ = {"AZURE_OPENAI_API_KEY": "key"}
    assert examine(text, environ=environ, presets=PRESETS, dialect_type=Dialect)[1] == []


def test_anthropic_models_alone_are_strict_about_thoughts() -> None:
    strict = {"unsigned_thoughts": False, "unthought_turns": False, "composed_schemas": False}
    found = {
        (name, one.protocol): one.dialect
        for name in PRESETS
        for one in PRESETS[name].by_protocol.values()
        if one.dialect.get("unsigned_thoughts") is False
    }
    assert found == {
        ("anthropic", "messages"): strict,
        ("azure", "messages"): strict,
        ("bedrock-mantle", "messages"): {**strict, "web_search": False},
    }


def test_openai_and_anthropic_reject_compositions_at_the_root_of_a_schema() -> None:
    rows = [name for name, preset in PRESETS.items() if preset.dialect.get("composed_schemas") is False]
    assert rows == ["openai", "openai-responses", "anthropic", "azure"]


def test_messages_endpoints_of_others_run_no_search_of_anthropic() -> None:
    hosting = [
        row.preset
        for row in preset_rows()
        for one in PRESETS[row.preset].by_protocol.values()
        if one.protocol == "messages" and one.dialect.get("web_search") is not False
    ]
    assert hosting == ["anthropic", "azure"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("OpenAI", ["openai"]),
        ("zhipu-codng", ["zhipu-coding"]),
        ("kimi-code", ["kimi-coding"]),
        ("glm-coding", ["zhipu-coding", "zai-coding"]),
        ("google", ["gemini"]),
        ("alibaba", ["dashscope-cn", "dashscope", "qwen", "qwen-coding-cn"]),
        ("baidu", ["qianfan", "qianfan-coding", "qianfan-token"]),
        ("azure-openai", ["azure"]),
        ("aws", ["bedrock", "bedrock-mantle"]),
        ("z.ai", ["zai"]),
        ("llama.cpp", ["llamacpp"]),
        ("acme-unheard", []),
    ],
)
def test_a_name_that_is_none_is_answered_with_those_it_may_mean(name: str, near: list[str]) -> None:
    assert near_presets(name, PRESETS) == near


def test_the_rows_are_read_when_a_preset_is_looked_up() -> None:
    code = (
        "from routecodex.providers import catalog\n"
        "assert catalog.preset_rows.cache_info().currsize == 0\n"
        "catalog.PRESETS['zai']\n"
        "assert catalog.preset_rows.cache_info().currsize == 1\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
