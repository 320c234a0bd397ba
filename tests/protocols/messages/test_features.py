from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import BadRequest
from routecodex.canon.request import CalledTool, RequestFeatures
from routecodex.protocols.messages import CODEC
from routecodex.wire import json
from tests.clients.agent_requests import claude_code
from tests.protocols.messages.samples import wire_request

REMINDER = {"type": "text", "text": "<system-reminder>\nMind the notes.\n</system-reminder>\n"}
QUESTION = {"role": "user", "content": "Fix it"}
CALLED = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "a", "name": "Read", "input": {"path": "a.py"}},
        {"type": "tool_use", "id": "b", "name": "Bash", "input": {"command": "ls"}},
    ],
}
CALLS = (CalledTool("Read", '{"path":"a.py"}'), CalledTool("Bash", '{"command":"ls"}'))
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


def text(content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **fields}


def result(content: Any = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "a", "content": content}


def user_message(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def features_of(*messages: dict[str, Any], **fields: Any) -> RequestFeatures:
    return CODEC.features(wire_request(messages=list(messages), **fields))


def test_a_first_question_is_the_users() -> None:
    assert features_of(QUESTION, system="Be brief.") == RequestFeatures(
        newest="user", text="Fix it", opening="Be brief."
    )


def test_results_are_the_tools_and_calls_those_of_the_last_turn() -> None:
    assert features_of(QUESTION, CALLED, user_message(result())) == RequestFeatures(
        newest="tool", calls=CALLS, has_answer=True, opening="Fix it"
    )


@pytest.mark.parametrize(
    ("blocks", "newest"),
    [
        ((result(), REMINDER), "tool"),
        ((REMINDER, result()), "tool"),
        ((result(), text("[Request interrupted by user for tool use]")), "tool"),
        ((result(), text("  \n")), "tool"),
        ((result(), IMAGE), "tool"),
        ((result(), text("and now this")), "user"),
        ((result(), REMINDER, text("and now this")), "user"),
        ((result(), text(f"{REMINDER['text']}and now this")), "user"),
        ((REMINDER,), "user"),
    ],
)
def test_results_with_user_text_are_the_users(blocks: tuple[dict[str, Any], ...], newest: str) -> None:
    found = features_of(QUESTION, CALLED, user_message(*blocks))
    assert found.newest == newest
    assert found.text in ("", "and now this")


def test_a_reminder_after_results_is_skipped() -> None:
    assert features_of(QUESTION, CALLED, user_message(result()), user_message(REMINDER)).newest == "tool"
    assert (
        features_of(QUESTION, CALLED, user_message(result()), {"role": "system", "content": "Note."}).newest
        == "tool"
    )


def test_a_message_begun_for_the_assistant_is_the_assistants() -> None:
    assert features_of(QUESTION, {"role": "assistant", "content": "Once"}).newest == "assistant"


@pytest.mark.parametrize(
    ("blocks", "media"),
    [
        ((text("see"), IMAGE), True),
        ((IMAGE,), True),
        ((text("read"), DOCUMENT), False),
        ((DOCUMENT,), False),
        ((result([IMAGE]),), False),
        ((result([IMAGE]), text("what is it?")), False),
        ((result(), IMAGE, text("what is it?")), True),
    ],
)
def test_only_images_of_the_user_count(blocks: tuple[dict[str, Any], ...], media: bool) -> None:
    assert features_of(QUESTION, CALLED, user_message(*blocks)).has_media is media


def test_images_of_earlier_messages_do_not_count() -> None:
    assert not features_of(user_message(IMAGE), {"role": "assistant", "content": "a cat"}, QUESTION).has_media


@pytest.mark.parametrize(
    ("tools", "choice", "offers", "asks"),
    [
        ([{"name": "Read", "input_schema": {}}], None, False, False),
        ([{"name": "WebSearch", "input_schema": {}}], None, True, False),
        ([SEARCH], None, True, True),
        ([SEARCH], {"type": "none"}, True, False),
        ([SEARCH, {"name": "Read", "input_schema": {}}], None, True, False),
        ([SEARCH, {"name": "Read", "input_schema": {}}], {"type": "tool", "name": "web_search"}, True, True),
        ([SEARCH, {"name": "Read", "input_schema": {}}], {"type": "tool", "name": "Read"}, True, False),
    ],
)
def test_offered_searches_are_found(tools: list[Any], choice: Any, offers: bool, asks: bool) -> None:
    found = features_of(QUESTION, tools=tools, tool_choice=choice)
    assert (found.has_tools, found.offers_search, found.asks_search) == (True, offers, asks)


def test_long_texts_are_cut() -> None:
    found = features_of(QUESTION, CALLED, user_message(result(), text("x" * 10_000)))
    assert found.text == "x" * 300
    offered = features_of(user_message(text("ab" * 10_000)), tools=[SEARCH])
    assert offered.text == f"{'ab' * 1024}\n{'ab' * 1024}"
    written = {"type": "tool_use", "id": "a", "name": "Write", "input": {"content": "é" * 5000}}
    calls = features_of(QUESTION, {"role": "assistant", "content": [written]}, user_message(result())).calls
    assert [(call.name, len(call.arguments) <= 2048) for call in calls] == [("Write", True)]


def test_claude_code_is_read_past_its_header_and_reminders() -> None:
    request = claude_code("m", "Fix the bug")
    request["system"][0] = text("x-anthropic-billing-header: cc_version=2.3.1; cch=12345;")
    found = CODEC.features(CODEC.validate(json.encode(request)))
    assert (found.newest, found.text, found.offers_search, found.asks_search) == (
        "user",
        "Fix the bug",
        True,
        False,
    )
    assert found.opening.startswith("You are an agent for coding.\nBe brief")


def fingerprint_of(*messages: dict[str, Any], **fields: Any) -> bytes:
    return CODEC.fingerprint(wire_request(messages=list(messages), **fields))


def test_a_conversation_keeps_its_fingerprint() -> None:
    def system(stamp: str, **fields: Any) -> list[dict[str, Any]]:
        return [text(f"x-anthropic-billing-header: cch={stamp};"), text("You are an agent.", **fields)]

    cached = {"cache_control": {"type": "ephemeral"}}
    first = fingerprint_of(user_message(REMINDER, text("Fix it", **cached)), system=system("1", **cached))
    assert first == fingerprint_of(
        user_message(text("Fix it")), CALLED, user_message(result()), system=system("2")
    )
    assert first == fingerprint_of(QUESTION, CALLED, user_message(result(), text("more")), system=system("3"))
    assert first != fingerprint_of(user_message(text("Break it")), system=system("1"))
    assert first != fingerprint_of(QUESTION, system=[text("You are another.")])
    assert b"cch" not in first


def test_text_means_the_same_escaped_or_not() -> None:
    content = 'línea "uno"\n' + "\U0001f600" * 500
    assert fingerprint_of({"role": "user", "content": content}) == fingerprint_of(user_message(text(content)))
    assert (
        features_of({"role": "user", "content": content}).text[:50]
        == features_of(user_message(text(content))).text[:50]
    )


blocks = st.one_of(
    st.builds(text, st.text()),
    st.builds(text, st.sampled_from(["<system-reminder>", "</system-reminder>", "\\", "[Image: x"])),
    st.builds(result, st.text()),
    st.just(IMAGE),
    st.fixed_dictionaries({"type": st.text(), "name": st.text(), "text": st.none() | st.text()}),
    st.fixed_dictionaries(
        {"type": st.just("tool_use"), "id": st.text(min_size=1), "name": st.text(), "input": st.just({})}
    ),
)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text() | st.lists(blocks)}
)


@given(st.lists(turns, min_size=1, max_size=6), st.none() | st.text() | st.lists(blocks))
def test_every_valid_request_has_features(messages: list[Any], system: Any) -> None:
    try:
        read = wire_request(messages=messages, system=system)
    except BadRequest:
        return
    assert CODEC.features(read).newest in ("user", "assistant", "tool", "system")
    assert isinstance(CODEC.fingerprint(read), bytes)
