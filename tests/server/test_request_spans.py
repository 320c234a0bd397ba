"""Traces over real sockets: a gateway, its providers, and a collector that decodes what it sends."""

from __future__ import annotations

import time
from typing import Any

import pytest

from routecodex import __version__
from routecodex.config import loads
from routecodex.server.request_spans import provider_facts
from tests.kit import answers, asking
from tests.kit.collector import Collector
from tests.kit.gateway import NO_HEALTH, one_target, provider, serving
from tests.kit.raw_client import begin, call
from tests.kit.steps import Hang, Json, Pause, Raw, Send, Sse, Steps
from tests.kit.traced_gateway import ERROR, PARENT, SAMPLED, TRACE, Traced, parent_of, traced
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
KEYS = '[[server.client_keys]]\nname = "laptop"\nkey = "k-laptop"\n'
STOP_MESSAGE = '<**stopMessage:"go on",1**> Hello'


def counted(protocol: str, stream: bool) -> Json | Sse:
    return answers.counted(protocol, "Hi", stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_request_is_a_server_span_with_its_attempt_below_it(protocol: str, stream: bool) -> None:
    async with (
        Upstream(lambda _: counted(protocol, stream)) as up,
        traced(one_target(protocol, up)) as gateway,
    ):
        answer = await gateway.ask(protocol, stream=stream, headers={"x-session-id": "s-1"})
    request, (attempt,) = gateway.request, gateway.children
    path = asking.path(protocol, stream=stream).partition("?")[0]
    route = path.replace("up.m", "{model}")
    assert (request.name, request.kind, request.parent_id) == (f"POST {route}", "SERVER", "")
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": route,
        "http.response.status_code": 200,
        "url.path": path,
        "gen_ai.conversation.id": "s-1",
        "session.id": "s-1",
        "routecodex.route": "direct",
        "routecodex.target": "up.primary.m",
        "routecodex.reason": answer.headers["x-routecodex-reason"],
        "routecodex.rounds": 1,
    }
    operation = "generate_content" if protocol == "gemini" else "chat"
    assert (attempt.name, attempt.kind) == (f"{operation} m", "CLIENT")
    assert (attempt.trace_id, attempt.parent_id) == (request.trace_id, request.span_id)
    assert request.start <= attempt.start <= attempt.end <= request.end
    assert (request.status, attempt.status) == (0, 0)
    assert_attempt(attempt.attributes, protocol, stream=stream, port=up.port)


