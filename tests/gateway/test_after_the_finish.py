"""An answer is complete once its finish has arrived, whatever the provider's stream does then."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from routecodex.canon.parts import Text
from routecodex.canon.response import Response
from tests.gateway.continuation_gateway import SET_STOP_MESSAGE, file_store_gateway
from tests.gateway.test_matrix import decode_answer
from tests.kit import answers, asking
from tests.kit.answers import TextPiece, chat, gemini, messages, responses
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import CloseClean, CutOff, Hang, Sse
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PAIRS = [pytest.param(*pair, id="-to-".join(pair)) for pair in itertools.product(PROTOCOLS, PROTOCOLS)]
pairs = pytest.mark.parametrize(("client", "upstream"), PAIRS)
IDLE = "timeout = { idle_ms = 50 }"
FINISHES = {
    "chat": b'"finish_reason":"',
    "responses": b'"type":"response.completed"',
    "messages": b'"stop_reason":"',
    "gemini": b'"finishReason":"',
}
ENDS: dict[str, CutOff | CloseClean | Hang] = {"resets": CutOff(), "ends": CloseClean(), "hangs": Hang()}
WIRES = {"chat": chat, "responses": responses, "messages": messages, "gemini": gemini}


def finished(protocol: str, *, calls: bool = False) -> list[bytes]:
    """Return the frames of an answer up to the one with its finish."""
    canned = (
        answers.tool_call(protocol, "get_weather", {"city": "Oslo"}, "call_1", stream=True)
        if calls
        else answers.text(protocol, "Hello there", True)
    )
    assert isinstance(canned, Sse)
    frames = list(canned.frames)
    end = next(at for at, frame in enumerate(frames) if FINISHES[protocol] in frame)
    return frames[: end + 1]


def late_text(protocol: str) -> bytes:
    """Return a frame with more text."""
    frames: list[bytes] = WIRES[protocol].stream(answers.ModelAnswer((TextPiece("JUNK and more"),)))
    return next(frame for frame in frames if b"JUNK" in frame)


JUNK = ("text", "error", "no JSON", "half", "HTML", "bytes")


def junk_frame(protocol: str, kind: str) -> bytes:
    if kind == "text":
        return late_text(protocol)
    if kind == "error":
        frame: bytes = WIRES[protocol].error_frame(500, "JUNK")
        return frame
    return {
        "no JSON": b"data: JUNK\n\n",
        "half": b'data: {"JUNK": [\n\n',
        "HTML": b"<html>JUNK</html>\r\n\r\n",
        "bytes": b"data: JUNK\xff\xfe\x00\n\n",
    }[kind]


async def exchange(
    client: str, upstream: str, frames: Sequence[bytes], end: CutOff | CloseClean | Hang
) -> tuple[Answer, str]:
    """Return the answer, and the health that the gateway has of the target."""
    async with Upstream() as up:
        up.queue(Sse(frames, end=end))
        async with serving(one_target(upstream, up, more=IDLE)) as gateway:
            answer = await call(
                gateway.port,
                asking.path(client, stream=True),
                asking.body(client, stream=True, tools=True),
            )
            health = gateway.service.gateway.health.report(0.0)
    return answer, str(health)


def check(client: str, answer: Answer) -> Response:
    asking.check(client, answer, stream=True)
    assert b"JUNK" not in answer.body
    return decode_answer(client, answer, stream=True)


@pairs
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_finished_answer_is_complete_when_its_stream(
    client: str, upstream: str, end: CutOff | CloseClean | Hang
) -> None:
    answer, health = await exchange(client, upstream, finished(upstream), end)
    response = check(client, answer)
    assert (response.parts, response.finish.reason) == ((Text("Hello there"),), "stop")
    assert health == "[]"


@pairs
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_finished_answer_with_calls_is_complete_when_its_stream(
    client: str, upstream: str, end: CutOff | CloseClean | Hang
) -> None:
    answer, _ = await exchange(client, upstream, finished(upstream, calls=True), end)
    response = check(client, answer)
    assert response.finish.reason == "tool_calls"
    assert [type(part).__name__ for part in response.parts] == ["ToolCall"]


@pairs
@pytest.mark.parametrize("kind", JUNK)
async def test_junk_after_the_finish_does_not_pass(client: str, upstream: str, kind: str) -> None:
    frames = [*finished(upstream), junk_frame(upstream, kind)]
    answer, _ = await exchange(client, upstream, frames, CloseClean())
    response = check(client, answer)
    assert (response.parts, response.finish.reason) == ((Text("Hello there"),), "stop")


@pairs
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_round_whose_stream_breaks_after_the_finish_is_followed_up(
    tmp_path: Path, client: str, upstream: str, end: CutOff | CloseClean | Hang
) -> None:
    async with file_store_gateway(client, tmp_path, upstream_protocol=upstream, provider=IDLE) as harness:
        harness.script(lambda _request, _number: Sse(finished(upstream), end=end))
        answer = await harness.send(SET_STOP_MESSAGE.format(1), stream=True)
    assert harness.answer_text(answer, stream=True) == "Hello there\n\nHello there"
    assert len(harness.upstream_texts) == 2
