"""Provider errors as the client gets them: status, envelope, message and retry-after."""

from __future__ import annotations

import email.utils
import itertools
import time

import msgspec
import pytest

from routecodex.protocols import grammar
from tests.kit import answers, asking
from tests.kit.gateway import NO_HEALTH, one_target, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Hang, Json, Raw, Send, Sse, Steps
from tests.kit.upstream import Script, Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
CLIENTS = ("chat", "messages")
PROVIDER_MESSAGE = "this is the message of the provider"

BECOMES = {
    400: 400,
    404: 404,
    409: 409,
    413: 413,
    422: 422,
    401: 424,
    403: 424,
    408: 504,
    429: 429,
    500: 502,
    502: 502,
    504: 504,
    301: 502,
}

SHOWN = {400, 401, 403, 404, 409, 413, 422, 408, 429, 500, 502, 504}
"""The statuses whose message is the client's business."""


async def send(text: str, client: str = "chat", *, stream: bool = False, model: str = "up.m") -> Answer:
    async with serving(text) as gateway:
        path = asking.path(client, stream=stream, model=model)
        return await call(gateway.port, path, asking.body(client, stream=stream, model=model))


async def refused(answer: Json, protocol: str, client: str, *, stream: bool = False) -> Answer:
    """Return the client's answer when the provider always answers with this."""
    async with Upstream(lambda _: answer) as up:
        received = await send(one_target(protocol, up) + NO_HEALTH, client, stream=stream)
    grammar.check_error(client, received.status, received.body)
    assert received.headers["content-type"] == "application/json"
    assert b"secret-up" not in received.body
    return received


@pytest.mark.parametrize("client", PROTOCOLS)
async def test_every_error_has_code_and_details_beside_that_of_the_protocol(client: str) -> None:
    path, body = asking.path(client, stream=False), asking.body(client, stream=False)
    async with (
        Upstream(lambda _: answers.error("chat", 500, "boom")) as up,
        serving(one_target("chat", up) + NO_HEALTH) as gateway,
    ):
        failed = await call(gateway.port, path, body)
        invalid = await call(gateway.port, path, b"no JSON")
        missing = await call(gateway.port, "/nothing", body)
    found = [(answer.json["code"], answer.json["details"]) for answer in (failed, invalid, missing)]
    assert found == [("upstream_error", {}), ("invalid_json", {}), ("not_found", {})]
    assert [next(iter(answer.json)) for answer in (failed, invalid)] == [
        "type" if client == "messages" else "error"
    ] * 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("upstream", PROTOCOLS)
async def test_each_status_of_a_provider_becomes_one_for_the_client(
    upstream: str, client: str, stream: bool
) -> None:
    async with Upstream() as up, serving(one_target(upstream, up) + NO_HEALTH) as gateway:
        for status, expected in BECOMES.items():
            up.queue(answers.error(upstream, status, PROVIDER_MESSAGE))
            path, body = asking.path(client, stream=stream), asking.body(client, stream=stream)
            answer = await call(gateway.port, path, body)
            assert (status, answer.status) == (status, expected)
            grammar.check_error(client, answer.status, answer.body)
            assert (PROVIDER_MESSAGE.encode() in answer.body) == (status in SHOWN), status


@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_an_overloaded_provider_is_529_for_messages_clients_and_503_for_others(
    client: str, upstream: str
) -> None:
    answer = await refused(answers.error(upstream, 529, PROVIDER_MESSAGE), upstream, client)
    assert answer.status == (529 if client == "messages" else 503)
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert PROVIDER_MESSAGE.encode() in answer.body


@pytest.mark.parametrize("client", PROTOCOLS)
async def test_a_provider_that_is_out_of_service_is_a_502(client: str) -> None:
    assert (await refused(answers.error("chat", 503, PROVIDER_MESSAGE), "chat", client)).status == 502


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [400, 401, 403])
async def test_a_rejected_provider_key_is_never_reported_as_a_wrong_client_key(
    status: int, client: str
) -> None:
    message = "API key not valid: secret-up. Get one at https://example.com/keys"
    error = {"message": message, "type": "authentication_error", "code": "invalid_api_key"}
    for upstream in ("chat", "responses", "messages"):
        answer = await refused(Json(status, {"error": error}), upstream, client)
        assert answer.status == 424
        assert answer.json["code"] == "upstream_auth"
    google = {"code": status, "message": message, "status": "INVALID_ARGUMENT"}
    answer = await refused(Json(status, {"error": google}), "gemini", client)
    assert (answer.status, answer.json["code"]) == (424, "upstream_auth")


@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("status", [400, 429, 500])
async def test_a_provider_key_in_an_error_message_is_redacted(status: int, upstream: str) -> None:
    message = "unexpected header authorization: Bearer secret-up, x-key: secret-up"
    answer = await refused(answers.error(upstream, status, message), upstream, "chat")
    assert answer.status == BECOMES[status]
    assert "unexpected header" in answer.json["error"]["message"]


