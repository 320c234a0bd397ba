"""Streams that fail, stall or lose their client: an incomplete answer never looks complete."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from routecodex.canon.parts import Text
from routecodex.protocols import grammar
from routecodex.wire import sse
from tests.gateway.test_matrix import decode_answer
from tests.kit import answers, asking
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import begin, call
from tests.kit.steps import CutOff, Hang, Json, Send, Sse, Steps, Wait
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PAIRS = [
    pytest.param(*pair, id=f"{pair[0]}-to-{pair[1]}") for pair in itertools.product(PROTOCOLS, PROTOCOLS)
]
SSE_HEAD = {"content-type": "text/event-stream"}


def two_targets(protocol: str, first: Upstream, second: Upstream, *, more: str = "") -> str:
    return (
        "[server]\nport = 0\ndrain_seconds = 1\n"
        + provider("first", protocol, first, more=more)
        + provider("second", protocol, second)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "second.m"] }]\n'
    )


def frames(protocol: str, text: str) -> list[bytes]:
    canned = answers.text(protocol, text, True)
    assert isinstance(canned, Sse)
    return list(canned.frames)


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_second_target_answers_when_first_breaks_before_content(client: str, upstream: str) -> None:
    async with Upstream() as bad, Upstream() as good:
        lifecycle = [] if upstream == "gemini" else frames(upstream, "never seen")[:1]
        bad.queue(Sse(lifecycle, end=CutOff()))
        good.queue(answers.text(upstream, "from the second", True))
        async with serving(two_targets(upstream, bad, good)) as gateway:
            answer = await call(
                gateway.port,
                asking.path(client, stream=True, model="x"),
                asking.body(client, stream=True, model="x"),
            )
    asking.check(client, answer, stream=True)
    assert decode_answer(client, answer, stream=True).parts[-1] == Text("from the second")
    assert answer.headers["x-routecodex-target"] == "second.primary.m"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [429, 500, 503, 529, 401, 403])
async def test_second_target_answers_when_first_refuses(status: int, stream: bool) -> None:
    async with Upstream() as bad, Upstream() as good:
        bad.queue(answers.error("messages", status))
        good.queue(answers.text("messages", "hello", stream))
        async with serving(two_targets("messages", bad, good)) as gateway:
            answer = await call(
                gateway.port,
                asking.path("chat", stream=stream),
                asking.body("chat", stream=stream, model="x"),
            )
    asking.check("chat", answer, stream=stream)


async def test_a_request_the_provider_calls_wrong_is_not_tried_elsewhere() -> None:
    async with Upstream() as bad, Upstream() as good:
        bad.queue(answers.error("chat", 422, "temperature must be below 2"))
        async with serving(two_targets("chat", bad, good)) as gateway:
            answer = await call(
                gateway.port,
                asking.path("messages", stream=True),
                asking.body("messages", stream=True, model="x"),
            )
        assert good.requests == []
    assert answer.status == 422
    assert answer.json["error"]["message"] == "temperature must be below 2"
    grammar.check_error("messages", answer.status, answer.body)


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_a_stream_cut_off_after_content_ends_with_an_error_event(client: str, upstream: str) -> None:
    async with Upstream() as up:
        up.queue(answers.cut_off(upstream, "one two three four five six"))
        async with serving(one_target(upstream, up)) as gateway:
            answer = await call(
                gateway.port, asking.path(client, stream=True), asking.body(client, stream=True)
            )
    assert answer.status == 200
    grammar.check_broken(client, answer.body)


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_a_stream_that_ends_cleanly_but_early_is_not_a_complete_answer(
    client: str, upstream: str
) -> None:
    half = frames(upstream, "one two three four five six")
    async with Upstream() as up:
        up.queue(Sse(half[: len(half) // 2]))
        async with serving(one_target(upstream, up)) as gateway:
            answer = await call(
                gateway.port, asking.path(client, stream=True), asking.body(client, stream=True)
            )
    grammar.check_broken(client, answer.body)


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_an_error_the_provider_reports_in_the_stream_reaches_the_client(
    client: str, upstream: str
) -> None:
    async with Upstream() as up:
        up.queue(answers.stream_error(upstream, "one two three four five", message="the model caught fire"))
        async with serving(one_target(upstream, up)) as gateway:
            answer = await call(
                gateway.port, asking.path(client, stream=True), asking.body(client, stream=True)
            )
    grammar.check_broken(client, answer.body)
    assert b"the model caught fire" in answer.body


HALF_A_CALL = {
    "chat": Sse(
        [
            b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
            b'"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"call_1","type":"function","function":'
            b'{"name":"shell","arguments":"{\\"command\\":\\"rm -rf /tmp/bu"}}]},"finish_reason":null}]}\n\n',
            b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
            b'"delta":{},"finish_reason":"content_filter"}]}\n\n',
            b"data: [DONE]\n\n",
        ]
    ),
    "messages": Sse(
        [
            b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message",'
            b'"role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":'
            b'{"input_tokens":1,"output_tokens":1}}}\n\n',
            b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
            b'{"type":"tool_use","id":"toolu_1","name":"shell","input":{}}}\n\n',
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
            b'{"type":"input_json_delta","partial_json":"{\\"command\\":\\"rm -rf /tmp/bui"}}\n\n',
            b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
            b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"refusal",'
            b'"stop_sequence":null},"usage":{"output_tokens":9}}\n\n',
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        ]
    ),
}
FILTERED = {
    "chat": b'"finish_reason":"content_filter"',
    "messages": b'"stop_reason":"refusal"',
    "responses": b'"reason":"content_filter"',
    "gemini": b'"finishReason":"SAFETY"',
}


@pytest.mark.parametrize("upstream", HALF_A_CALL)
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_half_a_call_that_was_filtered_is_not_a_tool_turn(client: str, upstream: str) -> None:
    async with Upstream() as up:
        up.queue(HALF_A_CALL[upstream])
        async with serving(one_target(upstream, up)) as gateway:
            answer = await call(
                gateway.port, asking.path(client, stream=True), asking.body(client, stream=True)
            )
    assert FILTERED[client] in answer.body


@pytest.mark.parametrize("client", PROTOCOLS)
async def test_a_whole_answer_that_is_cut_off_is_a_502(client: str) -> None:
    async with Upstream() as up:
        up.queue(Steps((Send(b'{"id": "chatcmpl-1", "choices": [{"mess'), CutOff())))
        async with serving(one_target("chat", up)) as gateway:
            answer = await call(
                gateway.port, asking.path(client, stream=False), asking.body(client, stream=False)
            )
    assert answer.status == 502
    grammar.check_error(client, answer.status, answer.body)


@pytest.mark.parametrize("upstream", PROTOCOLS)
async def test_an_answer_that_does_not_parse_is_a_502(upstream: str) -> None:
    async with Upstream() as up:
        up.queue(Json(200, b"<html>it works!</html>"), Json(200, b'{"surprise": true}'))
        async with serving(one_target(upstream, up)) as gateway:
            for _ in range(2):
                answer = await call(
                    gateway.port, asking.path("chat", stream=False), asking.body("chat", stream=False)
                )
                assert answer.status == 502
                assert b"html" not in answer.body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_before_the_first_byte_cancels_the_upstream(stream: bool) -> None:
    async with Upstream() as up:
        up.queue(Steps((Hang(),), headers=SSE_HEAD))
        async with serving(one_target("chat", up)) as gateway:
            under_way = await begin(
                gateway.port, asking.path("chat", stream=stream), asking.body("chat", stream=stream)
            )
            request = await up.received(1)
            await under_way.leave()
            await asyncio.wait_for(request.gone.wait(), 10)
            up.queue(answers.text("chat", "next", stream))
            answer = await call(
                gateway.port, asking.path("chat", stream=stream), asking.body("chat", stream=stream)
            )
    assert decode_answer("chat", answer, stream=stream).parts == (Text("next"),)
    assert [(one.connection, one.disconnected) for one in up.requests] == [(1, True), (2, False)]


@pytest.mark.parametrize("client", PROTOCOLS)
async def test_a_disconnect_in_the_middle_cancels_the_upstream(client: str) -> None:
    half = frames("chat", "one two three four")[:4]
    async with Upstream() as up:
        up.queue(Sse(half, end=Hang()))
        async with serving(one_target("chat", up)) as gateway:
            under_way = await begin(
                gateway.port, asking.path(client, stream=True), asking.body(client, stream=True)
            )
            await under_way.head()
            assert await under_way.piece()
            await under_way.leave()
            await asyncio.wait_for(up.requests[0].gone.wait(), 10)


async def test_a_silent_upstream_is_a_504() -> None:
    async with Upstream() as up:
        up.queue(Steps((Hang(),), headers=SSE_HEAD))
        more = "timeout = { first_byte_ms = 50, idle_ms = 50 }"
        async with serving(one_target("chat", up, more=more)) as gateway:
            answer = await call(
                gateway.port, asking.path("messages", stream=True), asking.body("messages", stream=True)
            )
    assert answer.status == 504
    grammar.check_error("messages", 504, answer.body)


async def test_an_upstream_that_falls_silent_in_the_middle_ends_the_stream_with_an_error() -> None:
    async with Upstream() as up:
        up.queue(Sse(frames("chat", "one two three")[:3], end=Hang()))
        async with serving(one_target("chat", up, more="timeout = { idle_ms = 100 }")) as gateway:
            answer = await call(
                gateway.port, asking.path("messages", stream=True), asking.body("messages", stream=True)
            )
    grammar.check_broken("messages", answer.body)


async def test_comments_keep_a_waiting_stream_alive() -> None:
    go_on = asyncio.Event()
    canned = frames("chat", "at last")
    async with Upstream() as up:
        up.queue(Steps((Wait(go_on), *(Send(frame) for frame in canned)), headers=SSE_HEAD))
        async with serving(one_target("chat", up, server="keepalive_ms = 30")) as gateway:
            under_way = await begin(
                gateway.port, asking.path("messages", stream=True), asking.body("messages", stream=True)
            )
            await under_way.head()
            assert await under_way.piece() == b": keep-alive\n\n"
            go_on.set()
            answer = await under_way.rest()
            await under_way.close()
    asking.check("messages", answer, stream=True)
    assert decode_answer("messages", answer, stream=True).parts == (Text("at last"),)


async def test_gemini_streams_get_no_comments() -> None:
    go_on = asyncio.Event()
    canned = frames("chat", "at last")
    async with Upstream() as up:
        up.queue(Steps((Wait(go_on), *(Send(frame) for frame in canned)), headers=SSE_HEAD))
        async with serving(one_target("chat", up, server="keepalive_ms = 20")) as gateway:
            under_way = await begin(
                gateway.port, asking.path("gemini", stream=True), asking.body("gemini", stream=True)
            )
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(under_way.head(), 0.2)
            go_on.set()
            answer = await under_way.rest()
            await under_way.close()
    asking.check("gemini", answer, stream=True)


async def test_an_error_after_a_keep_alive_ends_the_stream_with_the_error_event() -> None:
    go_on = asyncio.Event()
    async with Upstream() as up:
        up.queue(Steps((Wait(go_on), CutOff()), headers=SSE_HEAD))
        async with serving(one_target("chat", up, server="keepalive_ms = 30")) as gateway:
            under_way = await begin(
                gateway.port, asking.path("chat", stream=True), asking.body("chat", stream=True)
            )
            await under_way.head()
            assert await under_way.piece() == b": keep-alive\n\n"
            go_on.set()
            answer = await under_way.rest()
            await under_way.close()
    assert b'data: {"error":' in answer.body
    assert b"[DONE]" not in answer.body


@pytest.mark.parametrize("client", ["chat", "messages"])
async def test_a_client_that_reads_slowly_pauses_the_upstream(client: str) -> None:
    """The upstream cannot send 40 MB of stream to a client that reads nothing."""
    start, *_, end = frames("chat", "x")
    chunk = frames("chat", "y" * 32_000)[1:-3]
    block = b"".join(chunk)
    steps = (Send(start), *(Send(block) for _ in range(40_000_000 // len(block))), Send(end))
    async with Upstream() as up:
        up.queue(Steps(steps, headers=SSE_HEAD))
        async with serving(one_target("chat", up)) as gateway:
            under_way = await begin(
                gateway.port, asking.path(client, stream=True), asking.body(client, stream=True)
            )
            request = await up.received(1)
            done = -1
            while request.steps_done != done:
                done = request.steps_done
                await asyncio.sleep(0.3)
            assert 0 < done < len(steps) * 0.7
            await under_way.leave()
            await asyncio.wait_for(request.gone.wait(), 10)


async def test_a_client_that_reads_nothing_is_disconnected_also_with_keep_alives() -> None:
    start, *_ = frames("chat", "x")
    block = b"".join(frames("chat", "y" * 32_000)[1:-3])
    steps = (Send(start), *(Send(block) for _ in range(40_000_000 // len(block))))
    limits = "keepalive_ms = 50\nclient_idle_ms = 1000"
    async with Upstream() as up:
        up.queue(Steps(steps, headers=SSE_HEAD))
        async with serving(one_target("chat", up, server=limits)) as gateway:
            under_way = await begin(
                gateway.port, asking.path("chat", stream=True), asking.body("chat", stream=True)
            )
            request = await up.received(1)
            await asyncio.wait_for(request.gone.wait(), 10)
            answer = await under_way.rest()
            await under_way.leave()
    assert 0 < request.steps_done < len(steps)
    assert (answer.status, answer.complete) == (200, False)


async def test_a_client_that_reads_the_end_slowly_does_not_delay_keep_alives_of_others() -> None:
    """The end of one answer waits to be read while another stream is silent."""
    first, delta, *end = frames("chat", "zz")
    long = first + delta.replace(b"zz", b"z" * 8_000_000)
    go_on = asyncio.Event()
    async with Upstream() as up:
        up.queue(
            Sse([long[:-10], long[-10:] + b"".join(end)]),
            Steps((Send(first), Wait(go_on)), headers=SSE_HEAD),
        )
        async with serving(one_target("chat", up, server="keepalive_ms = 30")) as gateway:
            path, body = asking.path("chat", stream=True), asking.body("chat", stream=True)
            slow = await begin(gateway.port, path, body)
            await (await up.received(1)).answered.wait()
            silent = await begin(gateway.port, path, body)
            await silent.head()
            comments = [await asyncio.wait_for(silent.piece(), 10) for _ in range(8)]
            go_on.set()
            await slow.leave()
            await silent.leave()
    assert comments[-6:] == [b": keep-alive\n\n"] * 6


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/octet-stream", "application/x-ndjson", ""]
)
async def test_a_stream_under_another_content_type_is_still_a_stream(content_type: str) -> None:
    async with Upstream() as up:
        steps = tuple(Send(frame) for frame in frames("chat", "still a stream"))
        up.queue(Steps(steps, headers={"content-type": content_type} if content_type else {}))
        async with serving(one_target("chat", up)) as gateway:
            answer = await call(
                gateway.port, asking.path("messages", stream=True), asking.body("messages", stream=True)
            )
    asking.check("messages", answer, stream=True)


@pytest.mark.parametrize("content", [False, True], ids=["before-content", "after-content"])
@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_a_provider_key_in_a_stream_is_redacted(client: str, upstream: str, content: bool) -> None:
    canned = answers.stream_error(upstream, "one two three four five", 500, "bad key secret-up, sorry")
    async with Upstream() as up:
        up.queue(canned if content else Sse(canned.frames[-1:]))
        async with serving(one_target(upstream, up)) as gateway:
            answer = await call(
                gateway.port, asking.path(client, stream=True), asking.body(client, stream=True)
            )
    assert b"secret-up" not in answer.body
    assert b"sorry" in answer.body


async def test_a_provider_key_in_a_whole_answer_is_redacted() -> None:
    async with Upstream() as up:
        up.queue(Json(200, {"error": {"message": "bad key secret-up, sorry", "code": "weird"}}))
        async with serving(one_target("chat", up)) as gateway:
            answer = await call(
                gateway.port, asking.path("messages", stream=False), asking.body("messages", stream=False)
            )
    assert answer.status == 502
    assert b"secret-up" not in answer.body


@pytest.mark.parametrize("client", PROTOCOLS)
async def test_a_gemini_stream_may_come_as_one_array(client: str) -> None:
    found = sse.Frames().feed(b"".join(frames("gemini", "one after the other")))
    pieces = b"[" + b",\r\n".join(frame.data for frame in found) + b"]"
    async with Upstream() as up:
        up.queue(Json(200, pieces))
        async with serving(one_target("gemini", up)) as gateway:
            request_body = asking.body(client, stream=True)
            answer = await call(gateway.port, asking.path(client, stream=True), request_body)
    asking.check(client, answer, stream=True)
    canned = decode_answer(client, answer, stream=True)
    assert [part.text for part in canned.parts if isinstance(part, Text)] == ["one after the other"]
