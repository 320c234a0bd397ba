"""The end of a file that grows, and that is put aside for a new one now and then."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

_BLOCK = 64 * 1024
_PAUSE = 0.2
_OLD = 9


class Tail:
    """Lines from the end of a file on; it is put aside as `name.1.jsonl`, that one as `name.2.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._begun = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def last(self, count: int) -> list[bytes]:
        """The last lines; following goes on after them."""
        self._open()
        if self._file is None:
            return self._older(count)
        size = self._file.seek(0, os.SEEK_END)
        lines, self._begun = _last_lines(self._file, size, count)
        self._file.seek(size)
        return [*self._older(count - len(lines)), *lines]

    def _older(self, count: int) -> list[bytes]:
        """The last lines of the files that were put aside, newest of them first."""
        lines: list[bytes] = []
        for number in range(1, _OLD):
            aside = self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}")
            if len(lines) >= count or not aside.exists():
                break
            with aside.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                lines = [*_last_lines(file, size, count - len(lines))[0], *lines]
        return lines

    def follow(self) -> Iterator[list[bytes]]:
        """New lines as they come, forever."""
        while True:
            lines = self.news()
            if lines:
                yield lines
            else:
                time.sleep(_PAUSE)

    def news(self) -> list[bytes]:
        """The lines that came since."""
        if self._file is None:
            self._open()
            return self._read()
        replaced = self._is_replaced()
        # What was written before it was put aside is read after that was seen, so that no line is lost.
        lines = self._read()
        if replaced:
            self._close()
            self._open()
            lines += self._read()
        return lines

    def _open(self) -> None:
        try:
            self._file = self._path.open("rb")
        except FileNotFoundError:
            self._file = None

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._begun = None, b""

    def _is_replaced(self) -> bool:
        assert self._file is not None
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino) or there.st_size < self._file.tell()

    def _read(self) -> list[bytes]:
        if self._file is None:
            return []
        *lines, self._begun = (self._begun + self._file.read()).split(b"\n")
        return list(filter(None, lines))


def _last_lines(file: BinaryIO, size: int, count: int) -> tuple[list[bytes], bytes]:
    """The last whole lines before `size`, and the beginning of one that is being written."""
    text, at = b"", size
    while at > 0 and text.count(b"\n") <= count:
        step = min(_BLOCK, at)
        at -= step
        file.seek(at)
        text = file.read(step) + text
    *lines, begun = text.split(b"\n")
    lines = list(filter(None, lines))
    return (lines[-count:] if count > 0 else []), begun
