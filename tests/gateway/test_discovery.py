"""Providers that name their models themselves: lists in all protocols, and names that no list has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import answers, asking
from tests.kit.gateway import Running, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Hang, Json, Steps
from tests.kit.upstream import Request, Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
BASES = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": ""}
SERVER = "[server]\nport = 0\ndrain_seconds = 1\n"
ONE = Json(200, {"data": [{"id": "listed-1"}]})


def is_listing(request: Request) -> bool:
    return request.method == "GET"


def script(protocol: str, *names: str) -> Callable[[Request], Any]:
    """Return a provider that lists these names and answers every request."""

    def answer(request: Request) -> Any:
        if not is_listing(request):
            return answers.text(protocol, "hi", answers.wants_stream(request))
        if protocol == "gemini":
            return Json(200, {"models": [{"name": f"models/{name}"} for name in names]})
        return Json(200, {"data": [{"id": name} for name in names], "has_more": False})

    return answer


def discovering(
    protocol: str, up: Upstream, *, models: str = '"discover"', default: str = "up.listed-1", more: str = ""
) -> str:
    return (
        f'{SERVER}[providers.up]\nprotocol = "{protocol}"\nbase_url = "{up.url}{BASES[protocol]}"\n'
        f'auth = [{{ alias = "primary", value = "k1" }}, {{ alias = "second", value = "k2" }}]\n'
        f'models = {models}\n[routing]\ndefault = ["{default}"]\n{more}'
    )


async def ids(gateway: Running, *, wait: bool = True) -> list[str]:
    """Return the models that the gateway lists, once its providers have been asked."""
    if wait:
        await gateway.service.gateway.model_lists.settle(20)
    return [row["id"] for row in (await call(gateway.port, "/v1/models", method="GET")).json["data"]]


async def send(
    gateway: Running,
    protocol: str,
    model: str,
    *,
    text: str = "Hello",
    stream: bool = False,
    session: str | None = None,
) -> Answer:
    return await call(
        gateway.port,
        asking.path(protocol, stream=stream, model=model),
        asking.body(protocol, text, stream=stream, model=model),
        headers={"session-id": session} if session is not None else {},
    )


def model_of(request: Request) -> str:
    body = request.json
    return str(body["model"]) if "model" in body else request.path.partition("models/")[2].rpartition(":")[0]


@pytest.mark.parametrize("models", ['"discover"', '{ "*" = {} }'])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_names_of_the_provider_are_listed(protocol: str, models: str) -> None:
    async with (
        Upstream(script(protocol, "listed-1", "org/listed:2")) as up,
        serving(discovering(protocol, up, models=models)) as gateway,
    ):
        assert await ids(gateway) == ["up.listed-1", "up.org/listed:2"]


async def test_named_models_stand_beside_the_listed_ones_with_their_properties() -> None:
    models = '{ "*" = {}, mine = { id = "theirs", context_tokens = 5 }, listed-1 = { context_tokens = 7 } }'
    async with (
        Upstream(script("chat", "listed-1", "listed-2")) as up,
        serving(discovering("chat", up, models=models)) as gateway,
    ):
        assert await ids(gateway) == ["up.mine", "up.listed-1", "up.listed-2"]
        known = gateway.service.gateway.registry.providers["up"].models
        assert (known["mine"].id, known["listed-1"].context_tokens) == ("theirs", 7)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_any_name_works_at_once_listed_or_not(protocol: str, stream: bool) -> None:
    hanging = Steps([Hang()])

    def answer(request: Request) -> Any:
        return hanging if is_listing(request) else script(protocol)(request)

    async with Upstream(answer) as up, serving(discovering(protocol, up)) as gateway:
        await up.received(1)
        assert await ids(gateway, wait=False) == []
        for model in ("brand-new-7b", "org/new.5:free", "second.new"):
            answered = await send(gateway, protocol, f"up.{model}", stream=stream)
            assert answered.status == 200, answered.body
            asking.check(protocol, answered, stream=stream)
        sent = [request for request in up.requests if not is_listing(request)]
        assert [model_of(request) for request in sent] == ["brand-new-7b", "org/new.5:free", "new"]
        assert "k2" in str(sent[-1].headers)


async def test_any_name_works_in_routes_aliases_and_instructions() -> None:
    more = 'thinking = ["up.second.in-a-pool"]\n[models]\nfast = "up.behind-an-alias"\n'
    async with (
        Upstream(script("chat", "listed-1")) as up,
        serving(discovering("chat", up, default="up.routed", more=more)) as gateway,
    ):
        await send(gateway, "chat", "gpt-5")
        await send(gateway, "chat", "fast")
        await send(gateway, "chat", "gpt-5", text="<**up.forced-1**> hi")
        await send(gateway, "chat", "gpt-5", text="<**!up.stuck-1**> hi", session="s1")
        await send(gateway, "chat", "gpt-5", text="again", session="s1")
        await send(gateway, "chat", "gpt-5", text="<**!up.second.stuck-2**> hi", session="s1")
        await send(gateway, "chat", "gpt-5", text="<**!up.2**> hi", session="s1")
        sent = [request for request in up.requests if not is_listing(request)]
    assert [model_of(request) for request in sent] == [
        *("in-a-pool", "behind-an-alias", "forced-1", "stuck-1", "stuck-1", "stuck-2", "in-a-pool")
    ]
    assert [request.headers["authorization"] for request in sent[-2:]] == ["Bearer k2"] * 2


HOSTILE = ["../../v1beta/files/x", "a b", "x?key=y", "%00", "a\nb", "", "primary", "9", "x" * 300, "<b>", "*"]


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_name_that_is_none_is_the_404_of_an_unknown_target(name: str) -> None:
    async with (
        Upstream(script("chat", "listed-1")) as up,
        serving(discovering("chat", up)) as gateway,
    ):
        await ids(gateway)
        answer = await send(gateway, "chat", f"up.{name}")
        if name == "%00":
            assert answer.status == 200
            return
        assert (answer.status, answer.json["code"]) == (404, "PROVIDER_NOT_AVAILABLE")
        assert all(is_listing(request) for request in up.requests)


async def test_a_name_cannot_leave_the_models_of_a_gemini_provider() -> None:
    async with (
        Upstream(script("gemini", "listed-1")) as up,
        serving(discovering("gemini", up)) as gateway,
    ):
        for name in ("../../v1beta/files", "..", "a/../../b"):
            assert (await send(gateway, "chat", f"up.{name}")).status == 404
        assert (await send(gateway, "chat", "up.模型?")).status == 404
        assert (await send(gateway, "chat", "up.模型")).status == 200
        paths = [request.path for request in up.requests if not is_listing(request)]
    assert paths == ["/v1beta/models/%E6%A8%A1%E5%9E%8B:generateContent"]


async def test_known_names_have_the_sizes_of_the_catalog_and_lists_may_only_lower_them() -> None:
    rows = [{"id": "glm-4.7"}, {"id": "glm-5.1", "max_model_len": 9000}, {"id": "mine", "max_model_len": 77}]
    async with (
        Upstream(lambda _: Json(200, {"data": rows})) as up,
        serving(discovering("chat", up)) as gateway,
    ):
        await ids(gateway)
        listed = (await call(gateway.port, "/v1beta/models", method="GET")).json["models"]
        unlisted = await call(gateway.port, "/v1beta/models/up.kimi-k2.6", method="GET")
    assert [row["inputTokenLimit"] for row in listed] == [204_800, 9000, 77]
    assert unlisted.json["inputTokenLimit"] == 262_144


@pytest.mark.parametrize(
    "answer",
    [
        Json(401, {"error": {"message": "no"}}),
        Json(500, {}),
        Json(200, b"<html>hello"),
        Json(200, b"\x00\xff garbage"),
        Json(200, {"data": [{"id": "a b"}]}),
        Json(200, {"data": []}),
    ],
    ids=["401", "500", "HTML", "garbage", "no usable name", "empty"],
)
async def test_a_provider_without_a_usable_list_serves_all_the_same(answer: Json) -> None:
    async with (
        Upstream(lambda request: answer if is_listing(request) else script("chat")(request)) as up,
        serving(discovering("chat", up)) as gateway,
    ):
        assert await ids(gateway) == []
        assert (await send(gateway, "chat", "up.any")).status == 200
        health = (await call(gateway.port, "/metrics", method="GET")).body.decode()
    assert 'routecodex_key_up{key="primary",provider="up",worker="0"} 1.0' in health


async def test_ten_thousand_names_are_listed_and_used() -> None:
    names = [f"m-{at}" for at in range(10_000)]
    async with (
        Upstream(script("chat", *names)) as up,
        serving(discovering("chat", up)) as gateway,
    ):
        assert await ids(gateway) == [f"up.{name}" for name in names]
        assert (await send(gateway, "chat", "up.m-9999")).status == 200


async def test_names_that_clients_make_up_do_not_fill_metrics() -> None:
    async with (
        Upstream(script("chat", "listed-1")) as up,
        serving(discovering("chat", up)) as gateway,
    ):
        for batch in range(25):
            await asyncio.gather(*(send(gateway, "chat", f"up.x-{batch}-{at}") for at in range(100)))
        text = (await call(gateway.port, "/metrics", method="GET")).body.decode()
    series = [line for line in text.splitlines() if line.startswith("routecodex_requests_total{")]
    assert len(series) <= 2002
    assert sum(float(line.rpartition(" ")[2]) for line in series) == 2500
    assert any('model="other"' in line for line in series)


def stored(protocol: str, up: Upstream, folder: Path, port: int | None = None) -> str:
    text = discovering(protocol, up, more=f'[store]\nurl = "file:{folder}"\n')
    return text.replace(f":{up.port}", f":{port}") if port is not None else text


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_provider_that_is_down_at_the_start_keeps_its_last_list(
    protocol: str, tmp_path: Path
) -> None:
    async with (
        Upstream(script(protocol, "listed-1", "listed-2")) as up,
        serving(stored(protocol, up, tmp_path)) as gateway,
    ):
        await ids(gateway)
    async with serving(stored(protocol, up, tmp_path)) as gateway:
        assert await ids(gateway, wait=False) == ["up.listed-1", "up.listed-2"]
        assert await ids(gateway) == ["up.listed-1", "up.listed-2"]


async def test_the_list_of_another_address_is_not_used(tmp_path: Path) -> None:
    async with Upstream(script("chat", "listed-1")) as up:
        async with serving(stored("chat", up, tmp_path)) as gateway:
            await ids(gateway)
        async with serving(stored("chat", up, tmp_path, port=9)) as gateway:
            assert await ids(gateway) == []


async def test_a_provider_that_never_answers_does_not_hold_the_start_or_the_end() -> None:
    async with (
        Upstream(lambda _: Steps([Hang()])) as up,
        asyncio.timeout(10),
        serving(discovering("chat", up)) as gateway,
    ):
        await up.received(1)
        assert await ids(gateway, wait=False) == []


async def test_a_damaged_list_is_fetched_again(tmp_path: Path) -> None:
    async with Upstream(script("chat", "listed-1")) as up:
        async with serving(stored("chat", up, tmp_path)) as gateway:
            await ids(gateway)
        (file,) = (tmp_path / "models").glob("*.json")
        file.write_text('{"half')
        async with serving(stored("chat", up, tmp_path)) as gateway:
            assert await ids(gateway) == ["up.listed-1"]


async def test_without_discovery_an_unknown_model_is_the_404_with_near_targets() -> None:
    async with Upstream(script("chat", "listed-1")) as up:
        config = discovering("chat", up, models='{ "listed-1" = {} }')
        async with serving(config) as gateway:
            answer = await send(gateway, "chat", "up.listed-2")
            assert up.requests == []
    assert (answer.status, answer.json["details"]["near"]) == (404, ["up.listed-1"])


async def test_near_targets_include_listed_models_of_other_providers() -> None:
    closed = (
        '[providers.closed]\nprotocol = "chat"\nbase_url = "http://127.0.0.1:9/v1"\nmodels = { m = {} }\n'
    )
    async with (
        Upstream(script("chat", "listed-1")) as up,
        serving(discovering("chat", up, more=closed)) as gateway,
    ):
        await ids(gateway)
        answer = await send(gateway, "chat", "closed.listed-1")
    assert answer.json["details"]["near"] == ["up.listed-1", "closed.m"]


async def test_a_name_that_the_provider_does_not_know_is_its_404_with_advice() -> None:
    unknown = Json(404, {"error": {"message": "no such model", "code": "model_not_found"}})
    async with (
        Upstream(lambda request: ONE if is_listing(request) else unknown) as up,
        serving(discovering("chat", up)) as gateway,
    ):
        await ids(gateway)
        answer = await send(gateway, "chat", "up.primary.misspelt")
    assert (answer.status, answer.json["code"]) == (404, "upstream_model")
    assert answer.json["error"]["message"] == (
        "provider 'up' does not serve model 'misspelt' with key 'primary' (HTTP 404: no such model); "
        "check the name: GET /v1/models lists the names that it has"
    )
