from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import BadRequest
from routecodex.canon.request import CalledTool, RequestFeatures
from routecodex.protocols.chat import CODEC
from routecodex.protocols.codec import WireRequest
from routecodex.wire import json

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Fix it"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a"}'}},
        {"id": "b", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin Patch"}},
    ],
}
CALLS = (CalledTool("read_file", '{"path":"a"}'), CalledTool("apply_patch", "*** Begin Patch"))
RESULT = {"role": "tool", "tool_call_id": "a", "content": "ok"}
REMINDER = {"role": "user", "content": "<system-reminder>\nMind.\n</system-reminder>"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
FILE = {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="}}
READ = {"type": "function", "function": {"name": "read_file"}}
SEARCH = {"type": "web_search"}


def wire_request(*messages: Any, **fields: Any) -> WireRequest:
    return CODEC.validate(json.encode({"model": "m", "messages": list(messages), **fields}))


def features_of(*messages: Any, **fields: Any) -> RequestFeatures:
    return CODEC.features(wire_request(*messages, **fields))


def user_message(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def test_a_first_question_is_the_users() -> None:
    assert features_of(SYSTEM, QUESTION) == RequestFeatures(newest="user", text="Fix it", opening="Be brief.")
    assert features_of(SYSTEM, user_message(text("Fix it"))) == RequestFeatures(
        newest="user", text="Fix it", opening="Be brief."
    )
    assert features_of(QUESTION) == RequestFeatures(newest="user", text="Fix it", opening="Fix it")


def test_results_are_the_tools_and_calls_those_of_the_last_turn() -> None:
    assert features_of(QUESTION, CALLED, RESULT, tools=[READ]) == RequestFeatures(
        newest="tool", calls=CALLS, has_tools=True, has_answer=True, opening="Fix it"
    )


def test_calls_of_messages_in_a_row_are_one_turn() -> None:
    more = {"role": "assistant", "content": "and", "function_call": {"name": "old", "arguments": "{}"}}
    assert features_of(QUESTION, CALLED, more, {"role": "function", "name": "old", "content": "x"}).calls == (
        *CALLS,
        CalledTool("old", "{}"),
    )


@pytest.mark.parametrize(
    ("trailing", "newest"),
    [
        ((SYSTEM,), "tool"),
        (({"role": "developer", "content": "x"}, SYSTEM), "tool"),
        ((REMINDER,), "tool"),
        ((REMINDER, SYSTEM), "tool"),
        ((QUESTION,), "user"),
        ((QUESTION, REMINDER), "user"),
        (({"role": "assistant", "content": "Once"},), "assistant"),
        (({"role": "assistant", "content": "Done."}, REMINDER), "user"),
    ],
)
def test_system_messages_and_reminders_are_skipped(trailing: tuple[Any, ...], newest: str) -> None:
    assert features_of(QUESTION, CALLED, RESULT, *trailing).newest == newest


def test_a_request_of_only_system_messages_is_the_systems() -> None:
    assert features_of(SYSTEM) == RequestFeatures(newest="system", opening="Be brief.")


@pytest.mark.parametrize(
    ("parts", "media"),
    [
        ([text("see"), IMAGE], True),
        ([IMAGE], True),
        ([{"type": "video_url", "video_url": {"url": "https://x/y.mp4"}}], True),
        ([text("read"), FILE], False),
        ([FILE], False),
        ([text("see")], False),
    ],
)
def test_images_and_films_count_in_the_newest_message(parts: list[Any], media: bool) -> None:
    assert features_of(SYSTEM, user_message(*parts)).has_media is media
    assert features_of(SYSTEM, user_message(*parts)).newest == "user"
    assert not features_of(user_message(*parts), {"role": "assistant", "content": "ok"}, QUESTION).has_media


@pytest.mark.parametrize(
    ("fields", "offers", "asks"),
    [
        ({}, False, False),
        ({"tools": [READ]}, False, False),
        ({"web_search_options": {}}, True, True),
        ({"web_search_options": None}, False, False),
        ({"tools": [SEARCH]}, True, True),
        ({"tools": [SEARCH], "tool_choice": "none"}, True, False),
        ({"tools": [READ, SEARCH]}, True, False),
        ({"tools": [READ, SEARCH], "tool_choice": {"type": "web_search"}}, True, True),
        ({"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}]}, True, True),
        ({"tools": [{"type": "function", "function": {"name": "google_web_search"}}]}, True, False),
        ({"functions": [{"name": "web_search"}]}, True, False),
    ],
)
def test_offered_searches_are_found(fields: dict[str, Any], offers: bool, asks: bool) -> None:
    found = features_of(QUESTION, **fields)
    assert (found.offers_search, found.asks_search) == (offers, asks)
    assert found.has_tools is ("tools" in fields or "functions" in fields)


def test_arguments_that_are_an_object_become_json_text() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}
    found = features_of(QUESTION, {"role": "assistant", "tool_calls": [call]}, RESULT)
    assert found.calls == (CalledTool("bash", '{"command":"ls"}'),)


def test_a_cut_text_is_unescaped_as_far_as_it_goes() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}'
    for unit in (b"\\n", b"\\\\", b'\\"', b"\\u4e2d", b"\\ud83d\\ude00", "中".encode(), "😀".encode()):
        for shift in range(12):
            content = b"go" + b"x" * shift + unit * 400
            found = CODEC.features(CODEC.validate(body % content))
            whole: str = json.decode(b'"%s"' % content)
            assert whole.startswith(found.text)
            assert len(found.text) > 20


def opening(*messages: Any) -> bytes:
    return CODEC.fingerprint(wire_request(*messages))


def test_a_conversation_keeps_its_fingerprint() -> None:
    first = opening(SYSTEM, QUESTION)
    assert first == opening(SYSTEM, REMINDER, QUESTION, CALLED, RESULT, {"role": "user", "content": "more"})
    assert first == opening(SYSTEM, user_message(text("Fix it")))
    assert first == opening(
        {"role": "system", "content": "x-anthropic-billing-header: cch=1;\nBe brief."}, QUESTION
    )
    assert first != opening(SYSTEM, {"role": "user", "content": "Break it"})
    assert first != opening(QUESTION)


parts = st.one_of(
    st.builds(text, st.text()),
    st.builds(text, st.sampled_from(["<system-reminder>", "</system-reminder>", "\\", '"'])),
    st.just(IMAGE),
    st.fixed_dictionaries({"type": st.text(), "text": st.none() | st.text() | st.integers()}),
)
messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "developer", "function"]),
        "content": st.text() | st.lists(parts) | st.none(),
    }
)


@given(st.lists(messages, min_size=1, max_size=6))
def test_every_valid_request_has_features(found: list[Any]) -> None:
    try:
        read = wire_request(*found)
    except BadRequest:
        return
    assert CODEC.features(read).newest in ("user", "assistant", "tool", "system")
    assert isinstance(CODEC.fingerprint(read), bytes)
