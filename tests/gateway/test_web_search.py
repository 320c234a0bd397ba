"""web_search over HTTP: the gateway runs a search that the client declared and the upstream lacks."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from routecodex.canon.parts import Text
from routecodex.gateway.internal.search_backends import may_declare
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.server_tools.web_search import NO_PROVIDER
from tests.gateway.instruction_gateway import answer_text
from tests.gateway.test_matrix import decode_answer
from tests.kit import answers, asking
from tests.kit.gateway import Running, one_target, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream
from tests.server_tools.test_web_search import DECLARED

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PAIRS = [
    pytest.param(*pair, id=f"{pair[0]}-to-{pair[1]}-{'stream' if pair[2] else 'whole'}")
    for pair in itertools.product(PROTOCOLS, PROTOCOLS, (False, True))
]
HOSTED: dict[str, dict[str, Any]] = {
    "chat": {"web_search_options": {}},
    "responses": {"tools": [{"type": "web_search"}]},
    "messages": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "gemini": {"tools": [{"googleSearch": {}}]},
}
NONE = "dialect = { web_search = false }\n"
ON = "[server_tools.web_search]\nenabled = true\n"
OFF = "[server_tools.web_search]\nenabled = false\n"
FOUND = {
    "query": "x",
    "results": [
        {"title": "Python 3.15 is out", "url": "https://python.example/315", "content": "Released\n today."},
        {"title": "No address", "content": "is no result"},
        {"title": "Elsewhere", "url": "https://news.example/p", "content": "The same."},
    ],
}
SEARCH_RESULT = (
    "Web search results for 'newest python':\n\n"
    "[1] Python 3.15 is out\nhttps://python.example/315\nReleased today.\n\n"
    "[2] Elsewhere\nhttps://news.example/p\nThe same.\n\n"
    "Use these results and cite each source you rely on as a Markdown link: [title](address)."
)
ANSWER = "It is [3.15](https://python.example/315)."


def searching(search: Upstream, more: str = "") -> str:
    url = f"http://127.0.0.1:{search.port}/search?q={{query}}&format=json"
    return f'{ON}{more}[server_tools.web_search.http]\nurl = "{url}"\n'


async def send(gateway: Running, protocol: str, *, stream: bool = False, **fields: Any) -> Answer:
    body = asking.body(protocol, "what is new?", stream=stream) | (fields or HOSTED[protocol])
    return await call(gateway.port, asking.path(protocol, stream=stream), body)


def calls(protocol: str, stream: bool, *queries: str, name: str = "web_search") -> Json | Sse:
    search_calls = (answers.Call(name, {"query": query}, f"call_{at}") for at, query in enumerate(queries))
    return answers.tool_calls(protocol, *search_calls, stream=stream)


def text_in(request: Request) -> str:
    """Return every string of the body, without JSON escapes."""
    return "\n".join(_strings(request.json))


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in _strings(one)]


@pytest.mark.parametrize(("client", "upstream", "stream"), PAIRS)
async def test_a_declared_search_is_run_by_the_gateway(client: str, upstream: str, stream: bool) -> None:
    async with Upstream() as up, Upstream(lambda request: Json(200, FOUND)) as search:
        up.queue(calls(upstream, stream, "newest python"), answers.text(upstream, ANSWER, stream))
        async with serving(searching(search) + one_target(upstream, up, more=NONE)) as gateway:
            answer = await send(gateway, client, stream=stream)
    asking.check(client, answer, stream=stream)
    assert decode_answer(client, answer, stream=stream).parts == (Text(ANSWER),)
    (searched,) = search.requests
    assert parse_qs(urlsplit(searched.path).query) == {"q": ["newest python"], "format": ["json"]}
    first, second = up.requests
    assert "What to look for." in text_in(first)
    assert SEARCH_RESULT in text_in(second)
    assert "x-routecodex-notice" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_without_a_search_provider_model_and_client_get_a_notice(client: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(calls("chat", stream, "newest python"), answers.text("chat", "I cannot search.", stream))
        async with serving(one_target("chat", up, more=NONE)) as gateway:
            answer = await send(gateway, client, stream=stream)
    asking.check(client, answer, stream=stream)
    assert answer_text(client, answer, stream=stream) == "I cannot search."
    assert NO_PROVIDER in text_in(up.requests[1])
    assert (
        "web search requested, but no search provider is configured"
        in (answer.headers["x-routecodex-notice"])
    )


@pytest.mark.parametrize("protocol", ["responses", "messages", "gemini"])
async def test_an_upstream_that_searches_by_itself_is_left_alone(protocol: str) -> None:
    async with Upstream() as up, Upstream() as search:
        up.queue(answers.text(protocol, ANSWER, False))
        async with serving(searching(search) + one_target(protocol, up)) as gateway:
            answer = await send(gateway, protocol)
    assert answer_text(protocol, answer, stream=False) == ANSWER
    assert up.requests[0].json["tools"] == HOSTED[protocol]["tools"]
    assert search.requests == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_a_client_declares_for_an_upstream_of_its_protocol_arrives_byte_for_byte(
    protocol: str,
) -> None:
    body = (
        asking.body(protocol, "what is new?", stream=False) | HOSTED[protocol] | {"odd  field": [1.5, None]}
    )
    sent = msgspec.json.format(msgspec.json.encode(body), indent=3)
    async with Upstream() as up:
        up.queue(answers.text(protocol, ANSWER, False))
        async with serving(one_target(protocol, up)) as gateway:
            answer = await call(gateway.port, asking.path(protocol, stream=False), sent)
    assert answer_text(protocol, answer, stream=False) == ANSWER
    assert up.requests[0].body == sent.replace(b'"up.m"', b'"m"')
    assert "x-routecodex-notice" not in answer.headers


def read(protocol: str, **fields: Any) -> WireRequest:
    body = msgspec.json.encode(asking.body(protocol, "web_search, googleSearch", stream=False) | fields)
    named = {"model": "m", "stream": False} if protocol == "gemini" else {}
    return CODECS[protocol].validate(body, **named)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ordinary_client_tools_do_not_declare_a_search(protocol: str) -> None:
    own = asking.body(protocol, stream=False, tools=True)["tools"]
    assert not may_declare(read(protocol, tools=own))
    assert not may_declare(read(protocol))


@pytest.mark.parametrize(("protocol", "fields", "expected"), DECLARED)
def test_every_declared_search_is_detected(protocol: str, fields: dict[str, Any], expected: bool) -> None:
    assert may_declare(read(protocol, **fields)) or not expected


SUB_REQUEST = {
    "model": "up.m",
    "max_tokens": 4096,
    "stream": True,
    "system": [{"type": "text", "text": "You are an assistant for performing a web search tool use"}],
    "messages": [{"role": "user", "content": "Perform a web search for the query: newest python"}],
    "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    "tool_choice": {"type": "tool", "name": "web_search"},
}
"""The request of Claude Code when its model calls the tool WebSearch."""


@pytest.mark.parametrize("found", [True, False], ids=["with a provider", "with none"])
async def test_the_search_of_claude_code_is_answered_on_a_chat_upstream(found: bool) -> None:
    async with Upstream() as up, Upstream(lambda request: Json(200, FOUND)) as search:
        up.queue(calls("chat", True, "newest python"), answers.text("chat", ANSWER, True))
        more = searching(search) if found else ""
        async with serving(more + one_target("chat", up)) as gateway:
            answer = await call(gateway.port, "/v1/messages", SUB_REQUEST)
    asking.check("messages", answer, stream=True)
    assert decode_answer("messages", answer, stream=True).parts == (Text(ANSWER),)
    assert len(search.requests) == int(found)
    forced, free = (request.json["tool_choice"] for request in up.requests)
    assert forced == {"type": "function", "function": {"name": "web_search"}}
    assert free == "auto"
    assert (SEARCH_RESULT if found else NO_PROVIDER) in text_in(up.requests[1])


async def test_a_responses_upstream_runs_what_another_protocol_declared() -> None:
    async with Upstream() as up, Upstream() as search:
        up.queue(answers.text("responses", ANSWER, False))
        async with serving(searching(search) + one_target("responses", up)) as gateway:
            await send(gateway, "messages")
    assert up.requests[0].json["tools"] == [{"type": "web_search"}]


async def test_a_declared_search_is_dropped_with_a_notice_when_disabled() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "hm", False))
        async with serving(OFF + one_target("chat", up)) as gateway:
            answer = await send(gateway, "messages")
    assert "tools" not in up.requests[0].json
    assert "dropped tool web_search" in answer.headers["x-routecodex-notice"]


async def test_a_request_without_a_search_passes_unchanged() -> None:
    async with Upstream() as up, Upstream() as search:
        up.queue(answers.text("chat", "hm", False))
        async with serving(searching(search) + one_target("chat", up)) as gateway:
            await send(gateway, "chat", odd_field=["web_search"])
    assert up.requests[0].json["odd_field"] == ["web_search"]
    assert "tools" not in up.requests[0].json


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["responses", "messages", "gemini", "chat"])
async def test_a_model_of_the_search_route_searches_for_one_that_cannot(kind: str, stream: bool) -> None:
    async with Upstream() as up, Upstream() as native:
        up.queue(calls("chat", stream, "newest python"), answers.text("chat", ANSWER, stream))
        native.queue(_cited(kind))
        text = (
            ON
            + "[server]\nport = 0\n"
            + provider("up", "chat", up)
            + provider("native", kind, native, more="dialect = { web_search = true }\n")
            + '[routing]\ndefault = ["up.m"]\nweb_search = ["up.m", "native.m"]\n'
        )
        async with serving(text) as gateway:
            answer = await send(gateway, "messages", stream=stream)
    asking.check("messages", answer, stream=stream)
    assert answer_text("messages", answer, stream=stream) == ANSWER
    (received,) = native.requests
    declared = HOSTED[kind]
    assert {name: received.json[name] for name in declared} == declared
    assert "newest python" in text_in(received)
    text = text_in(up.requests[1])
    assert "A web search for 'newest python' gave:\n\nPython 3.15 came out." in text
    assert "[1] What is new\nhttps://python.example/315" in text


def _cited(kind: str) -> Json:
    """Return an answer with a citation in the form of each provider."""
    whole = answers.text(kind, "Python 3.15 came out.", False)
    assert isinstance(whole, Json)
    body: Any = msgspec.json.decode(msgspec.json.encode(whole.body))
    cited: dict[str, Any] = {"url": "https://python.example/315", "title": "What is new"}
    mark: dict[str, Any]
    match kind:
        case "chat":
            mark = {"type": "url_citation", "url_citation": {**cited, "start_index": 0, "end_index": 6}}
            body["choices"][0]["message"]["annotations"] = [mark]
        case "responses":
            mark = {"type": "url_citation", **cited, "start_index": 0, "end_index": 6}
            body["output"][0]["content"][0]["annotations"] = [mark]
        case "messages":
            mark = {"type": "web_search_result_location", **cited, "encrypted_index": "x", "cited_text": "P"}
            body["content"][0]["citations"] = [mark]
        case _:
            chunk = {"web": {"uri": cited["url"], "title": cited["title"]}}
            support = {"segment": {"startIndex": 0, "endIndex": 6}, "groundingChunkIndices": [0]}
            body["candidates"][0]["groundingMetadata"] = {
                "groundingChunks": [chunk],
                "groundingSupports": [support],
            }
    return Json(200, body)


async def test_a_failed_search_provider_is_an_error_result() -> None:
    async with Upstream() as up, Upstream(lambda request: Json(403, {"error": "no"})) as search:
        up.queue(calls("chat", False, "newest python"), answers.text("chat", "sorry", False))
        async with serving(searching(search) + one_target("chat", up)) as gateway:
            answer = await send(gateway, "chat")
    assert answer.status == 200
    assert "THE WEB SEARCH FAILED: the search provider answered HTTP 403." in text_in(up.requests[1])
    assert "web search failed: the search provider answered HTTP 403" in answer.headers["x-routecodex-notice"]


async def test_a_search_api_with_post_gets_its_key_and_returns_its_own_fields() -> None:
    found = {"web": {"hits": [{"name": "T", "at": {"href": "https://a.example/"}, "snippet": "S"}]}}
    async with Upstream() as up, Upstream(lambda request: Json(200, found)) as search:
        up.queue(calls("chat", False, 'say "hi" {key}'), answers.text("chat", "ok", False))
        table = (
            f'{ON}[server_tools.web_search.http]\nurl = "http://127.0.0.1:{search.port}/v1"\n'
            'key = "${KEY}"\n'
            'body = \'{"q": "{query}"}\'\n'
            'results = "web.hits"\ntitle = "name"\nlink = "at.href"\ntext = "snippet"\n'
            'headers = { authorization = "Bearer {key}" }\n'
        )
        async with serving(table + one_target("chat", up), environ={"KEY": "s3cret-key"}) as gateway:
            await send(gateway, "chat")
    (searched,) = search.requests
    assert (searched.method, searched.path) == ("POST", "/v1")
    assert searched.headers["authorization"] == "Bearer s3cret-key"
    assert searched.json == {"q": 'say "hi" {key}'}
    assert "[1] T\nhttps://a.example/\nS" in text_in(up.requests[1])


async def test_blocked_domains_and_max_uses_of_the_client_are_applied() -> None:
    tool = {
        "type": "web_search_20250305",
        "name": "web_search",
        "max_uses": 1,
        "blocked_domains": ["news.example"],
    }
    async with Upstream() as up, Upstream(lambda request: Json(200, FOUND)) as search:
        up.queue(calls("chat", False, "one"), calls("chat", False, "two"), answers.text("chat", "ok", False))
        async with serving(searching(search) + one_target("chat", up)) as gateway:
            await send(gateway, "messages", tools=[tool])
    assert len(search.requests) == 1
    assert "https://python.example/315" in text_in(up.requests[1])
    assert "https://news.example/p" not in text_in(up.requests[1])
    assert "No more searches: 1 are allowed in one answer." in text_in(up.requests[2])
    assert ["tools" in request.json for request in up.requests] == [True, True, False]


async def test_a_search_that_was_forced_is_forced_once() -> None:
    async with Upstream() as up, Upstream(lambda request: Json(200, FOUND)) as search:
        up.queue(calls("chat", False, "one"), answers.text("chat", "ok", False))
        async with serving(searching(search) + one_target("chat", up)) as gateway:
            choice = {"type": "tool", "name": "web_search"}
            await send(gateway, "messages", tools=HOSTED["messages"]["tools"], tool_choice=choice)
    first, second = (request.json["tool_choice"] for request in up.requests)
    assert first == {"type": "function", "function": {"name": "web_search"}}
    assert second == "auto"


async def test_a_tool_of_the_client_by_that_name_stays_its_own() -> None:
    own = {"name": "web_search", "description": "mine", "input_schema": {"type": "object"}}
    hosted = {"type": "web_search_20250305", "name": "web_search_hosted"}
    async with Upstream() as up, Upstream() as search:
        up.queue(calls("chat", False, "one"))
        async with serving(searching(search) + one_target("chat", up)) as gateway:
            answer = await send(gateway, "messages", tools=[own, hosted])
    offered = [tool["function"]["name"] for tool in up.requests[0].json["tools"]]
    assert offered == ["web_search", "routecodex_web_search"]
    assert answer.json["stop_reason"] == "tool_use"
    assert search.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_a_search_beside_a_client_call_is_run_and_hidden(client: str, stream: bool) -> None:
    tools = [*asking.body(client, stream=False, tools=True)["tools"], *HOSTED[client].get("tools", ())]
    fields = {**HOSTED[client], "tools": tools}
    async with Upstream() as up, Upstream(lambda request: Json(200, FOUND)) as search:
        up.queue(
            answers.tool_calls(
                "chat",
                answers.Call("web_search", {"query": "newest python"}, "s1"),
                answers.Call("get_weather", {"city": "Paris"}, "w1"),
                stream=stream,
            )
        )
        async with serving(searching(search) + one_target("chat", up)) as gateway:
            answer = await send(gateway, client, stream=stream, **fields)
    assert answer.status == 200
    assert [part.name for part in decode_answer(client, answer, stream=stream).parts] == [  # type: ignore[union-attr]  # calls alone
        "get_weather"
    ]
    assert len(search.requests) == 1
