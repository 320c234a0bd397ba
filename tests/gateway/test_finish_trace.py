"""The mapping of finish reasons is traced for every protocol."""

from __future__ import annotations

import logging

import pytest

from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import call
from tests.kit.upstream import Json, Upstream


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", ["chat", "responses", "messages", "gemini"])
async def test_each_mapping_is_traced_when_switched_on(
    caplog: pytest.LogCaptureFixture, client: str, stream: bool
) -> None:
    caplog.set_level(logging.DEBUG, "routecodex.finish")
    async with Upstream() as up:
        up.queue(answers.length("messages", "Once upon", stream))
        async with serving(one_target("messages", up)) as gateway:
            answer = await call(
                gateway.port, asking.path(client, stream=stream), asking.body(client, stream=stream)
            )
    reasons = {
        "chat": "length",
        "responses": "max_output_tokens",
        "messages": "max_tokens",
        "gemini": "MAX_TOKENS",
    }
    end = " message_stop=sent rule=no tool turn" if client == "messages" and stream else ""
    (line,) = caplog.messages
    assert line == (
        f"request={answer.headers['x-request-id']} upstream=max_tokens inferred=length "
        f"sent={reasons[client]}{end}"
    )


@pytest.mark.parametrize("upstream", ["chat", "messages"])
@pytest.mark.parametrize(
    ("setting", "agent", "expected"),
    [
        ("auto", "llm/1.0", "withheld rule=auto: this client does not need it"),
        ("auto", "claude-cli/2.1.326 (external, cli)", "sent rule=auto: Claude Code"),
        ("never", "claude-cli/2.1.326 (external, cli)", "withheld rule=never"),
        ("always", "llm/1.0", "sent rule=always"),
    ],
)
async def test_the_trace_says_what_became_of_message_stop(
    caplog: pytest.LogCaptureFixture, upstream: str, setting: str, agent: str, expected: str
) -> None:
    caplog.set_level(logging.DEBUG, "routecodex.finish")
    more = f'[protocols.messages]\ntool_turn_message_stop = "{setting}"\n'
    async with Upstream() as up:
        up.queue(answers.tool_call(upstream, "get_weather", {"city": "Oslo"}, stream=True))
        async with serving(more + one_target(upstream, up)) as gateway:
            body = asking.body("messages", stream=True, tools=True)
            answer = await call(gateway.port, "/v1/messages", body, headers={"user-agent": agent})
    (line,) = caplog.messages
    assert line.endswith(f"inferred=tool_calls sent=tool_use message_stop={expected}")
    assert (b"event: message_stop" in answer.body) is expected.startswith("sent")


CLOCK = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n"


@pytest.mark.parametrize("armed", ["", CLOCK])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", ["", "I cannot help."])
async def test_the_trace_says_how_a_refusal_went_out(
    caplog: pytest.LogCaptureFixture, text: str, stream: bool, armed: str
) -> None:
    caplog.set_level(logging.DEBUG, "routecodex.finish")
    pieces = (answers.TextPiece(text),) if text else ()
    async with Upstream() as up:
        up.queue(answers.compose("messages", *pieces, end="refusal", stream=stream))
        async with serving(armed + one_target("messages", up)) as gateway:
            body = asking.body("responses", stream=stream)
            answer = await call(gateway.port, "/v1/responses", body)
    assert b'"status":"incomplete"' in answer.body
    (line,) = caplog.messages
    assert line.endswith("upstream=refusal inferred=refusal sent=content_filter")


@pytest.mark.parametrize(("version", "sent"), [("0.30.0", "stop_sequence"), ("", "refusal")])
async def test_the_trace_says_what_an_old_messages_client_got(
    caplog: pytest.LogCaptureFixture, version: str, sent: str
) -> None:
    caplog.set_level(logging.DEBUG, "routecodex.finish")
    choice = {"index": 0, "message": {"role": "assistant", "content": "N"}, "finish_reason": "content_filter"}
    filtered = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    headers = {"x-stainless-lang": "python", "x-stainless-package-version": version}
    async with Upstream() as up:
        up.queue(Json(200, filtered))
        async with serving(one_target("chat", up)) as gateway:
            body = asking.body("messages", stream=False)
            answer = await call(gateway.port, "/v1/messages", body, headers=headers)
    assert answer.json["stop_reason"] == sent
    (line,) = caplog.messages
    assert line.endswith(f"sent={sent}")
