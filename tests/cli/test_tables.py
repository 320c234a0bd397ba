"""Tables: aligned by the width of characters on a terminal, fitted to it, coloured only there."""

from __future__ import annotations

import io
import time

import pytest
from click import unstyle

from routecodex.cli.tables import (
    Column,
    Layout,
    TableCell,
    TableRow,
    available_width,
    dollars,
    is_coloured,
    moment,
    pad,
    seconds,
    shorten,
    shorten_start,
    width,
)

COLUMNS = (Column("name"), Column("tokens", right=True), Column("why"))


def table(rows: list[TableRow], **options: object) -> list[str]:
    laid_out = Layout(COLUMNS, rows, **options)  # type: ignore[arg-type]  # options as the test gives them
    return [laid_out.head(), *map(laid_out.line, rows)]


WIDTHS = {
    "": 0,
    "plain": 5,
    "智谱": 4,
    "ｆｕｌｌ": 8,
    "é": 1,
    "e\u0301": 1,
    "a\u200bb": 2,
    "→": 1,
    "한국": 4,
}


@pytest.mark.parametrize(("text", "room"), WIDTHS.items(), ids=map(ascii, WIDTHS))
def test_a_text_takes_the_room_it_takes_on_a_terminal(text: str, room: int) -> None:
    assert width(text) == room


@pytest.mark.parametrize(
    ("text", "room", "short"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("路由器", 6, "路由器"),
        ("路由器", 5, "路由…"),
        ("路由器", 4, "路…"),
        ("x", 1, "x"),
        ("xy", 1, "…"),
    ],
)
def test_a_text_is_shortened_to_its_room(text: str, room: int, short: str) -> None:
    assert shorten(text, room) == short
    assert width(short) <= room


def test_columns_are_aligned_and_lines_end_where_they_end() -> None:
    rows: list[TableRow] = [["glm", "12", "ok"], ["智谱清言", "12345", ""]]
    assert table(rows) == [
        "NAME      TOKENS  WHY",
        "glm           12  ok",
        "智谱清言   12345",
    ]


def test_padding_counts_wide_signs_twice() -> None:
    assert pad("智", 4) == "智  "
    assert pad("智", 4, right=True) == "  智"


def test_the_widest_column_gives_way_until_the_table_fits() -> None:
    rows: list[TableRow] = [
        ["a-name-of-20-letters", "1", "a reason that nobody has the room to read to the end"]
    ]
    shown = table(rows, available=50)
    assert shown == [
        "NAME                  TOKENS  WHY",
        "a-name-of-20-letters       1  a reason that nobod…",
    ]
    assert max(map(width, table(rows, available=30))) <= 30
    assert table(rows, available=1), "a terminal that is far too narrow gets a table all the same"


def test_a_column_that_is_to_be_kept_does_not_give_way() -> None:
    columns = (Column("time", fixed=True), Column("why"))
    rows: list[TableRow] = [["10:00:00.000", "because it is so"]]
    assert Layout(columns, rows, available=20).line(rows[0]) == "10:00:00.000  becau…"
    assert Layout(columns, rows, available=5).line(rows[0]) == "10:00:00.000  bec…"


def test_columns_go_in_their_order_before_others_become_unreadable() -> None:
    columns = (
        Column("target", min_width=10),
        Column("session", drop=2),
        Column("reason", drop=1, min_width=8),
    )
    row: TableRow = ["glm.primary.glm-4.7", "0123456789", "because it is so"]
    shown = {
        available: Layout(columns, [row], available=available).line(row) for available in (60, 30, 20, 8)
    }
    assert shown == {
        60: "glm.primary.glm-4.7  0123456789  because it is so",
        30: "glm.prima…  0123456…  because…",
        20: "glm.prima…  0123456…",
        8: "glm.pri…",
    }


def test_a_column_can_keep_the_end_of_its_text() -> None:
    columns = (Column("model → target", keep_end=True),)
    laid_out = Layout(columns, [["claude → glm.glm-4.7"]], available=10)
    assert [laid_out.head(), laid_out.line(["claude → glm.glm-4.7"])] == ["TARGET", "…m.glm-4.7"]


@pytest.mark.parametrize(
    ("text", "room", "short"),
    [("路由器", 5, "…由器"), ("路由器", 4, "…器"), ("abe\u0301c", 2, "…c"), ("ab", 2, "ab")],
)
def test_the_start_of_a_text_is_cut_by_whole_signs(text: str, room: int, short: str) -> None:
    assert shorten_start(text, room) == short
    assert width(short) <= room


def test_rows_are_whole_where_no_width_is_given_to_keep() -> None:
    laid_out = Layout((Column("a"), Column("b")), [["x", "y"]], whole=True)
    assert laid_out.line(["abcdef", "yyy"]) == "abcdef  yyy"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (0, "$0.00"),
        (0.000001, "<$0.00001"),
        (0.00123, "$0.00123"),
        (0.0123, "$0.0123"),
        (12.345, "$12.35"),
    ],
)
def test_costs_are_dollars_and_an_unknown_one_is_not_zero(value: float | None, text: str) -> None:
    assert dollars(value) == text


def test_rows_that_come_later_keep_to_the_columns() -> None:
    laid_out = Layout((Column("a", min_width=4), Column("b")), [["x", "y"]])
    assert laid_out.line(["abcdef", "yyy"]) == "abc…  …"


@pytest.mark.parametrize("sign", ["\n", "\r", "\x1b", "\x9b", "\u2028", "\u202e", "\x00", "\x7f"])
def test_nothing_in_a_cell_can_steer_the_terminal(sign: str) -> None:
    assert table([[f"a{sign}[31mb", "", ""]])[1] == "a?[31mb"


def test_colours_do_not_move_columns() -> None:
    rows: list[TableRow] = [[TableCell("glm", "red"), TableCell("1", "green"), "w"], ["openai", "22", "w"]]
    coloured = table(rows, colour=True)
    assert "\x1b[31mglm\x1b[0m" in coloured[1]
    assert [unstyle(line) for line in coloured] == table(rows)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_and_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert (is_coloured(Screen()), is_coloured(io.StringIO())) == (True, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert is_coloured(Screen()) is False


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert (available_width(Screen()), available_width(io.StringIO())) == (77, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.1234, "0.12s"), (12.34, "12.3s"), (65, "1m05s"), (3700, "1h01m")],
)
def test_spans_of_time_are_short(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_moments_are_told_in_local_time() -> None:
    at = 1_700_000_000
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    assert [moment(at), moment("2023-11-14T22:13:20.000Z")] == [local, local]
    assert [moment(None), moment(""), moment("soon")] == ["", "", "soon"]
