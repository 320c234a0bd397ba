from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import BadRequest
from routecodex.canon.request import CalledTool, RequestFeatures
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.responses import CODEC
from routecodex.wire import json
from tests.clients.agent_requests import codex

QUESTION = {"role": "user", "content": "Fix it"}
ENVIRONMENT = {"role": "user", "content": "<environment_context>cwd: /x</environment_context>"}
REASONING = {"type": "reasoning", "id": "r", "summary": []}
CALL = {"type": "function_call", "call_id": "a", "name": "exec_command", "arguments": '{"cmd":"ls"}'}
PATCH = {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "*** Begin Patch"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "ok"}
PATCHED = {"type": "custom_tool_call_output", "call_id": "b", "output": "ok"}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]}
DEVELOPER = {"role": "developer", "content": "Note."}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
FILE = {"type": "input_file", "file_data": "data:application/pdf;base64,aGk="}
READ = {"type": "function", "name": "read_file", "parameters": {}}
SEARCH = {"type": "web_search"}


def request(*items: Any, **fields: Any) -> WireRequest:
    return CODEC.validate(json.encode({"model": "m", "input": list(items), **fields}))


def features(*items: Any, **fields: Any) -> RequestFeatures:
    return CODEC.features(request(*items, **fields))


def message(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts)}


def text(value: str) -> dict[str, Any]:
    return {"type": "input_text", "text": value}


def test_a_plain_text_is_from_the_user() -> None:
    found = CODEC.features(CODEC.validate(b'{"model":"m","input":"Fix it","instructions":"Be brief."}'))
    assert found == RequestFeatures(newest="user", text="Fix it", opening="Be brief.")
    assert features(DEVELOPER, message(text("Fix it"))) == RequestFeatures(
        newest="user", text="Fix it", opening="Note."
    )


def test_a_request_that_only_continues_is_from_the_user() -> None:
    body = b'{"model":"m","previous_response_id":"resp_1"}'
    assert CODEC.features(CODEC.validate(body)) == RequestFeatures(newest="user", has_answer=True)


def test_outputs_are_from_tools_and_calls_from_the_last_turn() -> None:
    earlier = {**CALL, "call_id": "0", "name": "earlier"}
    found = features(
        QUESTION,
        earlier,
        {**OUTPUT, "call_id": "0"},
        REASONING,
        ANSWER,
        CALL,
        REASONING,
        PATCH,
        OUTPUT,
        PATCHED,
    )
    assert found == RequestFeatures(
        newest="tool",
        calls=(CalledTool("exec_command", '{"cmd":"ls"}'), CalledTool("apply_patch", "*** Begin Patch")),
        has_answer=True,
        opening="Fix it",
    )


def test_a_call_without_a_name_is_named_by_its_type() -> None:
    action = {"type": "exec", "command": ["bash", "-lc", "ls"]}
    shell = {"type": "local_shell_call", "call_id": "s", "status": "completed", "action": action}
    found = features(QUESTION, shell, {"type": "local_shell_call_output", "call_id": "s", "output": "x"})
    assert found.newest == "tool"
    assert found.calls == (CalledTool("local_shell", json.encode(action).decode()),)


def test_outputs_of_a_stored_turn_have_no_calls() -> None:
    found = features(OUTPUT, previous_response_id="resp_1")
    assert (found.newest, found.calls, found.has_answer) == ("tool", (), True)


@pytest.mark.parametrize(
    ("trailing", "newest"),
    [
        ((DEVELOPER,), "tool"),
        ((ENVIRONMENT,), "tool"),
        ((QUESTION,), "user"),
        ((QUESTION, ENVIRONMENT), "user"),
        ((ANSWER,), "assistant"),
        ((REASONING,), "assistant"),
        ((ANSWER, ENVIRONMENT), "user"),
    ],
)
def test_system_messages_and_reminders_are_skipped(trailing: tuple[Any, ...], newest: str) -> None:
    assert features(QUESTION, CALL, OUTPUT, *trailing).newest == newest


