"""A tree is read whole, whatever the garbage collector runs meanwhile."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

from tests.kit import source_tree


@contextlib.contextmanager
def parsing_collector() -> Iterator[list[str]]:
    """Parse in every collection, and collect as often as possible."""
    seen: list[str] = []

    def parse(phase: str, _info: dict[str, int]) -> None:
        ast.parse("f(1)")
        seen.append(phase)

    before = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(10)
    try:
        yield seen
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(parse)


def test_a_collection_that_parses_leaves_the_outer_tree_alone() -> None:
    this = Path(__file__)
    with parsing_collector() as parses:
        trees = [source_tree.read(this) for _ in range(20)]
    assert {ast.unparse(tree) for tree in trees} == {ast.unparse(source_tree.parse(this.read_text("utf-8")))}
    assert parses
    assert gc.isenabled()
