"""Server tool calls over HTTP: run by the gateway, hidden from the client, complete for the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from routecodex.canon.parts import Text, ToolCall, ToolResult
from routecodex.protocols.codecs import CODECS
from tests.gateway.continuation_gateway import (
    PROTOCOLS,
    SESSION_HEADER,
    SET_STOP_MESSAGE,
    GatewayHarness,
    file_store_gateway,
    has_error,
    stored_uses,
    token_usage,
)
from tests.gateway.installed_tool import install
from tests.gateway.test_matrix import decode_answer
from tests.kit import answers, asking
from tests.kit.answers import Call, ReasoningPiece, TextPiece
from tests.kit.raw_client import Answer
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Json
from tests.kit.upstream import Request

pairs = pytest.mark.parametrize(
    ("protocol", "upstream_protocol"),
    [pytest.param(one, other, id=f"{one}-to-{other}") for one in PROTOCOLS for other in PROTOCOLS],
)
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
PEEK = Call("peek", {"at": "the door"}, "call_p1")
AGAIN = Call("peek", {"at": "the roof"}, "call_p2")
ABYSS = Call("peek", {"at": "the abyss"}, "call_p3")
WEATHER = Call("get_weather", {"city": "Oslo"}, "call_w1")
Piece = TextPiece | ReasoningPiece | Call


@pytest.fixture(autouse=True)
def peek(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the tool as a package with an entry point."""
    monkeypatch.syspath_prepend(str(install(tmp_path / "site")))


def script_rounds(harness: GatewayHarness, *rounds: Sequence[Piece] | UpstreamAnswer) -> None:
    """Answer with these pieces, one round after the other."""

    def answer(request: Request, number: int) -> UpstreamAnswer:
        pieces = rounds[number]
        if not isinstance(pieces, Sequence):
            return pieces
        return answers.compose(harness.upstream_protocol, *pieces, stream=answers.wants_stream(request))

    harness.script(answer)


def calls_and_results(harness: GatewayHarness, number: int) -> list[tuple[str, str]]:
    """Return the calls and results of an upstream request, in order, each with its name."""
    codec, request = CODECS[harness.upstream_protocol], harness.upstream.requests[number]
    named = {"model": "m", "stream": False} if harness.upstream_protocol == "gemini" else {}
    history = codec.decode_request(codec.validate(request.body, **named))
    names: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for message in history.messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                names[part.id] = part.name
                found.append((part.name, part.arguments.replace(" ", "")))
            elif isinstance(part, ToolResult):
                text = "".join(one.text for one in part.parts if isinstance(one, Text))
                found.append((f"{names[part.call_id]} gave", text))
    return found


ONE = [("peek", '{"at":"thedoor"}'), ("peek gave", "saw the door")]


@streaming
@pairs
async def test_a_server_tool_call_is_answered_and_hidden(
    tmp_path: Path, protocol: str, upstream_protocol: str, stream: bool
) -> None:
    async with file_store_gateway(
        protocol, tmp_path / "state", upstream_protocol=upstream_protocol
    ) as harness:
        script_rounds(harness, [PEEK], [TextPiece("it is there")])
        answer = await harness.send("look", stream=stream)
        assert harness.answer_text(answer, stream=stream) == "it is there"
        assert b"peek" not in answer.body
        assert token_usage(protocol, answer, stream=stream) == (21, 9)
        assert calls_and_results(harness, 1) == ONE
        assert all(request.body.count(b'"peek"') for request in harness.upstream.requests)


@streaming
@protocols
async def test_several_calls_after_text_are_answered(tmp_path: Path, protocol: str, stream: bool) -> None:
    async with file_store_gateway(protocol, tmp_path / "state") as harness:
        script_rounds(harness, [TextPiece("let me see"), PEEK, AGAIN], [AGAIN], [TextPiece("all is well")])
        answer = await harness.send("look", stream=stream)
        assert harness.answer_text(answer, stream=stream) == "let me see\n\nall is well"
        assert calls_and_results(harness, 1) == [
            ("peek", '{"at":"thedoor"}'),
            ("peek", '{"at":"theroof"}'),
            ("peek gave", "saw the door"),
            ("peek gave", "saw the roof"),
        ]
        assert len(harness.upstream_texts) == 3


