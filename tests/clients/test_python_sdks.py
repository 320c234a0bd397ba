"""The official Python SDKs hold whole conversations with every kind of upstream."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.gateway import UPSTREAM_KEY, Gateway
from tests.clients.model import CITED, CITING, REASONING, SIGNATURE
from tests.clients.python.conversation import (
    FINISH_REASONS,
    IMAGE_URL,
    PARAMETERS,
    PDF,
    PNG,
    SYSTEM,
    ReceivedCall,
    Weather,
)
from tests.clients.python.sdk_modes import SDK_MODES, SdkMode
from tests.clients.python.sdks import Sdks
from tests.kit.answers import PROTOCOLS

MODELS = {protocol: f"up_{protocol}.model-x" for protocol in PROTOCOLS}
sdk_modes = pytest.mark.parametrize(
    "sdk_mode", [pytest.param(sdk_mode, id=name) for name, sdk_mode in SDK_MODES.items()]
)
upstreams = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
everything = pytest.mark.parametrize(
    "model",
    [pytest.param(model, id=f"to-{name}") for name, model in {**MODELS, "demo": "demo.demo-1"}.items()],
)


def in_pieces(sdk_mode: SdkMode, pieces: int) -> bool:
    return pieces > 1 if sdk_mode.streams else pieces == 0


@everything
@sdk_modes
def test_text_is_answered(gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, model: str) -> None:
    reply = sdk_mode.start(sdks, gateway, model).send("hello there, gateway")
    assert "You said:" in reply.text
    assert "hello there, gateway" in reply.text
    assert reply.calls == []
    assert reply.end == FINISH_REASONS[sdk_mode.protocol]["stop"]
    assert in_pieces(sdk_mode, reply.pieces)


@everything
@sdk_modes
def test_a_tool_loop_ends_with_the_result_quoted(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, model: str
) -> None:
    conversation = sdk_mode.start(sdks, gateway, model, tools=True)
    first = conversation.send("please look_up the sky over Paris")
    assert [call.name for call in first.calls] == ["look_up"]
    assert first.calls[0].arguments.keys() == {"city"}
    assert first.end == FINISH_REASONS[sdk_mode.protocol]["tools"]
    done = conversation.send_results("a sunny 21 degrees")
    assert "a sunny 21 degrees" in done.text
    assert done.calls == []
    assert done.end == FINISH_REASONS[sdk_mode.protocol]["stop"]


@upstreams
@sdk_modes
def test_two_calls_get_two_results_in_order(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    conversation = sdk_mode.start(sdks, gateway, MODELS[upstream], tools=True)
    first = conversation.send("compare two cities")
    assert [(call.name, call.arguments) for call in first.calls] == [
        ("look_up", {"city": "Paris"}),
        ("look_up", {"city": "Oslo"}),
    ]
    assert first.text == "Let me look at both."
    if sdk_mode.protocol != "gemini":
        assert len({call.id for call in first.calls}) == 2
    done = conversation.send_results("sunny in Paris", "sunny but cold in Oslo")
    assert done.text == "The tool says: sunny in Paris | sunny but cold in Oslo"
    assert len(gateway.requests(upstream)) == 2


@upstreams
@sdk_modes
def test_a_conversation_goes_on_after_its_tool_loop(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    conversation = sdk_mode.start(sdks, gateway, MODELS[upstream], tools=True)
    conversation.send("look_up Paris")
    conversation.send_results("sunny in Paris")
    again = conversation.send("and now look_up Oslo")
    assert again.calls == [ReceivedCall(again.calls[0].id, "look_up", {"city": "and now look_up Oslo"})]
    assert conversation.send_results("sunny in Oslo").text == "The tool says: sunny in Oslo"


def _chat_tool(body: dict[str, Any]) -> Any:
    return body["tools"][0]["function"]["name"], body["tools"][0]["function"]["parameters"]


def either(value: dict[str, Any], *names: str) -> Any:
    """Return the first of these fields; Google's SDK sends some names in snake_case."""
    return next(value[name] for name in names if name in value)


