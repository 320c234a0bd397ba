"""Markdown on a terminal: what every construct looks like, and that pieces of any size give the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.cli.markdown import MarkdownRenderer
from routecodex.cli.tables import width
from routecodex.cli.word_wrap import StyledText, merged

WIDTH = 40
MARKS = {"bold": "b", "italic": "i", "underline": "u", "strike": "s", "dim": "d", "code": "c"}


def render(text: str, *, columns: int = WIDTH, cuts: list[int] | None = None) -> list[StyledText]:
    """Render a text that comes in the pieces that the cuts make of it."""
    renderer = MarkdownRenderer(columns)
    places = [0, *sorted(cuts or ()), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    return merged([styled for piece in pieces for styled in renderer.feed(piece)] + renderer.close())


def marked(text: str, *, columns: int = WIDTH) -> str:
    """Render with the styles as tags: `<b>…</b>` for bold."""
    return "".join(
        f"<{tag}>{piece.text}</{tag}>"
        if (tag := "".join(sorted(MARKS[name] for name in piece.styles)))
        else piece.text
        for piece in render(text, columns=columns)
    )


def shown(text: str, *, columns: int = WIDTH) -> str:
    return "".join(piece.text for piece in render(text, columns=columns))


CASES = {
    "heading": ("# Title\n## **Second** one\n#hashtag", "<bu>Title</bu>\n<b>Second one</b>\n#hashtag"),
    "emphasis": (
        "**bold** *it* _it_ __bold__ ***both***",
        "<b>bold</b> <i>it</i> <i>it</i> <b>bold</b> <bi>both</bi>",
    ),
    "nested": ("**a *b* `c`**", "<b>a </b><bi>b</bi><b> </b><bc>c</bc>"),
    "nested at the end": ("**a *b***.", "<b>a </b><bi>b</bi>."),
    "code": ("use `*.py` and `` a`b ``", "use <c>*.py</c> and <c>a`b</c>"),
    "strike": ("~~old~~ ~new~", "<s>old</s> ~new~"),
    "link": (
        "see [the *docs*](https://x.y/a_b) now",
        "see <u>the </u><iu>docs</iu><d> (https://x.y/a_b)</d> now",
    ),
    "link with title": ('[a](b "c")', "<u>a</u><d> (b)</d>"),
    "link to itself": ("[http://x](http://x)", "<u>http://x</u>"),
    "image": ("![cat](cat.png)!", "<u>cat</u><d> (cat.png)</d>!"),
    "escape": (r"\*a\* \`b\` C:\dir", r"*a* `b` C:\dir"),
    "chinese emphasis": ("这是**“重点”**。", "这是<b>“重点”</b>。"),
    "bullets": ("- one\n* two\n  + three", "• one\n• two\n  • three"),
    "numbers": ("1. one\n2) two\n2024 was", "1. one\n2) two\n2024 was"),
    "tasks": ("- [ ] todo\n- [x] done", "• [ ] todo\n• [x] done"),
    "quote": ("> said\n>> twice\nplain", "<d>│ </d>said\n<d>│ │ </d>twice\nplain"),
    "quoted list": ("> - a **b**", "<d>│ </d>• a <b>b</b>"),
    "rule": ("---\n* * *\n-- x", f"<d>{'─' * WIDTH}</d>\n<d>{'─' * WIDTH}</d>\n-- x"),
    "empty lines": ("a\n\n\nb\n", "a\n\n\nb\n"),
}

ORDINARY = [
    "2 * 3 * 4",
    "snake_case and a__b__c",
    "**kwargs and *args",
    "a [1] b [x] (y)",
    "half **open",
    "half `open",
    "[half](open",
    "3.14 is pi",
    "-5 degrees, --flag",
    "a \\",
    "!",
]


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_every_construct_has_its_look(text: str, expected: str) -> None:
    assert marked(text) == expected


@pytest.mark.parametrize("text", ORDINARY)
def test_marks_without_a_counterpart_are_ordinary_text(text: str) -> None:
    assert marked(text) == text


def test_code_blocks_are_verbatim() -> None:
    code = "def f(**kw):  # *not* markup\n\n    return '" + "x" * 60 + "'\n `` `\n``\n- no item\n"
    assert marked(f"```python\n{code}```\ndone *it*") == f"<d>```python</d>\n{code}<d>```</d>\ndone <i>it</i>"
    assert marked(f"~~~\n```\n{code}~~~~") == f"<d>~~~</d>\n```\n{code}<d>~~~~</d>"
    assert marked("```\nnever closed *a*") == "<d>```</d>\nnever closed *a*"
    assert marked("- a\n  ```sh\n  ls *\n  ```\n") == "• a\n<d>  ```sh</d>\n  ls *\n<d>  ```</d>\n"
    assert marked("```inline``` code") == "<c>inline</c> code"


def test_long_lines_are_wrapped_between_words_below_their_start() -> None:
    assert shown(
        "- the first item is longer than the line is\n  1. and so is the second one below it", columns=20
    ) == (
        "• the first item is\n"
        "  longer than the\n"
        "  line is\n"
        "  1. and so is the\n"
        "     second one\n"
        "     below it"
    )
    assert shown("> quoted text that is long", columns=14) == "│ quoted text\n│ that is long"
    assert shown("# a heading that is long", columns=12) == "a heading\nthat is long"


TABLE = "| Name | Count |\n|:--|--:|\n| `a` | 1 |\n| b \\| c | 22 |\n"


def test_tables_are_aligned() -> None:
    assert marked(f"{TABLE}after").splitlines() == [
        "<b>Name</b> <d> │ </d><b>Count</b>",
        "<d>──────┼──────</d>",
        "<c>a</c>    <d> │ </d>    1",
        "b | c<d> │ </d>   22",
        "after",
    ]


def test_a_table_at_the_end_is_shown_and_one_that_is_none_is_text() -> None:
    assert shown(TABLE.rstrip()) == "Name  │ Count\n──────┼──────\na     │     1\nb | c │    22"
    assert shown("| just a line |\nnext") == "| just a line |\nnext"
    assert shown("|a|b|\n|-|-|") == "a │ b\n──┼──"


def test_cells_that_are_too_long_are_wrapped() -> None:
    table = "| Key | Meaning |\n|--|--|\n| x | a text that is too long for its column |\n"
    assert shown(table, columns=24).splitlines() == [
        "Key │ Meaning",
        "────┼───────────────────",
        "x   │ a text that is too",
        "    │ long for its",
        "    │ column",
    ]
    wide = "| " + " | ".join(["column"] * 12) + " |\n|" + "--|" * 12 + "\n"
    assert shown(wide, columns=30) == wide, "a table with too many columns stays as it came"


MARKDOWN = st.text(st.sampled_from("ab *_`~[]()!#>-+1.|\\\n\t 智，\u0301🎉")) | st.sampled_from(
    [text for text, _ in CASES.values()] + [TABLE, "```\ncode\n```\n", "> - **a** `b`\n"]
)


@given(st.lists(MARKDOWN, max_size=6).map("".join), st.data())
def test_pieces_of_any_size_give_the_same(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert render(text, cuts=cuts) == render(text)


@given(st.text(st.sampled_from("ab *_`~[]()!#>-+1.\\\n 智，🎉")), st.integers(20, 60))
def test_no_line_is_wider_than_the_terminal(text: str, columns: int) -> None:
    prose = text.replace("```", "").replace("~~~", "")
    assert all(width(line) <= columns for line in shown(prose, columns=columns).split("\n"))


@given(st.text(st.sampled_from("abc 智，。.\n")))
def test_text_without_marks_keeps_every_character_but_blanks(text: str) -> None:
    assert "".join(shown(text).split()) == "".join(text.split())


def test_a_word_is_shown_when_it_is_complete_and_nothing_moves_later() -> None:
    renderer = MarkdownRenderer(12)
    seen = [
        "".join(piece.text for piece in renderer.feed(text)) for text in ("hel", "lo wor", "ld again", " and")
    ]
    assert [*seen, "".join(piece.text for piece in renderer.close())] == [
        "",
        "hello",
        " world",
        "\nagain",
        " and",
    ]


def test_a_mark_that_is_never_closed_does_not_hold_the_answer_back() -> None:
    renderer = MarkdownRenderer(80)
    written = "".join(piece.text for piece in renderer.feed("*" + "word " * 1000))
    assert written.replace("\n", " ").startswith("*word word ")


def test_the_next_text_begins_afresh() -> None:
    renderer = MarkdownRenderer(80)
    for unfinished in ("```\nopen *a* ", "- " + "word " * 14, "> quoted *a", "| a |\n"):
        renderer.feed(unfinished)
        renderer.close()
        again = [*renderer.feed("*b* is not wrapped"), *renderer.close()]
        assert merged(again) == [StyledText("b", frozenset({"italic"})), StyledText(" is not wrapped")]


def test_a_resized_terminal_gets_lines_of_its_new_width() -> None:
    renderer = MarkdownRenderer(80)
    renderer.feed("one two\n")
    renderer.resize(20)
    text = "".join(piece.text for piece in [*renderer.feed("word " * 10), *renderer.close()])
    assert max(map(len, text.split("\n"))) <= 20
