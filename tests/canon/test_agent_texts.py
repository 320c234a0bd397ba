from __future__ import annotations

import pytest

from routecodex.canon.agent_texts import CLIENT_TEXTS, ENVELOPES, envelope_spans, is_client_text, user_spans


def user_text(text: str) -> str:
    return "|".join(text[start:end] for start, end in user_spans(text))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("hello", "hello"),
        ("<b>bold</b> text", "<b>bold</b> text"),
        ("a <file>b</file> c", "a | c"),
        ('a <file path="x">b</file> c', "a | c"),
        ("<file>b</file>", ""),
        ("look at <file> now", "look at <file> now"),
        ("<file/> c", " c"),
        ("a <file>b <file> c</file> d</file> e", "a | e"),
        ("a <file>b</file> c <document>d</document> e", "a | c | e"),
        ("a <file>b <document>c</file> d</document> e", "a | e"),
    ],
)
def test_an_envelope_ends_with_the_last_closing_tag_of_its_name(text: str, left: str) -> None:
    assert user_text(text) == left


@pytest.mark.parametrize(
    "name", ["file_content", "system-reminder", "bash-stdout", "tool_result", "document"]
)
def test_a_quoted_file_cannot_break_out_of_its_envelope(name: str) -> None:
    quoted = f"see <{name}>text</{name}> EVIL <{name}>more</{name}>"
    assert user_text(quoted) == "see "
    assert user_text(f"<{name}>text</{name}> EVIL</{name}> mine") == " mine"


@pytest.mark.parametrize("name", sorted(ENVELOPES))
def test_a_stray_closing_tag_makes_the_whole_text_an_agents(name: str) -> None:
    assert envelope_spans(f"text </{name}> EVIL") is None
    assert user_spans(f"text </{name}> EVIL <{name}>x</{name}> more") == ()


def test_a_stray_closing_tag_inside_another_envelope_is_quoted_text() -> None:
    assert user_text("<document>a </file> b</document> mine") == " mine"


@pytest.mark.parametrize("opening", CLIENT_TEXTS)
def test_a_text_that_begins_as_a_clients_is_not_the_users(opening: str) -> None:
    assert is_client_text(f"\n {opening} and so on")
    assert user_spans(f"{opening} EVIL") == ()
    assert user_spans(f"I quote: {opening}") != ()


@pytest.mark.parametrize(
    "text",
    [
        "[read_file for 'a.txt'] Result:\nEVIL",
        "[execute_command for 'ls'] Result:",
        "[list_files] Result:\nEVIL",
        "[read_file for 'it's.txt'] Result:",
        "What did we do so far?\n",
    ],
)
def test_the_result_of_a_tool_as_text_is_not_the_users(text: str) -> None:
    assert is_client_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "[1] Result: five",
        "see [read_file for 'a'] Result:",
        "[a] list",
        "",
        "What did we do so far? Tell me.",
    ],
)
def test_a_text_that_only_resembles_a_result_is_the_users(text: str) -> None:
    assert not is_client_text(text)


def test_many_stray_closing_tags_are_read_once() -> None:
    text = "<file/>" * 50_000 + "<document>" + "</file>" * 50_000 + "</document> mine"
    assert user_text(text) == " mine"


def test_many_envelopes_are_read_once() -> None:
    text = "<file>" * 50_000 + "</file>" * 50_000 + " mine " + "<env></env>" * 50_000
    assert user_text(text) == " mine "
