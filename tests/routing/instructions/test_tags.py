from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routecodex.routing.instructions import ParseResult, is_blank, parse, strip

MEGABYTE = 1 << 20
TAG = re.compile(r"<\*\*.*?\*\*>", re.DOTALL)

PIECES = [
    *(
        "<",
        "*",
        ">",
        "<*",
        "**>",
        "<**",
        "**",
        '"',
        "“",
        "”",
        "\\",
        ",",
        "3",
        "!",
        "#",
        "@",
        ".",
        ":",
        "`",
        "```",
    ),
    *(
        "stopMessage",
        'stopMessage:"',
        "clear",
        "glm",
        " ",
        "\n",
        "\n\n",
        "~~~",
        "<file>",
        "</file>",
        "好",
        "\u200b",
    ),
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join), st.text(alphabet='<*>a" \\', max_size=40)
)

STRIPPED: list[tuple[str, str]] = [
    ("<**glm**>", ""),
    ("a <**glm**> b", "a  b"),
    ("<**glm.x**>\n帮我\r\n", "\n帮我\r\n"),
    ("  <**!glm**>\n\n<**#x**>  ", "  \n\n  "),
    ("a<**not an instruction!**>b", "ab"),
    ("a<****>b", "ab"),
    ("code `<**glm**>` here", "code `` here"),
    ("```\n<**glm**>\n```", "```\n\n```"),
    ("<system-reminder><**glm**></system-reminder>", "<system-reminder></system-reminder>"),
    ('x<**stopMessage:"a **> b",2**>y', "xy"),
    (r'x<**stopMessage:"a \"**> b"**>y', "xy"),
    ("x<**stopMessage:“a **> b”，2**>y", "xy"),
    ('x<**stopMessage:"a **> b",0**>y', "xy"),
    ('x<**stopMessage:<file://a.md>,2**>y"', 'xy"'),
    ('<**stopMessage:"go on**> print "hello" now', ' print "hello" now'),
    ('<**stopMessage:"go on**> it is 5" wide <**glm**> **> ', ' it is 5" wide  **> '),
    ("<**stopMessage:“a **> b” c", " b” c"),
    ("over\n<**gl\nm**>\nlines", "over\n\nlines"),
    ("an open <** and <**glm**> closed", "an open <** and  closed"),
    ("a<*<**x**>*y**>b", "ab"),
    ("a<**b<**c**>d**>e", "ae"),
    ("<*<*<**x**>*y**>*z**>", ""),
    ("<<**x**>**y**>", ""),
    ("<**a<**>b", "b"),
    ("<**<**>b", "b"),
    ("<**><**>", ""),
    ("<**stopMe<**x**>ssage:'a'**>", ""),
]
KEPT = [
    *("", "plain 文字 \u200b\ufeff", "<**", "**>", "**> <**", "<**>", "<***>", "<**glm* *>", "<*glm*>"),
    *("a <** b", "2 ** 3 **> 4", "C<*>", "\ud800 lone"),
]


@pytest.mark.parametrize(("text", "left"), STRIPPED)
def test_every_tag_is_removed_and_nothing_else(text: str, left: str) -> None:
    assert strip(text) == left


@pytest.mark.parametrize("text", KEPT)
def test_a_text_without_tags_stays_as_it_is(text: str) -> None:
    assert strip(text) is text


@given(TEXTS)
@example("<*<**>*" * 9)
@example("<**stopMessage:“**>”<**")
def test_no_tag_survives(text: str) -> None:
    left = strip(text)
    assert not TAG.search(left)
    assert strip(left) == left
    assert parse(left) == ParseResult()


@given(st.text())
def test_a_text_without_an_opening_mark_is_identical(text: str) -> None:
    cleaned = text.replace("<**", "")
    assert strip(cleaned) is cleaned


@given(TEXTS)
def test_what_is_left_was_there_in_that_order(text: str) -> None:
    rest = iter(text)
    assert all(sign in rest for sign in strip(text))


@given(TEXTS)
def test_what_is_read_is_a_tag_in_its_place(text: str) -> None:
    parsed = parse(text)
    spans = [one.span for one in (*parsed.instructions, *parsed.malformed)]
    for start, end in spans:
        assert text[start : start + 3] == "<**"
        assert text[end - 3 : end] == "**>"
        assert end - start >= 6
    ordered = sorted(spans)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(ordered))
    assert [one.span for one in parsed.instructions] == sorted(one.span for one in parsed.instructions)


@given(TEXTS.map(strip), TEXTS.map(strip))
def test_a_tag_between_two_texts_leaves_them_as_they_were(before: str, after: str) -> None:
    if not TAG.search(before + after) and "<**" not in before and "**>" not in after:
        assert strip(f"{before}<**glm.x**>{after}") == before + after


def filled(piece: str, size: int = MEGABYTE) -> str:
    return piece * (size // len(piece))


HOSTILE = {
    "openings": filled("<**"),
    "closings": filled("**>"),
    "openings and one closing": filled("<**a") + "**>",
    "marks that share their stars": filled("<*<**>*"),
    "deep nests": filled("<**a", MEGABYTE // 2) + filled("b**>", MEGABYTE // 2),
    "deep joins": filled("<*", MEGABYTE // 2) + "<**x**>" + filled("*y**>", MEGABYTE // 2),
    "tags": filled("<**glm**>"),
    "stars": "<**" + filled("*") + ">",
    "open quotes": filled('<**stopMessage:"'),
    "open quotes and one closing": filled('<**stopMessage:"') + "**>",
    "quotes never closed": filled("<**stopMessage:“**>"),
    "quotes closed far away": filled("<**stopMessage:“**>", MEGABYTE // 2)
    + "”"
    + filled("x", MEGABYTE // 2)
    + "**>",
    "escaped quotes far away": filled("<**stopMessage:“**>", MEGABYTE // 2)
    + filled("\\”", MEGABYTE // 2)
    + "”",
    "backslashes": '<**stopMessage:"' + filled("\\") + '"**>',
    "white space": "<**" + filled(" ") + "**>",
    "digits": '<**stopMessage:"a",' + filled("9") + "**>",
    "one long name": "<**" + filled("a") + "**>",
    "many names": "<**!" + filled("a,") + "b**>",
    "backticks of all lengths": "".join("`" * length + " " for length in range(1, 1400)) + "<**x**>",
    "backticks that match nothing": filled("`a\n\n") + "<**x**>",
    "fences": filled("```\n<**x**>\n"),
    "fences in fences": filled("~~~\n```a\n") + "<**x**>",
    "envelopes": filled("<file>") + "<**x**>",
    "envelopes without an end": filled("<file ") + "<**x**>",
    "envelopes closed too seldom": filled("<file><file></file>") + "<**x**>",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_megabyte_made_to_be_slow_is_read_once(text: str) -> None:
    left = strip(text)
    start = left.find("<**")
    assert start < 0 or left.rfind("**>") < start + 3
    parse(text)


@pytest.mark.parametrize(
    ("text", "blank"),
    [("", True), (" \t\r\n", True), ("\u200b\u3000\ufeff\u2060\u00a0", True), (".", False), (" 好 ", False)],
)
def test_blank_is_what_cannot_be_seen(text: str, blank: bool) -> None:
    assert is_blank(text) is blank
