"""Shows the step that a build is at, and for how long."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO


class Progress:
    """Writes one line per step; on a terminal the line counts seconds while the step runs."""

    def __init__(self, steps: int, stream: TextIO | None = None, *, every: float = 1.0) -> None:
        self._steps = steps
        self._stream = sys.stderr if stream is None else stream
        self._every = every
        self._step = 0

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show a step while the block runs."""
        self._step += 1
        line = f"[{self._step}/{self._steps}] {text}"
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(line, time.monotonic(), ended), daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join()

    def _tick(self, line: str, started: float, ended: threading.Event) -> None:
        on_terminal = self._stream.isatty()
        self._write(line if on_terminal else f"{line} …\n")
        while not ended.wait(self._every):
            if on_terminal:
                self._write(f"\r{line}  {time.monotonic() - started:.0f} s")
        if on_terminal:
            self._write(f"\r{line}  {time.monotonic() - started:.0f} s\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
