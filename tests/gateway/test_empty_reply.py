"""empty_reply_continue over HTTP: an empty answer is retried, a cut-off one is continued."""

from __future__ import annotations

import itertools

import pytest

from routecodex.protocols.grammar.frames import read
from routecodex.wire import json, sse
from tests.gateway.instruction_gateway import answer_text
from tests.kit import answers, asking
from tests.kit.gateway import Running, one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import CutOff, Json, Sse
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PAIRS = [
    pytest.param(*pair, id=f"{pair[0]}-to-{pair[1]}-{'stream' if pair[2] else 'whole'}")
    for pair in itertools.product(PROTOCOLS, PROTOCOLS, (False, True))
]
AGAIN = "up.primary.m gave an empty answer and was asked again"
OFF = "[server_tools.empty_reply_continue]\nenabled = false\n"
SESSION = {"x-session-id": "s"}
COUNTS = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def empty(protocol: str, stream: bool, **more: object) -> Json | Sse:
    return answers.compose(protocol, stream=stream, **more)


def chat_answer(fields: dict[str, object], stream: bool) -> Json | Sse:
    """Return a chat answer without text but with these fields."""
    message = {"role": "assistant", "content": "", **fields}
    choice = {"index": 0, "delta" if stream else "message": message, "finish_reason": "stop"}
    kind = "chat.completion.chunk" if stream else "chat.completion"
    body = {"id": "c", "object": kind, "created": 1, "model": "m", "choices": [choice], "usage": COUNTS}
    return Sse([sse.frame(json.encode(body)), sse.frame(b"[DONE]")]) if stream else Json(body=body)


async def send(
    gateway: Running,
    protocol: str,
    *,
    stream: bool,
    text: str = "Hello",
    headers: dict[str, str] | None = None,
) -> Answer:
    body = asking.body(protocol, text, stream=stream)
    return await call(gateway.port, asking.path(protocol, stream=stream), body, headers=headers or {})