OPENINGS: dict[str, list[list[Piece]]] = {
    "nothing": [[PEEK], [AGAIN]],
    "white space": [[TextPiece("\n\n"), PEEK], [TextPiece(" \n"), AGAIN]],
    "reasoning": [[ReasoningPiece("hm"), PEEK], [ReasoningPiece("hm"), TextPiece("\n"), AGAIN]],
}


@streaming
@pairs
@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
async def test_no_answer_opens_with_blank_lines(
    tmp_path: Path, protocol: str, upstream_protocol: str, stream: bool, opening: list[list[Piece]]
) -> None:
    async with file_store_gateway(
        protocol, tmp_path / "state", upstream_protocol=upstream_protocol
    ) as harness:
        said: list[Piece] = [ReasoningPiece("so"), TextPiece("\n\nit is there\n"), PEEK]
        script_rounds(harness, *opening, said, [TextPiece("\nat last")])
        answer = await harness.send("look", stream=stream)
        asking.check(protocol, answer, stream=stream)
        parts = decode_answer(protocol, answer, stream=stream).parts
        texts = [part for part in parts if isinstance(part, Text)]
        assert "".join(part.text for part in texts) == "it is there\n\nat last"
        # Gemini signs an empty text.
        assert all(part.text.strip() or part.signature for part in texts)


@protocols
async def test_a_failed_call_is_an_error_result_and_the_turn_goes_on(tmp_path: Path, protocol: str) -> None:
    async with file_store_gateway(protocol, tmp_path / "state") as harness:
        script_rounds(harness, [ABYSS, PEEK], [TextPiece("it failed")])
        answer = await harness.send("look")
        assert harness.answer_text(answer, stream=False) == "it failed"
        result_message = [text for name, text in calls_and_results(harness, 1) if name == "peek gave"]
        assert '"code":"tool_failed"' in result_message[0]
        assert "looked back" not in result_message[0]
        assert result_message[1] == "saw the door"


@streaming
@pytest.mark.parametrize("protocol", ["chat", "responses"])
@pytest.mark.parametrize("arguments", ['{"at":', "not JSON", '{"at": 1}', "[]"])
async def test_invalid_arguments_are_an_error_result(
    tmp_path: Path, protocol: str, stream: bool, arguments: str
) -> None:
    async with file_store_gateway(protocol, tmp_path / "state") as harness:
        script_rounds(harness, [Call("peek", arguments, "call_x")], [TextPiece("I see")])
        answer = await harness.send("look", stream=stream)
        assert harness.answer_text(answer, stream=stream) == "I see"
        assert '"code":"bad_arguments"' in calls_and_results(harness, 1)[-1][1]


def calls_of(protocol: str, answer: Answer) -> list[str]:
    """Return the names of the calls in a whole answer."""
    body = answer.json
    match protocol:
        case "chat":
            return [call["function"]["name"] for call in body["choices"][0]["message"]["tool_calls"]]
        case "responses":
            return [item["name"] for item in body["output"] if item["type"] == "function_call"]
        case "messages":
            return [block["name"] for block in body["content"] if block["type"] == "tool_use"]
    parts = body["candidates"][0]["content"]["parts"]
    return [part["functionCall"]["name"] for part in parts if "functionCall" in part]


def with_result(protocol: str, request_body: dict[str, Any], answer: Answer, result: str) -> dict[str, Any]:
    """Return the next request of a client that ran its call."""
    body = answer.json
    match protocol:
        case "chat":
            message = body["choices"][0]["message"]
            result_message = {
                "role": "tool",
                "tool_call_id": message["tool_calls"][0]["id"],
                "content": result,
            }
            return {**request_body, "messages": [*request_body["messages"], message, result_message]}
        case "responses":
            id = next(item["call_id"] for item in body["output"] if item["type"] == "function_call")
            result_message = {"type": "function_call_output", "call_id": id, "output": result}
            first = {"role": "user", "content": request_body["input"]}
            return {**request_body, "input": [first, *body["output"], result_message]}
        case "messages":
            id = next(block["id"] for block in body["content"] if block["type"] == "tool_use")
            result_message = {"type": "tool_result", "tool_use_id": id, "content": result}
            more = [
                {"role": "assistant", "content": body["content"]},
                {"role": "user", "content": [result_message]},
            ]
            return {**request_body, "messages": [*request_body["messages"], *more]}
    content = body["candidates"][0]["content"]
    call = next(part["functionCall"] for part in content["parts"] if "functionCall" in part)
    response = {"name": call["name"], "response": {"output": result}}
    response |= {"id": call["id"]} if "id" in call else {}
    back = {"role": "user", "parts": [{"functionResponse": response}]}
    return {**request_body, "contents": [*request_body["contents"], content, back]}


