"""The official Python SDKs hold whole conversations with every kind of upstream."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.gateway import UPSTREAM_KEY, Gateway
from tests.clients.model import SIGNATURE, THOUGHT
from tests.clients.python.sdks import Sdks
from tests.clients.python.speakers import SPEAKERS, Speaker
from tests.clients.python.talk import ENDS, IMAGE_URL, PARAMETERS, PDF, PNG, SYSTEM, Called, Weather
from tests.kit.answers import PROTOCOLS

MODELS = {protocol: f"up_{protocol}.model-x" for protocol in PROTOCOLS}
speakers = pytest.mark.parametrize(
    "speaker", [pytest.param(speaker, id=name) for name, speaker in SPEAKERS.items()]
)
upstreams = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
everything = pytest.mark.parametrize(
    "model",
    [pytest.param(model, id=f"to-{name}") for name, model in {**MODELS, "demo": "demo.demo-1"}.items()],
)


def in_pieces(speaker: Speaker, pieces: int) -> bool:
    return pieces > 1 if speaker.streams else pieces == 0


@everything
@speakers
def test_words_are_answered(gateway: Gateway, sdks: Sdks, speaker: Speaker, model: str) -> None:
    reply = speaker.talk(sdks, gateway, model).say("hello there, gateway")
    assert "You said:" in reply.text
    assert "hello there, gateway" in reply.text
    assert reply.calls == []
    assert reply.end == ENDS[speaker.protocol]["stop"]
    assert in_pieces(speaker, reply.pieces)


@everything
@speakers
def test_a_tool_loop_ends_with_the_result_quoted(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, model: str
) -> None:
    talk = speaker.talk(sdks, gateway, model, tools=True)
    asked = talk.say("please look_up the sky over Paris")
    assert [call.name for call in asked.calls] == ["look_up"]
    assert asked.calls[0].arguments.keys() == {"city"}
    assert asked.end == ENDS[speaker.protocol]["tools"]
    done = talk.give("a sunny 21 degrees")
    assert "a sunny 21 degrees" in done.text
    assert done.calls == []
    assert done.end == ENDS[speaker.protocol]["stop"]


@upstreams
@speakers
def test_two_calls_get_two_results_in_order(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    talk = speaker.talk(sdks, gateway, MODELS[upstream], tools=True)
    asked = talk.say("compare two cities")
    assert [(call.name, call.arguments) for call in asked.calls] == [
        ("look_up", {"city": "Paris"}),
        ("look_up", {"city": "Oslo"}),
    ]
    assert asked.text == "Let me look at both."
    if speaker.protocol != "gemini":
        assert len({call.id for call in asked.calls}) == 2
    done = talk.give("sunny in Paris", "sunny but cold in Oslo")
    assert done.text == "The tool says: sunny in Paris | sunny but cold in Oslo"
    assert len(gateway.heard(upstream)) == 2


@upstreams
@speakers
def test_a_conversation_goes_on_after_its_tool_loop(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    talk = speaker.talk(sdks, gateway, MODELS[upstream], tools=True)
    talk.say("look_up Paris")
    talk.give("sunny in Paris")
    again = talk.say("and now look_up Oslo")
    assert again.calls == [Called(again.calls[0].id, "look_up", {"city": "and now look_up Oslo"})]
    assert talk.give("sunny in Oslo").text == "The tool says: sunny in Oslo"


def _chat_tool(body: dict[str, Any]) -> Any:
    return body["tools"][0]["function"]["name"], body["tools"][0]["function"]["parameters"]


def either(value: dict[str, Any], *names: str) -> Any:
    """The field under one of its spellings: Google's SDK sends some names as Python writes them."""
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
@speakers
def test_the_upstream_gets_the_tool_as_it_was_written_and_our_key(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    speaker.talk(sdks, gateway, MODELS[upstream], tools=True).say("look_up Paris")
    request = gateway.asked(upstream)
    assert OFFERED[upstream](request.json) == ("look_up", PARAMETERS)
    header, value = KEY_HEADER[upstream]
    assert request.headers[header] == value
    assert "any" not in request.headers.values()


@upstreams
@speakers
def test_tools_that_are_forbidden_are_not_called(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    talk = speaker.talk(sdks, gateway, MODELS[upstream], tools=True, forbidden=True)
    reply = talk.say("look_up Paris")
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
@speakers
def test_the_system_text_stands_where_the_upstream_looks_for_it(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    assert speaker.talk(sdks, gateway, MODELS[upstream], system=True).say("hello").text == "You said: hello"
    request = gateway.asked(upstream)
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
@speakers
def test_thoughts_are_asked_for_and_shown(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    reply = speaker.talk(sdks, gateway, MODELS[upstream], thinking=True).say("please think aloud")
    assert reply.text == "I have thought about it."
    assert reply.thought == THOUGHT
    assert THINKING[upstream](gateway.asked(upstream).json)


@pytest.mark.parametrize(
    "upstream", [pytest.param(name, id=f"to-{name}") for name in ("responses", "messages", "gemini")]
)
@speakers
def test_a_signed_thought_goes_back_to_its_maker_with_the_result(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    talk = speaker.talk(sdks, gateway, MODELS[upstream], tools=True, thinking=True)
    asked = talk.say("think first, then look_up Paris")
    assert [call.arguments for call in asked.calls] == [{"city": "Paris"}]
    assert talk.give("sunny in Paris").text == "The tool says: sunny in Paris"
    assert f'"{SIGNATURE}"' in spelled_as_made(gateway.asked(upstream).body.decode(), speaker, upstream)


def spelled_as_made(body: str, speaker: Speaker, upstream: str) -> str:
    """Google's SDK writes base64 in the alphabet for URLs, which only its own API is to see."""
    if (speaker.protocol, upstream) != ("gemini", "gemini"):
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
    speaker = SPEAKERS[client]
    reply = speaker.talk(sdks, gateway, MODELS[upstream]).say("what is this", attached=attached)
    assert reply.text == "You said: what is this"
    assert ATTACHED[attached] in spelled_as_made(gateway.asked(upstream).body.decode(), speaker, upstream)


def _gemini_schema(body: dict[str, Any]) -> Any:
    return either(body["generationConfig"], "responseJsonSchema", "responseSchema")


SCHEMA: dict[str, Callable[[dict[str, Any]], Any]] = {
    "chat": lambda body: body["response_format"]["json_schema"]["schema"],
    "responses": lambda body: body["text"]["format"]["schema"],
    "messages": lambda body: body["output_config"]["format"]["schema"],
    "gemini": _gemini_schema,
}


@upstreams
@speakers
def test_a_structured_answer_is_asked_for_by_schema_and_parsed(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    reply = speaker.talk(sdks, gateway, MODELS[upstream], structured=True).say("the weather as json")
    assert reply.parsed == Weather(city="Paris", sky="blue")
    schema = SCHEMA[upstream](gateway.asked(upstream).json)
    assert {name: field["type"].lower() for name, field in schema["properties"].items()} == {
        "city": "string",
        "sky": "string",
    }
    assert sorted(schema["required"]) == ["city", "sky"]


@upstreams
@speakers
def test_usage_counts_cached_and_thought_tokens(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    reply = speaker.talk(sdks, gateway, MODELS[upstream]).say("count it")
    assert reply.text == "Counted."
    assert reply.usage == (1200, 60)
    assert reply.cached == 1000


@upstreams
@pytest.mark.parametrize(
    "speaker",
    [
        pytest.param(speaker, id=name)
        for name, speaker in SPEAKERS.items()
        # OpenAI's own helpers raise for such an answer.
        if name not in ("openai-chat-stream-helper", "openai-responses-stream-helper")
    ],
)
def test_an_answer_cut_by_the_token_limit_says_so(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    reply = speaker.talk(sdks, gateway, MODELS[upstream]).say("cut short")
    assert reply.text == "This goes on and on and"
    assert reply.end == ENDS[speaker.protocol]["length"]
