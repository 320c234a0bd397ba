"""Errors reach the official Python SDKs as their own typed exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from google.genai import errors

from tests.clients.gateway import CLIENT_KEY, Gateway, Gateways
from tests.clients.model import RETRY_AFTER
from tests.clients.python.conversation import ConversationOptions
from tests.clients.python.sdk_modes import SDK_MODES, SdkMode
from tests.clients.python.sdks import Sdks
from tests.kit.answers import PROTOCOLS

upstreams = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
sdk_modes = pytest.mark.parametrize(
    "sdk_mode", [pytest.param(sdk_mode, id=name) for name, sdk_mode in SDK_MODES.items()]
)
streaming = pytest.mark.parametrize(
    "sdk_mode", [pytest.param(sdk_mode, id=name) for name, sdk_mode in SDK_MODES.items() if sdk_mode.streams]
)

ANYTHING = (openai.APIStatusError, anthropic.APIStatusError, errors.APIError)
_OPENAI: dict[str, tuple[type[Exception], int]] = {
    "says-400": (openai.BadRequestError, 400),
    "says-401": (openai.APIStatusError, 424),
    "says-404": (openai.NotFoundError, 404),
    "says-429": (openai.RateLimitError, 429),
    "says-500": (openai.InternalServerError, 502),
    "says-529": (openai.InternalServerError, 503),
}
RAISED: dict[str, dict[str, tuple[type[Exception], int]]] = {
    "chat": _OPENAI,
    # Codex shows the text of a 400 alone.
    "responses": {**_OPENAI, "says-401": (openai.BadRequestError, 400)},
    "messages": {
        "says-400": (anthropic.BadRequestError, 400),
        "says-401": (anthropic.APIStatusError, 424),
        "says-404": (anthropic.NotFoundError, 404),
        "says-429": (anthropic.RateLimitError, 429),
        "says-500": (anthropic.InternalServerError, 502),
        "says-529": (anthropic.InternalServerError, 529),
    },
    "gemini": {
        "says-400": (errors.ClientError, 400),
        "says-401": (errors.ClientError, 424),
        "says-404": (errors.ClientError, 404),
        "says-429": (errors.ClientError, 429),
        "says-500": (errors.ServerError, 502),
        "says-529": (errors.ServerError, 503),
    },
}
FAULTS = list(_OPENAI)


def status_of(error: Any) -> int:
    status: int = error.code if isinstance(error, errors.APIError) else error.status_code
    return status


def failed(send: Callable[[], object]) -> Any:
    with pytest.raises(ANYTHING) as caught:
        send()
    return caught.value


@pytest.mark.parametrize("fault", FAULTS)
@upstreams
@sdk_modes
def test_an_upstream_error_is_raised_as_the_exception_of_the_sdk(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str, fault: str
) -> None:
    model = f"{fault.replace('-', '_')}_{upstream}.{fault}"
    error = failed(lambda: sdk_mode.start(sdks, gateway, model).send("hello"))
    kind, status = RAISED[sdk_mode.protocol][fault]
    assert isinstance(error, kind)
    assert status_of(error) == status
    assert "the upstream says" in str(error)


@upstreams
@sdk_modes
def test_a_rate_limit_carries_retry_after(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    error = failed(lambda: sdk_mode.start(sdks, gateway, f"says_429_{upstream}.says-429").send("hello"))
    assert error.response.headers["retry-after"] == str(RETRY_AFTER)


@pytest.mark.parametrize("fault", ["breaks-off", "reports-an-error"])
@upstreams
@streaming
def test_a_stream_that_breaks_in_the_middle_is_never_taken_for_complete(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str, fault: str
) -> None:
    conversation = sdk_mode.start(sdks, gateway, f"{fault.replace('-', '_')}_{upstream}.{fault}")
    broken = (openai.APIError, anthropic.APIError, errors.APIError, httpx2.TransportError, RuntimeError)
    with pytest.raises(broken):
        conversation.send("hello")


def _openai_chat(client: openai.OpenAI, **fields: Any) -> Any:
    request: dict[str, Any] = {"model": "demo.demo-1", "messages": [{"role": "user", "content": "hello"}]}
    create: Any = client.chat.completions.create
    return create(**request | fields)


def _openai_responses(client: openai.OpenAI, **fields: Any) -> Any:
    create: Any = client.responses.create
    return create(**{"model": "demo.demo-1", "input": "hello"} | fields)


def _anthropic(client: anthropic.Anthropic, **fields: Any) -> Any:
    create: Any = client.messages.create
    request: dict[str, Any] = {"model": "demo.demo-1", "messages": [{"role": "user", "content": "hello"}]}
    return create(**request | {"max_tokens": 100} | fields)


OPENAI_WRONG: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "chat-unknown-role": (_openai_chat, {"messages": [{"role": "wizard", "content": "x"}]}, "role"),
    "chat-messages-no-list": (_openai_chat, {"messages": "hello"}, "messages"),
    "chat-no-messages": (_openai_chat, {"messages": []}, "messages"),
    "chat-temperature-text": (_openai_chat, {"temperature": "hot"}, "temperature"),
    "chat-no-model": (_openai_chat, {"model": ""}, "model"),
    "responses-input-number": (_openai_responses, {"input": 7}, "input"),
    "responses-unknown-role": (_openai_responses, {"input": [{"role": "wizard", "content": "x"}]}, "role"),
    "responses-temperature-text": (_openai_responses, {"temperature": "hot"}, "temperature"),
}
ANTHROPIC_WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown-role": ({"messages": [{"role": "wizard", "content": "x"}]}, "role"),
    "max-tokens-text": ({"max_tokens": "many"}, "max_tokens"),
    "no-messages": ({"messages": []}, "messages"),
    "tools-no-list": ({"tools": "all"}, "tools"),
    "tool-without-a-name": ({"tools": [{"input_schema": {"type": "object"}}]}, "name"),
}


@pytest.mark.parametrize(("call", "fields", "named"), OPENAI_WRONG.values(), ids=OPENAI_WRONG.keys())
def test_a_wrong_openai_request_raises_bad_request_and_names_the_field(
    gateway: Gateway, sdks: Sdks, call: Callable[..., Any], fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        call(sdks.openai(gateway.url), **fields)
    assert named in str(caught.value)
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(("fields", "named"), ANTHROPIC_WRONG.values(), ids=ANTHROPIC_WRONG.keys())
def test_a_wrong_anthropic_request_raises_bad_request_and_names_the_field(
    gateway: Gateway, sdks: Sdks, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        _anthropic(sdks.anthropic(gateway.url), **fields)
    assert named in str(caught.value)


@pytest.mark.parametrize("upstream", ["responses", "messages"], ids="to-{}".format)
def test_several_choices_are_refused_where_the_upstream_gives_one(
    gateway: Gateway, sdks: Sdks, upstream: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        _openai_chat(sdks.openai(gateway.url), model=f"up_{upstream}.model-x", n=2)
    assert caught.value.param == "n"
    assert gateway.requests(upstream) == []


def test_a_wrong_google_request_raises_a_client_error(gateway: Gateway, sdks: Sdks) -> None:
    models: Any = sdks.google(gateway.url).models
    with pytest.raises(errors.ClientError) as caught:
        models.generate_content(model="demo.demo-1", contents=[{"role": "wizard", "parts": [{"text": "x"}]}])
    assert caught.value.code == 400
    assert "role" in str(caught.value)


BARRED = {
    "chat": openai.AuthenticationError,
    "responses": openai.AuthenticationError,
    "messages": anthropic.AuthenticationError,
    "gemini": errors.ClientError,
}


@pytest.mark.parametrize("key", [CLIENT_KEY, "some-other-key"], ids=["right-key", "wrong-key"])
@sdk_modes
def test_only_a_valid_client_key_is_accepted(
    gateways: Gateways, sdks: Sdks, sdk_mode: SdkMode, key: str
) -> None:
    gateway = gateways.get(client_key=CLIENT_KEY)
    conversation = sdk_mode.open(sdks, gateway, "up_chat.model-x", key=key, options=ConversationOptions())
    if key == CLIENT_KEY:
        assert conversation.send("hello").text == "You said: hello"
        return
    error = failed(lambda: conversation.send("hello"))
    assert isinstance(error, BARRED[sdk_mode.protocol])
    assert status_of(error) == 401
    assert gateway.requests("chat") == []
