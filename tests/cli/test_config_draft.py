"""Drafts: every provider of the catalog gives a valid file; routes exist where the models differ."""

from __future__ import annotations

import asyncio
import tomllib
from typing import Any

import pytest

from routecodex.cli.config_draft import (
    ProviderDraft,
    config_text,
    draft_demo,
    draft_preset,
    draft_server,
    propose_config,
    propose_routes,
)
from routecodex.cli.found_providers import FoundServer, LocalServer
from routecodex.config import Config, ModelConfig, examine
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS, preset_rows
from tests.kit.upstream import Json, Upstream

OLLAMA = LocalServer(preset="ollama", url="http://127.0.0.1:11434/v1")


def valid(text: str, environ: dict[str, str]) -> Config:
    """Load the text, without any problem."""
    config, problems = examine(text, environ=environ, presets=PRESETS, dialect_type=Dialect)
    assert problems == []
    assert config is not None
    return config


def proposed(environ: dict[str, str]) -> dict[str, Any]:
    text = propose_config(environ, servers=())
    assert text is not None
    valid(text, environ)
    return tomllib.loads(text)


def drafted(preset: str, *models: str) -> ProviderDraft:
    draft = draft_preset(preset, env="K", models=models)
    assert draft is not None
    return draft


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_gives_a_valid_file_with_its_recommended_or_any_other_model(name: str) -> None:
    settings = {"resource": "mine", "region": "eu-1"}
    for draft in (draft_preset(name, env="K"), draft_preset(name, env="K", models=("my/model:1", "second"))):
        if draft is None:
            continue
        environ = {
            "K": "secret",
            "AZURE_RESOURCE_NAME": settings["resource"],
            "AWS_REGION": settings["region"],
        }
        config = valid(config_text([draft]), environ)
        assert (list(config.providers), config.providers[name].preset) == ([name], name)
        assert config.providers[name].keys[0].env == "K"
        assert config.routing["default"] == (f"{name}.{draft.default}",)


def test_all_keys_together_give_a_valid_file_with_one_provider_per_variable() -> None:
    environ = {variable: "secret" for row in preset_rows() for variable in row.env}
    text = propose_config(environ, servers=())
    assert text is not None
    assert "secret" not in text
    config = valid(text, environ)
    assert len(config.providers) > 30
    variables = [key.env for row in config.providers.values() for key in row.keys]
    assert len(set(variables)) == len(variables)


@pytest.mark.parametrize(
    "environ",
    [{}, {"GITHUB_TOKEN": "t", "HF_TOKEN": "t", "AZURE_API_KEY": "t", "AWS_BEARER_TOKEN_BEDROCK": "t"}],
)
def test_without_a_usable_key_nothing_is_proposed(environ: dict[str, str]) -> None:
    assert propose_config(environ, servers=()) is None


def test_of_several_presets_with_one_variable_the_first_is_proposed() -> None:
    assert proposed({"ZHIPU_API_KEY": "k"})["providers"] == {
        "zhipu": {
            "preset": "zhipu",
            "auth": [{"env": "ZHIPU_API_KEY"}],
            "models": {"glm-5.2": {}, "glm-4.5-air": {}, "glm-4.6v": {}},
        }
    }


def test_a_route_is_proposed_where_its_model_differs_from_the_default() -> None:
    tree = proposed({"ZHIPU_API_KEY": "k"})
    assert tree["routing"] == {
        "default": ["zhipu.glm-5.2"],
        "background": ["zhipu.glm-4.5-air"],
        "vision": ["zhipu.glm-4.6v"],
    }
    assert tree["models"] == {"claude-*haiku*": "route:background"}


def test_all_routes_are_proposed_for_providers_whose_models_differ() -> None:
    tree = proposed({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "DEEPSEEK_API_KEY": "k"})
    assert tree["routing"] == {
        "default": ["openai.gpt-5", "anthropic.claude-sonnet-5", "deepseek.deepseek-v4-pro"],
        "thinking": ["openai.gpt-5", "anthropic.claude-opus-4-8", "deepseek.deepseek-v4-pro"],
        "background": ["openai.gpt-5-mini", "anthropic.claude-haiku-4-5", "deepseek.deepseek-v4-flash"],
        "vision": ["openai.gpt-5", "anthropic.claude-sonnet-5"],
        "longcontext": ["openai.gpt-4.1", "anthropic.claude-sonnet-5", "deepseek.deepseek-v4-pro"],
    }


def test_one_model_for_everything_needs_the_default_route_alone() -> None:
    tree = proposed({"MINIMAX_API_KEY": "k"})
    assert tree["routing"] == {"default": ["minimax-cn.MiniMax-M3"]}
    assert "models" not in tree


