"""Syntax trees of source files."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def parse(source: str) -> ast.Module:
    """Parse a source text with the garbage collector paused.

    CPython 3.11 counts the depth of a tree in one place for all threads and nested calls. A collection while
    the tree is built runs finalizers and callbacks of other tests; one that parses changes the count, and the
    outer call raises "AST constructor recursion depth mismatch" (python/cpython#106905).
    """
    with _collector_paused():
        return ast.parse(source)


def read(path: Path) -> ast.Module:
    """Parse a file."""
    return parse(path.read_text("utf-8"))
