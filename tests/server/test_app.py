"""Every endpoint over a real socket: paths, errors, and the protocol of each error."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from routecodex.protocols import grammar
from tests.kit import answers, asking
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import Answer, Call, begin, call
from tests.kit.steps import Hang, Json, Steps
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
DEMO = (
    "[server]\nport = 0\ndrain_seconds = 1\n{server}\n"
    '[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.demo-1]\n'
    '[routing]\ndefault = ["demo.demo-1"]\n'
)


def demo(server: str = "") -> str:
    return DEMO.format(server=server)


PATHS = [
    ("chat", "/v1/chat/completions"),
    ("chat", "/v1/chat/completions/"),
    ("chat", "/chat/completions"),
    ("chat", "/openai/v1/chat/completions"),
    ("chat", "/v1beta/openai/chat/completions"),
    ("chat", "/v1/v1/chat/completions?api-version=1"),
    ("messages", "/v1/messages"),
    ("messages", "/messages"),
    ("messages", "/anthropic/v1/messages?beta=true"),
    ("responses", "/v1/responses"),
    ("responses", "/responses"),
    ("responses", "/backend-api/codex/responses"),
    ("gemini", "/v1beta/models/demo.demo-1:generateContent"),
    ("gemini", "/v1/models/demo.demo-1:generateContent"),
    ("gemini", "/models/demo.demo-1:generateContent"),
    ("gemini", "/gemini/v1beta/models/demo.demo-1:generateContent"),
    ("gemini", "/v1beta/models/demo.demo%2D1%3AgenerateContent"),
]
STREAMS = [
    *(pair for pair in PATHS if pair[0] != "gemini"),
    ("gemini", "/v1beta/models/demo.demo-1:streamGenerateContent?alt=sse"),
    ("gemini", "/v1/models/demo.demo-1:streamGenerateContent?alt=sse"),
    ("gemini", "/models/demo.demo-1:streamGenerateContent?key=x&alt=sse"),
]


async def post(port: int, protocol: str, path: str, *, stream: bool, text: str = "Hello") -> Answer:
    return await call(port, path, asking.body(protocol, text, stream=stream, model="demo.demo-1"))


async def test_every_path_of_every_protocol_is_answered() -> None:
    async with serving(demo()) as gateway:
        for protocol, path in PATHS:
            answer = await post(gateway.port, protocol, path, stream=False)
            asking.check(protocol, answer, stream=False)
        for protocol, path in STREAMS:
            answer = await post(gateway.port, protocol, path, stream=True)
            assert answer.headers["content-type"].startswith("text/event-stream"), path
            asking.check(protocol, answer, stream=True)


@pytest.mark.parametrize("query", ["", "?key=x", "?alt=json"])
async def test_gemini_without_alt_sse_streams_one_json_array(query: str) -> None:
    async with serving(demo()) as gateway:
        path = f"/v1beta/models/demo.demo-1:streamGenerateContent{query}"
        answer = await post(gateway.port, "gemini", path, stream=True, text="one two three")
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    frames = answer.json
    assert len(frames) > 1
    texts = [part["text"] for frame in frames for part in frame["candidates"][0]["content"]["parts"]]
    assert "one two three" in "".join(texts)
    assert [frame["candidates"][0].get("finishReason") for frame in frames][-1] == "STOP"


async def test_a_model_name_in_the_path_may_be_percent_encoded() -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        more = '[providers.up.models."org/mödel x"]\n'
        text = one_target("chat", up).replace("[providers.up.models.m]", f"{more}[providers.up.models.m]")
        async with serving(text) as gateway:
            path = "/v1beta/models/up.org%2Fm%C3%B6del%20x:generateContent"
            answer = await call(gateway.port, path, asking.body("gemini", stream=False))
            listed = await call(gateway.port, "/v1/models/up.org%2Fm%C3%B6del%20x", method="GET")
    asking.check("gemini", answer, stream=False)
    assert up.requests[0].json["model"] == "org/mödel x"
    assert answer.headers["x-routecodex-target"] == "up.primary.org/m?del x"
    assert listed.json["id"] == "up.org/mödel x"


async def test_the_root_and_the_health_endpoints_answer() -> None:
    async with serving(demo()) as gateway:
        for path in ("/", "/api/hello", "/claude/api/hello", "/health", "/health/live", "/health/ready"):
            head = await begin(gateway.port, path, method="HEAD")
            assert (await head.head()).status == 200
            head.writer.write_eof()
            assert await head.reader.read() == b""
            await head.close()
        about = await call(gateway.port, "/", method="GET")
        states = [
            (await call(gateway.port, path, method="GET")).json
            for path in ("/health", "/health/live", "/health/ready")
        ]
    assert about.json["name"] == "routecodex"
    ready = {
        "status": "ok",
        "store": {"kind": "memory", "status": "up", "since": states[0]["store"]["since"]},
    }
    assert states == [ready, {"status": "ok"}, ready]


NOWHERE = [
    ("/v1/chat", "chat", {}),
    ("/v1/completions", "chat", {}),
    ("/v1/messages/batches", "messages", {"anthropic-version": "2023-06-01"}),
    ("/v1beta/cachedContents", "gemini", {}),
    ("/v1/files", "gemini", {"x-goog-api-client": "google-genai-sdk/1"}),
]


@pytest.mark.parametrize(("path", "protocol", "headers"), NOWHERE)
async def test_an_unknown_path_is_a_404_in_the_clients_own_envelope(
    path: str, protocol: str, headers: dict[str, str]
) -> None:
    async with serving(demo()) as gateway:
        answer = await call(gateway.port, path, {}, headers=headers)
    assert answer.status == 404
    grammar.check_error(protocol, 404, answer.body)
    assert path in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1beta/openai/chat/completions", "chat"),
        ("/v1/responses", "chat"),
    ],
)
async def test_the_path_decides_the_envelope_where_it_has_one_protocol(path: str, protocol: str) -> None:
    headers = {"anthropic-version": "2023-06-01", "x-goog-api-client": "sdk"}
    async with serving(demo()) as gateway:
        answer = await call(gateway.port, path, b"no json", headers=headers)
    assert answer.status == 400
    grammar.check_error(protocol, 400, answer.body)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/messages", "POST"),
        ("OPTIONS", "/v1beta/models/m:generateContent", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/v1/responses/resp_1", "DELETE, GET"),
        ("DELETE", "/metrics", "GET, HEAD"),
    ],
)
async def test_another_method_is_a_405_that_says_which_are_taken(
    method: str, path: str, allowed: str
) -> None:
    async with serving(demo()) as gateway:
        answer = await call(gateway.port, path, method=method)
    assert answer.status == 405
    assert answer.headers["allow"] == allowed
    assert allowed in answer.json["error"]["message"]


@pytest.mark.parametrize("verb", ["embedContent", "batchEmbedContents", "predict"])
async def test_a_verb_that_no_model_has_is_a_404_that_says_which_there_are(verb: str) -> None:
    async with serving(demo()) as gateway:
        answer = await call(gateway.port, f"/v1beta/models/demo.echo:{verb}", {"content": {}})
    assert answer.status == 404
    grammar.check_error("gemini", 404, answer.body)
    message = answer.json["error"]["message"]
    assert verb in message
    assert "generateContent, streamGenerateContent, countTokens" in message


@pytest.mark.parametrize("path", ["compact", "input_tokens", "resp_1/cancel", "compact/x"])
async def test_an_unknown_path_below_responses_is_a_404_and_not_an_id(path: str) -> None:
    async with serving(demo()) as gateway:
        answer = await call(gateway.port, f"/v1/responses/{path}", {"model": "demo.demo-1", "input": "Hi"})
    assert answer.status == 404
    if "/" not in path:
        grammar.check_error("responses", 404, answer.body)
    assert f"POST /v1/responses/{path} does not exist" in answer.json["error"]["message"]


async def test_a_model_whose_name_holds_a_colon_is_no_verb() -> None:
    async with serving(demo()) as gateway:
        answer = await call(gateway.port, "/v1beta/models/ollama.llama3:8b", {})
    assert answer.status == 405


async def test_a_web_socket_is_told_to_come_over_http() -> None:
    headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    async with serving(demo()) as gateway:
        answer = await call(gateway.port, "/v1/responses", method="GET", headers=headers)
    assert answer.status == 426
    grammar.check_error("responses", 426, answer.body)


async def test_every_answer_has_its_own_request_id_and_says_where_it_went() -> None:
    async with serving(demo()) as gateway:
        found = [await post(gateway.port, "chat", "/v1/chat/completions", stream=False) for _ in range(3)]
        named = await post(gateway.port, "chat", "/v1/chat/completions", stream=True)
        other = asking.body("chat", stream=False, model="nobody-knows-it")
        routed = await call(gateway.port, "/v1/chat/completions", other)
        wrong = await call(gateway.port, "/v1/chat/completions", b"{}")
    ids = {answer.headers["x-request-id"] for answer in (*found, named, routed, wrong)}
    assert len(ids) == 6
    assert {name: value for name, value in named.headers.items() if name.startswith("x-routecodex")} == {
        "x-routecodex-route": "direct",
        "x-routecodex-target": "demo.key1.demo-1",
        "x-routecodex-reason": "model demo.demo-1 names the target",
        "x-routecodex-role": "main",
    }
    assert routed.headers["x-routecodex-route"] == "default"
    assert routed.headers["x-routecodex-target"] == "demo.key1.demo-1"


Samples = dict[tuple[str, ...], float]


def samples(answer: Answer, name: str, *labels: str) -> Samples:
    families = text_string_to_metric_families(answer.body.decode())
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


async def test_the_metrics_count_what_passed() -> None:
    async with Upstream() as bad, Upstream() as good:
        bad.answer_with(lambda _: answers.error("chat", 500))
        good.answer_with(lambda request: answers.counted("messages", "hi", answers.wants_stream(request)))
        text = (
            "[server]\nport = 0\n"
            + provider("first", "chat", bad)
            + provider("second", "messages", good)
            + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "second.m"] }]\n'
        )
        async with serving(text) as gateway:
            for protocol, stream in (("chat", True), ("chat", False), ("messages", True)):
                body = asking.body(protocol, stream=stream, model="any")
                asking.check(
                    protocol,
                    await call(gateway.port, asking.path(protocol, stream=stream), body),
                    stream=stream,
                )
            body = asking.body("chat", stream=False, model="first.m")
            assert (await call(gateway.port, "/v1/chat/completions", body)).status == 503
            shown = await call(gateway.port, "/metrics", method="GET")
    assert shown.headers["content-type"].startswith("text/plain; version=0.0.4")
    labels = ("protocol", "provider", "model", "status")
    assert samples(shown, "routecodex_requests_total", *labels) == {
        ("chat", "second", "m", "200"): 2,
        ("messages", "second", "m", "200"): 1,
        ("chat", "first", "m", "503"): 1,
    }
    assert samples(shown, "routecodex_failovers_total") == {(): 3}
    tokens = samples(shown, "routecodex_tokens_total", "provider", "kind")
    assert {kind: count for (name, kind), count in tokens.items() if name == "second"} == {
        "input": 3600,
        "output": 180,
        "cache_read": 3000,
        "cache_write": 300,
        "reasoning": 96,
    }
    assert samples(shown, "routecodex_request_seconds_count", "provider") == {("second",): 1, ("first",): 1}
    assert samples(shown, "routecodex_active_requests") == {(): 1}


async def test_embeddings_and_token_counts_are_counted_too() -> None:
    async with Upstream() as up:
        up.queue(Json(200, {"data": []}), answers.error("chat", 422, "too long"))
        async with serving(one_target("chat", up)) as gateway:
            for status in (200, 422):
                embedded = await call(gateway.port, "/v1/embeddings", {"model": "up.m", "input": "x"})
                assert embedded.status == status
            body = {"model": "up.m", "messages": [{"role": "user", "content": "Hello"}]}
            assert (await call(gateway.port, "/v1/messages/count_tokens", body)).status == 200
            shown = await call(gateway.port, "/metrics", method="GET")
    assert samples(shown, "routecodex_requests_total", "protocol", "provider", "status") == {
        ("chat", "up", "200"): 1,
        ("chat", "up", "422"): 1,
        ("messages", "up", "200"): 1,
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_one_request_too_many_is_a_503_that_says_when_to_come_back(protocol: str) -> None:
    async with (
        Upstream(lambda _: Steps((Hang(),))) as up,
        serving(one_target("chat", up, server="max_concurrent = 1\nmax_queued = 0")) as gateway,
    ):
        body = asking.body("chat", stream=True)
        first = await begin(gateway.port, "/v1/chat/completions", body)
        await up.received()
        path = asking.path(protocol, stream=True)
        refused = await call(gateway.port, path, asking.body(protocol, stream=True))
        health = await call(gateway.port, "/health/ready", method="GET")
        await first.leave()
    assert refused.status == 503
    grammar.check_error(protocol, 503, refused.body)
    assert refused.json["code"] == "overloaded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert health.status == 200


async def test_a_place_is_free_again_when_its_client_has_left() -> None:
    async with Upstream() as up:
        up.queue(Steps((Hang(),)))
        up.answer_with(lambda _: answers.text("chat", "hi", False))
        async with serving(one_target("chat", up, server="max_concurrent = 1")) as gateway:
            body = asking.body("chat", stream=False)
            first = await begin(gateway.port, "/v1/chat/completions", body)
            request = await up.received()
            await first.leave()
            await asyncio.wait_for(request.gone.wait(), 10)
            assert (await call(gateway.port, "/v1/chat/completions", body)).status == 200


LISTS: dict[str, tuple[str, Any]] = {
    "chat": ("messages", {"role": "user", "content": "x"}),
    "responses": ("input", {"role": "user", "content": "x"}),
    "messages": ("messages", {"role": "user", "content": "x"}),
    "gemini": ("contents", {"role": "user", "parts": [{"text": "x"}]}),
}
COUNTING = {
    "messages": "/v1/messages/count_tokens",
    "gemini": "/v1beta/models/demo.demo-1:countTokens",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_more_messages_than_allowed_are_a_413(protocol: str) -> None:
    field, message = LISTS[protocol]
    body = asking.body(protocol, stream=False, model="demo.demo-1")
    paths = [
        asking.path(protocol, stream=False, model="demo.demo-1"),
        *filter(None, [COUNTING.get(protocol)]),
    ]
    async with serving(demo("max_messages = 3")) as gateway:
        for path in paths:
            fits = await call(gateway.port, path, {**body, field: [message] * 3})
            assert fits.status == 200
            answer = await call(gateway.port, path, {**body, field: [message] * 4})
            assert answer.status == 413
            grammar.check_error(protocol, 413, answer.body)
            assert field in answer.json["error"]["message"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_larger_than_allowed_is_a_413(protocol: str, framing: str) -> None:
    body = msgspec.json.encode(asking.body(protocol, "x" * 1024 * 1024, stream=False))
    path = asking.path(protocol, stream=False)
    async with serving(demo("max_body_mb = 1")) as gateway:
        if framing == "length":
            answer = await call(gateway.port, path, body)
        else:
            answer = await _chunked(gateway.port, path, body)
    assert answer.status == 413
    grammar.check_error(protocol, 413, answer.body)
    assert "1048576 bytes" in answer.json["error"]["message"]


BAD_HEADS = {
    b"X-A: " + b"a" * 70_000: 431,
    b"Content-Length: 5": 400,
    b"X : y": 400,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("line", BAD_HEADS, ids=["too-large", "two-lengths", "no-name"])
async def test_a_head_that_is_wrong_is_told_in_the_envelope_of_its_path(protocol: str, line: bytes) -> None:
    path = asking.path(protocol, stream=False).encode()
    head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\nContent-Length: 2\r\n\r\n{}"
    async with Upstream() as up, serving(one_target("chat", up)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head)
        under_way = Call(reader, writer)
        answer = await under_way.rest()
        await under_way.close()
    assert answer.status == BAD_HEADS[line]
    grammar.check_error(protocol, answer.status, answer.body)


async def _chunked(port: int, path: str, body: bytes) -> Answer:
    under_way = Call(*await asyncio.open_connection("127.0.0.1", port))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    under_way.writer.write(head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    try:
        return await under_way.rest()
    finally:
        await under_way.close()


async def test_a_failure_inside_the_gateway_is_a_500_without_a_word_about_it() -> None:
    async with Upstream(lambda _: Json(200, {})) as up, serving(one_target("chat", up)) as gateway:
        gateway.service.gateway.services.upstreams.clear()
        answer = await call(
            gateway.port, asking.path("messages", stream=False), asking.body("messages", stream=False)
        )
    assert answer.status == 500
    grammar.check_error("messages", 500, answer.body)
    assert answer.json["error"]["message"] == "internal error"
