"""Every client protocol to every provider protocol, streamed and not."""

from __future__ import annotations

import itertools

import pytest

from routecodex.canon.parts import Reasoning, Text, ToolCall
from routecodex.canon.response import Response, fold
from routecodex.protocols.codecs import CODECS
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
COMBINATIONS = [
    pytest.param(client, upstream, stream, id=f"{client}-to-{upstream}-{'stream' if stream else 'whole'}")
    for client, upstream, stream in itertools.product(PROTOCOLS, PROTOCOLS, (False, True))
]


def decode_answer(protocol: str, answer: Answer, *, stream: bool) -> Response:
    """Decode the answer as a client of this protocol reads it."""
    codec = CODECS[protocol]
    if not stream:
        return fold(codec.decode_response(answer.body))
    decoder = codec.stream_decoder()
    return fold([*decoder.feed(answer.body), *decoder.close()])


async def exchange(
    client: str, upstream: str, script: Json | Sse, *, stream: bool, tools: bool = False
) -> Response:
    async with Upstream() as up:
        up.queue(script)
        async with serving(one_target(upstream, up)) as gateway:
            answer = await call(
                gateway.port,
                asking.path(client, stream=stream),
                asking.body(client, stream=stream, tools=tools),
            )
    asking.check(client, answer, stream=stream)
    return decode_answer(client, answer, stream=stream)


def text_of(response: Response) -> str:
    return "".join(part.text for part in response.parts if isinstance(part, Text))


@pytest.mark.parametrize(("client", "upstream", "stream"), COMBINATIONS)
async def test_text_arrives_with_its_finish_and_usage(client: str, upstream: str, stream: bool) -> None:
    canned = answers.text(upstream, "Grüße, 世界 and “quotes”\n\ttoo", stream)
    response = await exchange(client, upstream, canned, stream=stream)
    assert text_of(response) == "Grüße, 世界 and “quotes”\n\ttoo"
    assert response.finish.reason == "stop"
    assert response.usage is not None
    assert (response.usage.input, response.usage.output) == (21, 9)


@pytest.mark.parametrize(("client", "upstream", "stream"), COMBINATIONS)
async def test_several_calls_arrive_with_their_arguments(client: str, upstream: str, stream: bool) -> None:
    calls = (
        answers.Call("get_weather", {"city": "Zürich"}, "call_one"),
        answers.Call("get_weather", {"city": "Genève"}, "call_two"),
    )
    canned = answers.tool_calls(upstream, *calls, stream=stream, text="Let me look.")
    response = await exchange(client, upstream, canned, stream=stream, tools=True)
    calls_received = [part for part in response.parts if isinstance(part, ToolCall)]
    assert [(part.name, part.arguments.replace(" ", "")) for part in calls_received] == [
        ("get_weather", '{"city":"Zürich"}'),
        ("get_weather", '{"city":"Genève"}'),
    ]
    assert len({part.id for part in calls_received}) == 2
    assert text_of(response) == "Let me look."
    assert response.finish.reason == "tool_calls"


@pytest.mark.parametrize(("client", "upstream", "stream"), COMBINATIONS)
async def test_reasoning_arrives_before_the_text(client: str, upstream: str, stream: bool) -> None:
    canned = answers.thinking(upstream, "Let me think.", "Done.", stream)
    response = await exchange(client, upstream, canned, stream=stream)
    assert [part.text for part in response.parts if isinstance(part, Reasoning)] == ["Let me think."]
    assert text_of(response) == "Done."


@pytest.mark.parametrize(("client", "upstream", "stream"), COMBINATIONS)
async def test_an_answer_cut_by_the_token_limit_ends_with_length(
    client: str, upstream: str, stream: bool
) -> None:
    response = await exchange(client, upstream, answers.length(upstream, "Once upon", stream), stream=stream)
    assert response.finish.reason == "length"


@pytest.mark.parametrize(("client", "upstream", "stream"), COMBINATIONS)
async def test_cached_and_reasoning_tokens_are_counted(client: str, upstream: str, stream: bool) -> None:
    response = await exchange(client, upstream, answers.counted(upstream, "Counted.", stream), stream=stream)
    assert response.usage is not None
    assert (response.usage.input, response.usage.output) == (1200, 60)
    assert response.usage.cache_read == 1000
