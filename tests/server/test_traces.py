"""Traces of a server process: calls of the gateway itself, logs, metrics, reloads, the drain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.config import loads
from routecodex.server.reload import ConfigSource, stamp
from routecodex.server.serve import Service
from tests.kit import answers, asking
from tests.kit.collector import Collector
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import call
from tests.kit.steps import Hang, Json, Raw, Wait
from tests.kit.traced_gateway import ERROR, SAMPLED, TRACE, parent_of, traced
from tests.kit.upstream import Upstream
from tests.routing.instruction_texts import wire_request

FOUND = {"results": [{"title": "News", "url": "https://news.example/p", "content": "Today."}]}
LACKS_SEARCH = "dialect = { web_search = false }\n"
SEARCH = "[server_tools.web_search]\nenabled = true\n"


def search_call() -> Any:
    return answers.tool_calls("chat", answers.Call("web_search", {"query": "news"}, "call_7"), stream=False)


async def test_a_call_of_a_server_tool_is_a_span_and_the_parent_of_its_own_call() -> None:
    async with Upstream() as up, Upstream(lambda _: Json(200, FOUND)) as search:
        up.queue(search_call(), answers.counted("chat", "Read.", False))
        http = f'[server_tools.web_search.http]\nurl = "http://127.0.0.1:{search.port}/?q={{query}}"\n'
        async with traced(SEARCH + http + one_target("chat", up, more=LACKS_SEARCH)) as gateway:
            await gateway.ask(headers=SAMPLED, web_search_options={})
    first, tool, second = gateway.children
    assert (tool.name, tool.kind, tool.parent_id) == (
        "execute_tool web_search",
        "INTERNAL",
        gateway.request.span_id,
    )
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "web_search",
        "gen_ai.tool.call.id": "call_7",
        "gen_ai.tool.type": "function",
    }
    assert parent_of(search.requests[0].headers) == (TRACE, tool.span_id, "01")
    assert search.requests[0].headers["tracestate"] == SAMPLED["tracestate"]
    assert [span.attributes["routecodex.round"] for span in (first, second)] == [1, 2]
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in (first, second)] == [
        ["tool_calls"],
        ["stop"],
    ]
    assert [parent_of(request.headers)[1] for request in up.requests] == [first.span_id, second.span_id]
    assert gateway.request.attributes["routecodex.rounds"] == 2


@pytest.mark.parametrize("model", [7, None, ["m"]])
async def test_embeddings_without_the_name_of_a_model_have_none(model: Any) -> None:
    answer = {"object": "list", "data": [], "model": model, "usage": {"prompt_tokens": 8, "total_tokens": 8}}
    async with Upstream(lambda _: Json(200, answer)) as up, traced(one_target("chat", up)) as gateway:
        await call(gateway.port, "/v1/embeddings", {"model": "up.m", "input": "hi"})
    (attempt,) = gateway.children
    assert attempt.attributes["gen_ai.usage.input_tokens"] == 8
    assert "gen_ai.response.model" not in attempt.attributes


@pytest.mark.parametrize(
    ("backend", "arguments", "kind"),
    [
        (Json(500, {}), {"query": "news"}, "500"),
        (Raw([]), {"query": "news"}, "connection"),
        (Json(200, b"<html>"), {"query": "news"}, "upstream_unparsable"),
        (Json(200, {}), {"query": "news"}, "upstream_unparsable"),
        (Json(200, FOUND), {}, "bad_arguments"),
        (None, {"query": "news"}, "no_search_provider"),
    ],
    ids=["refused", "closed", "not JSON", "no list", "no query", "no backend"],
)
async def test_a_search_that_fails_is_a_failed_span(backend: Any, arguments: Any, kind: str) -> None:
    async with Upstream() as up, Upstream(lambda _: backend) as search:
        calls = answers.tool_calls("chat", answers.Call("web_search", arguments, "call_7"), stream=False)
        up.queue(calls, answers.text("chat", "Nothing.", False))
        http = f'[server_tools.web_search.http]\nurl = "http://127.0.0.1:{search.port}/?q={{query}}"\n'
        config = SEARCH + (http if backend else "") + one_target("chat", up, more=LACKS_SEARCH)
        async with traced(config) as gateway:
            answer = await gateway.ask(web_search_options={})
    assert answer.status == 200
    tool = gateway.collector.span("execute_tool web_search")
    assert (tool.status, tool.attributes["error.type"]) == (ERROR, kind)
    assert gateway.request.status == 0


async def test_searches_over_the_limit_of_the_client_are_failed_spans() -> None:
    async with Upstream() as up, Upstream(lambda _: Json(200, FOUND)) as search:
        twice = [answers.Call("web_search", {"query": word}, word) for word in ("one", "two")]
        up.queue(
            answers.tool_calls("messages", *twice, stream=False), answers.text("messages", "Read.", False)
        )
        http = f'[server_tools.web_search.http]\nurl = "http://127.0.0.1:{search.port}/?q={{query}}"\n'
        async with traced(SEARCH + http + one_target("messages", up, more=LACKS_SEARCH)) as gateway:
            tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 1}]
            await gateway.ask("messages", tools=tools)
    kinds = {
        span.attributes["gen_ai.tool.call.id"]: span.attributes.get("error.type")
        for span in gateway.children
        if span.kind == "INTERNAL"
    }
    assert kinds == {"one": None, "two": "limit_reached"}


async def test_a_call_that_the_clock_refuses_is_a_failed_span() -> None:
    clock = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n"
    arguments = {"action": "cancel", "items": [], "taskId": "nothing"}
    async with Upstream() as up:
        calls = answers.tool_calls("chat", answers.Call("clock", arguments, "call_7"), stream=False)
        up.queue(calls, answers.text("chat", "No.", False))
        async with traced(clock + one_target("chat", up)) as gateway:
            await gateway.ask(headers={"x-session-id": "s-1"})
    tool = gateway.collector.span("execute_tool clock")
    assert (tool.status, tool.attributes["error.type"]) == (ERROR, "unknown_task")


async def test_a_search_by_another_model_is_an_attempt_below_the_tool() -> None:
    async with Upstream() as up, Upstream() as searcher:
        up.queue(search_call(), answers.text("chat", "Read.", False))
        searcher.queue(answers.counted("responses", "News of today.", False))
        config = (
            "[server]\nport = 0\n"
            + SEARCH
            + provider("up", "chat", up, more=LACKS_SEARCH)
            + provider("finder", "responses", searcher)
            + '[routing]\ndefault = ["up.m"]\nweb_search = ["finder.m"]\n'
        )
        async with traced(config) as gateway:
            await gateway.ask(web_search_options={})
    spans = {span.attributes.get("gen_ai.provider.name", "tool"): span for span in gateway.children}
    assert spans["finder"].parent_id == spans["tool"].span_id
    assert parent_of(searcher.requests[0].headers)[1] == spans["finder"].span_id
    assert spans["finder"].attributes["gen_ai.usage.output_tokens"] > 0
    assert len([span for span in gateway.collector.spans if span.kind == "SERVER"]) == 1


async def test_a_description_of_an_image_is_an_attempt_below_the_request() -> None:
    async with Upstream() as blind, Upstream() as eye:
        blind.queue(answers.text("chat", "Red.", False))
        eye.queue(answers.text("chat", "A red square.", False))
        config = (
            "[server]\nport = 0\n"
            + provider("blind", "chat", blind)
            + "vision = false\n"
            + provider("eye", "chat", eye)
            + '[routing]\ndefault = ["blind.m"]\nvision = ["eye.m"]\n'
        )
        async with traced(config) as gateway:
            body = wire_request("chat", ("image", "which colour?"), model="blind.m", stream=False).body
            await call(gateway.port, "/v1/chat/completions", body, headers=SAMPLED)
    spans = {span.attributes["gen_ai.provider.name"]: span for span in gateway.children}
    assert {span.parent_id for span in spans.values()} == {gateway.request.span_id}
    assert parent_of(eye.requests[0].headers) == (TRACE, spans["eye"].span_id, "01")
    assert parent_of(blind.requests[0].headers) == (TRACE, spans["blind"].span_id, "01")


async def test_embeddings_are_an_operation_of_their_own() -> None:
    counts = {"prompt_tokens": 8, "total_tokens": 8}
    answer = {"object": "list", "data": [], "model": "m-2026-01", "usage": counts}
    async with Upstream(lambda _: Json(200, answer)) as up, traced(one_target("chat", up)) as gateway:
        await call(gateway.port, "/v1/embeddings", {"model": "up.m", "input": "hi"}, headers=SAMPLED)
    (attempt,) = gateway.children
    assert (gateway.request.name, attempt.name) == ("POST /v1/embeddings", "embeddings m")
    assert attempt.attributes["gen_ai.usage.input_tokens"] == 8
    assert attempt.attributes["gen_ai.response.model"] == "m-2026-01"
    assert "gen_ai.request.stream" not in attempt.attributes
    assert parent_of(up.requests[0].headers) == (TRACE, attempt.span_id, "01")


async def test_a_count_of_tokens_is_asked_for_below_the_request() -> None:
    async with (
        Upstream(lambda _: Json(200, {"input_tokens": 3})) as up,
        traced(one_target("messages", up)) as gateway,
    ):
        body = {"model": "up.m", "messages": [{"role": "user", "content": "hi"}]}
        await call(gateway.port, "/v1/messages/count_tokens", body, headers=SAMPLED)
    (request,) = gateway.collector.spans
    assert request.name == "POST /v1/messages/count_tokens"
    assert parent_of(up.requests[0].headers) == (TRACE, request.span_id, "01")


COUNT = {"model": "up.m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("protocol", "path", "body"),
    [
        ("chat", "/v1/embeddings", {"model": "up.m", "input": "hi"}),
        ("messages", "/v1/messages/count_tokens", COUNT),
    ],
)
async def test_without_telemetry_other_endpoints_pass_the_context_on_too(
    protocol: str, path: str, body: Any
) -> None:
    answer = {"object": "list", "data": [], "input_tokens": 3}
    async with (
        Upstream(lambda _: Json(200, answer)) as up,
        serving(one_target(protocol, up)) as gateway,
    ):
        await call(gateway.port, path, body, headers=SAMPLED)
    assert {name: up.requests[0].headers[name] for name in SAMPLED} == SAMPLED


async def test_without_telemetry_calls_of_the_gateway_itself_pass_the_context_on() -> None:
    async with Upstream() as up, Upstream() as finder, Upstream(lambda _: Json(200, FOUND)) as search:
        http = f'[server_tools.web_search.http]\nurl = "http://127.0.0.1:{search.port}/?q={{query}}"\n'
        own = SEARCH + http + one_target("chat", up, more=LACKS_SEARCH)
        other = (
            "[server]\nport = 0\n"
            + SEARCH
            + provider("up", "chat", up, more=LACKS_SEARCH)
            + provider("finder", "responses", finder)
            + '[routing]\ndefault = ["up.m"]\nweb_search = ["finder.m"]\n'
        )
        for config in (own, other):
            up.queue(search_call(), answers.text("chat", "Read.", False))
            finder.queue(answers.text("responses", "News.", False))
            async with serving(config) as gateway:
                body = asking.body("chat", stream=False) | {"web_search_options": {}}
                await call(gateway.port, "/v1/chat/completions", body, headers=SAMPLED)
    sent = [*search.requests, *finder.requests]
    assert len(sent) == 2
    assert [{name: request.headers[name] for name in SAMPLED} for request in sent] == [SAMPLED] * 2


async def test_content_names_an_image_without_its_data() -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "Red.", False)) as up,
        traced(one_target("chat", up), telemetry="content = true\nopeninference = true") as gateway,
    ):
        body = wire_request("chat", ("image", "which colour?"), model="up.m", stream=False).body
        await call(gateway.port, "/v1/chat/completions", body)
    data = msgspec.json.decode(body)["messages"][-1]["content"]
    (url,) = (part["image_url"]["url"] for part in data if part["type"] == "image_url")
    (attempt,) = gateway.children
    assert "image/" in attempt.attributes["gen_ai.input.messages"]
    (export,) = gateway.collector.requests
    assert url.partition("base64,")[2].encode() not in export.body


async def test_content_that_waits_is_bounded_by_its_size() -> None:
    goes_on = asyncio.Event()
    async with (
        Upstream(lambda _: answers.text("chat", "Hi", False)) as up,
        Collector(lambda _: Raw([Wait(goes_on)])) as collector,
        serving(collector.config("content = true") + one_target("chat", up)) as gateway,
    ):
        body = asking.body("chat", "x" * 12_000_000, stream=False)
        for number in range(5):
            await call(gateway.port, "/v1/chat/completions", body)
            if number == 1:
                await collector.received()
        # Two are on their way, and two wait: a third would be more than 32 MB.
        assert (await metrics(gateway.port))["routecodex_telemetry_dropped_total"] == 2.0
        goes_on.set()


@pytest.mark.parametrize("stream", [False, True])
async def test_with_content_the_messages_are_in_the_attempt(stream: bool) -> None:
    async with (
        Upstream(lambda _: answers.text("messages", "Hello back", stream)) as up,
        traced(one_target("messages", up), telemetry="content = true") as gateway,
    ):
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
        await gateway.ask(stream=stream, messages=messages)
    (attempt,) = gateway.children
    found = {
        name: msgspec.json.decode(attempt.attributes[f"gen_ai.{name}"])
        for name in ("input.messages", "output.messages", "system_instructions")
    }
    assert found == {
        "input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}],
        "output.messages": [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": "Hello back"}],
                "finish_reason": "stop",
            }
        ],
        "system_instructions": [{"type": "text", "content": "Be kind."}],
    }
    assert "gen_ai.input.messages" not in gateway.request.attributes


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ["chat", "responses", "messages", "gemini"])
async def test_the_content_of_a_relayed_answer_is_read_too(protocol: str, stream: bool) -> None:
    weather = answers.tool_call(protocol, "get_weather", {"city": "Paris"}, stream=stream)
    async with (
        Upstream(lambda _: weather) as up,
        traced(one_target(protocol, up), telemetry="content = true") as gateway,
    ):
        body = asking.body(protocol, stream=stream, tools=True)
        answer = await call(gateway.port, asking.path(protocol, stream=stream), body)
    asking.check(protocol, answer, stream=stream)
    (message,) = msgspec.json.decode(gateway.children[0].attributes["gen_ai.output.messages"])
    (called,) = [part for part in message["parts"] if part["type"] == "tool_call"]
    assert (called["name"], called["arguments"]) == ("get_weather", {"city": "Paris"})


async def test_the_content_of_every_round_is_that_of_its_own_request() -> None:
    async with Upstream() as up, Upstream(lambda _: Json(200, FOUND)) as search:
        up.queue(search_call(), answers.text("chat", "Read.", False))
        http = f'[server_tools.web_search.http]\nurl = "http://127.0.0.1:{search.port}/?q={{query}}"\n'
        config = SEARCH + http + one_target("chat", up, more=LACKS_SEARCH)
        async with traced(config, telemetry="content = true") as gateway:
            await gateway.ask(web_search_options={})
    first, second = (span for span in gateway.children if span.kind == "CLIENT")
    sent = msgspec.json.decode(second.attributes["gen_ai.input.messages"])
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert "tool_call" in first.attributes["gen_ai.output.messages"]
    assert "Read." in second.attributes["gen_ai.output.messages"]


async def test_with_content_a_call_of_the_gateway_itself_has_its_messages() -> None:
    async with Upstream() as up, Upstream() as searcher:
        up.queue(search_call(), answers.text("chat", "Read.", False))
        searcher.queue(answers.text("responses", "News of today.", False))
        config = (
            "[server]\nport = 0\n"
            + SEARCH
            + provider("up", "chat", up, more=LACKS_SEARCH)
            + provider("finder", "responses", searcher)
            + '[routing]\ndefault = ["up.m"]\nweb_search = ["finder.m"]\n'
        )
        async with traced(config, telemetry="content = true") as gateway:
            await gateway.ask(web_search_options={})
    (finder,) = (span for span in gateway.children if span.attributes.get("gen_ai.provider.name") == "finder")
    assert "news" in finder.attributes["gen_ai.input.messages"]
    assert "News of today." in finder.attributes["gen_ai.output.messages"]


async def test_the_demo_provider_has_spans_and_content_like_any_other() -> None:
    config = (
        '[server]\nport = 0\n[providers.demo]\nprotocol = "demo"\nmodels = { demo = {} }\n'
        '[routing]\ndefault = ["demo.demo"]\n'
    )
    async with traced(config, telemetry="content = true") as gateway:
        await gateway.ask(model="any", stream=True)
    (attempt,) = gateway.children
    assert attempt.attributes["gen_ai.provider.name"] == "demo"
    assert "assistant" in attempt.attributes["gen_ai.output.messages"]
    assert "server.address" not in attempt.attributes


async def test_openinference_names_stand_beside_the_others() -> None:
    async with (
        Upstream(lambda _: answers.counted("chat", "Hi", False)) as up,
        traced(one_target("chat", up), telemetry="openinference = true\ncontent = true") as gateway,
    ):
        await gateway.ask(temperature=0.5)
    (attempt,) = gateway.children
    found = attempt.attributes
    assert found["openinference.span.kind"] == "LLM"
    assert gateway.request.attributes["openinference.span.kind"] == "CHAIN"
    assert found["llm.model_name"] == found["gen_ai.response.model"]
    assert found["llm.token_count.prompt"] == found["gen_ai.usage.input_tokens"]
    assert found["llm.token_count.total"] == sum(
        found[f"gen_ai.usage.{kind}_tokens"] for kind in ("input", "output")
    )
    assert msgspec.json.decode(found["llm.invocation_parameters"]) == {"temperature": 0.5}
    assert found["llm.input_messages.0.message.role"] == "user"
    assert found["llm.output_messages.0.message.content"] == "Hi"


async def test_the_log_line_has_the_id_of_the_trace(tmp_path: Path) -> None:
    async with Collector() as collector, Upstream(lambda _: answers.text("chat", "Hi", False)) as up:
        text = collector.config() + one_target("chat", up) + '[store]\nurl = "memory:"\n'
        service = Service(loads(text, environ={}), home=tmp_path)
        _, port = await service.start()
        sent = {**SAMPLED, "x-request-id": "mine"}
        answer = await call(port, "/v1/chat/completions", asking.body("chat", stream=False), headers=sent)
        await call(port, "/v1/chat/completions", {"model": 1}, headers=SAMPLED)
        await service.stop()
    (log,) = tmp_path.rglob("requests.jsonl")
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    assert [(line["status"], line["trace_id"]) for line in lines] == [(200, TRACE), (400, TRACE)]
    assert lines[0]["request"] == answer.headers["x-request-id"]
    assert lines[0]["client_request_id"] == "mine"


async def metrics(port: int) -> dict[str, float]:
    text = (await call(port, "/metrics", method="GET")).body.decode()
    rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith("routecodex_telemetry_"))
    return {name.partition("{")[0]: float(value) for name, _, value in rows if "_created" not in name}


async def test_metrics_stand_from_the_start_and_count_spans() -> None:
    zero = {"routecodex_telemetry_exported_total": 0.0, "routecodex_telemetry_dropped_total": 0.0}
    async with Collector() as collector, Upstream(lambda _: answers.text("chat", "Hi", False)) as up:
        async with serving(one_target("chat", up)) as gateway:
            assert await metrics(gateway.port) == zero
        async with serving(collector.config("batch_ms = 1") + one_target("chat", up)) as gateway:
            assert await metrics(gateway.port) == zero
            await call(gateway.port, "/v1/chat/completions", asking.body("chat", stream=False))
            await (await collector.received()).answered.wait()
            while (await metrics(gateway.port))["routecodex_telemetry_exported_total"] != 2.0:
                pass
            assert (await metrics(gateway.port))["routecodex_telemetry_dropped_total"] == 0.0


async def test_a_reload_turns_traces_on_and_off(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    async with Collector() as collector, Upstream(lambda _: answers.text("chat", "Hi", False)) as up:
        plain = one_target("chat", up).replace("port = 0", "port = 0\n") + '[store]\nurl = "memory:"\n'
        file.write_text(plain)
        config = loads(plain, environ={})

        def load() -> Any:
            return loads(file.read_text(), environ={}), []

        source = ConfigSource(path=file, load=load, config=config, stamp=stamp(file))
        service = Service(config, source=source)
        _, port = await service.start()
        assert service.reloader is not None
        for text in (plain, plain + collector.config(), plain):
            file.write_text(text)
            assert (await service.reloader.reload()).reloaded
            await call(port, "/v1/chat/completions", asking.body("chat", stream=False))
        await service.stop()
    assert ["traceparent" in request.headers for request in up.requests] == [False, True, False]


async def test_a_collector_that_hangs_delays_the_end_by_two_seconds_at_most() -> None:
    async with (
        Collector(lambda _: Raw([Hang()])) as collector,
        Upstream(lambda _: answers.text("chat", "Hi", False)) as up,
    ):
        service = Service(loads(collector.config() + one_target("chat", up), environ={}))
        _, port = await service.start()
        await call(port, "/v1/chat/completions", asking.body("chat", stream=False))
        assert await service.stop()
        assert len(collector.requests) == 1
