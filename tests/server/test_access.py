"""Access checks: client keys in every header that may carry them, and Host names."""

from __future__ import annotations

import asyncio

import pytest

from routecodex.accounting.client_store import ClientDirectory
from routecodex.canon.errors import ClientError, Unauthorized
from routecodex.config import Config, loads
from routecodex.protocols import grammar
from routecodex.server.access import ClientAccess
from routecodex.server.http import HttpRequest
from routecodex.stores.memory import MemoryStore
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, Call, begin, call
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
KEY = "key-of-the-laptop"
KEYS = f'client_keys = [{{ name = "phone", key = "another" }}, {{ name = "laptop", key = "{KEY}" }}]'

PRESENTED: dict[str, tuple[str, dict[str, str]]] = {
    "bearer": ("", {"authorization": f"Bearer {KEY}"}),
    "bearer-any-case": ("", {"authorization": f"bearer   {KEY} "}),
    "x-api-key": ("", {"x-api-key": KEY}),
    "x-goog-api-key": ("", {"x-goog-api-key": KEY}),
    "api-key": ("", {"api-key": KEY}),
    "query": (f"key={KEY}", {}),
    "beside-another-scheme": ("", {"authorization": "Basic bm9ib2R5", "x-api-key": KEY}),
}
REFUSED: dict[str, tuple[str, dict[str, str]]] = {
    "none": ("", {}),
    "wrong": ("", {"authorization": "Bearer wrong"}),
    "empty": ("", {"authorization": "Bearer "}),
    "prefix": ("", {"x-api-key": KEY[:-1]}),
    "longer": ("", {"x-api-key": KEY + "x"}),
    "other-case": ("", {"x-api-key": KEY.upper()}),
    "name-of-a-key": ("", {"x-api-key": "laptop"}),
    "not-ascii": ("", {"x-api-key": "schlüssel"}),
    "wrong-query": ("key=wrong", {}),
    "another-parameter": (f"api_key={KEY}", {}),
}


def with_query(path: str, query: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}{query}" if query else path


async def send(port: int, protocol: str, credentials: tuple[str, dict[str, str]]) -> Answer:
    path = with_query(asking.path(protocol, stream=False), credentials[0])
    return await call(port, path, asking.body(protocol, stream=False), headers=credentials[1])


async def test_a_client_key_opens_the_door_however_it_is_presented() -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        async with serving(one_target("chat", up, server=KEYS)) as gateway:
            for credentials in PRESENTED.values():
                for protocol in PROTOCOLS:
                    asking.check(protocol, await send(gateway.port, protocol, credentials), stream=False)
        assert {request.headers["authorization"] for request in up.requests} == {"Bearer secret-up"}
        assert not any(KEY in str(request.headers) + request.path for request in up.requests)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_any_other_key_is_a_401_in_the_protocols_envelope(protocol: str) -> None:
    async with Upstream() as up:
        async with serving(one_target("chat", up, server=KEYS)) as gateway:
            for credentials in REFUSED.values():
                answer = await send(gateway.port, protocol, credentials)
                assert answer.status == 401
                grammar.check_error(protocol, 401, answer.body)
                assert answer.json["code"] == "invalid_api_key"
                assert KEY.encode() not in answer.body
        assert up.requests == []


