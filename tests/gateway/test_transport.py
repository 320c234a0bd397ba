"""Upstream requests: keys and attempts, TLS and proxies, headers, paths and queries of a provider."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from routecodex.canon.parts import Text
from routecodex.protocols import grammar
from tests.gateway.test_matrix import decode_answer
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import CloseClean, Json, Sse, Steps
from tests.kit.steps import Send as SendBytes
from tests.kit.upstream import Request, Upstream
from tests.providers.http.authority import Authority

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PAIRS = [
    pytest.param(*pair, id=f"{pair[0]}-to-{pair[1]}") for pair in itertools.product(PROTOCOLS, PROTOCOLS)
]
KEYS = (
    'auth = [{ alias = "one", value = "key-one" }, { alias = "two", value = "key-two" }, '
    '{ alias = "three", value = "key-three" }]'
)
KEY_HEADERS = {
    "chat": ("authorization", "Bearer "),
    "responses": ("authorization", "Bearer "),
    "messages": ("x-api-key", ""),
    "gemini": ("x-goog-api-key", ""),
}


def configured(
    protocol: str, base: str, *, more: str = 'auth = [{ value = "the-key" }]', rest: str = "", name: str = "m"
) -> str:
    """Run a gateway whose one provider has these settings."""
    return (
        f'[server]\nport = 0\ndrain_seconds = 1\n[providers.up]\nprotocol = "{protocol}"\n'
        f'base_url = "{base}"\n{more}\n[providers.up.models."{name}"]\n'
        f'[routing]\ndefault = ["up.{name}"]\n{rest}\n'
    )


def base_of(protocol: str, up: Upstream) -> str:
    return up.url + ("/v1" if protocol in ("chat", "responses") else "")


async def send(port: int, client: str = "chat", *, stream: bool = False, model: str = "up.m") -> Answer:
    path = asking.path(client, stream=stream, model=model)
    return await call(port, path, asking.body(client, stream=stream, model=model))


def keys_of(protocol: str, up: Upstream) -> list[str]:
    name, before = KEY_HEADERS[protocol]
    return [request.headers[name].removeprefix(before) for request in up.requests]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_all_keys_of_a_provider_are_tried_in_order(protocol: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(
            answers.error(protocol, 401),
            answers.error(protocol, 429),
            answers.text(protocol, "at last", stream),
        )
        async with serving(configured(protocol, base_of(protocol, up), more=KEYS)) as gateway:
            answer = await send(gateway.port, stream=stream)
        assert keys_of(protocol, up) == ["key-one", "key-two", "key-three"]
    asking.check("chat", answer, stream=stream)
    assert answer.headers["x-routecodex-target"] == "up.three.m"


async def test_a_model_may_name_its_key() -> None:
    async with Upstream(lambda _: answers.error("chat", 500)) as up:
        async with serving(configured("chat", base_of("chat", up), more=KEYS)) as gateway:
            answer = await send(gateway.port, model="up.two.m")
        assert keys_of("chat", up) == ["key-two"]
    assert answer.status == 502


@pytest.mark.parametrize("most", [1, 2])
async def test_no_more_attempts_are_made_than_allowed(most: int) -> None:
    async with Upstream(lambda _: answers.error("chat", 503)) as up:
        rest = f"[routing_options]\nmax_attempts = {most}"
        async with serving(configured("chat", base_of("chat", up), more=KEYS, rest=rest)) as gateway:
            answer = await send(gateway.port, "messages", stream=True)
        assert len(up.requests) == most
    assert answer.status == 502
    grammar.check_error("messages", 502, answer.body)


async def test_no_key_is_sent_to_a_provider_without_keys() -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        async with serving(configured("chat", base_of("chat", up), more="")) as gateway:
            assert (await send(gateway.port)).status == 200
        assert "authorization" not in up.requests[0].headers


STYLES = {
    "bearer": ("authorization", "Bearer the-key"),
    "x-api-key": ("x-api-key", "the-key"),
    "x-goog-api-key": ("x-goog-api-key", "the-key"),
    "api-key": ("api-key", "the-key"),
    "none": ("authorization", None),
}


@pytest.mark.parametrize("style", STYLES)
async def test_the_key_travels_in_the_header_the_provider_wants(style: str) -> None:
    async with Upstream(lambda _: answers.text("messages", "hi", False)) as up:
        more = f'auth = [{{ value = "the-key" }}]\nauth_style = "{style}"'
        async with serving(configured("messages", up.url, more=more)) as gateway:
            assert (await send(gateway.port)).status == 200
        headers = up.requests[0].headers
    name, value = STYLES[style]
    assert headers.get(name) == value
    assert str(headers).count("the-key") == (0 if style == "none" else 1)


async def test_headers_query_and_path_of_a_provider_are_used() -> None:
    more = (
        'auth = [{ value = "the-key" }]\nauth_style = "api-key"\nheaders = { "X-Tenant" = "a b" }\n'
        'query = { "api-version" = "2024-10-21", "odd" = "a&b" }\ndialect = { path = "/deployments/d/chat" }'
    )
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        async with serving(configured("chat", f"{up.url}/openai/", more=more)) as gateway:
            assert (await send(gateway.port)).status == 200
        request = up.requests[0]
    assert request.path == "/openai/deployments/d/chat?api-version=2024-10-21&odd=a%26b"
    assert (request.headers["x-tenant"], request.headers["api-key"]) == ("a b", "the-key")
    assert request.headers["host"] == f"127.0.0.1:{up.port}"
    assert request.headers["user-agent"] == "routecodex"


async def test_a_query_is_added_to_one_that_is_there() -> None:
    async with Upstream(lambda _: answers.text("gemini", "hi", True)) as up:
        more = 'auth = [{ value = "the-key" }]\nquery = { "tier" = "x" }'
        async with serving(configured("gemini", up.url, more=more)) as gateway:
            assert (await send(gateway.port, stream=True)).status == 200
        assert up.requests[0].path == "/v1beta/models/m:streamGenerateContent?alt=sse&tier=x"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_upstreams_own_name_for_a_model_is_sent(protocol: str) -> None:
    name = "Some Org/Modell ä 50%"
    async with Upstream(lambda _: answers.text(protocol, "hi", False)) as up:
        text = configured(protocol, base_of(protocol, up)).replace("[routing]", f'id = "{name}"\n[routing]')
        async with serving(text) as gateway:
            for client in PROTOCOLS:
                asking.check(client, await send(gateway.port, client), stream=False)
        requests = list(up.requests)
    if protocol == "gemini":
        path = "/v1beta/models/Some%20Org/Modell%20%C3%A4%2050%25:generateContent"
        assert {request.path for request in requests} == {path}
    else:
        assert {request.json["model"] for request in requests} == {name}


async def test_of_a_clients_headers_only_those_of_the_protocol_travel_on() -> None:
    sent = {
        "authorization": "Bearer of-the-client",
        "cookie": "session=1",
        "x-forwarded-for": "10.0.0.1",
        "anthropic-beta": "a-1,b-2",
        "anthropic-version": "2099-01-01",
        "x-custom": "1",
    }
    async with Upstream(lambda _: answers.text("messages", "hi", False)) as up:
        more = 'auth = [{ value = "the-key" }]\nheaders = { "anthropic-beta" = "ours-3" }'
        async with serving(configured("messages", up.url, more=more)) as gateway:
            body = asking.body("messages", stream=False)
            assert (await call(gateway.port, "/v1/messages", body, headers=sent)).status == 200
            assert (await send(gateway.port)).status == 200
        same, other = up.requests
    assert same.headers["anthropic-version"] == "2099-01-01"
    assert same.headers["anthropic-beta"] == "ours-3,a-1,b-2"
    assert other.headers["anthropic-version"] == "2023-06-01"
    assert other.headers["anthropic-beta"] == "ours-3"
    assert not {"authorization", "cookie", "x-forwarded-for", "x-custom"} & set(same.headers)


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_a_whole_answer_to_a_streaming_request_is_streamed(client: str, upstream: str) -> None:
    async with (
        Upstream(lambda _: answers.text(upstream, "one two three", False)) as up,
        serving(one_target(upstream, up)) as gateway,
    ):
        answer = await send(gateway.port, client, stream=True)
    asking.check(client, answer, stream=True)
    assert decode_answer(client, answer, stream=True).parts[-1] == Text("one two three")


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_a_stream_in_answer_to_a_request_for_a_whole_is_gathered(client: str, upstream: str) -> None:
    async with (
        Upstream(lambda _: answers.text(upstream, "one two three", True)) as up,
        serving(one_target(upstream, up)) as gateway,
    ):
        answer = await send(gateway.port, client)
    asking.check(client, answer, stream=False)
    assert decode_answer(client, answer, stream=False).parts[-1] == Text("one two three")


@pytest.mark.parametrize("upstream", PROTOCOLS)
async def test_half_a_stream_is_not_a_whole_answer(upstream: str) -> None:
    canned = answers.text(upstream, "one two three four five six", True)
    assert isinstance(canned, Sse)
    async with (
        Upstream(lambda _: Sse(canned.frames[: len(canned.frames) // 2])) as up,
        serving(one_target(upstream, up)) as gateway,
    ):
        answer = await send(gateway.port)
    assert answer.status == 502
    grammar.check_error("chat", 502, answer.body)


async def test_one_connection_serves_many_requests() -> None:
    async with Upstream(lambda request: answers.text("chat", "hi", answers.wants_stream(request))) as up:
        async with serving(one_target("chat", up)) as gateway:
            for stream in (False, True, False, True):
                asking.check("chat", await send(gateway.port, stream=stream), stream=stream)
        assert (len(up.requests), up.connections) == (4, 1)


async def test_a_connection_closed_while_idle_does_not_count_as_a_failure() -> None:
    canned = answers.text("chat", "hi", True)
    assert isinstance(canned, Sse)
    closing = Steps((SendBytes(canned.data), CloseClean()))
    async with Upstream(lambda _: closing) as up, serving(one_target("chat", up)) as gateway:
        for _ in range(5):
            asking.check("chat", await send(gateway.port, stream=True), stream=True)
        assert len(up.requests) == 5


async def test_requests_at_the_same_time_do_not_mix() -> None:
    def echo(request: Request) -> Json | Sse:
        return answers.text("chat", request.json["messages"][0]["content"], answers.wants_stream(request))

    async def is_answered(port: int, number: int) -> bool:
        stream = number % 2 == 0
        body = asking.body("messages", f"number {number}", stream=stream)
        answer = await call(port, asking.path("messages", stream=stream), body)
        return decode_answer("messages", answer, stream=stream).parts == (Text(f"number {number}"),)

    async with Upstream(echo) as up, serving(one_target("chat", up)) as gateway:
        assert all(await asyncio.gather(*(is_answered(gateway.port, number) for number in range(40))))


ROUTING = """
[models]
"gpt-5" = "up.special"
"claude-*haiku*" = "route:background"
[providers.up.models.special]
[providers.up.models.small]
"""


@pytest.mark.parametrize(
    ("model", "target", "route"),
    [
        ("up.m", "up.primary.m", "direct"),
        ("gpt-5", "up.primary.special", "direct"),
        ("claude-3-haiku-x", "up.primary.small", "background"),
        ("nobody-knows-it", "up.primary.m", "default"),
        ("other.m", "up.primary.m", "default"),
    ],
)
async def test_a_model_name_selects_its_target_and_an_unknown_one_the_default_route(
    model: str, target: str, route: str
) -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        text = one_target("chat", up) + 'background = ["up.small"]\n' + ROUTING
        async with serving(text) as gateway:
            for client in PROTOCOLS:
                answer = await send(gateway.port, client, model=model)
                asking.check(client, answer, stream=False)
                assert answer.headers["x-routecodex-target"] == target
                assert answer.headers["x-routecodex-route"] == route


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_provider_with_a_private_authority_is_reached_over_tls(
    authority: Authority, stream: bool
) -> None:
    canned = answers.text("messages", "hi", stream)
    async with Upstream(lambda _: canned, ssl=authority.server("127.0.0.1")) as up:
        more = f'auth = [{{ value = "k" }}]\ntls = {{ ca_file = "{authority.options.ca_file}" }}'
        async with serving(configured("messages", up.url, more=more)) as gateway:
            asking.check("chat", await send(gateway.port, stream=stream), stream=stream)
        assert up.requests[0].headers["host"] == f"127.0.0.1:{up.port}"


DISTRUSTED = {
    "unknown-authority": ("", "127.0.0.1"),
    "another-name": ("tls = { ca_file = 'CA' }", "other.test"),
}


@pytest.mark.parametrize(("more", "name"), DISTRUSTED.values(), ids=DISTRUSTED)
async def test_a_certificate_that_cannot_be_trusted_is_a_502(
    authority: Authority, more: str, name: str
) -> None:
    more = more.replace("CA", str(authority.options.ca_file))
    async with Upstream(ssl=authority.server(name)) as up:
        async with serving(configured("chat", f"{up.url}/v1", more=f"{more}\nauth = []")) as gateway:
            answer = await send(gateway.port, "messages")
        assert up.requests == []
    assert answer.status == 502
    grammar.check_error("messages", 502, answer.body)
    assert "certificate" in answer.json["error"]["message"]


async def test_the_check_of_certificates_can_be_switched_off_by_name(authority: Authority) -> None:
    async with Upstream(
        lambda _: answers.text("chat", "hi", False), ssl=authority.server("other.test")
    ) as up:
        more = 'auth = [{ value = "k" }]\ntls = { verify = false }'
        async with serving(configured("chat", f"{up.url}/v1", more=more)) as gateway:
            assert (await send(gateway.port)).status == 200


async def test_a_proxy_from_the_environment_carries_the_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:pass@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        async with serving(configured("chat", "http://api.test/v1")) as gateway:
            assert (await send(gateway.port)).status == 200
        request = proxy.requests[0]
    assert request.path == "http://api.test/v1/chat/completions"
    assert request.headers["host"] == "api.test"
    assert request.headers["authorization"] == "Bearer the-key"
    assert request.headers["proxy-authorization"] == "Basic dXNlcjpwYXNz"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_of_a_provider_is_not_followed(status: int) -> None:
    """The request and its key are for the configured address only."""
    async with Upstream(lambda _: answers.text("chat", "stolen", False)) as elsewhere, Upstream() as up:
        up.answer_with(
            lambda _: Json(status, {}, {"location": f"http://127.0.0.1:{elsewhere.port}/v1/chat/completions"})
        )
        async with serving(one_target("chat", up)) as gateway:
            answer = await call(gateway.port, "/v1/chat/completions", asking.body("chat", stream=False))
    assert (answer.status, len(up.requests) > 0, elsewhere.requests) == (502, True, [])
