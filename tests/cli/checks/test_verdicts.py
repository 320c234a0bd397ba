"""What doctor says about providers that reject, fail, lie or break off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routecodex.cli.checks.result import CheckResult
from tests.cli.checks.agent_model import answers_well, is_count, results_of, statuses
from tests.kit import answers
from tests.kit.answers import PROTOCOLS, Call, TextPiece
from tests.kit.steps import Answer, CutOff, Hang, Json, Raw, Send, Sse, Steps
from tests.kit.upstream import Request

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
AGENT_OF = {"chat": "opencode", "responses": "codex", "messages": "claude", "gemini": "gemini"}
"""An agent that speaks the protocol."""


def always(make: Callable[[str, bool], Answer]) -> Callable[[str, Request], Answer]:
    """Return a model that gives the same answer to everything but counts of tokens."""

    def model(protocol: str, request: Request) -> Answer:
        return (
            answers_well(protocol, request)
            if is_count(request)
            else make(protocol, answers.wants_stream(request))
        )

    return model


async def results_in(
    protocol: str, make: Callable[[str, bool], Answer], *, more: str = ""
) -> list[CheckResult]:
    """Return the results of the agent whose protocol the provider speaks too."""
    return await results_of(AGENT_OF[protocol], protocol, always(make), more=more)


def rejection(status: int, message: str) -> Callable[[str, bool], Answer]:
    return lambda protocol, _stream: answers.error(protocol, status, message)


REJECTIONS = {
    "key": (rejection(401, "invalid api key"), "check the key in providers.up.auth"),
    "credit": (rejection(402, "Insufficient Balance"), "add credit to the account of 'up'"),
    "limit": (rejection(429, "slow down"), "wait, or add a second key under [providers.up]"),
    "fault": (rejection(500, "it broke"), "check base_url under [providers.up]"),
    "overload": (rejection(529, "Overloaded"), "try again later, or add another target"),
    "html": (
        lambda _p, _s: Raw([Send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 13\r\n\r\n<html></html>")]),
        "base_url",
    ),
}


@protocols
@pytest.mark.parametrize("name", REJECTIONS)
async def test_a_provider_that_rejects_everything_is_asked_once(protocol: str, name: str) -> None:
    make, fix = REJECTIONS[name]
    first, *others = await results_in(protocol, make)
    assert (first.id, first.status) == (f"{AGENT_OF[protocol]}.up.m.text", "fail")
    assert fix in first.fix, first
    assert {other.status for other in others} == {"skip"}
    assert {other.message for other in others} == {"not sent, because text failed"}


@protocols
async def test_a_rejected_key_is_named_and_never_shown(protocol: str) -> None:
    first, *_ = await results_in(protocol, rejection(401, "no such key: secret-up"))
    assert "provider 'up' rejected key 'primary'" in first.message
    assert "secret-up" not in first.message


async def test_an_unknown_model_is_told_from_a_wrong_address() -> None:
    def unknown(_protocol: str, _stream: bool) -> Answer:
        error = {"message": "The model `m` does not exist", "type": "invalid_request_error", "param": None}
        return Json(404, {"error": {**error, "code": "model_not_found"}})

    first, *_ = await results_in("chat", unknown)
    assert first.fix.startswith('correct the model\'s name: [providers.up.models."m"] may set id')
    first, *_ = await results_in("chat", rejection(404, "no such path"))
    assert first.fix.startswith("check base_url and protocol under [providers.up]")


@protocols
async def test_a_provider_without_tools_is_told_apart(protocol: str) -> None:
    def model(protocol: str, request: Request) -> Answer:
        if request.json.get("tools"):
            return answers.error(protocol, 400, "this model does not support tools")
        return answers_well(protocol, request)

    agent = AGENT_OF[protocol]
    results = await results_of(agent, protocol, model)
    assert statuses(results)["text"] == statuses(results)["tool_call"] == "fail"
    assert "does not accept tools, which the agent needs" in results[0].fix
    assert "tools = false" in results[0].fix


async def test_a_rejected_field_is_left_to_the_dialect() -> None:
    first, *_ = await results_in("chat", rejection(400, "unknown field reasoning_effort"))
    assert "dialect.unsupported" in first.fix


@protocols
async def test_an_empty_answer_fails(protocol: str) -> None:
    results = await results_in(protocol, lambda p, s: answers.compose(p, stream=s))
    assert statuses(results)["text"] == "fail"
    assert "empty" in results[0].message
    assert "empty_reply_continue" in results[0].fix


@protocols
async def test_a_model_that_ignores_tools_fails_the_tool_call_alone(protocol: str) -> None:
    results = await results_in(protocol, lambda p, s: answers.text(p, "I would rather talk.", s))
    found = statuses(results)
    assert found.pop("tool_call") == "fail"
    assert "fail" not in found.values()
    call = next(result for result in results if result.id.endswith("tool_call"))
    assert "wrote text instead of calling the tool" in call.message
    assert "--tool-call-parser" in call.fix


@protocols
async def test_a_call_without_its_argument_fails(protocol: str) -> None:
    def model(protocol: str, request: Request) -> Answer:
        if "Call the tool" not in request.body.decode() or "harvest" in request.body.decode():
            return answers_well(protocol, request)
        agent_tool = {"opencode": "read", "codex": "exec_command", "claude": "Read", "gemini": "read_file"}
        return answers.tool_call(protocol, agent_tool[AGENT_OF[protocol]], {"other": 1}, "call_1", True)

    results = await results_of(AGENT_OF[protocol], protocol, model)
    call = next(result for result in results if result.id.endswith("tool_call"))
    assert call.status == "fail"
    assert "lacks the argument" in call.message


async def test_a_call_of_another_tool_is_a_warning() -> None:
    def model(protocol: str, request: Request) -> Answer:
        if "Call the tool" in request.body.decode() and "harvest" not in request.body.decode():
            return answers.tool_call(protocol, "Bash", {"command": "cat notes.txt"}, "call_1", True)
        return answers_well(protocol, request)

    results = await results_of("claude", "messages", model)
    call = next(result for result in results if result.id.endswith("tool_call"))
    assert (call.status, call.message) == ("warn", "the model called 'Bash' instead of 'Read'")


@protocols
async def test_a_stream_that_breaks_off_fails(protocol: str) -> None:
    results = await results_in(
        protocol, lambda p, _s: answers.cut_off(p, "It was a dark and stormy night" * 20)
    )
    assert statuses(results)["text"] == "fail"
    assert results[0].message.startswith("the answer broke off: ")


@protocols
async def test_an_error_inside_a_stream_fails(protocol: str) -> None:
    results = await results_in(protocol, lambda p, _s: answers.stream_error(p, "It was a dark night" * 20))
    assert statuses(results)["text"] == "fail"
    assert "Overloaded" in results[0].message


@protocols
async def test_an_answer_cut_by_its_length_is_a_warning_but_fails_codex(protocol: str) -> None:
    results = await results_in(protocol, lambda p, s: answers.length(p, "And so on and", s))
    assert statuses(results)["text"] == ("fail" if protocol == "responses" else "warn")
    assert results[0].fix == 'raise max_output_tokens under [providers.up.models."m"]'


@protocols
async def test_a_refusal_is_a_warning(protocol: str) -> None:
    results = await results_in(protocol, lambda p, s: answers.refusal(p, "I will not.", s))
    assert statuses(results)["text"] == "warn"
    assert "refused a harmless request" in results[0].message


async def test_arguments_that_are_not_json_break_the_protocol() -> None:
    call = Call("read", '{"filePath": ')
    results = await results_in("chat", lambda p, s: answers.compose(p, call, stream=s))
    assert statuses(results)["tool_call"] == "fail"
    assert results[0].message.startswith("the answer breaks the chat protocol: ")
    assert "arguments are not JSON" in results[0].message


async def test_a_compaction_that_calls_tools_fails() -> None:
    call = Call("Read", {"file_path": "notes.txt"})
    results = await results_in("messages", lambda p, s: answers.compose(p, call, stream=s))
    found = {result.id.rpartition(".")[2]: result for result in results}
    assert found["tool_result"].status == "ok"
    assert found["compaction"].status == "fail"
    assert "`compaction`" in found["compaction"].fix


async def test_a_title_that_is_not_json_is_a_warning() -> None:
    results = await results_in("messages", lambda p, s: answers.text(p, "A title: Festival", s))
    title = next(result for result in results if result.id.endswith(".title"))
    assert title.status == "warn"
    assert "sessions get no title" in title.message


async def test_a_silent_provider_is_not_waited_for_beyond_its_timeout() -> None:
    more = "timeout = { first_byte_ms = 300, idle_ms = 300 }"
    first, *others = await results_in("chat", lambda _p, _s: Steps([Hang()]), more=more)
    assert first.status == "fail"
    assert "timeout.first_byte_ms" in first.fix
    assert {other.status for other in others} == {"skip"}


@protocols
@pytest.mark.parametrize(
    "garbage",
    [
        Raw([Send(b"SSH-2.0-OpenSSH_9.7\r\n")]),
        Sse([b"data: {\n\n"]),
        Sse([b"data: [1]\n\n", b"data: 7\n\n"]),
        Sse([b"\xff\xfe\n\n"]),
        Sse([], end=CutOff()),
        Json(200, [1, 2]),
    ],
    ids=["ssh", "half", "lists", "bytes", "nothing", "no-stream"],
)
async def test_garbage_fails_with_words_and_a_fix(protocol: str, garbage: Answer) -> None:
    results = await results_in(protocol, lambda _p, _s: garbage)
    assert statuses(results)["text"] == "fail"
    assert results[0].message
    assert results[0].fix


async def test_text_before_a_call_is_fine() -> None:
    def model(protocol: str, request: Request) -> Answer:
        if "Call the tool" in request.body.decode() and "harvest" not in request.body.decode():
            pieces = (TextPiece("Let me look."), Call("Read", {"file_path": "notes.txt"}))
            return answers.compose(protocol, *pieces, stream=True)
        return answers_well(protocol, request)

    assert set(statuses(await results_of("claude", "messages", model)).values()) == {"ok"}
