"""Lists of models as providers send them, and as nobody should."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routecodex.canon.errors import UpstreamError
from routecodex.protocols.codecs import CODECS
from routecodex.providers.http import HttpClient, Timeouts, TlsOptions, origin_of
from routecodex.providers.model_listing import MOST_MODELS, ListedModel, ListingPage, decode_page, list_models
from routecodex.providers.upstream import Upstream as Provider
from tests.kit.steps import Json
from tests.kit.upstream import Request, Upstream

A, B = ListedModel("a"), ListedModel("b")
USELESS = ({"id": "a", "context_length": size} for size in (0, -1, True, "9", 1.5, 2**50))
HOSTILE: list[Any] = [
    *({"id": name} for name in ("", 7, None, "a b", "<**clear**>", "../x", "x" * 999, "\x1b[2J")),
    *(None, [], {}, {"name": {}}, "two words"),
]
HOSTED = {
    "id": "o/a",
    "context_length": 9,
    "top_provider": {"context_length": 8, "max_completion_tokens": 4},
}

PAGES: list[tuple[str, str, Any, ListingPage]] = [
    ("OpenAI", "chat", {"object": "list", "data": [{"id": "a"}, {"id": "b"}]}, ListingPage((A, B))),
    ("responses", "responses", {"data": [{"id": "a"}]}, ListingPage((A,))),
    ("Together", "chat", [{"id": "a", "context_length": 8192}], ListingPage((ListedModel("a", 8192),))),
    ("strings", "chat", ["a", "b"], ListingPage((A, B))),
    ("Cohere", "chat", {"models": [{"name": "a"}]}, ListingPage((A,))),
    ("llama.cpp", "chat", {"models": [{"name": "x"}], "data": [{"id": "a"}]}, ListingPage((A,))),
    ("Ollama without models", "chat", {"object": "list", "data": None}, ListingPage(())),
    ("empty", "chat", {"data": []}, ListingPage(())),
    ("vLLM", "chat", {"data": [{"id": "a", "max_model_len": 32}]}, ListingPage((ListedModel("a", 32),))),
    ("OpenRouter", "chat", {"data": [HOSTED]}, ListingPage((ListedModel("o/a", 8, 4),))),
    (
        "Groq",
        "chat",
        {"data": [{"id": "a", "context_window": 9, "max_completion_tokens": 3}]},
        ListingPage((ListedModel("a", 9, 3),)),
    ),
    ("sizes of no use", "chat", {"data": [*USELESS]}, ListingPage((A,) * 6)),
    ("more at OpenAI", "chat", {"data": [{"id": "a"}], "has_more": True}, ListingPage((A,), "a")),
    (
        "Anthropic",
        "messages",
        {"data": [{"type": "model", "id": "a"}], "has_more": True, "first_id": "a", "last_id": "z"},
        ListingPage((A,), "z"),
    ),
    (
        "the last page",
        "messages",
        {"data": [{"id": "a"}], "has_more": False, "last_id": "a"},
        ListingPage((A,)),
    ),
    ("no page after nothing", "messages", {"data": [], "has_more": True, "last_id": "c"}, ListingPage(())),
    (
        "Gemini",
        "gemini",
        {
            "models": [{"name": "models/g", "inputTokenLimit": 9, "outputTokenLimit": 2}],
            "nextPageToken": "t",
        },
        ListingPage((ListedModel("g", 9, 2),), "t"),
    ),
    ("no token", "gemini", {"models": [{"name": "models/a"}], "nextPageToken": ""}, ListingPage((A,))),
    ("hostile names", "chat", {"data": [{"id": "a"}, *HOSTILE]}, ListingPage((A,))),
]


@pytest.mark.parametrize(("protocol", "body", "page"), [pytest.param(*row, id=name) for name, *row in PAGES])
def test_a_page_is_read_as_its_provider_means_it(protocol: str, body: Any, page: ListingPage) -> None:
    assert decode_page(protocol, msgspec.json.encode(body)) == page


NO_PAGES: list[tuple[bytes, str]] = [
    (b"", "it is not JSON"),
    (b"<!DOCTYPE html><p>hello", "it is a page of HTML"),
    (b" \n<HTML>", "it is a page of HTML"),
    (b'{"data": [', "it is not JSON"),
    (b"[" * 100_000, "it is not JSON"),
    (b"null", "it has neither `data` nor `models`"),
    (b'"models"', "it has neither `data` nor `models`"),
    (b'{"error": {"message": "no"}}', "it has neither `data` nor `models`"),
    (b'{"data": {"id": "a"}}', "it has neither `data` nor `models`"),
    (b'{"data": [{"id": "a b"}, 7]}', "no entry of it has the name of a model"),
]


@pytest.mark.parametrize(("body", "why"), NO_PAGES)
def test_anything_else_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=r"^(it|no entry) ") as caught:
        decode_page("chat", body)
    assert str(caught.value).startswith(why)


def test_bytes_that_are_not_utf8_spoil_their_own_name_only() -> None:
    page = decode_page("chat", b'{"data": [{"id": "a"}, {"id": "b", "owner": "\xff"}]}')
    assert page == ListingPage((ListedModel("a"), ListedModel("b")))


async def listed(
    *ups: Upstream, protocol: str = "chat", keys: tuple[str, ...] = ("one",), seconds: float = 20.0
) -> list[str]:
    """Return the names that the scripted providers list."""
    client = HttpClient()
    base = {"chat": "/v1", "responses": "/v1"}.get(protocol, "")
    try:
        providers = [
            Provider(
                "up",
                codec=CODECS[protocol],
                base_url=up.url + base,
                origin=origin_of(up.url, tls=TlsOptions(), environ={}),
                client=client,
                secrets={key: f"secret-{key}" for key in keys},
                timeouts=Timeouts(first_byte=5, idle=5),
            )
            for up in ups
        ]
        return [model.name for model in await list_models(providers, keys, seconds=seconds)]
    finally:
        await client.close()


REQUESTS = [
    ("chat", "/v1/models", ("authorization", "Bearer secret-one")),
    ("responses", "/v1/models", ("authorization", "Bearer secret-one")),
    ("messages", "/v1/models?limit=1000", ("x-api-key", "secret-one")),
    ("messages", "/v1/models?limit=1000", ("anthropic-version", "2023-06-01")),
    ("gemini", "/v1beta/models?pageSize=1000", ("x-goog-api-key", "secret-one")),
]


@pytest.mark.parametrize(("protocol", "path", "header"), REQUESTS)
async def test_each_protocol_is_asked_in_its_own_way(
    protocol: str, path: str, header: tuple[str, str]
) -> None:
    async with Upstream(lambda _: Json(200, {"data": [{"id": "a"}]})) as up:
        assert await listed(up, protocol=protocol) == ["a"]
    (request,) = up.requests
    assert (request.method, request.path, request.body) == ("GET", path, b"")
    assert request.headers[header[0]] == header[1]


def paged(protocol: str, count: int, size: int) -> Any:
    """Return the script of a provider that lists `count` models in pages."""
    parameter = {"messages": "after_id=", "gemini": "pageToken="}[protocol]

    def answer(request: Request) -> Json:
        after = request.path.partition(parameter)[2]
        start = int(after.removeprefix("m-")) + 1 if after else 0
        ids = [f"m-{at}" for at in range(start, min(start + size, count))]
        more = start + size < count
        if protocol == "gemini":
            rows = [{"name": f"models/{one}"} for one in ids]
            return Json(200, {"models": rows, **({"nextPageToken": ids[-1]} if more else {})})
        rows = [{"id": one} for one in ids]
        return Json(200, {"data": rows, "has_more": more, "first_id": ids[0], "last_id": ids[-1]})

    return answer


@pytest.mark.parametrize("protocol", ["messages", "gemini"])
async def test_every_page_is_read(protocol: str) -> None:
    async with Upstream(paged(protocol, 2500, 1000)) as up:
        assert await listed(up, protocol=protocol) == [f"m-{at}" for at in range(2500)]
    assert len(up.requests) == 3


@pytest.mark.parametrize("protocol", ["chat", "messages", "gemini"])
async def test_a_server_that_sends_the_same_page_again_ends_the_list(protocol: str) -> None:
    page = {"data": [{"id": "a"}], "has_more": True, "last_id": "a", "nextPageToken": "again"}
    async with Upstream(lambda _: Json(200, page)) as up:
        assert await listed(up, protocol=protocol) == ["a"]
    assert len(up.requests) == 2


async def test_ten_thousand_names_are_listed_and_endless_ones_are_cut() -> None:
    rows = [{"id": f"m-{at}"} for at in range(MOST_MODELS + 5)]
    async with Upstream() as up:
        up.queue(Json(200, {"data": rows[:10_000]}), Json(200, {"data": rows}))
        assert len(await listed(up)) == 10_000
        assert len(await listed(up)) == MOST_MODELS


async def test_the_next_key_is_used_when_one_is_refused() -> None:
    def answer(request: Request) -> Json:
        if request.headers["authorization"].endswith("-one"):
            return Json(401, {"error": {"message": "invalid key"}})
        return Json(200, {"data": [{"id": "a"}]})

    async with Upstream(answer) as up:
        assert await listed(up, keys=("one", "two")) == ["a"]


LACKING = [Json(404, {"detail": "Not Found"}), Json(405, {}), Json(200, b"<html>")]


@pytest.mark.parametrize("answer", LACKING, ids=["404", "405", "HTML"])
async def test_another_address_of_the_provider_is_asked_when_one_has_no_list(answer: Json) -> None:
    async with Upstream(lambda _: answer) as without, Upstream(lambda _: Json(200, ["a"])) as having:
        assert await listed(without, having) == ["a"]


FAILURES = [
    (Json(401, {"error": {"message": "wrong key secret-one"}}), "rejected the gateway's key (HTTP 401)"),
    (Json(500, {"error": {"message": "broken by secret-one"}}), "broken by ***"),
    (Json(302, {}), "redirect"),
    (Json(200, {"error": "x"}), "did not send a list of models: it has neither `data` nor `models`"),
]


@pytest.mark.parametrize(("answer", "message"), FAILURES)
async def test_the_failure_of_the_last_address_is_reported_without_keys(answer: Json, message: str) -> None:
    async with Upstream(lambda _: answer) as up:
        with pytest.raises(UpstreamError) as caught:
            await listed(up)
    assert message in caught.value.message
    assert "secret-one" not in caught.value.message