def header_value(value: str | float) -> str:
    """Return a header value; a number becomes the date that many seconds from now."""
    if isinstance(value, str):
        return value
    return email.utils.formatdate(time.time() + value, usegmt=True)


QUOTED = {"message": "m {}", "type": "t {}", "param": "p {}", "code": "c {}"}
SECRETS = ("secret-up", "tok-of-a-header", "key-of-a-query")
SENT = 'headers = { "cf-aig-authorization" = "Bearer tok-of-a-header" }\nquery = { key = "key-of-a-query" }'


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_no_field_of_an_error_contains_a_provider_key(client: str, stream: bool) -> None:
    message = {field: template.format(" ".join(SECRETS)) for field, template in QUOTED.items()}
    async with Upstream() as up, serving(one_target("chat", up, more=SENT) + NO_HEALTH) as gateway:
        up.queue(
            Json(400, {"error": message}),
            Sse([b"data: " + msgspec.json.encode({"error": message}) + b"\n\n"]),
        )
        for _ in range(1 + stream):
            answer = await call(
                gateway.port, asking.path(client, stream=stream), asking.body(client, stream=stream)
            )
            assert b"m *** *** ***" in answer.body
            assert [secret for secret in SECRETS if secret.encode() in answer.body] == []


async def test_an_error_within_a_round_of_server_tools_contains_no_key() -> None:
    async with Upstream() as up, serving(one_target("chat", up) + NO_HEALTH) as gateway:
        up.queue(answers.stream_error("chat", "half of it", 500, "key secret-up is not valid"))
        armed = asking.body("chat", '<**stopMessage:"go on",3**>Hello', stream=True)
        answer = await call(gateway.port, asking.path("chat", stream=True), armed)
    assert (b"key *** is not valid" in answer.body, b"secret-up" in answer.body) == (True, False)


