"""Bad input: a 4xx in the protocol's own envelope that names the field; the process is unharmed."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routecodex.canon.errors import ClientError
from routecodex.protocols import grammar
from routecodex.protocols.codecs import CODECS
from tests.kit import answers, asking
from tests.kit.gateway import Running, one_target, serving
from tests.kit.raw_client import call
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")


@dataclass
class GatewayAndUpstream:
    gateway: Running
    upstream: Upstream


@pytest.fixture
async def gateway_and_upstream() -> AsyncIterator[GatewayAndUpstream]:
    async with Upstream() as up:
        up.answer_with(lambda request: answers.text("chat", "still here", False))
        async with serving(one_target("chat", up)) as gateway:
            yield GatewayAndUpstream(gateway, up)


async def refused(
    gateway_and_upstream: GatewayAndUpstream, protocol: str, body: Any, *, status: int = 400
) -> str:
    """Check that a request is refused before the upstream and the next one works; return the message."""
    answer = await call(gateway_and_upstream.gateway.port, asking.path(protocol, stream=False), body)
    assert answer.status == status, answer.body[:300]
    assert gateway_and_upstream.upstream.requests == []
    grammar.check_error(protocol, answer.status, answer.body)
    fine = await call(
        gateway_and_upstream.gateway.port,
        asking.path(protocol, stream=False),
        asking.body(protocol, stream=False),
    )
    assert fine.status == 200
    gateway_and_upstream.upstream.requests.clear()
    return str(answer.json["error"]["message"])


UNREADABLE = {
    "empty": b"",
    "no-json": b"hello",
    "half": b'{"model": "up.m", "messages": [',
    "array": b"[]",
    "number": b"7",
    "nan": b'{"model": NaN}',
    "broken-utf8": b'{"model": "\xff\xfe"}',
    "lone-surrogate": b'{"model": "up.m", "x": "\\ud800"}',
    "deep-arrays": b'{"model": "up.m", "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep-objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "nul": b"\x00",
    "trailing": b"{} {}",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_body_that_is_not_a_request_is_refused(
    gateway_and_upstream: GatewayAndUpstream, protocol: str, body: bytes
) -> None:
    assert await refused(gateway_and_upstream, protocol, body)


async def test_a_body_past_the_limit_is_refused_before_it_is_read(
    gateway_and_upstream: GatewayAndUpstream,
) -> None:
    huge = b'{"model":"up.m","messages":[{"role":"user","content":"' + b"x" * (50 * 1024 * 1024) + b'"}]}'
    for protocol in PROTOCOLS:
        await refused(gateway_and_upstream, protocol, huge, status=413)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_broken_utf8_is_refused_in_every_field(
    gateway_and_upstream: GatewayAndUpstream, protocol: str
) -> None:
    """In the text, in a tool's schema or in an unknown field: it does not reach a provider."""
    whole = msgspec.json.encode({**RICH[protocol], "unknown_field": {"deep": ["marked"]}})
    for place in (b'"t"', b'"object"', b'"marked"'):
        assert place in whole
        message = await refused(
            gateway_and_upstream, protocol, whole.replace(place, place[:-1] + b'\xe2\x82"', 1)
        )
        assert "UTF-8" in message


