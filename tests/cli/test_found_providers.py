"""Keys in the environment by the rows of the catalog, model servers by the models that they list."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from routecodex.cli.found_providers import FoundServer, LocalServer, find_keys, find_servers, key_variables
from routecodex.providers.catalog import PresetRow, preset_rows
from tests.cli.process import serve
from tests.kit.upstream import Answer, CloseClean, CutOff, Hang, Json, Raw, Send, Steps, Upstream


def found(environ: dict[str, str]) -> dict[str, list[str]]:
    return {one.variable: [row.preset for row in one.rows] for one in find_keys(environ)}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {}),
        ({"OPENAI_API_KEY": ""}, {}),
        ({"OPENAI_API_KEY": " \n"}, {}),
        ({"openai_api_key": "k"}, {}),
        ({"OPENAI_API_KEY": "k"}, {"OPENAI_API_KEY": ["openai"]}),
        (
            {"ZHIPU_API_KEY": "k"},
            {"ZHIPU_API_KEY": ["zhipu", "zhipu-coding", "zai", "zai-coding"]},
        ),
        (
            {"ZAI_API_KEY": "k", "ZHIPU_API_KEY": "k"},
            {"ZHIPU_API_KEY": ["zhipu", "zhipu-coding"], "ZAI_API_KEY": ["zai", "zai-coding"]},
        ),
        ({"GOOGLE_API_KEY": "k"}, {"GOOGLE_API_KEY": ["gemini"]}),
        ({"GOOGLE_API_KEY": "k", "GEMINI_API_KEY": "k"}, {"GEMINI_API_KEY": ["gemini"]}),
        ({"MOONSHOT_API_KEY": "k"}, {"MOONSHOT_API_KEY": ["moonshot-cn", "moonshot"]}),
    ],
)
def test_a_key_belongs_to_the_rows_that_name_its_variable(
    environ: dict[str, str], expected: dict[str, list[str]]
) -> None:
    assert found(environ) == expected


@pytest.mark.parametrize("row", [pytest.param(row, id=row.preset) for row in preset_rows()])
def test_every_variable_of_every_row_is_found(row: PresetRow) -> None:
    assert set(row.env) <= set(key_variables())
    for variable in row.env:
        assert row.preset in found({variable: "k"})[variable]


@pytest.mark.parametrize(
    ("variable", "general"),
    [
        ("GITHUB_TOKEN", True),
        ("HF_TOKEN", True),
        ("AZURE_API_KEY", True),
        ("AZURE_OPENAI_API_KEY", True),
        ("AWS_BEARER_TOKEN_BEDROCK", True),
        ("OPENAI_API_KEY", False),
        ("OLLAMA_API_KEY", False),
    ],
)
def test_tokens_of_other_services_and_cloud_keys_are_general(variable: str, general: bool) -> None:
    assert [one.is_general for one in find_keys({variable: "k"})] == [general]


def at(upstream: Upstream, preset: str = "ollama") -> LocalServer:
    return LocalServer(preset=preset, url=f"{upstream.url}/v1")


async def probe(*servers: LocalServer) -> tuple[FoundServer, ...]:
    return await asyncio.to_thread(find_servers, servers)


async def test_servers_are_found_by_the_models_that_they_list_in_order_of_the_list() -> None:
    async with Upstream() as ollama, Upstream() as vllm:
        ollama.queue(Json(200, {"object": "list", "data": [{"id": "qwen3:8b"}, {"id": "llama3.2"}]}))
        vllm.queue(Json(200, {"data": [{"id": "org/model", "max_model_len": 32768}, {"no": "id"}, 7]}))
        servers = (at(ollama), at(vllm, "vllm"))
        assert await probe(*servers) == (
            FoundServer(server=servers[0], models={"qwen3:8b": None, "llama3.2": None}),
            FoundServer(server=servers[1], models={"org/model": 32768}),
        )
        assert [(one.method, one.path) for one in ollama.requests] == [("GET", "/v1/models")]


@pytest.mark.parametrize(
    "answer",
    [
        Json(404, {"data": []}),
        Json(200, {"models": []}),
        Json(200, {"data": {}}),
        Json(200, [1]),
        Raw([Send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>")]),
        Raw([Send(b"not http at all\r\n\r\n"), CloseClean()]),
        Steps([CutOff()]),
        Steps([Hang()]),
    ],
    ids=["404", "no data", "no list", "no object", "html", "not http", "cut off", "silent"],
)
async def test_anything_else_that_listens_is_not_a_model_server(answer: Answer) -> None:
    async with Upstream(lambda _request: answer) as other:
        assert await probe(at(other)) == ()


async def test_a_port_where_nothing_listens_is_not_a_model_server() -> None:
    async with Upstream() as gone:
        server = at(gone)
    assert await probe(server) == ()


async def test_a_silent_server_does_not_keep_another_from_being_found() -> None:
    async with Upstream(lambda _request: Steps([Hang()])) as silent, Upstream() as good:
        good.queue(Json(200, {"data": [{"id": "m"}]}))
        assert [one.server.preset for one in await probe(at(silent), at(good, "vllm"))] == ["vllm"]


async def test_a_gateway_is_not_taken_for_its_own_provider(tmp_path: Path) -> None:
    config = '[providers.d]\nprotocol = "demo"\n[providers.d.models.m]\n[routing]\ndefault = ["d.m"]\n'
    async with serve(tmp_path, config) as command:
        url = f"http://127.0.0.1:{await command.port()}/v1"
        assert await probe(LocalServer(preset="vllm", url=url)) == ()
