"""Several nodes on one Redis: compared with one by the CPU time of a request."""

from __future__ import annotations

from pathlib import Path

from bench import nodes
from bench.native import mock
from bench.nodes import NodesFigures, NodesSample, figures


def test_medians_are_compared_with_those_of_one_node() -> None:
    samples = [
        NodesSample("redis16", 1, 1000, 100, 0, 0),
        NodesSample("redis16", 3, 1100, 110, 1, 0),
        NodesSample("redis16", 3, 1200, 120, 1, 0),
        NodesSample("redis16", 3, 1300, 300, 1, 0),
        NodesSample("redissticky16", 1, 500, 100, 0, 0),
        NodesSample("redissticky16", 3, 500, 130, 0, 0),
    ]
    found = figures(samples)
    assert found[:2] == [
        NodesFigures("redis16", 1, 1000, 100, 0, 1.0, 0),
        NodesFigures("redis16", 3, 1200, 120, 1, 2.5, 0),
    ]
    assert [one.holds for one in found] == [True, True, True, False]


def test_wrong_answers_do_not_hold() -> None:
    [one] = figures([NodesSample("redis16", 1, 1000, 100, 0, 3)])
    assert not one.holds


def test_one_node_and_three_answer_on_a_real_redis(tmp_path: Path) -> None:
    with mock() as provider:
        taken = list(nodes.measure(1, 0.3, mock=provider, folder=tmp_path))
    assert [(one.cell, one.nodes, one.errors) for one in taken] == [
        (cell, count, 0) for cell in nodes.TRAFFIC for count in nodes.COUNTS
    ]
    assert all(one.rps > 0 for one in taken)