@pytest.mark.parametrize("headers", [SESSION_HEADER, {}], ids=["in-a-session", "without"])
@pairs
async def test_server_tool_calls_beside_client_calls_are_hidden_and_restored(
    tmp_path: Path, protocol: str, upstream_protocol: str, headers: dict[str, str]
) -> None:
    async with file_store_gateway(
        protocol, tmp_path / "state", upstream_protocol=upstream_protocol
    ) as harness:
        script_rounds(
            harness,
            [TextPiece("let me see"), PEEK, WEATHER, AGAIN],
            [TextPiece("cold")],
            [TextPiece("really")],
        )
        request_body = asking.body(protocol, "weather?", stream=False, tools=True)
        answer = await harness.send(body=request_body, headers=headers)
        asking.check(protocol, answer, stream=False)
        assert calls_of(protocol, answer) == ["get_weather"]
        assert b"peek" not in answer.body
        back = with_result(protocol, request_body, answer, "snow")
        answer = await harness.send(body=back, headers=headers)
        assert harness.answer_text(answer, stream=False) == "cold"
        history = calls_and_results(harness, 1)
        assert history[:3] == [
            ("peek", '{"at":"thedoor"}'),
            ("get_weather", '{"city":"Oslo"}'),
            ("peek", '{"at":"theroof"}'),
        ]
        assert sorted(history[3:]) == [
            ("get_weather gave", "snow"),
            ("peek gave", "saw the door"),
            ("peek gave", "saw the roof"),
        ]
        await harness.send(body=back, headers=headers)
        assert calls_and_results(harness, 2) == history


@protocols
async def test_a_stream_shows_only_the_calls_of_client_tools(tmp_path: Path, protocol: str) -> None:
    async with file_store_gateway(protocol, tmp_path / "state") as harness:
        script_rounds(harness, [PEEK, WEATHER])
        answer = await harness.send("weather?", stream=True, tools=True)
        asking.check(protocol, answer, stream=True)
        assert b"peek" not in answer.body
        assert b"get_weather" in answer.body
        assert len(harness.upstream_texts) == 1


@pytest.mark.parametrize("before", [(), (TextPiece("let me see"),)], ids=["nothing", "words"])
@protocols
async def test_a_failed_round_after_tool_results_is_an_error(
    tmp_path: Path, protocol: str, before: tuple[TextPiece, ...]
) -> None:
    at_once = "[routing_options]\nmax_wait_ms = 0\n"
    async with file_store_gateway(protocol, tmp_path / "state", more=at_once) as harness:
        script_rounds(harness, [*before, PEEK], Json(400, {"error": {"message": "not so"}}))
        answer = await harness.send("look", stream=True)
        assert has_error(answer)
        assert b"peek" not in answer.body


async def test_a_failed_round_after_tool_results_is_an_error_of_a_whole_answer(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path / "state") as harness:
        script_rounds(harness, [TextPiece("let me see"), PEEK], Json(400, {"error": {"message": "not so"}}))
        answer = await harness.send("look")
        assert answer.status == 400
        assert b"not so" in answer.body


@streaming
async def test_stop_message_follows_up_an_answer_after_a_server_tool_call(
    tmp_path: Path, stream: bool
) -> None:
    async with file_store_gateway("chat", tmp_path / "state") as harness:
        script_rounds(harness, [PEEK], [TextPiece("one")], [AGAIN], [TextPiece("two")])
        answer = await harness.send(SET_STOP_MESSAGE.format(1), stream=stream)
        assert harness.answer_text(answer, stream=stream) == "one\n\ntwo"
        assert (stored_uses(tmp_path / "state"), len(harness.upstream_texts)) == (1, 4)
        assert harness.upstream_texts[3] == [("user", "Hello"), ("assistant", "one"), ("user", "go on")]


async def test_a_request_without_tool_calls_is_answered_unchanged(tmp_path: Path) -> None:
    async with file_store_gateway("messages", tmp_path / "state") as harness:
        script_rounds(harness, [TextPiece("hello")])
        answer = await harness.send(stream=True)
        assert harness.answer_text(answer, stream=True) == "hello"
        assert [tool["name"] for tool in harness.upstream.requests[0].json["tools"]] == ["peek"]