@pytest.mark.parametrize(
    ("parts", "media"),
    [([text("see"), IMAGE], True), ([IMAGE], True), ([FILE], False), ([text("x"), FILE], False)],
)
def test_images_count_in_the_newest_message(parts: list[Any], media: bool) -> None:
    assert features(message(*parts)).has_media is media
    assert features(message(*parts)).newest == "user"
    assert not features(message(*parts), ANSWER, QUESTION).has_media


def test_images_in_outputs_do_not_count() -> None:
    assert not features(QUESTION, CALL, {**OUTPUT, "output": [IMAGE]}).has_media


def allowed(*types: str, mode: str = "required") -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": kind} for kind in types]}


@pytest.mark.parametrize(
    ("tools", "choice", "offers", "asks"),
    [
        ([READ], "auto", False, False),
        ([SEARCH], "auto", True, True),
        ([{"type": "web_search_preview_2025_03_11"}], "required", True, True),
        ([SEARCH], "none", True, False),
        ([READ, SEARCH], "auto", True, False),
        ([READ, SEARCH], {"type": "web_search_preview"}, True, True),
        ([READ, SEARCH], {"type": "function", "name": "read_file"}, True, False),
        ([READ, SEARCH], allowed("web_search"), True, True),
        ([READ, SEARCH], allowed("web_search", mode="auto"), True, False),
        ([READ, SEARCH], allowed("web_search", "function"), True, False),
        ([{**READ, "name": "web_search"}], "auto", True, False),
        (
            [{"type": "namespace", "name": "mcp__x", "tools": [{**READ, "name": "brave_search"}]}],
            "auto",
            True,
            False,
        ),
    ],
)
def test_offered_searches(tools: list[Any], choice: Any, offers: bool, asks: bool) -> None:
    found = features(QUESTION, tools=tools, tool_choice=choice)
    assert (found.has_tools, found.offers_search, found.asks_search) == (True, offers, asks)


def test_environment_of_codex_is_skipped() -> None:
    found = CODEC.features(CODEC.validate(json.encode(codex("m", "Fix the bug"))))
    assert (found.newest, found.text, found.offers_search, found.asks_search) == (
        "user",
        "Fix the bug",
        True,
        False,
    )
    assert found.opening.startswith("You are Codex")


def fingerprint(*items: Any, **fields: Any) -> bytes:
    return CODEC.fingerprint(request(*items, **fields))


def test_a_conversation_keeps_its_fingerprint() -> None:
    first = fingerprint(DEVELOPER, ENVIRONMENT, QUESTION, instructions="Be brief.")
    assert first == fingerprint(
        DEVELOPER,
        message(text("Fix it")),
        CALL,
        OUTPUT,
        ANSWER,
        message(text("more")),
        instructions="Be brief.",
    )
    assert first != fingerprint(DEVELOPER, message(text("Break it")), instructions="Be brief.")
    assert first != fingerprint(QUESTION, instructions="Be long.")
    assert CODEC.fingerprint(CODEC.validate(b'{"model":"m","input":"Fix it"}')) == fingerprint(QUESTION)


parts = st.one_of(
    st.builds(text, st.text()),
    st.builds(
        text,
        st.sampled_from(
            ["<environment_context>", "</environment_context>", "# AGENTS.md instructions for x"]
        ),
    ),
    st.just(IMAGE),
    st.fixed_dictionaries({"type": st.text()}),
)
items = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "developer"]),
            "content": st.text() | st.lists(parts),
        }
    ),
    st.sampled_from([CALL, OUTPUT, REASONING, PATCH, PATCHED]),
    st.fixed_dictionaries(
        {"type": st.text(min_size=1), "action": st.none() | st.text() | st.lists(st.integers(0, 9))}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["shell_call", "x_output", "_call"]), "name": st.none() | st.text()}
    ),
)


@given(st.lists(items, min_size=1, max_size=6))
def test_every_valid_request_has_features(sent: list[Any]) -> None:
    try:
        read = request(*sent)
    except BadRequest:
        return
    assert CODEC.features(read).newest in ("user", "assistant", "tool", "system")
    assert isinstance(CODEC.fingerprint(read), bytes)
