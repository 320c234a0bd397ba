from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import NotFound
from routecodex.gateway.model_list import list_models, names, one_model
from routecodex.routing.registry import Model, Provider, Registry

GLM = Model(id="glm", context_tokens=200_000, max_output_tokens=4096)
REGISTRY = Registry(
    [
        Provider(name="glm", protocol="chat", keys=("a", "b"), models={"glm-4.7": GLM}),
        Provider(name="gpt", protocol="responses", keys=("k",), models={"5.2": Model(id="5.2")}),
    ],
    routes={},
    aliases={"claude-*": "glm.glm-4.7", "fast": "glm.glm-4.7", "smart": "route:thinking", "lost": "no.body"},
)
IDS = ["glm.glm-4.7", "gpt.5.2", "fast", "smart", "lost"]


def test_models_and_plain_aliases_are_listed_once() -> None:
    assert list(names(REGISTRY)) == IDS
    assert names(REGISTRY)["fast"] is GLM
    assert names(REGISTRY)["smart"] is None


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_openai_clients_get_openais_shape(protocol: str) -> None:
    listed = list_models(REGISTRY, protocol)
    assert listed["object"] == "list"
    assert [row["id"] for row in listed["data"]] == IDS
    assert listed["data"][0] == {
        "id": "glm.glm-4.7",
        "object": "model",
        "created": 0,
        "owned_by": "glm",
    }


def test_anthropic_clients_get_anthropics_shape() -> None:
    listed = list_models(REGISTRY, "messages")
    assert [row["id"] for row in listed["data"]] == IDS
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (IDS[0], IDS[-1], False)
    assert listed["data"][1] == {
        "type": "model",
        "id": "gpt.5.2",
        "display_name": "gpt.5.2",
        "created_at": "1970-01-01T00:00:00Z",
    }


def test_gemini_clients_get_geminis_shape() -> None:
    rows = list_models(REGISTRY, "gemini")["models"]
    assert [row["name"] for row in rows] == [f"models/{id}" for id in IDS]
    assert rows[0] == {
        "name": "models/glm.glm-4.7",
        "displayName": "glm.glm-4.7",
        "version": "1",
        "inputTokenLimit": 200_000,
        "outputTokenLimit": 4096,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }
    assert "inputTokenLimit" not in rows[1]


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages", "gemini"])
def test_one_model_has_the_shape_it_has_in_the_list(protocol: str) -> None:
    listed = list_models(REGISTRY, protocol)
    rows: list[Any] = listed.get("data") or listed["models"]
    assert [one_model(REGISTRY, protocol, name) for name in IDS] == rows


@pytest.mark.parametrize("name", ["nobody", "glm", "glm.a.glm-4.7", "claude-*", "claude-opus", ""])
def test_a_model_that_is_not_listed_is_not_found(name: str) -> None:
    with pytest.raises(NotFound) as caught:
        one_model(REGISTRY, "chat", name)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert repr(name) in caught.value.message


def test_an_empty_gateway_lists_nothing() -> None:
    empty = Registry([], routes={}, aliases={})
    assert list_models(empty, "chat") == {"object": "list", "data": []}
    assert list_models(empty, "gemini") == {"models": []}
    assert list_models(empty, "messages") == {
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }
