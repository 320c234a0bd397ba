"""Web pages: foreign ones are refused on every endpoint, allowed ones get the CORS headers."""

from __future__ import annotations

import asyncio

import pytest

from routecodex.canon.errors import ClientError
from routecodex.config import Config, loads
from routecodex.gateway import model_list
from routecodex.protocols import grammar
from routecodex.server.http import HttpRequest
from routecodex.server.origins import OriginAccess, preflight_headers
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Call, begin, call
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
EVIL = {"origin": "https://evil.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
PAGE = "http://localhost:3000"


def config(*origins: str) -> Config:
    listed = ", ".join(f'"{origin}"' for origin in origins)
    text = f'[server]\nallowed_origins = [{listed}]\n[providers.demo]\nprotocol = "demo"\n'
    return loads(text + '[providers.demo.models.m]\n[routing]\ndefault = ["demo.m"]\n', environ={})


def request(headers: dict[str, str], method: str, path: str) -> HttpRequest:
    return HttpRequest(method, path.encode(), headers={"host": "127.0.0.1:5520", **headers})


def outcome(
    headers: dict[str, str], *origins: str, method: str = "GET", path: str = "/v1/models"
) -> int | bytes:
    """Return the status of a refusal, or the origin that the CORS headers name; b"" without them."""
    try:
        lines = OriginAccess(config(*origins)).check(request(headers, method, path))
    except ClientError as error:
        return error.status
    return lines.partition(b"\r\n")[0].removeprefix(b"access-control-allow-origin: ")


NOT_BROWSERS: list[dict[str, str]] = [
    {},
    {"user-agent": "OpenAI/Python 2.8.0", "content-type": "application/json"},
    {"user-agent": "node", "sec-fetch-mode": "cors", "content-type": "application/json"},
    {"user-agent": "curl/8.5.0", "referer": "https://evil.example/"},
]


@pytest.mark.parametrize("headers", NOT_BROWSERS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_client_that_is_not_a_browser_is_admitted(headers: dict[str, str], method: str) -> None:
    assert outcome(headers, method=method) == b""


OWN: list[dict[str, str]] = [
    {"origin": "http://127.0.0.1:5520", "sec-fetch-site": "same-origin"},
    {"origin": "http://127.0.0.1:5520"},
    {"origin": "HTTP://127.0.0.1:5520", "sec-fetch-site": "Same-Origin"},
    {"sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    {"origin": "https://gateway.example", "host": "gateway.example", "sec-fetch-site": "same-origin"},
    {"origin": "https://gateway.example", "host": "gateway.example:443"},
    {"origin": "http://[::1]:5520", "host": "[::1]:5520"},
]


@pytest.mark.parametrize("headers", OWN)
def test_the_gateways_own_pages_are_admitted(headers: dict[str, str]) -> None:
    assert outcome(headers) == b""


FOREIGN: list[dict[str, str]] = [
    EVIL,
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://localhost:5520", "sec-fetch-site": "cross-site"},
    {"origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-site"},
    {"origin": "http://127.0.0.1:5520", "sec-fetch-site": "same-site"},
    {"origin": "http://127.0.0.1:5520, https://evil.example"},
    {"origin": "http://127.0.0.1:55200"},
    {"origin": "http://127.0.0.1"},
    {"origin": "file://"},
    {"origin": "http://", "host": ""},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "something-new"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_a_foreign_page_is_refused_whatever_the_method(headers: dict[str, str], method: str) -> None:
    json = {"content-type": "application/json"}
    assert outcome({**json, **headers}, "https://another.example", method=method) == 403


LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def test_a_link_opens_a_linkable_path_and_nothing_else_does() -> None:
    assert outcome(LINK, path="/") == b""
    assert outcome({**LINK, "sec-fetch-dest": "iframe"}, path="/") == 403
    assert outcome({**LINK, "sec-fetch-mode": "no-cors"}, path="/") == 403
    assert outcome({**LINK, "content-type": "application/json"}, path="/", method="POST") == 403
    assert outcome({**LINK, "origin": "https://evil.example"}, path="/") == 403


ALLOWED = [
    ("http://localhost:3000", "http://localhost:3000"),
    ("https://chat.example.com", "https://Chat.Example.com"),
    ("http://localhost:*", "http://localhost:3000"),
    ("http://localhost:*", "http://localhost"),
    ("http://[::1]:*", "http://[::1]:3000"),
    ("app://*", "app://obsidian.md"),
    ("chrome-extension://*", "chrome-extension://abcdef"),
    ("null", "null"),
    ("*", "https://any.example"),
]


@pytest.mark.parametrize(("listed", "origin"), ALLOWED)
def test_a_listed_origin_is_admitted_and_named_in_the_answer(listed: str, origin: str) -> None:
    headers = {"origin": origin, "sec-fetch-site": "cross-site"}
    assert outcome(headers, "https://another.example", listed) == origin.encode()


NOT_ALLOWED = [
    ("http://localhost:3000", "http://localhost:30001"),
    ("http://localhost:3000", "https://localhost:3000"),
    ("http://localhost:*", "http://localhost.evil.example:3000"),
    ("http://localhost:*", "https://localhost:3000"),
    ("http://localhost:*", "http://localhost:x@evil.example"),
    ("http://localhost:*", "http://localhost:3000@evil.example"),
    ("http://localhost:*", "http://localhost:"),
    ("http://localhost:*", "http://localhost:3000x"),
    ("http://localhost:*", "http://localhost:\xb2"),
    ("http://localhost:*", "http://evil.example@localhost:3000"),
    ("http://[::1]:*", "http://[::1]:x@evil.example"),
    ("http://[::1]:*", "http://[::1]:@[evil.example]"),
    ("app://*", "application://x"),
    ("app://*", "https://app"),
    ("https://chat.example.com", "https://chat.example.com.evil.example"),
    ("https://chat.example.com", "null"),
]


@pytest.mark.parametrize(("listed", "origin"), NOT_ALLOWED)
def test_an_origin_that_only_resembles_a_listed_one_is_refused(listed: str, origin: str) -> None:
    assert outcome({"origin": origin}, listed) == 403


CONTENT_TYPES = [
    ("application/json", False),
    ("application/json; charset=utf-8", False),
    ("Application/JSON", False),
    ("application/vnd.api+json", False),
    ("text/plain", True),
    ("text/plain;charset=UTF-8", True),
    ("application/x-www-form-urlencoded", True),
    ("multipart/form-data; boundary=x", True),
]


@pytest.mark.parametrize(("content_type", "is_form"), CONTENT_TYPES)
def test_types_of_html_forms_are_refused_from_browsers(content_type: str, is_form: bool) -> None:
    browser = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/60.0"}
    expected = 415 if is_form else b""
    assert outcome({"content-type": content_type, **browser}, method="POST") == expected
    assert outcome({"content-type": content_type, "user-agent": "curl/8.5.0"}, method="POST") == b""


@pytest.mark.parametrize("content_type", [None, "", "application/octet-stream", "text/json", "json"])
def test_a_browser_must_send_json_and_others_need_not(content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert outcome({**headers, "origin": PAGE}, PAGE, method="POST") == 415
    assert outcome({**headers, "sec-fetch-mode": "cors"}, PAGE, method="POST") == 415
    assert outcome(headers, PAGE, method="POST") == b""


def test_a_preflight_allows_every_header_that_the_page_asks_for() -> None:
    asked = "authorization,content-type,x-stainless-os,anthropic-version,x-goog-api-client,x-session-id"
    headers = {"access-control-request-headers": asked, "access-control-request-private-network": "true"}
    assert dict(preflight_headers(headers)) == {
        b"access-control-allow-methods": b"GET, HEAD, POST, DELETE",
        b"access-control-allow-headers": asked.encode(),
        b"access-control-max-age": b"7200",
        b"access-control-allow-private-network": b"true",
    }


@pytest.mark.parametrize("asked", [None, "", "bad name", "a,,b", "a\x80"])
def test_a_preflight_without_a_list_of_headers_gets_ours(asked: str | None) -> None:
    answer = dict(preflight_headers({} if asked is None else {"access-control-request-headers": asked}))
    assert b"authorization, content-type, x-api-key" in answer[b"access-control-allow-headers"]
    assert b"access-control-allow-private-network" not in answer


STOP = '<**stopMessage:"go on",100000**> hi'


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_page_of_another_site_costs_no_call_and_changes_nothing(protocol: str) -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        async with serving(one_target("chat", up)) as gateway:
            for stream in (False, True):
                path = asking.path(protocol, stream=stream)
                body = asking.body(protocol, STOP, stream=stream)
                answer = await call(gateway.port, path, body, headers={**EVIL, "content-type": "text/plain"})
                assert (answer.status, answer.json["code"]) == (403, "origin_not_allowed")
                grammar.check_error(protocol, 403, answer.body)
                assert "access-control-allow-origin" not in answer.headers
                assert "server.allowed_origins" in answer.json["error"]["message"]
            # The state of the session is untouched: the same client is answered once.
            path, body = asking.path(protocol, stream=False), asking.body(protocol, stream=False)
            assert (await call(gateway.port, path, body)).status == 200
        assert len(up.requests) == 1


ENDPOINTS = [
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/up.m"),
    ("GET", "/admin/status"),
    ("POST", "/admin/reload"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/nothing/here"),
    ("OPTIONS", "/v1/chat/completions"),
]


async def test_every_endpoint_refuses_a_page_of_another_site() -> None:
    async with Upstream() as up, serving(one_target("chat", up)) as gateway:
        for method, path in ENDPOINTS:
            answer = await call(gateway.port, path, {}, method=method, headers=EVIL)
            assert (answer.status, answer.json["code"]) == (403, "origin_not_allowed"), path
        image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
        for path in ("/", "/v1/models"):
            assert (await call(gateway.port, path, method="GET", headers=image)).status == 403
        assert (await call(gateway.port, "/", method="GET", headers=LINK)).status == 200
    assert up.requests == []


CORS = {
    "access-control-allow-origin": PAGE,
    "access-control-expose-headers": "*, x-request-id, x-routecodex-route, x-routecodex-target, "
    "x-routecodex-reason, x-routecodex-notice, x-routecodex-cost, x-routecodex-budget, retry-after, "
    "x-should-retry",
    "vary": "origin",
}


def cors(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("access-") or name == "vary"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_allowed_page_may_read_answers_streams_and_errors(protocol: str) -> None:
    page = {"origin": PAGE, "sec-fetch-site": "cross-site"}
    async with (
        Upstream(lambda asked: answers.text("chat", "hi", bool(asked.json.get("stream")))) as up,
        serving(one_target("chat", up, server=f'allowed_origins = ["{PAGE}"]')) as gateway,
    ):
        for stream in (False, True):
            path, body = asking.path(protocol, stream=stream), asking.body(protocol, stream=stream)
            answer = await call(gateway.port, path, body, headers=page)
            asking.check(protocol, answer, stream=stream)
            assert cors(answer.headers) == CORS
        invalid = await call(gateway.port, path, b"{", headers=page)
        unknown = await call(gateway.port, "/nothing", method="GET", headers=page)
        foreign = await call(gateway.port, path, body, headers=EVIL)
        plain = await call(gateway.port, path, body)
    assert (invalid.status, unknown.status, foreign.status, plain.status) == (400, 404, 403, 200)
    assert (cors(invalid.headers), cors(unknown.headers)) == (CORS, CORS)
    assert (cors(foreign.headers), cors(plain.headers)) == ({}, {})


REFUSED = [
    ("/v1/messages", {"content-type": "text/plain"}, 415),
    ("/v1/messages", {"content-type": ""}, 415),
    ("/v1/messages", {"x-api-key": "other"}, 401),
    ("/v1/messages", {"host": "evil.example"}, 403),
    ("/nothing", {}, 404),
    ("/v1/models", {}, 405),
]


@pytest.mark.parametrize(("path", "headers", "status"), REFUSED)
@pytest.mark.parametrize("together", [True, False])
async def test_an_allowed_page_may_read_every_refusal(
    path: str, headers: dict[str, str], status: int, together: bool
) -> None:
    """The body in the packet of the head, or after it: the refusal is the same."""
    server = f'client_keys = [{{ name = "a", key = "k" }}]\nallowed_origins = ["{PAGE}"]'
    fields = {"host": "localhost", "x-api-key": "k", "origin": PAGE, "content-type": "application/json"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**fields, **headers}.items())
    head = f"POST {path} HTTP/1.1\r\n{lines}content-length: 2\r\n\r\n".encode()
    async with Upstream() as up, serving(one_target("chat", up, server=server)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head + (b"{}" if together else b""))
        under_way = Call(reader, writer)
        async with asyncio.timeout(20):
            answer = await under_way.rest()
        await under_way.leave()
    assert (answer.status, cors(answer.headers)) == (status, CORS)


async def test_an_allowed_page_may_read_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Browsers reject an answer that names the origin twice (Fetch standard, CORS check)."""

    def fails(*_: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(model_list, "list_models", fails)
    async with (
        Upstream() as up,
        serving(one_target("chat", up, server=f'allowed_origins = ["{PAGE}"]')) as gateway,
    ):
        under_way = await begin(gateway.port, "/v1/models", method="GET", headers={"origin": PAGE})
        head = await under_way.reader.readuntil(b"\r\n\r\n")
        await under_way.leave()
    assert head.startswith(b"HTTP/1.1 500 ")
    assert head.count(b"access-control-allow-origin: " + PAGE.encode()) == 1


async def test_a_preflight_needs_no_key_and_only_an_allowed_page_passes_it() -> None:
    keys = f'client_keys = [{{ name = "a", key = "k" }}]\nallowed_origins = ["{PAGE}"]'
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    async with Upstream() as up, serving(one_target("chat", up, server=keys)) as gateway:
        for path in ("/v1/messages", "/v1/nothing"):
            answer = await call(gateway.port, path, method="OPTIONS", headers={**asks, "origin": PAGE})
            assert (answer.status, answer.body) == (204, b"")
            assert cors(answer.headers) == CORS | {
                "access-control-allow-methods": "GET, HEAD, POST, DELETE",
                "access-control-allow-headers": "x-api-key",
                "access-control-max-age": "7200",
            }
        foreign = await call(gateway.port, path, method="OPTIONS", headers={**asks, **EVIL})
        no_page = await call(gateway.port, "/v1/messages", method="OPTIONS", headers={"x-api-key": "k"})
    assert (foreign.status, no_page.status) == (403, 405)