def assert_attempt(found: dict[str, Any], protocol: str, *, stream: bool, port: int) -> None:
    first = found.pop("gen_ai.response.time_to_first_chunk", None)
    assert (first is not None) == stream
    assert found.pop("gen_ai.response.id")
    assert found.pop("gen_ai.response.model")
    expected = {
        "gen_ai.operation.name": "generate_content" if protocol == "gemini" else "chat",
        "gen_ai.provider.name": "up",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": stream,
        "gen_ai.response.finish_reasons": ["stop"],
        "server.address": "127.0.0.1",
        "server.port": port,
        "routecodex.round": 1,
        "routecodex.key": "primary",
    }
    if protocol == "messages":
        expected["gen_ai.request.max_tokens"] = 1000
    tokens = {name: found.pop(name) for name in list(found) if name.startswith("gen_ai.usage.")}
    assert found == expected
    assert tokens["gen_ai.usage.input_tokens"] > tokens["gen_ai.usage.cache_read.input_tokens"] > 0
    assert tokens["gen_ai.usage.output_tokens"] > 0
    assert tokens.keys() >= {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"}


TOKENS = {"input_tokens": 1200, "output_tokens": 60, "cache_read.input_tokens": 1000}
WRITTEN = {"cache_creation.input_tokens": 100}
REASONING = {"reasoning.output_tokens": 32}


@pytest.mark.parametrize(
    ("protocol", "parts"),
    [
        ("chat", REASONING),
        ("responses", WRITTEN | REASONING),
        ("messages", WRITTEN | REASONING),
        ("gemini", REASONING),
    ],
)
async def test_an_attempt_has_the_tokens_that_its_provider_reported(
    protocol: str, parts: dict[str, int]
) -> None:
    async with (
        Upstream(lambda _: counted(protocol, False)) as up,
        traced(one_target(protocol, up)) as gateway,
    ):
        await gateway.ask(protocol)
    (attempt,) = gateway.children
    prefix = "gen_ai.usage."
    found = {
        name.removeprefix(prefix): count
        for name, count in attempt.attributes.items()
        if name.startswith(prefix)
    }
    assert found == TOKENS | parts


async def test_the_resource_names_the_server_and_the_scope_the_program() -> None:
    async with (
        Upstream(lambda _: counted("chat", False)) as up,
        traced(
            one_target("chat", up, server='id = "node-1"'),
            telemetry='service_name = "gw"\nresource = { "deployment.environment.name" = "prod", '
            '"service.name" = "other", "service.instance.id" = "other", "service.version" = "9" }',
        ) as gateway,
    ):
        await gateway.ask()
    assert {span.scope for span in gateway.collector.spans} == {("routecodex", __version__)}
    assert gateway.request.resource == {
        "service.name": "gw",
        "service.version": __version__,
        "service.instance.id": "node-1",
        "deployment.environment.name": "prod",
    }


async def test_parameters_cost_and_client_are_attributes() -> None:
    priced = "price = { input = 1.0, output = 2.0 }\n"
    async with (
        Upstream(lambda _: counted("chat", True)) as up,
        traced(one_target("chat", up).replace("[routing]", f"{priced}[routing]") + KEYS) as gateway,
    ):
        key = {"authorization": "Bearer k-laptop"}
        await gateway.ask(stream=True, headers=key, max_tokens=64, temperature=0.5, top_p=1)
    (attempt,) = gateway.children
    sent = ("gen_ai.request.max_tokens", "gen_ai.request.temperature", "gen_ai.request.top_p")
    assert [attempt.attributes[name] for name in sent] == [64, 0.5, 1.0]
    assert gateway.request.attributes["user.id"] == "laptop"
    assert gateway.request.attributes["routecodex.cost"] > 0


@pytest.mark.parametrize("encoding", ["http/protobuf", "http/json"])
async def test_numbers_that_no_span_can_hold_are_left_out(encoding: str) -> None:
    counts = {"prompt_tokens": 10**30, "completion_tokens": 2**63, "total_tokens": 5}
    whole = answers.text("chat", "Hi", False)
    assert isinstance(whole, Json)
    huge = Json(200, whole.body | {"usage": counts})
    more = f'protocol = "{encoding}"\nopeninference = true'
    async with Upstream(lambda _: huge) as up, traced(one_target("chat", up), telemetry=more) as gateway:
        for limit in (10**30, 2**63, 2**63 - 1):
            answer = await gateway.ask(max_tokens=limit, temperature=0.5)
            assert answer.status == 200
    numbers = ("gen_ai.usage", "llm.token", "gen_ai.request.max", "llm.invocation")
    found = [
        {name: value for name, value in attempt.attributes.items() if name.startswith(numbers)}
        for attempt in gateway.children
    ]
    without = {"llm.invocation_parameters": '{"temperature":0.5}'}
    largest = {
        "gen_ai.request.max_tokens": 2**63 - 1,
        "llm.invocation_parameters": '{"max_tokens":9223372036854775807,"temperature":0.5}',
    }
    assert found == [without, without, largest]


async def test_requests_that_differ_in_little_have_attributes_of_their_own() -> None:
    # The common part of spans is made once, and must hold nothing in which they differ.
    phone = KEYS.replace("laptop", "phone")
    async with (
        Upstream(lambda _: counted("chat", False)) as up,
        traced(one_target("chat", up) + KEYS + phone) as gateway,
    ):
        for client, text in (("laptop", "Hello"), ("phone", "Hello"), ("phone", STOP_MESSAGE)):
            headers = {"authorization": f"Bearer k-{client}", "x-session-id": "s-1"}
            await gateway.ask(headers=headers, messages=[{"role": "user", "content": text}])
    requests = [span for span in gateway.collector.spans if span.kind == "SERVER"]
    found = [(span.attributes["user.id"], span.attributes["routecodex.rounds"]) for span in requests]
    assert found == [("laptop", 1), ("phone", 1), ("phone", 2)]
    rounds = [
        [span.attributes["routecodex.round"] for span in gateway.children if span.parent_id == one.span_id]
        for one in requests
    ]
    assert rounds == [[1], [1], [1, 2]]


async def test_spans_have_the_time_of_day_at_which_they_happened() -> None:
    whole = counted("chat", True)
    assert isinstance(whole, Sse)
    slow = Steps([Pause(0.3), Send(whole.data)])
    before = time.time_ns()
    async with Upstream(lambda _: slow) as up, traced(one_target("chat", up)) as gateway:
        await gateway.ask(stream=True)
    after = time.time_ns()
    request, (attempt,) = gateway.request, gateway.children
    assert before <= request.start <= attempt.start
    assert attempt.start + 300_000_000 <= attempt.end <= request.end <= after


@pytest.mark.parametrize(
    ("base", "address", "port"),
    [
        ("https://api.example/v1", "api.example", 443),
        ("http://api.example", "api.example", 80),
        ("https://[::1]:8443/v1", "::1", 8443),
    ],
)
def test_an_address_without_a_port_has_that_of_its_scheme(base: str, address: str, port: int) -> None:
    text = f'[providers.up]\nprotocol = "chat"\nbase_url = "{base}"\nmodels = {{ m = {{}} }}\n'
    config = loads(f'{text}auth = [{{ value = "k" }}]\n[routing]\ndefault = ["up.m"]\n', environ={})
    facts = provider_facts("up", config.providers["up"])
    assert (facts.address, facts.port) == (address, port)


async def test_texts_that_a_client_or_a_provider_chooses_are_bounded() -> None:
    whole = counted("chat", False)
    assert isinstance(whole, Json)
    long = Json(200, whole.body | {"id": "i" * 5000, "model": "m" * 5000})
    async with Upstream(lambda _: long) as up, traced(one_target("chat", up)) as gateway:
        await gateway.ask(headers={"x-session-id": "s" * 5000})
        await call(gateway.port, f"/v1/{'p' * 5000}", {})
    texts = [
        value
        for span in gateway.collector.spans
        for value in span.attributes.values()
        if isinstance(value, str)
    ]
    assert max(map(len, texts)) == 1024


async def test_the_model_is_named_as_its_provider_names_it() -> None:
    async with (
        Upstream(lambda _: counted("chat", False)) as up,
        traced(one_target("chat", up).replace("[routing]", 'id = "model-9"\n[routing]')) as gateway,
    ):
        await gateway.ask()
    (attempt,) = gateway.children
    assert (attempt.name, attempt.attributes["gen_ai.request.model"]) == ("chat model-9", "model-9")


@pytest.mark.parametrize(
    ("preset", "protocol", "name"),
    [
        ("deepseek", "chat", "deepseek"),
        ("gemini", "gemini", "gcp.gemini"),
        ("openai", "chat", "openai"),
        ("openai-responses", "responses", "openai"),
        ("anthropic", "messages", "anthropic"),
        ("openrouter", "chat", "up"),
    ],
)
async def test_a_preset_has_its_well_known_provider_name(preset: str, protocol: str, name: str) -> None:
    async with (
        Upstream(lambda _: counted(protocol, False)) as up,
        traced(one_target(protocol, up, more=f'preset = "{preset}"')) as gateway,
    ):
        await gateway.ask(protocol)
    assert gateway.children[0].attributes["gen_ai.provider.name"] == name


async def test_an_upstream_continues_the_trace_of_the_client_below_its_attempt() -> None:
    async with (
        Upstream(lambda _: counted("messages", True)) as up,
        traced(one_target("messages", up)) as gateway,
    ):
        await gateway.ask(stream=True, headers=SAMPLED)
    request, (attempt,) = gateway.request, gateway.children
    assert (request.trace_id, request.parent_id) == (TRACE, PARENT)
    assert parent_of(up.requests[0].headers) == (TRACE, attempt.span_id, "01")
    assert up.requests[0].headers["tracestate"] == SAMPLED["tracestate"]
    assert {span.state for span in gateway.collector.spans} == {SAMPLED["tracestate"]}
    assert len({PARENT, request.span_id, attempt.span_id}) == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_without_telemetry_the_trace_context_passes_unchanged(protocol: str) -> None:
    for context in (SAMPLED, {"traceparent": "what-is-this", "tracestate": "a=b"}):
        async with (
            Upstream(lambda _: counted(protocol, False)) as up,
            serving(one_target(protocol, up)) as gateway,
        ):
            await Traced(gateway.port, Collector()).ask(protocol, headers=context)
        sent = up.requests[0].headers
        assert {name: sent[name] for name in context} == context


STATES = [("a=1,\tb=2", {"tracestate": "a=1,\tb=2"}), ("a=\xe9", {})]


@pytest.mark.parametrize(("state", "sent"), STATES, ids=["tab", "not ASCII"])
@pytest.mark.parametrize("traces", [False, True], ids=["off", "on"])
async def test_a_state_that_cannot_be_sent_is_dropped_alone(
    state: str, sent: dict[str, str], traces: bool
) -> None:
    context = {**SAMPLED, "tracestate": state}
    async with Upstream(lambda _: counted("chat", False)) as up, Collector() as collector:
        config = (collector.config() if traces else "") + one_target("chat", up)
        async with serving(config) as gateway:
            await Traced(gateway.port, collector).ask(headers=context)
    headers = up.requests[0].headers
    assert parent_of(headers)[0] == TRACE
    assert {name: value for name, value in headers.items() if name == "tracestate"} == sent
    assert {(span.trace_id, span.state) for span in collector.spans} == (
        {(TRACE, sent.get("tracestate", ""))} if traces else set()
    )


@pytest.mark.parametrize(
    "malformed",
    [
        "what-is-this",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
async def test_a_malformed_context_begins_a_new_trace(malformed: str) -> None:
    async with Upstream(lambda _: counted("chat", False)) as up, traced(one_target("chat", up)) as gateway:
        await gateway.ask(headers={**SAMPLED, "traceparent": malformed})
    request, (attempt,) = gateway.request, gateway.children
    assert request.trace_id not in (TRACE, "0" * 32)
    assert (request.parent_id, request.state) == ("", "")
    assert parent_of(up.requests[0].headers) == (request.trace_id, attempt.span_id, "01")
    assert "tracestate" not in up.requests[0].headers


async def test_a_later_version_of_the_context_is_read_as_far_as_it_is_known() -> None:
    async with Upstream(lambda _: counted("chat", False)) as up, traced(one_target("chat", up)) as gateway:
        await gateway.ask(headers={"traceparent": f"cc-{TRACE}-{PARENT}-09-what-comes-later"})
    assert (gateway.request.trace_id, gateway.request.parent_id) == (TRACE, PARENT)


@pytest.mark.parametrize("flags", ["00", "02"])
async def test_an_unsampled_trace_is_passed_on_and_has_no_spans(flags: str) -> None:
    async with Upstream(lambda _: counted("chat", False)) as up, traced(one_target("chat", up)) as gateway:
        await gateway.ask(headers={**SAMPLED, "traceparent": f"00-{TRACE}-{PARENT}-{flags}"})
    assert parent_of(up.requests[0].headers) == (TRACE, PARENT, "00")
    assert up.requests[0].headers["tracestate"] == SAMPLED["tracestate"]
    assert gateway.collector.requests == []


async def test_a_trace_that_begins_here_is_sampled_by_its_share() -> None:
    async with (
        Upstream(lambda _: counted("chat", False)) as up,
        traced(one_target("chat", up), telemetry="sample = 0.0") as gateway,
    ):
        await gateway.ask()
        await gateway.ask(headers=SAMPLED)
    assert parent_of(up.requests[0].headers)[2] == "00"
    assert {span.trace_id for span in gateway.collector.spans} == {TRACE}


async def test_every_attempt_has_its_span_and_a_failed_one_its_error() -> None:
    async with (
        Upstream(lambda _: answers.error("chat", 503, "busy")) as first,
        Upstream(lambda _: counted("chat", False)) as second,
        traced(
            "[server]\nport = 0\n"
            + provider("one", "chat", first)
            + provider("two", "chat", second)
            + '[routing]\ndefault = [{ mode = "priority", targets = ["one.m", "two.m"] }]\n'
        ) as gateway,
    ):
        answer = await gateway.ask(model="any")
    assert answer.status == 200
    failed, succeeded = gateway.children
    assert (failed.attributes["error.type"], failed.status) == ("503", ERROR)
    assert (succeeded.attributes.get("error.type"), succeeded.status) == (None, 0)
    assert {failed.parent_id, succeeded.parent_id} == {gateway.request.span_id}
    assert parent_of(first.requests[0].headers)[1] == failed.span_id
    assert parent_of(second.requests[0].headers)[1] == succeeded.span_id
    assert gateway.request.status == 0


@pytest.mark.parametrize(
    ("answer", "kind", "status", "failed"),
    [
        (answers.error("chat", 400, "wrong"), "400", 400, False),
        (answers.error("chat", 500, "down"), "500", 502, True),
        (Raw([Hang()]), "timeout", 504, True),
        (Raw([]), "connection", 502, True),
    ],
    ids=["rejected", "failed", "silent", "closed"],
)
async def test_a_failure_has_the_status_or_the_class_as_its_type(
    answer: Any, kind: str, status: int, failed: bool
) -> None:
    short = "timeout = { first_byte_ms = 150, idle_ms = 150 }"
    async with (
        Upstream(lambda _: answer) as up,
        traced(NO_HEALTH + one_target("chat", up, more=short)) as gateway,
    ):
        received = await gateway.ask()
    assert received.status == status
    assert {span.attributes["error.type"] for span in gateway.children} == {kind}
    assert {span.status for span in gateway.children} == {ERROR}
    request = gateway.request
    assert request.attributes["http.response.status_code"] == status
    assert request.attributes["error.type"] == str(status)
    assert request.status == (ERROR if failed else 0)


async def test_an_empty_answer_that_is_asked_for_again_is_a_failed_attempt() -> None:
    async with Upstream() as up, traced(one_target("chat", up)) as gateway:
        up.queue(answers.text("chat", "", False), counted("chat", False))
        answer = await gateway.ask()
    assert answer.status == 200
    assert [(span.attributes.get("error.type"), span.status) for span in gateway.children] == [
        ("empty_answer", ERROR),
        (None, 0),
    ]
    assert gateway.request.status == 0


async def test_a_stream_that_breaks_is_a_failure_of_both_spans() -> None:
    async with (
        Upstream(lambda _: answers.cut_off("chat", "some text that is cut")) as up,
        traced("[server_tools.empty_reply_continue]\nenabled = false\n" + one_target("chat", up)) as gateway,
    ):
        await gateway.ask(stream=True)
    (attempt,) = gateway.children
    assert (attempt.status, gateway.request.status) == (ERROR, ERROR)
    assert attempt.attributes["error.type"] == gateway.request.attributes["error.type"]
    assert gateway.request.attributes["http.response.status_code"] == 200


async def test_a_client_that_disconnects_cancels_the_attempt() -> None:
    whole = counted("chat", True)
    assert isinstance(whole, Sse)
    cut = Sse(whole.frames[:3], end=Hang())
    async with Upstream(lambda _: cut) as up, traced(one_target("chat", up)) as gateway:
        body = asking.body("chat", "Hello", stream=True)
        stream = await begin(gateway.port, "/v1/chat/completions", body)
        await stream.head()
        await stream.piece()
        await stream.leave()
        await up.requests[0].gone.wait()
    (attempt,) = gateway.children
    assert attempt.attributes["error.type"] == "cancelled"
    assert gateway.request.attributes["http.response.status_code"] == 499


async def test_requests_that_are_refused_have_a_span_too() -> None:
    async with Upstream() as up, traced(one_target("chat", up) + KEYS) as gateway:
        await gateway.ask()
        await call(gateway.port, "/v1/nothing", {}, headers={"authorization": "Bearer k-laptop"})
        await call(gateway.port, "/health/live", b"", method="GET")
    refused, unknown = gateway.collector.spans
    assert (refused.name, refused.attributes["error.type"]) == ("POST /v1/chat/completions", "401")
    assert (unknown.name, unknown.attributes["http.response.status_code"]) == ("POST", 404)
    assert "http.route" not in unknown.attributes


async def test_a_span_holds_neither_text_nor_keys() -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "the secret answer", False)) as up,
        traced(one_target("chat", up), telemetry='headers = { authorization = "Basic c2VjcmV0" }') as gateway,
    ):
        await gateway.ask()
    (export,) = gateway.collector.requests
    for text in (b"Hello", b"secret answer", b"secret-up", b"c2VjcmV0"):
        assert text not in export.body
    assert export.headers["authorization"] == "Basic c2VjcmV0"
    assert (export.method, export.path) == ("POST", "/v1/traces")