async def test_nul_bytes_in_text_are_passed_on(gateway_and_upstream: GatewayAndUpstream) -> None:
    body = asking.body("messages", "a\x00b", stream=False)
    answer = await call(gateway_and_upstream.gateway.port, "/v1/messages", body)
    assert answer.status == 200
    assert gateway_and_upstream.upstream.requests[0].json["messages"][0]["content"] == "a\x00b"


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
FIELDS: list[tuple[str, str, Any, str]] = [
    ("chat", "model", None, "model"),
    ("chat", "model", "", "model"),
    ("chat", "model", 5, "model"),
    ("chat", "messages", [], "messages"),
    ("chat", "messages", "hi", "messages"),
    ("chat", "messages", [{"role": "wizard", "content": "x"}], "messages[0].role"),
    ("chat", "messages", [{"content": "x"}], "messages[0].role"),
    ("chat", "messages", [{"role": "user", "content": 5}], "messages[0].content"),
    ("chat", "messages", [{"role": "user", "content": [{"text": "x"}]}], "messages[0].content"),
    (
        "chat",
        "messages",
        [{"role": "tool", "tool_call_id": "c1", "content": "x"}],
        "messages[0].tool_call_id",
    ),
    ("chat", "messages", [{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ("chat", "messages", [{"role": "assistant", "tool_calls": [CALL, CALL]}], "messages[0].tool_calls[1].id"),
    ("chat", "temperature", "hot", "temperature"),
    ("chat", "max_tokens", 1.5, "max_tokens"),
    ("chat", "stream", "yes", "stream"),
    ("chat", "tools", [{"type": "function"}], "tools[0].function"),
    ("chat", "tools", {}, "tools"),
    ("chat", "stop", [1], "stop"),
    ("chat", "n", 0, "n"),
    ("messages", "max_tokens", None, "max_tokens"),
    ("messages", "max_tokens", "many", "max_tokens"),
    ("messages", "messages", [{"role": "system?", "content": "x"}], "messages[0].role"),
    (
        "messages",
        "messages",
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c9"}]}],
        "messages[0]",
    ),
    ("messages", "messages", [{"role": "assistant", "content": [USE, USE]}], "messages[0].content[1]"),
    ("messages", "system", 5, "system"),
    ("messages", "tools", [{"name": 5}], "tools[0].name"),
    ("messages", "thinking", "hard", "thinking"),
    ("responses", "input", 5, "input"),
    ("responses", "input", [{"type": "message", "role": "ghost", "content": "x"}], "input[0].role"),
    ("responses", "input", [{"type": "function_call_output", "call_id": "c9", "output": "x"}], "input[0]"),
    ("responses", "tools", [{"type": "function", "name": 5}], "tools[0].name"),
    ("responses", "instructions", {}, "instructions"),
    ("responses", "max_output_tokens", "x", "max_output_tokens"),
    ("gemini", "contents", "hi", "contents"),
    ("gemini", "contents", [], "contents"),
    ("gemini", "contents", [{"role": "ghost", "parts": [{"text": "x"}]}], "contents[0].role"),
    ("gemini", "contents", [{"role": "user", "parts": [{"text": 5}]}], "contents[0].parts[0].text"),
    ("gemini", "generationConfig", {"temperature": "hot"}, "generationConfig.temperature"),
    ("gemini", "tools", "all", "tools"),
]


@pytest.mark.parametrize(
    ("protocol", "field", "value", "named"),
    FIELDS,
    ids=[f"{row[0]}-{row[3]}-{i}" for i, row in enumerate(FIELDS)],
)
async def test_a_wrong_field_is_named(
    gateway_and_upstream: GatewayAndUpstream, protocol: str, field: str, value: Any, named: str
) -> None:
    body = asking.body(protocol, stream=False)
    if value is None:
        body.pop(field)
    else:
        body[field] = value
    message = await refused(gateway_and_upstream, protocol, body)
    assert message.startswith(named), message


async def test_too_many_messages_are_refused() -> None:
    async with Upstream() as up, serving(one_target("chat", up, server="max_messages = 3")) as gateway:
        messages = [{"role": "user", "content": "x"}] * 4
        answer = await call(gateway.port, "/v1/chat/completions", {"model": "up.m", "messages": messages})
    assert answer.status == 413
    assert answer.json["error"]["param"] == "messages"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/", 405),
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/messages", 405),
        ("GET", "/v1/models/none.such", 404),
        ("GET", "/v1/responses/../../etc/passwd", 404),
        ("GET", "/v1/responses/..%2f..%2fetc%2fpasswd", 404),
    ],
)
async def test_a_wrong_path_or_method_is_a_clear_error(
    gateway_and_upstream: GatewayAndUpstream, method: str, path: str, status: int
) -> None:
    answer = await call(gateway_and_upstream.gateway.port, path, method=method)
    assert answer.status == status
    assert answer.json["error"]["message"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


RICH: dict[str, Any] = {
    "chat": {
        "model": "up.m",
        "messages": [
            {"role": "system", "content": "s"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "t"},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "stop": ["a"],
        "max_tokens": 10,
        "temperature": 0.5,
    },
    "messages": {
        "model": "up.m",
        "max_tokens": 10,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "t"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"},
                    },
                ],
            },
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "h", "signature": "s"}, USE]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "r"}]}
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "metadata": {"user_id": "u"},
    },
    "responses": {
        "model": "up.m",
        "instructions": "i",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "h"}],
                "encrypted_content": "e",
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "r"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
    },
    "gemini": {
        "contents": [
            {
                "role": "user",
                "parts": [{"text": "t"}, {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}],
            },
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"id": "c1", "name": "f", "args": {}}, "thoughtSignature": "c2ln"}
                ],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"id": "c1", "name": "f", "response": {"r": 1}}}],
            },
        ],
        "systemInstruction": {"parts": [{"text": "s"}]},
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "object"}}]}],
        "generationConfig": {"temperature": 0.5, "thinkingConfig": {"thinkingBudget": 100}},
    },
}
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
    st.just([[]]),
    st.just([None]),
    st.just({"type": "text"}),
    st.just("x\x00y"),
)


@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("client", PROTOCOLS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_in_any_place_is_either_accepted_or_refused(
    client: str, upstream: str, data: st.DataObject
) -> None:
    """A wrong value anywhere is a ClientError or passes: never another exception or broken JSON."""
    from routecodex.protocols.codec import EncodeOptions

    body = copy.deepcopy(RICH[client])
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(sorted(places(body), key=repr)))
        if not place:
            continue
        inner = body
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = copy.deepcopy(data.draw(ODD))
    options = EncodeOptions(model="m", provider="up", max_output_tokens=4096)
    try:
        wire = CODECS[client].validate(
            msgspec.json.encode(body), **({"model": "up.m", "stream": False} if client == "gemini" else {})
        )
        request = CODECS[client].decode_request(wire)
        msgspec.json.decode(CODECS[upstream].encode_request(request, options).body)
        msgspec.json.decode(CODECS[client].rewrite(wire, options).body)
    except ClientError as error:
        status, envelope = CODECS[client].encode_error(error)
        assert 400 <= status < 500
        assert envelope["error"]["message"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=150)
@given(body=st.binary(max_size=200))
def test_any_bytes_are_refused_as_a_client_error(protocol: str, body: bytes) -> None:
    with pytest.raises(ClientError):
        CODECS[protocol].validate(body, **({"model": "m", "stream": False} if protocol == "gemini" else {}))
