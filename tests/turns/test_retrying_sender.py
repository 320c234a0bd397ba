"""Retries: what is repeated, when, and in which session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from routecodex.turns import Conversation, RequestFailed, RetryingSender, ScriptedSender
from routecodex.turns.http_sender import open_sender
from tests.kit import answers
from tests.kit.answers import PROTOCOLS
from tests.kit.gateway import serving
from tests.kit.steps import CutOff, Steps
from tests.kit.upstream import Upstream
from tests.turns.recording import nothing_left, texts

DEMO = (
    '[server]\nport = 0\n[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.demo-1]\n'
    '[providers.demo.models.demo-2]\n[routing]\ndefault = ["demo.demo-1"]\n'
)


def failed(status: int = 503, retry_after: float | None = None) -> RequestFailed:
    return RequestFailed("down", status=status, retry_after=retry_after)


def recorded(pauses: list[float]) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    return sleep


def retrying(script: Any, max_retries: int = 2) -> tuple[Conversation, ScriptedSender, list[float]]:
    pauses: list[float] = []
    sender = ScriptedSender(script)
    wrapped = RetryingSender(sender, max_retries, sleep=recorded(pauses), rand=lambda: 0.0)
    return Conversation(model="m", sender=wrapped), sender, pauses


@pytest.mark.parametrize(
    "error", [failed(429), failed(500), failed(502), failed(503), failed(504), failed(529), ConnectionError()]
)
async def test_a_temporary_failure_is_repeated_with_the_same_request(error: Exception) -> None:
    conversation, sender, pauses = retrying([error, "hello"])
    async with nothing_left(sender):
        answer = await conversation.send("hi")
    assert texts(conversation) == [("user", "hi"), ("assistant", "hello")]
    assert answer is not None
    assert answer.metadata["retries"] == 1
    assert sender.bodies[0] == sender.bodies[1]
    assert pauses == [0.5]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 501])
async def test_a_lasting_failure_is_not_repeated(status: int) -> None:
    conversation, sender, pauses = retrying([failed(status), "never"])
    with pytest.raises(RequestFailed):
        await conversation.send("hi")
    assert (len(sender.bodies), pauses) == (1, [])


async def test_other_errors_are_not_repeated() -> None:
    conversation, sender, _ = retrying([ValueError("a mistake"), "never"])
    with pytest.raises(ValueError, match="a mistake"):
        await conversation.send("hi")
    assert len(sender.bodies) == 1


async def test_the_pauses_grow_to_a_limit_and_the_last_error_is_raised() -> None:
    errors = [failed(503) for _ in range(6)] + [failed(500)]
    conversation, sender, pauses = retrying(errors, max_retries=6)
    with pytest.raises(RequestFailed) as raised:
        await conversation.send("hi")
    assert raised.value.status == 500
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert len(sender.bodies) == 7


async def test_jitter_shortens_a_pause_by_a_quarter_at_most() -> None:
    pauses: list[float] = []
    sender = RetryingSender(ScriptedSender([failed(), "x"]), sleep=recorded(pauses), rand=lambda: 1.0)
    await Conversation(model="m", sender=sender).send("hi")
    assert pauses == [0.375]


async def test_retry_after_is_waited_for() -> None:
    conversation, _, pauses = retrying([failed(429, 7.0), failed(503, 0.01), "hello"])
    await conversation.send("hi")
    assert pauses == [7.0, 1.0]


async def test_a_retry_after_that_is_too_long_is_left_to_the_caller() -> None:
    conversation, sender, pauses = retrying([failed(429, 61.0), "never"])
    with pytest.raises(RequestFailed) as raised:
        await conversation.send("hi")
    assert (raised.value.retry_after, pauses, len(sender.bodies)) == (61.0, [], 1)


async def test_nothing_is_repeated_once_something_was_received() -> None:
    conversation, sender, pauses = retrying([["half an ", failed()], "never"])
    async with nothing_left(sender):
        with pytest.raises(RequestFailed):
            await conversation.send("hi")
    assert texts(conversation) == [("user", "hi"), ("assistant", "half an ")]
    assert (len(sender.bodies), pauses) == (1, [])


async def test_every_request_of_a_turn_has_its_own_retries() -> None:
    conversation, sender, _ = retrying([failed(), failed(), "one", failed(), failed(), "two"])
    await conversation.send("a")
    await conversation.send("b")
    assert len(sender.bodies) == 6


async def test_an_abort_ends_the_pause() -> None:
    waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    sender = ScriptedSender([failed(), "never"])
    conversation = Conversation(model="m", sender=RetryingSender(sender, sleep=sleep))
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("hi"))
        await waiting.wait()
        conversation.abort()
        assert await task is None
    assert (conversation.request_state, len(sender.bodies)) == ("aborted", 1)


async def test_a_custom_sender_is_repeated_only_if_asked_for() -> None:
    sender = ScriptedSender([failed(), "never"])
    with pytest.raises(RequestFailed):
        await Conversation(model="m", sender=sender).send("hi")
    assert len(sender.bodies) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_retries_are_of_the_same_session_in_every_protocol(protocol: str) -> None:
    pauses: list[float] = []
    async with Upstream() as up:
        up.queue(
            answers.error(protocol, 429, "slow down", retry_after="3"),
            Steps((CutOff(),)),
            answers.text(protocol, "hello", True),
        )
        sender = open_sender(f"{up.url}/v1", protocol, headers={"x-session-id": "s-1"})
        wrapped = RetryingSender(sender, sleep=recorded(pauses), rand=lambda: 0.0)
        async with Conversation(model="m", sender=wrapped) as conversation:
            answer = await conversation.send("hi")
            assert conversation.session_id == "s-1"
        await wrapped.aclose()
    assert answer is not None
    assert (answer.content, answer.metadata["retries"]) == ("hello", 2)
    assert [request.headers["x-session-id"] for request in up.requests] == ["s-1"] * 3
    assert len({request.body for request in up.requests}) == 1
    assert pauses == [3.0, 1.0]


async def test_a_conversation_with_a_url_retries_by_itself() -> None:
    async with Upstream() as up:
        up.queue(answers.error("chat", 503, "down"), answers.text("chat", "hello", True))
        async with Conversation(up.url, model="m", session_id="s-1") as conversation:
            answer = await conversation.send("hi")
    assert answer is not None
    assert (answer.content, answer.metadata["retries"]) == ("hello", 1)
    assert [request.headers["x-session-id"] for request in up.requests] == ["s-1"] * 2


async def test_the_gateway_keeps_the_state_of_a_session_across_conversations() -> None:
    async with serving(DEMO) as gateway:
        for text in ("<**!demo.demo-2**> demo:say one", "demo:say two"):
            async with Conversation(gateway.url, model="demo.demo-1", session_id="build-42") as conversation:
                answer = await conversation.send(text)
    assert answer is not None
    assert answer.metadata["headers"]["x-routecodex-target"] == "demo.key1.demo-2"
