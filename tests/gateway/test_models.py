"""The list of models over a real socket, in the format of each client."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.protocols import grammar
from tests.kit.gateway import serving
from tests.kit.raw_client import Answer, begin, call

CONFIG = """
[server]
port = 0
[providers.glm]
protocol = "demo"
auth = [{ alias = "one", value = "k1" }, { alias = "two", value = "k2" }]
[providers.glm.models."glm-4.7"]
context_tokens = 200000
max_output_tokens = 128000
[providers.router]
protocol = "demo"
[providers.router.models."org/model:free"]
[models]
"gpt-5" = "glm.glm-4.7"
"fast" = "route:default"
"claude-*haiku*" = "glm.glm-4.7"
"gpt-?" = "glm.glm-4.7"
[routing]
default = ["glm.glm-4.7"]
"""
IDS = ["glm.glm-4.7", "router.org/model:free", "gpt-5", "fast"]
ANTHROPIC = {"anthropic-version": "2023-06-01"}
GOOGLE = {"x-goog-api-client": "google-genai-sdk/1.0"}
LISTS: list[tuple[str, dict[str, str], str]] = [
    ("/v1/models", {}, "openai"),
    ("/models", {}, "openai"),
    ("/openai/v1/models", {}, "openai"),
    ("/v1beta/openai/models", {}, "openai"),
    ("/v1/models?limit=20", ANTHROPIC, "anthropic"),
    ("/models", ANTHROPIC, "anthropic"),
    ("/v1beta/models", {}, "google"),
    ("/v1beta/models?pageSize=5", ANTHROPIC, "google"),
    ("/google/v1beta/models", {}, "google"),
    ("/v1/models", GOOGLE, "google"),
    ("/models", GOOGLE, "google"),
]


def openai(answer: Answer) -> list[str]:
    value = answer.json
    assert value["object"] == "list"
    assert all(set(row) == {"id", "object", "created", "owned_by"} for row in value["data"])
    assert {row["object"] for row in value["data"]} == {"model"}
    return [row["id"] for row in value["data"]]


def anthropic(answer: Answer) -> list[str]:
    value = answer.json
    ids = [row["id"] for row in value["data"]]
    assert {row["type"] for row in value["data"]} == {"model"}
    assert all(row["display_name"] and row["created_at"] for row in value["data"])
    assert (value["first_id"], value["last_id"], value["has_more"]) == (ids[0], ids[-1], False)
    return ids


def google(answer: Answer) -> list[str]:
    rows: list[dict[str, Any]] = answer.json["models"]
    assert all("generateContent" in row["supportedGenerationMethods"] for row in rows)
    assert (rows[0]["inputTokenLimit"], rows[0]["outputTokenLimit"]) == (200_000, 128_000)
    assert all(row["name"].startswith("models/") for row in rows)
    return [row["name"].removeprefix("models/") for row in rows]


READERS = {"openai": openai, "anthropic": anthropic, "google": google}


@pytest.mark.parametrize(("path", "headers", "shape"), LISTS)
async def test_models_and_plain_aliases_are_listed_in_the_clients_shape(
    path: str, headers: dict[str, str], shape: str
) -> None:
    async with serving(CONFIG) as gateway:
        answer = await call(gateway.port, path, method="GET", headers=headers)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert READERS[shape](answer) == IDS


ONE: list[tuple[str, dict[str, str], str, str]] = [
    ("/v1/models/glm.glm-4.7", {}, "id", "glm.glm-4.7"),
    ("/v1/models/gpt-5", {}, "id", "gpt-5"),
    ("/v1/models/router.org/model:free", {}, "id", "router.org/model:free"),
    ("/v1/models/router.org%2Fmodel%3Afree", ANTHROPIC, "id", "router.org/model:free"),
    ("/models/fast", ANTHROPIC, "display_name", "fast"),
    ("/v1beta/models/gpt-5", {}, "name", "models/gpt-5"),
    ("/v1/models/gpt-5", GOOGLE, "name", "models/gpt-5"),
]


@pytest.mark.parametrize(("path", "headers", "field", "name"), ONE)
async def test_one_model_can_be_requested(path: str, headers: dict[str, str], field: str, name: str) -> None:
    async with serving(CONFIG) as gateway:
        answer = await call(gateway.port, path, method="GET", headers=headers)
    assert (answer.status, answer.json[field]) == (200, name)


UNKNOWN = [
    ("/v1/models/claude-*haiku*", {}, "chat"),
    ("/v1/models/nobody", {}, "chat"),
    ("/v1/models/glm", ANTHROPIC, "messages"),
    ("/v1beta/models/nobody", {}, "gemini"),
    ("/models/nobody", GOOGLE, "gemini"),
]


@pytest.mark.parametrize(("path", "headers", "protocol"), UNKNOWN)
async def test_a_model_that_is_not_there_is_a_404_in_the_clients_envelope(
    path: str, headers: dict[str, str], protocol: str
) -> None:
    async with serving(CONFIG) as gateway:
        answer = await call(gateway.port, path, method="GET", headers=headers)
    assert (answer.status, answer.json["code"]) == (404, "model_not_found")
    grammar.check_error(protocol, 404, answer.body)


async def test_head_of_the_list_has_no_body() -> None:
    async with serving(CONFIG) as gateway:
        under_way = await begin(gateway.port, "/v1/models", method="HEAD")
        assert (await under_way.head()).status == 200
        assert int(under_way.answer.headers["content-length"]) > 0
        under_way.writer.write_eof()
        assert await under_way.reader.read() == b""
        await under_way.close()
