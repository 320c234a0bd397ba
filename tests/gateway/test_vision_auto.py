"""vision_auto over HTTP: images for a text-only model become descriptions, in every protocol."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gateway.instruction_gateway import answer_text
from tests.kit import answers, asking
from tests.kit.gateway import NO_HEALTH, Running, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Hang, Json, Sse, Steps
from tests.kit.upstream import Request, Upstream
from tests.routing.instruction_texts import PIXEL, Step, wire_request

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PAIRS = [
    pytest.param(*pair, id=f"{pair[0]}-to-{pair[1]}-{'stream' if pair[2] else 'whole'}")
    for pair in itertools.product(PROTOCOLS, PROTOCOLS, (False, True))
]
DESCRIPTION = "A red square with the word STOP in it."
HISTORY: tuple[Step, ...] = (("image", "look at this"), ("assistant", "I see"), ("user", "which colour?"))
HEAD = "[server]\nport = 0\ndrain_seconds = 1\n"


def blind(protocol: str, upstream: Upstream) -> str:
    return provider("blind", protocol, upstream) + "vision = false\n"


def config(protocol: str, model: Upstream, eye: Upstream, *, more: str = "") -> str:
    return (
        HEAD
        + more
        + blind(protocol, model)
        + provider("eye", "chat", eye)
        + '[routing]\ndefault = ["blind.m"]\nvision = ["eye.m"]\n'
    )


async def send(
    gateway: Running,
    protocol: str,
    *steps: Step,
    stream: bool = False,
    model: str = "blind.m",
    **headers: str,
) -> Answer:
    named: dict[str, Any] = {} if protocol == "gemini" else {"model": model, "stream": stream}
    if protocol == "chat" and stream:
        named["stream_options"] = {"include_usage": True}
    body = wire_request(protocol, *steps, **named).body
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call(gateway.port, asking.path(protocol, stream=stream, model=model), body, headers=sent)


def describe_image(request: Request) -> Json | Sse:
    return answers.text("chat", DESCRIPTION, answers.wants_stream(request))


@pytest.mark.parametrize(("client", "upstream", "stream"), PAIRS)
async def test_a_text_only_model_gets_a_description_of_the_image(
    client: str, upstream: str, stream: bool
) -> None:
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.queue(answers.text(upstream, "it is red", stream))
        async with serving(config(upstream, model, eye)) as gateway:
            answer = await send(gateway, client, *HISTORY, stream=stream)
    asking.check(client, answer, stream=stream)
    assert answer_text(client, answer, stream=stream) == "it is red"
    assert answer.headers["x-routecodex-target"] == "blind.primary.m"
    assert answer.headers["x-routecodex-notice"] == (
        "an image replaced by descriptions: blind.primary.m does not support images"
    )
    (described,) = eye.requests
    assert PIXEL in described.body.decode()
    (received,) = model.requests
    assert PIXEL not in received.body.decode()
    assert DESCRIPTION in received.body.decode()
    assert "look at this" in received.body.decode()


async def test_an_image_is_described_once_for_a_whole_conversation() -> None:
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.answer_with(lambda request: answers.text("chat", "ok", False))
        async with serving(config("chat", model, eye)) as gateway:
            for _ in range(3):
                assert (await send(gateway, "chat", *HISTORY)).status == 200
            await send(gateway, "messages", *HISTORY)
    assert len(eye.requests) == 1
    assert len(model.requests) == 4


async def test_a_description_survives_a_restart(tmp_path: Path) -> None:
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.answer_with(lambda request: answers.text("chat", "ok", False))
        text = config("chat", model, eye, more=f'[store]\nurl = "file:{tmp_path}"\n')
        for _ in range(2):
            async with serving(text) as gateway:
                assert (await send(gateway, "chat", *HISTORY)).status == 200
    assert len(eye.requests) == 1
    assert DESCRIPTION in model.requests[1].body.decode()


async def test_the_same_image_twice_in_a_request_is_described_once() -> None:
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.queue(answers.text("chat", "ok", False))
        async with serving(config("chat", model, eye)) as gateway:
            answer = await send(gateway, "chat", ("image", "one"), ("assistant", "yes"), ("image", "two"))
    assert answer.status == 200
    assert len(eye.requests) == 1
    assert model.requests[0].body.decode().count(DESCRIPTION) == 2


async def test_an_image_in_a_tool_result_is_described() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    body = {
        "model": "blind.m",
        "max_tokens": 100,
        "tools": [{"name": "shot", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "take a picture"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "shot", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "image", "source": source}],
                    }
                ],
            },
        ],
    }
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.queue(answers.text("messages", "a square", False))
        async with serving(config("messages", model, eye)) as gateway:
            answer = await call(gateway.port, "/v1/messages", body)
    assert answer.status == 200
    (result,) = model.requests[0].json["messages"][-1]["content"]
    assert result["tool_use_id"] == "t1"
    assert DESCRIPTION in msgspec.json.encode(result["content"]).decode()
    assert PIXEL not in model.requests[0].body.decode()


async def test_a_vision_model_gets_the_image_unchanged() -> None:
    async with Upstream() as model, Upstream() as eye:
        eye.queue(answers.text("chat", "it is red", False))
        async with serving(config("chat", model, eye)) as gateway:
            answer = await send(gateway, "chat", *HISTORY, model="eye.m")
    assert answer_text("chat", answer, stream=False) == "it is red"
    (received,) = eye.requests
    assert PIXEL in received.body.decode()
    assert "x-routecodex-notice" not in answer.headers


async def test_a_request_that_only_mentions_images_passes_unchanged() -> None:
    text = 'the field "image_url" holds an image'
    async with Upstream() as model, Upstream() as eye:
        model.queue(answers.text("chat", "so it does", False))
        async with serving(config("chat", model, eye)) as gateway:
            answer = await call(
                gateway.port,
                "/v1/chat/completions",
                {"model": "blind.m", "messages": [{"role": "user", "content": text}], "odd_field": [1]},
            )
    assert answer.status == 200
    assert model.requests[0].json == {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "odd_field": [1],
    }
    assert eye.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_without_a_vision_route_the_image_becomes_a_placeholder(protocol: str, stream: bool) -> None:
    async with Upstream() as model:
        model.queue(answers.text(protocol, "sorry", stream))
        text = HEAD + blind(protocol, model) + '[routing]\ndefault = ["blind.m"]\n'
        async with serving(text) as gateway:
            answer = await send(gateway, protocol, *HISTORY, stream=stream)
    asking.check(protocol, answer, stream=stream)
    sent = model.requests[0].body.decode()
    assert PIXEL not in sent
    assert "An image stands here that cannot be shown" in sent
    assert (
        "an image was not described: no target of the route 'vision' can do it"
        in (answer.headers["x-routecodex-notice"])
    )


async def test_a_failed_vision_route_drops_the_image_but_not_the_answer() -> None:
    async with Upstream() as model, Upstream() as eye:
        eye.answer_with(lambda request: answers.error("chat", 500, "no eyes today"))
        model.queue(answers.text("chat", "sorry", False))
        async with serving(NO_HEALTH + config("chat", model, eye)) as gateway:
            answer = await send(gateway, "chat", *HISTORY)
    assert answer.status == 200
    assert "cannot be shown" in model.requests[0].body.decode()
    assert "an image was not described: no eyes today" in answer.headers["x-routecodex-notice"]


async def test_a_vision_model_that_exceeds_its_timeout_is_not_waited_for() -> None:
    async with Upstream() as model, Upstream(lambda request: Steps([Hang()])) as eye:
        model.queue(answers.text("chat", "sorry", False))
        more = "[server_tools.vision_auto]\ntimeout_ms = 50\n"
        async with serving(config("chat", model, eye, more=more)) as gateway:
            answer = await send(gateway, "chat", *HISTORY)
            await eye.requests[0].gone.wait()
    assert answer.status == 200
    assert "no answer after 0.05 seconds" in answer.headers["x-routecodex-notice"]


async def test_the_next_target_of_the_vision_route_is_tried_when_the_first_fails() -> None:
    async with Upstream() as model, Upstream() as bad, Upstream(describe_image) as good:
        bad.answer_with(lambda request: answers.error("gemini", 503))
        model.queue(answers.text("chat", "red", False))
        text = (
            HEAD
            + blind("chat", model)
            + provider("bad", "gemini", bad)
            + provider("good", "chat", good)
            + '[routing]\ndefault = ["blind.m"]\n'
            + 'vision = [{ mode = "priority", targets = ["bad.m", "good.m", "blind.m"] }]\n'
        )
        async with serving(text) as gateway:
            await send(gateway, "chat", *HISTORY)
    assert (len(bad.requests), len(good.requests), len(model.requests)) == (1, 1, 1)
    assert DESCRIPTION in model.requests[0].body.decode()


async def test_a_provider_excluded_by_the_session_gets_no_image() -> None:
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.queue(answers.text("chat", "sorry", False))
        async with serving(config("chat", model, eye)) as gateway:
            answer = await send(gateway, "chat", *HISTORY[:-1], ("user", "<**#eye**> which colour?"))
    assert answer.status == 200
    assert eye.requests == []
    assert "cannot be shown" in model.requests[0].body.decode()


async def test_an_image_by_url_goes_to_the_vision_model_as_the_client_sent_it() -> None:
    url = "http://169.254.169.254/latest/meta-data/photo.png"
    shown = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it?"}]
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.queue(answers.text("chat", "a square", False))
        async with serving(config("chat", model, eye)) as gateway:
            answer = await call(
                gateway.port,
                "/v1/chat/completions",
                {"model": "blind.m", "messages": [{"role": "user", "content": shown}]},
            )
    assert answer.status == 200
    assert url in eye.requests[0].body.decode()
    assert url not in model.requests[0].body.decode()


async def test_images_pass_unchanged_when_vision_auto_is_disabled() -> None:
    async with Upstream() as model, Upstream() as eye:
        model.queue(answers.text("chat", "hm", False))
        more = "[server_tools.vision_auto]\nenabled = false\n"
        async with serving(config("chat", model, eye, more=more)) as gateway:
            await send(gateway, "chat", *HISTORY)
    assert eye.requests == []
    assert PIXEL in model.requests[0].body.decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_images_are_described_in_rounds_of_a_server_tool(protocol: str, stream: bool) -> None:
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.queue(*(answers.text(protocol, text, stream) for text in ("one", "two")))
        async with serving(config(protocol, model, eye)) as gateway:
            answer = await send(
                gateway,
                protocol,
                *HISTORY[:-1],
                ("user", '<**stopMessage:"go on",1**> which colour?'),
                stream=stream,
                x_session_id="s",
            )
    asking.check(protocol, answer, stream=stream)
    assert answer_text(protocol, answer, stream=stream) == "one\n\ntwo"
    assert len(eye.requests) == 1
    assert [DESCRIPTION in request.body.decode() for request in model.requests] == [True, True]
    assert not any(PIXEL in request.body.decode() for request in model.requests)