def _gemini_tool(body: dict[str, Any]) -> Any:
    declared = body["tools"][0]["functionDeclarations"][0]
    return declared["name"], either(declared, "parametersJsonSchema", "parameters_json_schema", "parameters")


OFFERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "chat": _chat_tool,
    "responses": lambda body: (body["tools"][0]["name"], body["tools"][0]["parameters"]),
    "messages": lambda body: (body["tools"][0]["name"], body["tools"][0]["input_schema"]),
    "gemini": _gemini_tool,
}
KEY_HEADER = {
    "chat": ("authorization", f"Bearer {UPSTREAM_KEY}"),
    "responses": ("authorization", f"Bearer {UPSTREAM_KEY}"),
    "messages": ("x-api-key", UPSTREAM_KEY),
    "gemini": ("x-goog-api-key", UPSTREAM_KEY),
}


@upstreams
@sdk_modes
def test_the_upstream_gets_the_tool_unchanged_and_the_gateway_key(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    sdk_mode.start(sdks, gateway, MODELS[upstream], tools=True).send("look_up Paris")
    request = gateway.last_request(upstream)
    assert OFFERED[upstream](request.json) == ("look_up", PARAMETERS)
    header, value = KEY_HEADER[upstream]
    assert request.headers[header] == value
    assert "any" not in request.headers.values()


@upstreams
@sdk_modes
def test_tools_that_are_forbidden_are_not_called(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    conversation = sdk_mode.start(sdks, gateway, MODELS[upstream], tools=True, forbidden=True)
    reply = conversation.send("look_up Paris")
    assert (reply.calls, reply.text) == ([], "You said: look_up Paris")


def _chat_system(body: dict[str, Any]) -> Any:
    return [message["content"] for message in body["messages"] if message["role"] in ("system", "developer")]


SYSTEMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "chat": _chat_system,
    "responses": lambda body: body.get("instructions") or body["input"][0],
    "messages": lambda body: body["system"],
    "gemini": lambda body: body["systemInstruction"],
}


@upstreams
@sdk_modes
def test_the_system_text_is_in_the_field_of_the_upstream_protocol(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    assert (
        sdk_mode.start(sdks, gateway, MODELS[upstream], system=True).send("hello").text == "You said: hello"
    )
    request = gateway.last_request(upstream)
    assert SYSTEM in str(SYSTEMS[upstream](request.json))
    assert request.body.count(SYSTEM.encode()) == 1


THINKING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "chat": lambda body: body.get("reasoning_effort"),
    "responses": lambda body: body["reasoning"]["effort"],
    "messages": lambda body: body["thinking"]["type"] in ("enabled", "adaptive"),
    "gemini": lambda body: either(
        body["generationConfig"]["thinkingConfig"], "includeThoughts", "include_thoughts"
    ),
}


@upstreams
@sdk_modes
def test_reasoning_is_requested_and_shown(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    reply = sdk_mode.start(sdks, gateway, MODELS[upstream], thinking=True).send("please think aloud")
    assert reply.text == "I have thought about it."
    assert reply.reasoning == REASONING
    assert THINKING[upstream](gateway.last_request(upstream).json)


@pytest.mark.parametrize(
    "upstream", [pytest.param(name, id=f"to-{name}") for name in ("responses", "messages", "gemini")]
)
@sdk_modes
def test_signed_reasoning_goes_back_to_its_owner_with_the_result(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    conversation = sdk_mode.start(sdks, gateway, MODELS[upstream], tools=True, thinking=True)
    first = conversation.send("think first, then look_up Paris")
    assert [call.arguments for call in first.calls] == [{"city": "Paris"}]
    assert conversation.send_results("sunny in Paris").text == "The tool says: sunny in Paris"
    assert f'"{SIGNATURE}"' in with_standard_base64(
        gateway.last_request(upstream).body.decode(), sdk_mode, upstream
    )


def with_standard_base64(body: str, sdk_mode: SdkMode, upstream: str) -> str:
    """Return the body with standard base64; Google's SDK sends URL-safe base64, which only Gemini gets."""
    if (sdk_mode.protocol, upstream) != ("gemini", "gemini"):
        return body
    return body.replace("-", "+").replace("_", "/")


ATTACHED = {
    "image": base64.b64encode(PNG).decode(),
    "image URL": IMAGE_URL,
    "PDF": base64.b64encode(PDF).decode(),
}


@pytest.mark.parametrize("attached", ATTACHED)
@upstreams
@pytest.mark.parametrize(
    "client", ["openai-chat-create", "openai-responses-create", "anthropic-create", "google-genai"]
)
def test_an_attachment_reaches_the_upstream(
    gateway: Gateway, sdks: Sdks, client: str, upstream: str, attached: str
) -> None:
    sdk_mode = SDK_MODES[client]
    reply = sdk_mode.start(sdks, gateway, MODELS[upstream]).send("what is this", attached=attached)
    assert reply.text == "You said: what is this"
    assert ATTACHED[attached] in with_standard_base64(
        gateway.last_request(upstream).body.decode(), sdk_mode, upstream
    )


def _gemini_schema(body: dict[str, Any]) -> Any:
    return either(body["generationConfig"], "responseJsonSchema", "responseSchema")


SCHEMA: dict[str, Callable[[dict[str, Any]], Any]] = {
    "chat": lambda body: body["response_format"]["json_schema"]["schema"],
    "responses": lambda body: body["text"]["format"]["schema"],
    "messages": lambda body: body["output_config"]["format"]["schema"],
    "gemini": _gemini_schema,
}


@upstreams
@sdk_modes
def test_a_structured_answer_is_requested_by_schema_and_parsed(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    reply = sdk_mode.start(sdks, gateway, MODELS[upstream], structured=True).send("the weather as json")
    assert reply.parsed == Weather(city="Paris", sky="blue")
    schema = SCHEMA[upstream](gateway.last_request(upstream).json)
    assert {name: field["type"].lower() for name, field in schema["properties"].items()} == {
        "city": "string",
        "sky": "string",
    }
    assert sorted(schema["required"]) == ["city", "sky"]


@upstreams
@sdk_modes
def test_usage_counts_cached_and_reasoning_tokens(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    reply = sdk_mode.start(sdks, gateway, MODELS[upstream]).send("count it")
    assert reply.text == "Counted."
    assert reply.usage == (1200, 60)
    assert reply.cached == 1000


@upstreams
@pytest.mark.parametrize(
    "sdk_mode",
    [
        pytest.param(sdk_mode, id=name)
        for name, sdk_mode in SDK_MODES.items()
        # OpenAI's own helpers raise for such an answer.
        if name not in ("openai-chat-stream-helper", "openai-responses-stream-helper")
    ],
)
def test_an_answer_cut_by_the_token_limit_ends_with_length(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    reply = sdk_mode.start(sdks, gateway, MODELS[upstream]).send("cut short")
    assert reply.text == "This goes on and on and"
    assert reply.end == FINISH_REASONS[sdk_mode.protocol]["length"]


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("upstream", ["chat", "messages"], ids="to-{}".format)
def test_the_stream_helper_of_openai_collects_citations_of_several_deltas(
    gateway: Gateway, sdks: Sdks, upstream: str, include_usage: bool
) -> None:
    completions = sdks.openai(gateway.url).chat.completions
    with completions.stream(
        model=MODELS[upstream],
        messages=[{"role": "user", "content": f"Please {CITING}."}],
        stream_options={"include_usage": include_usage},
    ) as events:
        message = events.get_final_completion().choices[0].message
    assert message.content == "See both."
    assert [citation.url_citation.url for citation in message.annotations or ()] == list(CITED)
