from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.turns.message import add_usage, copied, merge_delta

CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "strings grow": ([{"content": "a"}, {"content": ""}, {"content": "b"}], {"content": "ab"}),
    "unknown strings grow too": ([{"thought": "a"}, {"thought": "b"}], {"thought": "ab"}),
    "identity stays": (
        [{"role": "assistant", "id": "1", "type": "t", "name": "n"}, {"role": "assistant", "id": "2"}],
        {"role": "assistant", "id": "1", "type": "t", "name": "n"},
    ),
    "an empty identity is not set yet": ([{"name": ""}, {"name": "n"}], {"name": "n"}),
    "null says nothing": ([{"content": None}, {"content": "a"}, {"content": None}], {"content": "a"}),
    "objects merge": (
        [{"audio": {"id": "1", "data": "x"}}, {"audio": {"data": "y", "expires": 3}}],
        {"audio": {"id": "1", "data": "xy", "expires": 3}},
    ),
    "numbers are replaced": ([{"score": 1}, {"score": 2.5}, {"done": True}], {"score": 2.5, "done": True}),
    "another type replaces": ([{"content": "a"}, {"content": [{"type": "x"}]}], {"content": [{"type": "x"}]}),
    "lists without index follow each other": ([{"notes": ["a"]}, {"notes": ["b"]}], {"notes": ["a", "b"]}),
    "calls merge by index": (
        [
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
            {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}]},
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ":1}"}}]},
        ],
        {
            "tool_calls": [
                {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}},
            ]
        },
    ),
    "gaps are allowed and the order is that of the index": (
        [{"tool_calls": [{"index": 7, "id": "c"}, {"index": 2, "id": "a"}]}, {"tool_calls": [{"index": 4}]}],
        {"tool_calls": [{"index": 2, "id": "a"}, {"index": 4}, {"index": 7, "id": "c"}]},
    ),
    "one index twice in a chunk": (
        [{"tool_calls": [{"index": 0, "a": "x"}, {"index": 0, "a": "y"}]}],
        {"tool_calls": [{"index": 0, "a": "xy"}]},
    ),
    "calls without index are calls of their own": (
        [{"tool_calls": [{"id": "a"}]}, {"tool_calls": [{"id": "b"}]}],
        {"tool_calls": [{"id": "a"}, {"id": "b"}]},
    ),
}


@pytest.mark.parametrize(("deltas", "merged"), CASES.values(), ids=CASES)
def test_deltas_merge(deltas: list[dict[str, Any]], merged: dict[str, Any]) -> None:
    before = copied(deltas)
    into: dict[str, Any] = {}
    for delta in deltas:
        merge_delta(into, delta)
    assert into == merged
    assert deltas == before, "chunks are never mutated"


pieces = st.lists(
    st.fixed_dictionaries(
        {"index": st.integers(0, 5), "id": st.sampled_from("abc"), "function": st.just({"name": "f"})}
    ),
    max_size=5,
)


@given(st.lists(pieces, max_size=6))
def test_every_index_appears_once_and_in_order(chunks: list[list[dict[str, Any]]]) -> None:
    into: dict[str, Any] = {}
    before = copied(chunks)
    for calls in chunks:
        merge_delta(into, {"tool_calls": calls})
    indexes = [call["index"] for call in into.get("tool_calls", [])]
    assert indexes == sorted({call["index"] for calls in chunks for call in calls})
    assert chunks == before


@given(st.text(max_size=20), st.lists(st.integers(0, 20), max_size=4))
def test_cutting_a_text_differently_changes_nothing(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    into: dict[str, Any] = {"content": ""}
    for start, end in itertools.pairwise(edges):
        merge_delta(into, {"content": text[start:end]})
    assert into == {"content": text}


def test_usage_is_summed_field_by_field() -> None:
    first = {"prompt_tokens": 1, "details": {"cached": 2}, "tier": "x"}
    second = {"prompt_tokens": 10, "details": {"cached": 20, "audio": 1}, "cost": 0.5, "none": None}
    total = add_usage(first, second)
    assert total == {
        "prompt_tokens": 11,
        "details": {"cached": 22, "audio": 1},
        "tier": "x",
        "cost": 0.5,
    }
    assert first["details"] == {"cached": 2}