WAITS: dict[str, tuple[dict[str, str | float], set[int]]] = {
    "seconds": ({"retry-after": "7"}, {7}),
    "part-of-a-second": ({"retry-after": "0.2"}, {1}),
    "zero": ({"retry-after": "0"}, {1}),
    "milliseconds": ({"retry-after-ms": "2500"}, {3}),
    "both": ({"retry-after": "30", "retry-after-ms": "4000"}, {4}),
    "too-long": ({"retry-after": "86400"}, {60}),
    "endless": ({"retry-after": "9" * 400}, {60}),
    "date": ({"retry-after": 40.0}, set(range(20, 41))),
    "date-gone-by": ({"retry-after": -40.0}, {1}),
    "far-date": ({"retry-after": 10_000.0}, {60}),
    "nonsense": ({"retry-after": "soon"}, set(range(1, 61))),
    "odd-date": ({"retry-after": "Mon, 99 Foo 20000 00:00:00 GMT"}, set(range(1, 61))),
    "huge-year": ({"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, set(range(1, 61))),
    "nothing": ({}, set(range(1, 61))),
}


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_rate_limit_has_retry_after_of_at_most_a_minute(client: str) -> None:
    async with Upstream() as up, serving(one_target("chat", up) + NO_HEALTH) as gateway:
        for name, (headers, expected) in WAITS.items():
            sent = {field: header_value(value) for field, value in headers.items()}
            up.queue(Json(429, {"error": {"message": PROVIDER_MESSAGE}}, sent))
            path, body = asking.path(client, stream=True), asking.body(client, stream=True)
            answer = await call(gateway.port, path, body)
            assert answer.status == 429, name
            grammar.check_error(client, 429, answer.body)
            assert int(answer.headers["retry-after"]) in expected, name


@pytest.mark.parametrize(("delay", "expected"), [("12s", 12), ("0.4s", 1), ("3600s", 60)])
async def test_retry_after_of_a_gemini_limit_comes_from_its_details(delay: str, expected: int) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    error = {"code": 429, "message": PROVIDER_MESSAGE, "status": "RESOURCE_EXHAUSTED", "details": [info]}
    answer = await refused(Json(429, {"error": error}), "gemini", "messages")
    assert (answer.status, int(answer.headers["retry-after"])) == (429, expected)


PAGE = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


@pytest.mark.parametrize("upstream", PROTOCOLS)
async def test_an_html_page_is_never_passed_on(upstream: str) -> None:
    html = {"content-type": "text/html"}
    async with Upstream() as up, serving(one_target(upstream, up) + NO_HEALTH) as gateway:
        for status, stream in itertools.product((200, 400, 404, 429, 500, 502, 503), (False, True)):
            up.queue(Json(status, b"\n " + PAGE, html))
            answer = await call(
                gateway.port, asking.path("chat", stream=stream), asking.body("chat", stream=stream)
            )
            assert answer.status == ({200: 502, 503: 502}.get(status) or BECOMES[status])
            grammar.check_error("chat", answer.status, answer.body)
            assert b"<" not in answer.body
            assert b"nginx" not in answer.body


@pytest.mark.parametrize("upstream", PROTOCOLS)
async def test_an_html_page_inside_an_envelope_is_not_passed_on(upstream: str) -> None:
    answer = await refused(answers.error(upstream, 500, PAGE.decode()), upstream, "messages")
    assert answer.json["error"]["message"] == "provider 'up' answered HTTP 500 with a page of HTML"
    angled = await refused(answers.error(upstream, 400, "<|end|> is no stop sequence"), upstream, "chat")
    assert angled.json["error"]["message"] == "<|end|> is no stop sequence"


ODD_BODIES = [
    b"",
    b"null",
    b"[]",
    b"7",
    b'"words"',
    b"{",
    b'{"error": 7}',
    b'{"error": null}',
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("upstream", PROTOCOLS)
async def test_an_error_in_any_shape_is_an_error(upstream: str) -> None:
    async with Upstream() as up, serving(one_target(upstream, up) + NO_HEALTH) as gateway:
        for status, body in itertools.product((400, 429, 500), ODD_BODIES):
            up.queue(Json(status, body))
            answer = await call(
                gateway.port, asking.path("messages", stream=True), asking.body("messages", stream=True)
            )
            assert answer.status == BECOMES[status], body
            grammar.check_error("messages", answer.status, answer.body)


async def test_a_refusal_whose_body_never_comes_keeps_its_status() -> None:
    async with Upstream(lambda _: Steps((Send(b'{"error'), Hang()), 422)) as up:
        text = one_target("chat", up, more="timeout = { idle_ms = 50, first_byte_ms = 1000 }")
        answer = await send(text)
    assert answer.status == 422
    grammar.check_error("chat", 422, answer.body)


NO_HTTP = [b"SSH-2.0-what\r\n", b"HTTP/1.1 abc\r\n\r\n", b"", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"]


def raw_bytes(data: bytes) -> Script:
    return lambda _: Raw((Send(data),))


@pytest.mark.parametrize("client", PROTOCOLS)
async def test_a_provider_that_is_not_an_http_server_is_a_502(client: str) -> None:
    async with Upstream() as up, serving(one_target("chat", up) + NO_HEALTH) as gateway:
        for data in NO_HTTP:
            up.answer_with(raw_bytes(data))
            answer = await call(
                gateway.port, asking.path(client, stream=True), asking.body(client, stream=True)
            )
            assert answer.status == 502
            grammar.check_error(client, 502, answer.body)


async def test_an_unreachable_provider_is_a_502_that_names_key_and_setting() -> None:
    async with Upstream() as up:
        text = one_target("chat", up)
    for client in PROTOCOLS:
        answer = await send(text, client)
        assert answer.status == 502
        grammar.check_error(client, 502, answer.body)
        message = answer.json["error"]["message"]
        assert message.startswith(f"provider 'up', key 'primary': 127.0.0.1:{up.port} could not be connected")
        assert message.endswith("; check providers.up.base_url")


@pytest.mark.parametrize(
    ("answer", "setting"),
    [
        (Steps((Hang(),)), "timeout.idle_ms"),
        (Raw((Hang(),)), "timeout.first_byte_ms"),
        (Raw((Send(b"SSH-2.0-what\r\n"),)), "base_url"),
    ],
    ids=["silent answer", "no answer", "not HTTP"],
)
async def test_a_broken_connection_names_provider_key_and_setting(answer: Steps | Raw, setting: str) -> None:
    async with Upstream(lambda _: answer) as up:
        text = one_target("chat", up, more="timeout = { idle_ms = 50, first_byte_ms = 50 }")
        message = (await send(text + NO_HEALTH)).json["error"]["message"]
    assert message.startswith(f"provider 'up', key 'primary': 127.0.0.1:{up.port} ")
    assert message.endswith(f"; check providers.up.{setting}")


def two(first: Upstream, second: Upstream) -> str:
    return (
        "[server]\nport = 0\n"
        + provider("first", "chat", first)
        + provider("second", "messages", second)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "second.m"] }]\n'
        + NO_HEALTH
    )


LAST: list[tuple[Json, Json, int, str | None]] = [
    (answers.error("chat", 429, retry_after="40"), answers.error("messages", 429, retry_after="9"), 429, "9"),
    (answers.error("chat", 429), answers.error("messages", 500), 502, None),
    (answers.error("chat", 500), answers.error("messages", 429), 502, None),
    (answers.error("chat", 401), answers.error("messages", 529), 503, "5"),
    (answers.error("chat", 401), answers.error("messages", 401), 424, None),
]


@pytest.mark.parametrize(("first", "second", "status", "wait"), LAST)
async def test_when_all_targets_fail_429_is_returned_only_if_all_were_rate_limited(
    first: Json, second: Json, status: int, wait: str | None
) -> None:
    async with Upstream(lambda _: first) as one, Upstream(lambda _: second) as other:
        answer = await send(two(one, other), model="any")
        assert (len(one.requests), len(other.requests)) == (1, 1)
    assert (answer.status, answer.headers.get("retry-after")) == (status, wait)