def test_a_provider_without_tools_comes_last() -> None:
    tree = proposed({"PERPLEXITY_API_KEY": "k", "ZHIPU_API_KEY": "k"})
    assert tree["routing"]["default"] == ["zhipu.glm-5.2", "perplexity.sonar-pro"]
    assert tree["providers"]["perplexity"]["models"]["sonar"] == {
        "context_tokens": 128000,
        "max_output_tokens": 4096,
        "vision": False,
        "tools": False,
        "reasoning": False,
    }


def test_another_model_takes_all_requests_but_those_of_the_background() -> None:
    assert propose_routes([drafted("anthropic", "claude-opus-4-8")]) == {
        "default": ["anthropic.claude-opus-4-8"],
        "background": ["anthropic.claude-haiku-4-5"],
    }


def test_another_model_without_vision_leaves_images_to_one_that_has_it() -> None:
    assert propose_routes([drafted("zai", "glm-4.7")]) == {
        "default": ["zai.glm-4.7"],
        "background": ["zai.glm-4.5-air"],
        "vision": ["zai.glm-4.6v"],
    }


def test_further_models_are_listed_but_not_routed_to() -> None:
    draft = drafted("zai", "glm-5.2", "glm-4.7")
    assert list(draft.models) == ["glm-5.2", "glm-4.5-air", "glm-4.6v", "glm-4.7"]
    assert not any("glm-4.7" in target for to in propose_routes([draft]).values() for target in to)


def test_an_alias_of_a_preset_keeps_its_protocol_and_gets_its_models() -> None:
    draft = drafted("openai-responses")
    assert (draft.name, draft.default) == ("openai-responses", "gpt-5.4")


async def test_a_server_on_this_machine_is_proposed_with_its_models_that_chat() -> None:
    listed = [{"id": "nomic-embed-text"}, {"id": "qwen3:8b", "max_model_len": 40960}, {"id": "llama3.2"}]
    async with Upstream() as upstream:
        upstream.queue(Json(200, {"data": listed}))
        server = LocalServer(preset="ollama", url=f"{upstream.url}/v1")
        text = await asyncio.to_thread(propose_config, {"OPENAI_API_KEY": "k"}, (server,))
    assert text is not None
    valid(text, {"OPENAI_API_KEY": "k"})
    tree = tomllib.loads(text)
    assert tree["providers"]["ollama"] == {
        "preset": "ollama",
        "base_url": server.url,
        "models": {"qwen3:8b": {"context_tokens": 40960}, "llama3.2": {}},
    }
    assert tree["routing"]["default"] == ["openai.gpt-5", "ollama.qwen3:8b"]
    assert tree["routing"]["longcontext"] == ["openai.gpt-4.1"]


def test_a_server_at_its_usual_port_needs_no_address() -> None:
    draft = draft_server(FoundServer(server=OLLAMA, models={"m": None}))
    assert draft is not None
    assert dict(draft.settings) == {}
    config = valid(config_text([draft]), {})
    assert config.providers["ollama"].base_url == OLLAMA.url
    assert config.routing == {"default": ("ollama.m",)}


@pytest.mark.parametrize("models", [{}, {"bge-m3": None, "nomic-embed-text:latest": None}])
def test_a_server_without_a_model_that_chats_is_not_proposed(models: dict[str, int | None]) -> None:
    assert draft_server(FoundServer(server=OLLAMA, models=models)) is None


def test_the_demo_has_all_routes_that_its_models_allow() -> None:
    config = valid(config_text([draft_demo()]), {})
    assert config.providers["demo"].protocol == "demo"
    assert config.routing == {
        "default": ("demo.demo-1",),
        "thinking": ("demo.demo-thinking",),
        "background": ("demo.demo-small",),
        "vision": ("demo.demo-vision",),
    }


def test_every_table_and_route_of_a_file_has_a_comment() -> None:
    lines = config_text([drafted("zai"), drafted("openai")]).splitlines()
    for number, line in enumerate(lines):
        table = line.startswith("[") and not line.endswith(".models]")
        if table or line.startswith(("default", "thinking", "background", "vision", "longcontext")):
            assert lines[number - 1].startswith("# "), line


def test_a_key_file_is_named_and_not_read() -> None:
    draft = draft_preset("zai", key_file='/tmp/a "b"')  # never opened
    assert draft is not None
    tree = tomllib.loads(config_text([draft]))
    assert tree["providers"]["zai"]["auth"] == [{"file": '/tmp/a "b"'}]  # never opened


def test_a_model_of_which_nothing_is_known_is_written_by_name_alone() -> None:
    draft = drafted("cohere", "my-model")
    assert draft.models == {"my-model": ModelConfig()}
    assert tomllib.loads(config_text([draft]))["providers"]["cohere"]["models"] == {"my-model": {}}
