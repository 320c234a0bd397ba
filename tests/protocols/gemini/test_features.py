from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import BadRequest
from routecodex.canon.request import CalledTool, RequestFeatures
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.gemini import CODEC
from routecodex.wire import json

QUESTION = {"role": "user", "parts": [{"text": "Fix it"}]}
CALLED = {
    "role": "model",
    "parts": [
        {"text": "hm", "thought": True},
        {"functionCall": {"name": "read_file", "args": {"path": "a"}}},
        {"functionCall": {"name": "list_directory"}},
    ],
}
CALLS = (CalledTool("read_file", '{"path":"a"}'), CalledTool("list_directory", ""))
RESULT = {"functionResponse": {"name": "read_file", "response": {"output": "ok"}}}
REMINDER = {"text": "<system-reminder>Mind.</system-reminder>"}
READ = {"functionDeclarations": [{"name": "read_file"}]}


def request(*contents: Any, **fields: Any) -> WireRequest:
    return CODEC.validate(json.encode({"contents": list(contents), **fields}), model="g", stream=False)


def features(*contents: Any, **fields: Any) -> RequestFeatures:
    return CODEC.features(request(*contents, **fields))


def user_content(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def inline(kind: str) -> dict[str, Any]:
    return {"inlineData": {"mimeType": kind, "data": "aGk="}}


def test_a_first_question_is_from_the_user() -> None:
    expected = RequestFeatures(newest="user", text="Fix it", opening="Be brief.")
    assert features(QUESTION, systemInstruction={"parts": [{"text": "Be brief."}]}) == expected
    assert features({"parts": {"text": "Fix it"}}, system_instruction="Be brief.") == expected
    assert features(QUESTION) == RequestFeatures(newest="user", text="Fix it", opening="Fix it")


def test_results_are_from_tools_and_calls_from_the_last_turn() -> None:
    assert features(QUESTION, CALLED, user_content(RESULT), tools=[READ]) == RequestFeatures(
        newest="tool", calls=CALLS, has_tools=True, has_answer=True, opening="Fix it"
    )


@pytest.mark.parametrize(
    ("contents", "newest"),
    [
        ([user_content(RESULT, REMINDER)], "tool"),
        ([user_content(RESULT), user_content(REMINDER)], "tool"),
        ([{"role": "function", "parts": [RESULT]}], "tool"),
        ([user_content(RESULT, inline("image/png"))], "tool"),
        ([user_content(RESULT, {"text": "and now"})], "user"),
        ([user_content(RESULT), QUESTION], "user"),
        ([user_content(RESULT), {"role": "model", "parts": [{"text": "Once"}]}], "assistant"),
    ],
)
def test_results_with_text_of_the_user_are_from_the_user(contents: list[Any], newest: str) -> None:
    assert features(QUESTION, CALLED, *contents).newest == newest


@pytest.mark.parametrize(
    ("part", "media"),
    [
        (inline("image/png"), True),
        (inline("video/mp4"), True),
        (inline("application/pdf"), False),
        (inline("audio/wav"), False),
        ({"fileData": {"mimeType": "image/jpeg", "fileUri": "gs://x/y"}}, True),
        ({"fileData": {"mimeType": "application/pdf", "fileUri": "gs://x/y"}}, False),
        ({"fileData": {"fileUri": "https://www.youtube.com/watch?v=x"}}, True),
        ({"file_data": {"file_uri": "gs://x/y"}}, False),
    ],
)
def test_images_and_videos_count_in_the_newest_message(part: dict[str, Any], media: bool) -> None:
    assert features(user_content({"text": "see"}, part)).has_media is media
    assert features(user_content(part)).newest == "user"
    assert not features(user_content(part), {"role": "model", "parts": [{"text": "ok"}]}, QUESTION).has_media


@pytest.mark.parametrize(
    ("fields", "offers", "asks"),
    [
        ({"tools": [READ]}, False, False),
        ({"tools": [{"googleSearch": {}}]}, True, True),
        ({"tools": {"google_search": {}}}, True, True),
        ({"tools": [{"google_search_retrieval": {"dynamic_retrieval_config": {}}}]}, True, True),
        ({"tools": [READ, {"googleSearch": {}}]}, True, False),
        (
            {"tools": [{"googleSearch": {}}], "toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
            True,
            False,
        ),
        ({"tools": [{"functionDeclarations": {"name": "google_web_search"}}]}, True, False),
    ],
)
def test_offered_searches(fields: dict[str, Any], offers: bool, asks: bool) -> None:
    found = features(QUESTION, **fields)
    assert (found.has_tools, found.offers_search, found.asks_search) == (True, offers, asks)


def test_long_arguments_are_left_out() -> None:
    call = {"functionCall": {"name": "write_file", "args": {"content": "x" * 5000, "path": "a"}}}
    found = features(QUESTION, {"role": "model", "parts": [call]})
    assert found.calls == (CalledTool("write_file", '{"path":"a"}'),)


def fingerprint(*contents: Any, **fields: Any) -> bytes:
    return CODEC.fingerprint(request(*contents, **fields))


def test_a_conversation_keeps_its_fingerprint() -> None:
    sent = {"systemInstruction": {"parts": [{"text": "Be brief."}]}}
    first = fingerprint(user_content(REMINDER), QUESTION, **sent)
    assert first == fingerprint(QUESTION, CALLED, user_content(RESULT), QUESTION, **sent)
    assert first != fingerprint(user_content({"text": "Break it"}), **sent)
    assert first != fingerprint(QUESTION)


parts = st.one_of(
    st.fixed_dictionaries({"text": st.text()}),
    st.sampled_from([REMINDER, RESULT, inline("image/png"), {"fileData": {}}, {"inlineData": {}}, {}]),
    st.fixed_dictionaries(
        {"functionCall": st.fixed_dictionaries({"name": st.text(min_size=1), "args": st.none()})}
    ),
)
contents = st.fixed_dictionaries(
    {
        "role": st.none() | st.sampled_from(["user", "model", "function"]),
        "parts": parts | st.lists(parts, min_size=1),
    }
)


@given(st.lists(contents, min_size=1, max_size=6))
def test_every_valid_request_has_features(sent: list[Any]) -> None:
    try:
        read = request(*sent)
    except BadRequest:
        return
    assert CODEC.features(read).newest in ("user", "assistant", "tool", "system")
    assert isinstance(CODEC.fingerprint(read), bytes)
