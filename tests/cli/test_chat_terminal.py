"""What `routecodex chat` shows of a model's text: rendered at a coloured terminal, elsewhere as it came."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click import unstyle

from routecodex.cli.tables import width
from tests.cli.model_server import ModelServer, model_server
from tests.cli.terminal import CTRL_C, CTRL_D, environ, gateway, terminal

PROMPT = r"you> "
XTERM = {"TERM": "xterm-256color"}
TEXT = (
    "# Plan\n\nUse **bold** and `code`, then wrap this line because it is longer than the window is.\n\n"
    "```sh\nls *.py\n```\n- 中文内容也会在正确的位置换行，标点不会出现在行首，这样读起来更舒服。\n"
)
SLOW = (
    '[server]\nport = 0\n[store]\nurl = "memory:"\n[logging]\nlevel = "error"\n'
    '[providers.demo]\nprotocol = "demo"\npace = 0.002\nmodels = { "demo-1" = {} }\n'
    '[routing]\ndefault = ["demo.demo-1"]\n'
)
EVIL = "a\x1b[31mred\x1b[2J\x1b]0;title\x07 \x9b5mb\u202ec\rd\x08e\n"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def pieces(text: str, size: int = 3) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def answer(place: Path, model: ModelServer, more: Mapping[str, str], *, columns: int = 50) -> str:
    """Return what the terminal shows between the message and the line below the answer."""
    arguments = ("chat", "--url", model.url, "--session", "s")
    with terminal(place, *arguments, user=place / "user", columns=columns, more=more) as screen:
        screen.shows(PROMPT)
        screen.type("go\n")
        screen.shows(r"go\r\n")
        start = len(screen.shown[: screen.shown.index("go\r\n")]) + 4
        screen.shows(r"10 \+ 5 tokens")
        end = screen.shown.rindex("10 + 5 tokens")
        screen.shows(PROMPT)
        screen.type(CTRL_D)
        assert screen.ends() == 0
    return screen.shown[start:end].replace("\r\n", "\n").removesuffix("\x1b[2m")


def test_an_answer_is_rendered_and_wrapped_at_a_coloured_terminal(tmp_path: Path, model: ModelServer) -> None:
    model.pieces = pieces(TEXT)
    shown = answer(tmp_path, model, XTERM)
    assert "\x1b[1mbold\x1b[0m" in shown
    assert "\x1b[36mcode\x1b[0m" in shown
    assert unstyle(shown) == (
        "Plan\n\nUse bold and code, then wrap this line because it\nis longer than the window is.\n\n"
        "```sh\nls *.py\n```\n• 中文内容也会在正确的位置换行，标点不会出现在行\n  首，这样读起来更舒服。\n"
    )
    assert max(map(width, unstyle(shown).splitlines())) <= 50


@pytest.mark.parametrize("more", [{**XTERM, "NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_a_terminal_without_colours_gets_the_text_as_it_came(
    tmp_path: Path, model: ModelServer, more: dict[str, str]
) -> None:
    model.pieces = pieces(TEXT)
    assert answer(tmp_path, model, more) == TEXT


def test_reasoning_is_dimmed_wrapped_and_apart(tmp_path: Path, model: ModelServer) -> None:
    model.reasoning = pieces("The **user** wants a long thought that does not fit into one line.")
    model.pieces = ["Done."]
    shown = answer(tmp_path, model, XTERM, columns=40)
    assert unstyle(shown) == "The **user** wants a long thought that\ndoes not fit into one line.\nDone.\n"
    assert shown.startswith("\x1b[2mThe")


@pytest.mark.parametrize("more", [XTERM, {**XTERM, "NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_control_character_of_a_model_reaches_the_terminal(
    tmp_path: Path, model: ModelServer, more: dict[str, str]
) -> None:
    model.pieces = pieces(EVIL, 1)
    assert unstyle(answer(tmp_path, model, more)) == "a[31mred[2J]0;title 5mbcde\n"


def test_a_question_from_a_pipe_is_rendered_if_its_answer_goes_to_a_terminal(
    tmp_path: Path, model: ModelServer
) -> None:
    model.pieces = pieces(f"**bold** {EVIL}")
    with tempfile.TemporaryFile() as question:
        question.write(b"go")
        question.seek(0)
        with terminal(
            tmp_path, "chat", "--url", model.url, user=tmp_path / "user", more=XTERM, stdin=question
        ) as screen:
            assert screen.ends() == 0
    assert screen.shown == "\x1b[1mbold\x1b[0m a[31mred[2J]0;title 5mbcde\r\n"


def test_a_pipe_gets_the_text_exactly_as_it_came(tmp_path: Path, model: ModelServer) -> None:
    model.pieces = pieces(TEXT + EVIL)
    done = subprocess.run(
        [sys.executable, "-m", "routecodex", "chat", "--url", model.url],
        cwd=tmp_path,
        env=environ(tmp_path / "user", XTERM),
        input=b"go",
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, TEXT + EVIL, b"")


def test_ctrl_c_shows_the_answer_so_far_and_the_next_one_begins_on_its_own_line(tmp_path: Path) -> None:
    user = tmp_path / "user"
    with (
        gateway(tmp_path, SLOW, user=user),
        terminal(tmp_path, "chat", user=user, columns=50, more=XTERM) as screen,
    ):
        screen.shows(PROMPT)
        screen.type("demo:long 20000\n")
        screen.shows("brings it to any provider")
        screen.type(CTRL_C)
        screen.shows(r"\S\r\n\S*\(interrupted; the answer so far is saved\)")
        screen.shows(PROMPT)
        screen.type("demo:say **next** answer\n")
        screen.shows(r"\r\n\x1b\[1mnext\x1b\[0m answer\r\n")
        screen.shows(PROMPT)
        screen.type(CTRL_D)
        assert screen.ends() == 0
