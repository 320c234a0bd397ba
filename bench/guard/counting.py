"""Deterministic counts: executed bytecodes, allocated blocks and bytes.

Bytecodes are the work of the interpreter; allocations also show the work of C code, such as another copy of a
body.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import selectors
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from bench.native import compiled

WARM_RUNS = 20
"""Runs after which the interpreter has specialised its code and all caches are filled."""
RUNS = 3
"""Runs of which the minimum counts: other work, such as a timer, can only add to a run."""

BENCH = str(Path(__file__).parents[1])
EVENT_LOOP = (str(Path(asyncio.__file__).parent), str(Path(selectors.__file__)))

Step = Callable[[], object]


class Count(msgspec.Struct, frozen=True):
    """Cost of one run of a step."""

    bytecodes: int
    allocations: int
    bytes: int


@functools.cache
def _is_counted(file: str) -> bool:
    """Return whether the file counts: neither the event loop, which turns by chance, nor the guard does."""
    return not file.startswith((BENCH, *EVENT_LOOP))


class _Tracer:
    def __init__(self) -> None:
        self.bytecodes = 0

    def on_frame(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not _is_counted(frame.f_code.co_filename):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self.on_event

    def on_event(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        self.bytecodes += event == "opcode"
        return self.on_event


def bytecodes(step: Step) -> int:
    """Count the bytecodes that one run of the step executes."""
    tracer = _Tracer()
    sys.settrace(tracer.on_frame)
    try:
        step()
    finally:
        sys.settrace(None)
    return tracer.bytecodes


class Allocations:
    """Counts allocations of this process; only one instance per process is possible."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(compiled("allocations", "-shared", "-fPIC")))
        library.install()
        self._counting = ctypes.c_int.in_dll(library, "counting")
        self._blocks = ctypes.c_size_t.in_dll(library, "allocations")
        self._bytes = ctypes.c_size_t.in_dll(library, "allocated_bytes")
        self._own = (0, 0)
        self._own = self.of(lambda: None)

    def of(self, step: Step, *, runs: int = RUNS) -> tuple[int, int]:
        """Return the fewest blocks and bytes that a run of the step allocates."""
        blocks, sizes = zip(*(self._once(step) for _ in range(runs)), strict=True)
        return min(blocks) - self._own[0], min(sizes) - self._own[1]

    def _once(self, step: Step) -> tuple[int, int]:
        self._blocks.value = self._bytes.value = 0
        self._counting.value = 1
        step()
        self._counting.value = 0
        return self._blocks.value, self._bytes.value


def count(step: Step, allocations: Allocations) -> Count:
    """Return the cost of one run of the step after warm-up."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(WARM_RUNS):
            step()
        # Python 3.12 and 3.13 trace the opcodes of a function only after a call that asked for it.
        bytecodes(step)
        executed = min(bytecodes(step) for _ in range(RUNS))
        return Count(executed, *allocations.of(step))
    finally:
        gc.enable()
