"""The steps of a build are shown as they begin."""

from __future__ import annotations

import io
import threading

import pytest

from compile.progress import Progress


class Terminal(io.StringIO):
    """A stream that is a terminal, and tells when a text was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.ticked = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text.startswith("\r"):
            self.ticked.set()
        return super().write(text)


def test_every_step_is_one_line() -> None:
    stream = io.StringIO()
    progress = Progress(2, stream)
    with progress.step("translating"):
        pass
    with progress.step("compiling"):
        pass
    assert stream.getvalue() == "[1/2] translating …\n[2/2] compiling …\n"


def test_a_terminal_sees_the_seconds_go_by() -> None:
    stream = Terminal()
    with Progress(1, stream, every=0.001).step("compiling"):
        assert stream.ticked.wait(20)
    first, *ticks = stream.getvalue().split("\r")
    assert first == "[1/1] compiling"
    assert {tick.rsplit("  ", 1)[0] for tick in ticks} == {"[1/1] compiling"}
    assert ticks[-1].endswith(" s\n")


def test_a_step_that_fails_ends_its_line() -> None:
    stream = Terminal()
    with pytest.raises(ValueError, match="bad"), Progress(1, stream).step("compiling"):
        raise ValueError("bad")
    assert stream.getvalue().endswith(" s\n")
