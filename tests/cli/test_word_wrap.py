"""Words on lines: broken at blanks, around Chinese characters, and where a word is longer than a line."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.cli.tables import width
from routecodex.cli.word_wrap import StyledText, TextRenderer, can_break, merged, wrapped

DIM = frozenset({"dim"})


def lines(text: str, columns: int) -> list[str]:
    return ["".join(piece.text for piece in line) for line in wrapped([StyledText(text)], columns)]


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("one two three", 8, ["one two", "three"]),
        ("one  two", 20, ["one  two"]),
        ("exactly ten", 11, ["exactly ten"]),
        ("exactly ten", 10, ["exactly", "ten"]),
        ("a verylongword b", 6, ["a", "verylo", "ngword", "b"]),
        ("路由规则决定目标", 7, ["路由规", "则决定", "目标"]),
        ("路由规则，决定", 8, ["路由规", "则，决定"]),
        ("配置（默认）", 6, ["配置", "（默", "认）"]),
        ("用model名字", 7, ["用model", "名字"]),
        ("tab\there", 6, ["tab", "here"]),
        ("", 5, [""]),
    ],
)
def test_lines_end_where_they_may(text: str, columns: int, expected: list[str]) -> None:
    assert lines(text, columns) == expected
    assert all(width(line) <= columns for line in expected)


def test_a_line_does_not_begin_or_end_with_the_wrong_punctuation() -> None:
    breaks = {
        pair: can_break(*pair) for pair in ("路由", "由，", "（由", "ab", "a由", "由a", "e\u0301", "\u200d👩")
    }
    assert [pair for pair, allowed in breaks.items() if allowed] == ["路由", "a由", "由a"]


def test_styles_stay_with_their_words() -> None:
    pieces = [StyledText("one "), StyledText("two three", DIM)]
    assert wrapped(pieces, 8) == [
        [StyledText("one "), StyledText("two", DIM)],
        [StyledText("three", DIM)],
    ]


@given(st.text(st.sampled_from("ab \n路，\t")), st.lists(st.integers(0, 60), max_size=6), st.integers(2, 12))
def test_plain_text_in_pieces_of_any_size_gives_the_same(text: str, cuts: list[int], columns: int) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    whole, cut = TextRenderer(columns, DIM), TextRenderer(columns, DIM)
    pieces = [text[start:end] for start, end in pairwise(places)]
    fed = merged([styled for piece in pieces for styled in cut.feed(piece)] + cut.close())
    assert fed == merged(whole.feed(text) + whole.close())
    shown = "".join(piece.text for piece in fed)
    assert all(width(line) <= columns for line in shown.split("\n"))
