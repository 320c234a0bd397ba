"""Following a file: its last lines, new lines, rotation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from routecodex.cli.logs import Tail


@pytest.fixture
def tail_of() -> Iterator[Callable[[Path], Tail]]:
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(Tail(path))


def test_what_comes_later_is_told_once_and_whole(tmp_path: Path, tail_of: Callable[[Path], Tail]) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_bytes(b"a\nb\nhalf")
    tail = tail_of(file)
    assert tail.last(1) == [b"b"]
    assert tail.new_lines() == []
    with file.open("ab") as out:
        out.write(b" done\nc\n")
    assert tail.new_lines() == [b"half done", b"c"]
    assert tail.new_lines() == []


def test_no_line_is_lost_when_the_file_is_put_aside(tmp_path: Path, tail_of: Callable[[Path], Tail]) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_bytes(b"a\n")
    tail = tail_of(file)
    tail.last(0)
    with file.open("ab") as out:
        out.write(b"b\n")
    file.rename(tmp_path / "requests.1.jsonl")
    assert tail.new_lines() == [b"b"], "the new file is not there yet"
    file.write_bytes(b"c\n")
    assert tail.new_lines() == [b"c"]
    file.write_bytes(b"")
    assert tail.new_lines() == []
    file.write_bytes(b"d\n")
    assert tail.new_lines() == [b"d"], "a file that was emptied is read from its beginning"


def test_a_file_that_is_made_later_is_followed(tmp_path: Path, tail_of: Callable[[Path], Tail]) -> None:
    tail = tail_of(tmp_path / "requests.jsonl")
    assert (tail.last(5), tail.new_lines()) == ([], [])
    (tmp_path / "requests.jsonl").write_bytes(b"a\n")
    assert tail.new_lines() == [b"a"]


@pytest.mark.parametrize("count", [0, 1, 3, 5000, 20000])
def test_the_end_of_a_long_file_is_found(tmp_path: Path, tail_of: Callable[[Path], Tail], count: int) -> None:
    every = [f"{number}: {'x' * 30}".encode() for number in range(10_000)]
    (tmp_path / "long.jsonl").write_bytes(b"\n".join(every) + b"\n")
    assert tail_of(tmp_path / "long.jsonl").last(count) == (every[-count:] if count else [])