TYPES = {
    "chat": ("type", "invalid_request_error"),
    "responses": ("type", "invalid_request_error"),
    "messages": ("type", "authentication_error"),
    "gemini": ("status", "UNAUTHENTICATED"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_refusal_has_the_type_the_protocol_gives_it(protocol: str) -> None:
    async with Upstream() as up, serving(one_target("chat", up, server=KEYS)) as gateway:
        answer = await send(gateway.port, protocol, REFUSED["wrong"])
    field, word = TYPES[protocol]
    assert answer.json["error"][field] == word


GUARDED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/up.m"),
    ("GET", "/v1beta/models"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("POST", "/v1/responses/resp_1/submit_tool_outputs"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1beta/models/up.m:countTokens"),
    ("POST", "/v1/embeddings"),
    ("GET", "/metrics"),
    ("PUT", "/v1/chat/completions"),
]


async def test_everything_but_health_needs_the_key() -> None:
    async with Upstream() as up, serving(one_target("chat", up, server=KEYS)) as gateway:
        for method, path in GUARDED:
            assert (await call(gateway.port, path, {}, method=method)).status == 401, path
        for path in ("/", "/health", "/health/live", "/health/ready"):
            assert (await call(gateway.port, path, method="GET")).status == 200, path
        shown = await call(gateway.port, "/metrics", method="GET", headers={"x-api-key": KEY})
        assert shown.status == 200
        listed = await call(gateway.port, f"/v1/models?key={KEY}", method="GET")
        assert listed.status == 200


async def test_without_client_keys_no_key_is_asked_for_and_none_travels_on() -> None:
    async with Upstream(lambda _: answers.text("messages", "hi", False)) as up:
        async with serving(one_target("messages", up)) as gateway:
            for credentials in (("", {}), *PRESENTED.values()):
                asking.check("messages", await send(gateway.port, "messages", credentials), stream=False)
        assert not any(KEY in str(request.headers) for request in up.requests)
        assert {request.headers["x-api-key"] for request in up.requests} == {"secret-up"}
        assert all("authorization" not in request.headers for request in up.requests)


def config(server: str = "") -> Config:
    text = f'[server]\n{server}\n[providers.demo]\nprotocol = "demo"\nmodels = {{ "m" = {{}} }}\n'
    return loads(text + '[routing]\ndefault = ["demo.m"]\n', environ={})


def access_to(config: Config) -> ClientAccess:
    clients = ClientDirectory(MemoryStore())
    clients.configure(config)
    asyncio.run(clients.refresh())
    return ClientAccess(config, clients)


def request(headers: dict[str, str], query: str = "") -> HttpRequest:
    return HttpRequest("GET", f"/?{query}".encode(), headers=headers)


def test_the_key_tells_whose_it_is() -> None:
    access = access_to(config(KEYS))
    found = [access.client_of(request({"x-api-key": key})) for key in (KEY, "another")]
    assert [client.name for client in found if client is not None] == ["laptop", "phone"]
    assert access_to(config()).client_of(request({"x-api-key": KEY})) is None


def test_keys_are_not_kept_in_the_clear() -> None:
    access = access_to(config(KEYS))
    with pytest.raises(Unauthorized) as caught:
        access.client_of(request({"x-api-key": "wrong"}))
    laptop = access.client_of(request({"x-api-key": KEY}))
    assert KEY not in f"{laptop!r} {caught.value} {vars(caught.value)!r}"


OURS = ["localhost", "LocalHost:5520", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:5520", "::1"]
THEIRS = ["evil.example", "evil.example:5520", "localhost.evil.example", "127.0.0.1.nip.io", "[::2]:5520", ""]


def is_answered(access: ClientAccess, host: str) -> bool:
    try:
        access.check_host({"host": host})
    except ClientError:
        return False
    return True


@pytest.mark.parametrize("host", OURS)
def test_loopback_names_are_answered(host: str) -> None:
    access = access_to(config())
    assert [is_answered(access, host) for _ in range(2)] == [True, True]


@pytest.mark.parametrize("host", THEIRS)
def test_other_names_are_refused(host: str) -> None:
    access = access_to(config())
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            access.check_host({"host": host})
        assert (caught.value.status, caught.value.code) == (403, "host_not_allowed")


ALLOWED = [
    ("gateway.local", "gateway.local"),
    ("gateway.local", "Gateway.Local:5520"),
    ("Gateway.Local", "gateway.local"),
    ("10.0.0.7", "10.0.0.7:5520"),
    ("fd00::7", "[fd00::7]:5520"),
    ("[fd00::7]", "[FD00::7]"),
]


@pytest.mark.parametrize(("allowed", "host"), ALLOWED)
def test_names_that_are_allowed_are_answered(allowed: str, host: str) -> None:
    access = access_to(config(f'allowed_hosts = ["{allowed}"]'))
    assert (is_answered(access, host), is_answered(access, "evil.example")) == (True, False)


@pytest.mark.parametrize("server", ['allowed_hosts = ["*"]', f'host = "0.0.0.0"\n{KEYS}'])
def test_every_name_is_answered_when_that_is_asked_for_or_keys_guard_an_open_address(server: str) -> None:
    assert is_answered(access_to(config(server)), "anything.example")


def test_the_address_listened_on_is_one_of_our_names() -> None:
    access = access_to(config('host = "127.0.0.9"'))
    assert (is_answered(access, "127.0.0.9:5520"), is_answered(access, "127.0.0.8:5520")) == (True, False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_page_that_rebinds_its_name_to_us_gets_a_403(protocol: str) -> None:
    async with Upstream() as up:
        async with serving(one_target("chat", up)) as gateway:
            path, body = asking.path(protocol, stream=True), asking.body(protocol, stream=True)
            answer = await call(gateway.port, path, body, headers={"host": "evil.example"})
            models = await call(gateway.port, "/v1/models", method="GET", headers={"host": "evil.example"})
            health = await call(gateway.port, "/health", method="GET", headers={"host": "evil.example"})
        assert up.requests == []
    assert answer.status == models.status == health.status == 403
    grammar.check_error(protocol, 403, answer.body)
    assert "server.allowed_hosts" in answer.json["error"]["message"]


async def test_an_absolute_target_is_checked_by_its_own_authority() -> None:
    async with Upstream() as up, serving(one_target("chat", up)) as gateway:
        answer = await call(gateway.port, "http://evil.example/v1/models", method="GET")
        ours = await call(gateway.port, f"http://127.0.0.1:{gateway.port}/v1/models", method="GET")
    assert (answer.status, ours.status) == (403, 200)


async def test_the_gateway_listens_on_ipv6() -> None:
    async with Upstream() as up, serving(one_target("chat", up, server='host = "::1"')) as gateway:
        reader, writer = await asyncio.open_connection("::1", gateway.port)
        writer.write(f"GET /v1/models HTTP/1.1\r\nhost: [::1]:{gateway.port}\r\n\r\n".encode())
        under_way = Call(reader, writer)
        answer = await under_way.rest()
        await under_way.close()
    assert answer.status == 200


async def test_a_refused_client_can_go_on_using_its_connection() -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        serving(one_target("chat", up, server=KEYS)) as gateway,
    ):
        body = asking.body("chat", stream=False)
        under_way = await begin(gateway.port, "/v1/chat/completions", body)
        assert (await under_way.rest()).status == 401
        under_way.writer.write(f"GET /v1/models?key={KEY} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        again = Call(under_way.reader, under_way.writer)
        assert (await again.rest()).status == 200
        await again.close()