@pytest.mark.parametrize(("client", "upstream", "stream"), PAIRS)
async def test_an_empty_answer_is_retried(client: str, upstream: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(empty(upstream, stream), answers.text(upstream, "here I am", stream))
        async with serving(one_target(upstream, up)) as gateway:
            answer = await send(gateway, client, stream=stream)
    asking.check(client, answer, stream=stream)
    assert answer_text(client, answer, stream=stream) == "here I am"
    assert answer.headers["x-routecodex-notice"] == AGAIN
    first, second = up.requests
    assert first.body == second.body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_answer_that_stays_empty_is_passed_on(protocol: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(empty(protocol, stream), empty(protocol, stream))
        async with serving(one_target(protocol, up)) as gateway:
            answer = await send(gateway, protocol, stream=stream)
    asking.check(protocol, answer, stream=stream)
    assert len(up.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_answer_left_empty_by_a_token_limit_is_passed_on(protocol: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(empty(protocol, stream, end="length"))
        async with serving(one_target(protocol, up)) as gateway:
            answer = await send(gateway, protocol, stream=stream)
    asking.check(protocol, answer, stream=stream)
    assert len(up.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_empty_answer_passes_when_retries_are_disabled(protocol: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(empty(protocol, stream))
        async with serving(OFF + one_target(protocol, up)) as gateway:
            answer = await send(gateway, protocol, stream=stream)
    asking.check(protocol, answer, stream=stream)
    assert len(up.requests) == 1


@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize("upstream", PROTOCOLS)
async def test_reasoning_alone_is_not_a_complete_answer(client: str, upstream: str) -> None:
    async with Upstream() as up:
        only_reasoning = answers.compose(upstream, answers.ReasoningPiece("let me see"), stream=False)
        up.queue(only_reasoning, answers.text(upstream, "here", False))
        async with serving(one_target(upstream, up)) as gateway:
            answer = await send(gateway, client, stream=False)
    assert answer_text(client, answer, stream=False) == "here"
    assert len(up.requests) == 2


@pytest.mark.parametrize("field", ["audio", "images"])
@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize("stream", [False, True])
async def test_audio_and_images_are_an_answer(client: str, stream: bool, field: str) -> None:
    shown = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}]
    fields: dict[str, object] = (
        {"images": shown} if field == "images" else {"audio": {"id": "a", "transcript": "hi"}}
    )
    async with Upstream() as up:
        up.queue(chat_answer(fields, stream))
        async with serving(one_target("chat", up)) as gateway:
            answer = await send(gateway, client, stream=stream)
    asking.check(client, answer, stream=stream)
    assert len(up.requests) == 1
    if client == "chat":
        assert field.encode() in answer.body
    elif field == "audio":
        assert answer_text(client, answer, stream=stream) == "hi"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_answer_does_not_count_against_the_key(stream: bool) -> None:
    async with Upstream() as up, serving(one_target("chat", up)) as gateway:
        for _ in range(5):
            up.queue(empty("chat", stream), answers.text("chat", "here", stream))
            assert (await send(gateway, "chat", stream=stream)).status == 200
    assert len(up.requests) == 10


async def test_a_second_try_that_fails_goes_to_the_next_target() -> None:
    async with Upstream() as up:
        up.queue(
            empty("chat", False),
            answers.error("chat", 500),
            answers.text("chat", "from the other key", False),
        )
        text = one_target("chat", up).replace(
            'auth = [{ alias = "primary", value = "secret-up" }]',
            'auth = [{ alias = "primary", value = "secret-up" }, { alias = "other", value = "secret-two" }]',
        )
        async with serving(text) as gateway:
            answer = await send(gateway, "chat", stream=False)
    assert answer_text("chat", answer, stream=False) == "from the other key"
    assert answer.headers["x-routecodex-target"] in ("up.primary.m", "up.other.m")
    assert len(up.requests) == 3


ARMED = '<**stopMessage:"and now?",1**>Tell me'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_empty_round_of_a_turn_is_followed_up_once(protocol: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(*(answers.text(protocol, "one", stream), empty(protocol, stream)))
        up.queue(answers.text(protocol, "two", stream))
        async with serving(one_target(protocol, up)) as gateway:
            answer = await send(gateway, protocol, stream=stream, text=ARMED, headers=SESSION)
    asking.check(protocol, answer, stream=stream)
    assert answer_text(protocol, answer, stream=stream) == "one\n\ntwo"
    assert "Your last answer was empty" in up.requests[2].body.decode()


def half(protocol: str, text: str) -> tuple[Sse, str]:
    """Return a stream that breaks off in the middle of its text, and the text sent so far."""
    whole = answers.text(protocol, text, True)
    assert isinstance(whole, Sse)
    frames = list(whole.frames)
    sent = frames[: max(2, len(frames) // 2)]
    return Sse(sent, end=CutOff()), "".join(_frames_text(protocol, sent))


def _frames_text(protocol: str, frames: list[bytes]) -> str:
    answer = Answer(200, {}, b"".join(frames), True)
    return answer_text(protocol, answer, stream=True)


LONG = "This is a sentence that is long enough to break somewhere in its middle, in every protocol there is."


@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize("upstream", PROTOCOLS)
async def test_a_cut_off_round_goes_on_where_it_stopped(client: str, upstream: str) -> None:
    broken, begun = half(upstream, LONG)
    assert begun
    async with Upstream() as up:
        up.queue(
            broken, answers.text(upstream, LONG[len(begun) :], True), answers.text(upstream, "more", True)
        )
        async with serving(one_target(upstream, up)) as gateway:
            answer = await send(gateway, client, stream=True, text=ARMED, headers=SESSION)
    asking.check(client, answer, stream=True)
    assert answer_text(client, answer, stream=True) == f"{LONG}\n\nmore"
    resumed = up.requests[1].body.decode()
    assert begun in resumed
    assert "cut off by a fault of the connection" in resumed
    assert "cut off by a fault" not in up.requests[0].body.decode()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_answer_that_is_cut_off_twice_never_looks_complete(protocol: str) -> None:
    async with Upstream() as up:
        up.queue(half(protocol, LONG)[0], half(protocol, LONG)[0])
        async with serving(one_target(protocol, up)) as gateway:
            answer = await send(gateway, protocol, stream=True, text=ARMED, headers=SESSION)
    assert len(up.requests) == 2
    assert _ends_with_error(protocol, answer)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_failed_continuation_ends_with_the_error(protocol: str) -> None:
    async with Upstream() as up:
        up.queue(half(protocol, LONG)[0])
        up.answer_with(lambda request: answers.error(protocol, 500))
        async with serving(one_target(protocol, up)) as gateway:
            answer = await send(gateway, protocol, stream=True, text=ARMED, headers=SESSION)
    assert _ends_with_error(protocol, answer)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_half_a_call_is_never_continued(protocol: str) -> None:
    called = answers.tool_call(protocol, "get_weather", {"city": "Paris and all around it"}, "c1", True)
    assert isinstance(called, Sse)
    frames = list(called.frames)
    async with Upstream() as up:
        up.queue(Sse(frames[:-2] or frames, end=CutOff()))
        async with serving(one_target(protocol, up)) as gateway:
            body = asking.body(protocol, ARMED, stream=True, tools=True)
            await call(gateway.port, asking.path(protocol, stream=True), body, headers=SESSION)
    assert "cut off by a fault" not in up.requests[-1].body.decode()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_without_rounds_a_cut_off_answer_ends_with_the_error(protocol: str) -> None:
    async with Upstream() as up:
        up.queue(half(protocol, LONG)[0])
        async with serving(one_target(protocol, up)) as gateway:
            answer = await send(gateway, protocol, stream=True)
    assert len(up.requests) == 1
    assert _ends_with_error(protocol, answer)


def _ends_with_error(protocol: str, answer: Answer) -> bool:
    if protocol == "gemini" and answer.complete:
        return False
    last = read(answer.body)[-1].data
    return "error" in last
