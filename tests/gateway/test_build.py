"""Parts that are built from a configuration, without a provider."""

from __future__ import annotations

import pytest

from routecodex.config import Config, Secret, StoreConfig, StoreSecret, loads
from routecodex.gateway import build
from routecodex.gateway.model_list import names
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from routecodex.providers.http import HttpClient


def config(row: str) -> Config:
    text = f'[providers.p]\n{row}\nmodels = "discover"\n[routing]\ndefault = ["p.any"]\n'
    environ = {"DEEPSEEK_API_KEY": "k", "GEMINI_API_KEY": "k", "GOOGLE_API_KEY": "k"}
    return loads(text, environ=environ, presets=PRESETS, dialect_type=Dialect)


def addresses(row: str) -> list[tuple[str, bytes]]:
    """Return the protocols and paths of the addresses that are asked for models, in order."""
    source = build.model_sources(config(row), HttpClient(), {})["p"]
    return [(one.codec.name, one.path("m", stream=False)) for one in source.upstreams]


def test_the_other_addresses_of_a_preset_may_have_the_list_that_one_lacks() -> None:
    assert addresses('preset = "deepseek"') == [
        ("chat", b"/v1/chat/completions"),
        ("messages", b"/anthropic/v1/messages"),
    ]
    assert addresses('preset = "deepseek"\nprotocol = "messages"') == [
        ("messages", b"/anthropic/v1/messages"),
        ("chat", b"/v1/chat/completions"),
    ]


def test_a_server_of_ones_own_is_asked_alone() -> None:
    assert addresses('preset = "deepseek"\nbase_url = "http://127.0.0.1:9/v1"') == [
        ("chat", b"/v1/chat/completions")
    ]
    own = 'protocol = "messages"\nbase_url = "http://127.0.0.1:9"'
    assert addresses(own) == [("messages", b"/v1/messages")]


def test_a_provider_whose_models_are_named_is_not_asked() -> None:
    text = '[providers.p]\nprotocol = "demo"\nmodels = { m = {} }\n[routing]\ndefault = ["p.m"]\n'
    assert build.model_sources(loads(text, environ={}), HttpClient(), {}) == {}


def test_the_models_of_the_preset_stand_for_the_list_until_it_comes() -> None:
    registry = build.registry(config('preset = "deepseek"'))
    assert list(names(registry)) == ["p.deepseek-v4-pro", "p.deepseek-v4-flash"]
    known = registry.model(registry.targets_of("p.deepseek-v4-pro")[0])
    assert (known.id, known.context_tokens) == ("deepseek-v4-pro", 1_000_000)
    unknown = registry.model(registry.targets_of("p.brand-new")[0])
    assert (unknown.id, unknown.context_tokens, unknown.vision) == ("brand-new", None, True)


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("redis://ann:plain@h", "plain"),
        ("redis://:two%20words@h:6379/0", "two words"),
        ("redis+sentinel://:a/b@h1:26379,h2:26379/mymaster", "a/b"),
    ],
)
def test_the_password_in_the_url_of_a_store_is_a_secret(url: str, password: str) -> None:
    config = Config(store=StoreConfig(url=url, sentinel_password=StoreSecret(value=Secret("watch"))))
    assert build.secrets(config, {}) == {password, "watch"}
