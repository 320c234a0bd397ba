"""The rest of each SDK's surface: stored responses, token counts, the list of models."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from google.genai import types

from tests.clients.gateway import Gateway
from tests.clients.model import COUNTED
from tests.clients.python.openai_responses import TOOL, read
from tests.clients.python.sdks import Sdks
from tests.kit.answers import PROTOCOLS

MODELS = {protocol: f"up_{protocol}.model-x" for protocol in PROTOCOLS}
upstreams = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def respond(client: openai.OpenAI, *, stream: bool, **fields: Any) -> Any:
    """Return a finished response, streamed or not."""
    create: Any = client.responses.create
    if not stream:
        return create(**fields)
    with create(**fields, stream=True) as events:
        return list(events)[-1].response


@streamed
@upstreams
def test_a_tool_loop_continues_by_the_id_of_the_response(
    gateway: Gateway, sdks: Sdks, upstream: str, stream: bool
) -> None:
    client = sdks.openai(gateway.url)
    model = MODELS[upstream]
    first = respond(client, stream=stream, model=model, input="look_up the sky", tools=[TOOL])
    call = read(first).calls[0]
    output = {"type": "function_call_output", "call_id": call.id, "output": "a sunny day"}
    second = respond(
        client, stream=stream, model=model, input=[output], tools=[TOOL], previous_response_id=first.id
    )
    assert second.output_text == "The tool says: a sunny day"
    if upstream != "responses":
        # An upstream that stores the conversation also returns the previous id.
        assert second.previous_response_id == first.id
    third = respond(client, stream=stream, model=model, input="thank you", previous_response_id=second.id)
    assert third.output_text == "You said: thank you"
    assert len({first.id, second.id, third.id}) == 3


@pytest.mark.parametrize("upstream", ["chat", "messages", "gemini"], ids="to-{}".format)
def test_the_upstream_gets_the_whole_conversation_of_a_response_id(
    gateway: Gateway, sdks: Sdks, upstream: str
) -> None:
    client = sdks.openai(gateway.url)
    first = client.responses.create(model=MODELS[upstream], input="remember the number 8128")
    client.responses.create(model=MODELS[upstream], input="which number?", previous_response_id=first.id)
    body = gateway.last_request(upstream).body
    places = [body.index(text) for text in (b"number 8128", b"You said: remember", b"which number?")]
    assert places == sorted(places)


def test_an_upstream_that_holds_the_conversation_gets_the_id(gateway: Gateway, sdks: Sdks) -> None:
    client = sdks.openai(gateway.url)
    first = client.responses.create(model=MODELS["responses"], input="remember the number 8128")
    client.responses.create(model=MODELS["responses"], input="which number?", previous_response_id=first.id)
    body = gateway.last_request("responses").json
    assert (body["previous_response_id"], body["input"]) == (first.id, "which number?")


@streamed
@upstreams
def test_a_stored_response_can_be_read_and_deleted(
    gateway: Gateway, sdks: Sdks, upstream: str, stream: bool
) -> None:
    client = sdks.openai(gateway.url)
    created = respond(client, stream=stream, model=MODELS[upstream], input="keep this")
    stored = client.responses.retrieve(created.id)
    assert stored.to_dict() == created.to_dict()
    items = client.responses.input_items.list(created.id).data
    assert "keep this" in items[0].to_json()
    client.responses.delete(created.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(created.id)


@upstreams
def test_a_response_with_store_false_is_not_stored(gateway: Gateway, sdks: Sdks, upstream: str) -> None:
    client = sdks.openai(gateway.url)
    created = client.responses.create(model=MODELS[upstream], input="forget this", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(created.id)


def test_an_unknown_id_cannot_be_continued(gateway: Gateway, sdks: Sdks) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        sdks.openai(gateway.url).responses.create(
            model=MODELS["chat"], input="go on", previous_response_id="resp_nobody_knows"
        )
    assert caught.value.status_code in (400, 404)
    assert "resp_nobody_knows" in str(caught.value)


COUNTERS = {"chat": False, "responses": False, "messages": True, "gemini": True}
"""Whether the upstream has its own token counter, by protocol."""


@upstreams
def test_anthropic_counts_tokens_without_a_generation(gateway: Gateway, sdks: Sdks, upstream: str) -> None:
    counted = sdks.anthropic(gateway.url).messages.count_tokens(
        model=MODELS[upstream], messages=[{"role": "user", "content": "how long is this?"}]
    )
    check_count(gateway, upstream, counted.input_tokens)


@upstreams
def test_google_counts_tokens_without_a_generation(gateway: Gateway, sdks: Sdks, upstream: str) -> None:
    counted = sdks.google(gateway.url).models.count_tokens(
        model=MODELS[upstream], contents="how long is this?"
    )
    assert counted.total_tokens is not None
    check_count(gateway, upstream, counted.total_tokens)


def check_count(gateway: Gateway, upstream: str, counted: int) -> None:
    paths = [request.path for request in gateway.requests(upstream)]
    if COUNTERS[upstream]:
        assert counted == COUNTED
        assert [path.endswith(("count_tokens", "countTokens")) for path in paths] == [True]
        return
    assert 5 <= counted <= 100
    assert paths == []


LISTED = {"demo.demo-1", *MODELS.values()}


def test_openai_lists_the_models(gateway: Gateway, sdks: Sdks) -> None:
    client = sdks.openai(gateway.url)
    assert {model.id for model in client.models.list()} >= LISTED
    assert client.models.retrieve("up_chat.model-x").id == "up_chat.model-x"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("up_chat.model-nobody-has")


def test_anthropic_lists_the_models(gateway: Gateway, sdks: Sdks) -> None:
    client = sdks.anthropic(gateway.url)
    listed = list(client.models.list())
    assert {model.id for model in listed} >= LISTED
    assert {model.type for model in listed} == {"model"}
    assert client.models.retrieve("up_chat.model-x").display_name == "up_chat.model-x"


def test_google_lists_the_models(gateway: Gateway, sdks: Sdks) -> None:
    models = sdks.google(gateway.url).models
    listed = list(models.list(config=types.ListModelsConfig(query_base=True)))
    assert {model.name for model in listed} >= {f"models/{name}" for name in LISTED}
    assert models.get(model="up_chat.model-x").name == "models/up_chat.model-x"


@upstreams
def test_anthropic_runs_the_tool_loop_itself(gateway: Gateway, sdks: Sdks, upstream: str) -> None:
    @anthropic.beta_tool
    def look_up(city: str) -> str:
        """Looks at the sky."""
        return f"a sunny day: {city}"

    runner = sdks.anthropic(gateway.url).beta.messages.tool_runner(
        model=MODELS[upstream],
        max_tokens=1000,
        messages=[{"role": "user", "content": "look_up Paris"}],
        tools=[look_up],
        betas=["context-1m-2025-08-07"],
        stream=True,
    )
    last = [stream.get_final_message() for stream in runner][-1]
    assert [block.to_dict().get("text") for block in last.content] == [
        "The tool says: a sunny day: look_up Paris"
    ]
    betas = [request.headers.get("anthropic-beta", "") for request in gateway.requests(upstream)]
    assert ["context-1m-2025-08-07" in beta for beta in betas] == [upstream == "messages"] * 2


@upstreams
def test_google_runs_the_tool_loop_itself(gateway: Gateway, sdks: Sdks, upstream: str) -> None:
    def look_up(city: str) -> str:
        """Looks at the sky."""
        return f"a sunny day: {city}"

    answer = sdks.google(gateway.url).models.generate_content(
        model=MODELS[upstream],
        contents="look_up Paris",
        config=types.GenerateContentConfig(tools=[look_up]),
    )
    assert answer.text == "The tool says: a sunny day: look_up Paris"
