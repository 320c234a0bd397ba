from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from routecodex.protocols.message_features import (
    beginning,
    excerpt,
    full_text,
    strip_client_header,
    system_opening,
    user_written,
)
from routecodex.wire import json

NOTE = "<system-reminder>\nMind <b>this</b>.\n</system-reminder>"


def raw(text: str) -> Raw:
    return Raw(json.encode(text))


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("hello", "hello"),
        ("<b>bold</b>", "<b>bold</b>"),
        ("", None),
        (" \n\t ", None),
        (" \n" * 200, None),
        (NOTE, None),
        (f"\n{NOTE}\n{NOTE}\n", None),
        (f"{NOTE}\n\nhello", "hello"),
        ("<system-reminder>never closed", "<system-reminder>never closed"),
        ("<system-reminders>are mine", "<system-reminders>are mine"),
        ("<environment_context kind='x'>cwd</environment_context>", None),
        ("[Request interrupted by user]", None),
        ("# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>", None),
        ("[a] list", "[a] list"),
        ("Base camp", "Base camp"),
    ],
)
def test_what_a_person_wrote_stands_behind_what_their_client_put_there(text: str, own: str | None) -> None:
    assert user_written(text) == own
    found = user_written(raw(text))
    assert (None if found is None else full_text(found)) == own


def test_a_million_envelopes_are_opened_in_one_go() -> None:
    assert user_written("<system-reminder></system-reminder>" * 100_000) is None
    assert user_written("<system-reminder>" * 100_000) is not None
    assert user_written("\n" * 1_000_000) is None


@given(st.text(), st.integers(1, 50))
def test_a_text_begins_the_same_as_json(text: str, limit: int) -> None:
    assert text.startswith(beginning(raw(text), limit))
    assert beginning(text, limit) == text[:limit]


@given(st.text(alphabet='\\"\nab中😀', min_size=50, max_size=200), st.integers(15, 40))
def test_both_ends_are_ends_of_the_text(text: str, limit: int) -> None:
    for words in (text, raw(text)):
        both = excerpt(words, limit)
        assert len(both) <= 2 * limit + 1 or both == text
    tail = excerpt(text, limit).rpartition("\n")[2]
    assert text.endswith(tail)


def test_escapes_at_the_seams_are_not_torn() -> None:
    text = "\\n" * 50 + "\n" * 50 + '"' * 50 + "\\" * 50
    for limit in range(30, 60):
        both = excerpt(raw(text), limit)
        assert both.startswith("\\n\\n\\n\\n")
        assert both.endswith("\\" * 15)


def test_what_is_no_string_is_no_text() -> None:
    assert full_text(Raw(b"12")) == ""
    assert full_text(Raw(b'"\\ud83d"')) == "\\ud83d"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("x-anthropic-billing-header: cch=1;", ""),
        ("x-anthropic-billing-header: cch=1;\nYou are", "You are"),
        ("x-anthropic-billing-header: a\nx-other-header: b\nYou", "You"),
        ("x-ray vision", "x-ray vision"),
        ("You are\nx-anthropic-billing-header: a", "You are\nx-anthropic-billing-header: a"),
    ],
)
def test_volatile_headers_are_left_out(text: str, rest: str) -> None:
    assert strip_client_header(text) == rest
    assert system_opening([text]) == rest
    assert system_opening([raw(text)]) == rest


def test_an_opening_is_as_many_texts_as_it_takes() -> None:
    assert system_opening(["a", "b"]) == "a\nb"
    assert system_opening([]) == ""
    assert len(system_opening(["a" * 299, "b" * 900, "c"])) == 600
