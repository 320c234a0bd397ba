"""`routecodex logs` in a real terminal: its columns fit the width, and follow it when it changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click import unstyle

from routecodex.cli.tables import Layout, width
from routecodex.cli.views import request_fields, request_row
from tests.cli.admin_server import REQUEST, announce
from tests.cli.terminal import CTRL_C, terminal

ROW = {
    **REQUEST,
    "session": "0199aaaa-bbbb-cccc-dddd-eeeeffff0000",
    "model": "claude-sonnet-4-5-20250929",
    "reason": "the newest message asks for a plan and names no file",
    "client": "laptop",
    "cost": 0.0123,
}
KEPT = {"STATUS", "CLIENT", "TARGET", "FIRST", "COST"}


def log_of(user: Path, *rows: Mapping[str, Any]) -> Path:
    """Announce a server with these requests; return its request log."""
    folder = user / "sessions" / "alpha"
    folder.mkdir(parents=True)
    announce(user, {"id": "alpha", "url": "http://127.0.0.1:9", "token": "t", "pid": os.getpid()})
    file = folder / "requests.jsonl"
    append(file, *rows)
    return file


def append(file: Path, *rows: Mapping[str, Any]) -> None:
    with file.open("ab") as out:
        out.writelines(msgspec.json.encode(row) + b"\n" for row in rows)


def shown(tmp_path: Path, columns: int, *rows: Mapping[str, Any], **more: str) -> list[str]:
    """Return the lines that `logs` prints in a terminal of that width."""
    log_of(tmp_path / "user", *rows)
    with terminal(tmp_path, "logs", user=tmp_path / "user", columns=columns, more=more) as screen:
        assert screen.ends() == 0
    return screen.shown.splitlines()


def titles(head: str) -> list[str]:
    return [title for title in unstyle(head).split() if title not in ("MODEL", "→", "…→", "…")]


def test_a_wide_terminal_has_every_column(tmp_path: Path) -> None:
    head, line = map(unstyle, shown(tmp_path, 250, ROW))
    expected = "TIME STATUS PROTOCOL CLIENT SESSION TARGET ROUTE REASON FIRST TOTAL IN OUT COST END"
    assert titles(head) == expected.split()
    for text in (
        "claude-sonnet-4-5-20250929 → glm.primary.glm-4.7",
        ROW["reason"],
        ROW["session"],
        "$0.0123",
    ):
        assert str(text) in line


@pytest.mark.parametrize("columns", [42, 60, 80, 100, 120, 140, 160, 200])
def test_no_line_is_wider_than_the_terminal_and_five_columns_always_stay(
    tmp_path: Path, columns: int
) -> None:
    lines = list(
        map(unstyle, shown(tmp_path, columns, ROW, {**ROW, "client": "笔记本电脑", "model": "智谱清言" * 6}))
    )
    assert max(map(width, lines)) <= columns
    assert set(titles(lines[0])) >= KEPT
    for line in lines[1:]:
        assert all(text in line for text in ("200", "m-4.7", "0.50s", "$0.0123"))


def test_reason_and_session_go_first() -> None:
    fields = request_fields([ROW])
    row = request_row(ROW, fields)
    heads = [
        Layout([field.column for field in fields], [row], available=columns).head()
        for columns in range(250, 40, -1)
    ]
    left = list(dict.fromkeys(title for head in reversed(heads) for title in titles(head)))
    assert set(left[:5]) == KEPT
    assert left[:4:-1] == ["REASON", "SESSION", "PROTOCOL", "ROUTE", "IN", "OUT", "END", "TOTAL", "TIME"]


def test_an_unknown_cost_is_a_dash_and_no_cost_at_all_is_no_column(tmp_path: Path) -> None:
    lines = shown(tmp_path / "some", 80, ROW, {**ROW, "cost": None})
    assert lines[2].rstrip().endswith("—")
    bare = {name: value for name, value in ROW.items() if name not in ("cost", "client")}
    assert not {"COST", "CLIENT"} & set(titles(shown(tmp_path / "none", 120, bare)[0]))


def test_colours_obey_no_color(tmp_path: Path) -> None:
    assert "\x1b[32m200\x1b[0m" in shown(tmp_path / "coloured", 120, ROW)[1]
    assert "\x1b" not in "".join(shown(tmp_path / "plain", 120, ROW, NO_COLOR="1"))


def test_following_fits_new_requests_to_a_window_that_was_resized(tmp_path: Path) -> None:
    user = tmp_path / "user"
    file = log_of(user, ROW)
    with terminal(tmp_path, "logs", "-f", user=user, columns=180) as screen:
        screen.shows("REASON.*\n.*glm-4.7.*\n")
        wide = len(screen.shown)
        screen.resize(70)
        append(file, {**ROW, "model": "second"})
        screen.shows("STATUS.*\n.*glm-4.7.*\n")
        narrow = len(screen.shown)
        append(file, {**ROW, "model": "third"})
        screen.shows("third.*\n")
        screen.type(CTRL_C)
        assert screen.ends() == 0
    lines = [unstyle(line) for line in screen.shown[wide:].splitlines() if "^C" not in line]
    assert max(map(width, lines)) <= 70
    assert set(titles(lines[0])) >= KEPT
    assert "REASON" not in lines[0]
    assert "STATUS" not in screen.shown[narrow:], "the titles are printed again only after a change"


def test_following_adds_a_column_when_the_first_request_has_its_field(tmp_path: Path) -> None:
    user = tmp_path / "user"
    file = log_of(user, REQUEST)
    with terminal(tmp_path, "logs", "-f", user=user, columns=100) as screen:
        screen.shows("STATUS.*\n.*glm-4.7.*\n")
        append(file, ROW)
        assert set(titles(screen.shows("[^\n]*STATUS.*\n")[0])) >= KEPT
        screen.shows("laptop.*0123")
        append(file, REQUEST)
        screen.shows("glm-4.7.*—")
        screen.type(CTRL_C)
        assert screen.ends() == 0


def test_a_request_with_escape_sequences_cannot_control_the_terminal(tmp_path: Path) -> None:
    row = {**ROW, "model": "m\x1b[2J", "client": "a\x1b]0;b\x07", "session": "\x9b31m"}
    text = "".join(shown(tmp_path, 200, row, NO_COLOR="1"))
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
