"""The guard: the work of the hot path is what is recorded, and the guard would see if it were not."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.guard import __main__ as command
from bench.guard import record, whole
from bench.guard.counting import Count
from bench.guard.record import Move, moved

ROOT = Path(__file__).parents[2]
KNOWN = {"read": Count(1000, 100, 10_000), "plan": Count(40, 4, 400)}

GONE = [Move("plan", "allocations", 4, 0), Move("plan", "bytes", 400, 0)]


def test_the_hot_path_does_the_work_that_is_recorded() -> None:
    recorded = record.read(record.version())
    if recorded is None:
        pytest.skip(record.NONE.format(record.version()))
    moves = [str(move) for move in moved(recorded, command.counted())]
    assert moves == [], command.ADVICE


def test_no_request_leaves_anything_to_the_collector() -> None:
    """Whatever refers to itself in a circle stays in memory until a collection, which stops all streams."""
    left: dict[str, int] = {}
    with whole.requests_answered() as steps:
        for name, step in steps.items():
            for _ in range(5):
                step()
            gc.collect()
            for _ in range(20):
                step()
            left[name] = gc.collect()
    # Now and then something else ends in these moments, but not with every request.
    assert {name: count for name, count in left.items() if count >= 20} == {}


def counts_of(*steps: str) -> list[Count]:
    """What expressions cost, counted in a process of its own."""
    program = f"""
import sys, msgspec
from bench.guard.counting import Allocations, count
text = msgspec.json.encode({{"a": [{{"b": n}} for n in range(100)]}})
def adds(times):
    total = 0
    for n in range(times): total = n & 7
    return total
allocations = Allocations()
counts = [count(step, allocations) for step in ({", ".join(f"lambda: {step}" for step in steps)},)]
sys.stdout.buffer.write(msgspec.json.encode(counts))
"""
    # From standard input: what stands in a file below bench/ is not counted.
    done = subprocess.run(
        [sys.executable, "-"], input=program.encode(), cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    return msgspec.json.decode(done.stdout, type=list[Count])


def test_a_tenth_more_bytecodes_are_seen() -> None:
    once, again, more = counts_of("adds(100)", "adds(100)", "adds(110)")
    assert once == again
    assert [move.figure for move in moved({"adds": once}, {"adds": more})] == ["bytecodes"]


def test_work_of_c_code_is_seen_by_what_it_allocates() -> None:
    raw = "msgspec.json.decode(text, type=dict[str, msgspec.Raw])"
    whole = "msgspec.json.decode(text, type=dict[str, list])"
    lazy, eager = counts_of(raw, whole)
    assert abs(lazy.bytecodes - eager.bytecodes) <= record.SLACK["bytecodes"]
    assert {move.figure for move in moved({"read": lazy}, {"read": eager})} == {"allocations", "bytes"}


def test_a_copy_of_a_body_is_seen() -> None:
    kept, copied = counts_of("text", "bytes(bytearray(text))")
    assert "bytes" in {move.figure for move in moved({"read": kept}, {"read": copied})}


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        (KNOWN, []),
        (KNOWN | {"read": Count(1050, 105, 10_500)}, []),
        (KNOWN | {"read": Count(1051, 100, 10_000)}, [Move("read", "bytecodes", 1000, 1051)]),
        (KNOWN | {"read": Count(1000, 94, 10_000)}, [Move("read", "allocations", 100, 94)]),
        (KNOWN | {"read": Count(1000, 100, 11_000)}, [Move("read", "bytes", 10_000, 11_000)]),
        (KNOWN | {"plan": Count(48, 6, 656)}, []),
        (KNOWN | {"plan": Count(49, 4, 400)}, [Move("plan", "bytecodes", 40, 49)]),
        ({"read": KNOWN["read"]}, [Move("plan", "bytecodes", 40, 0), *GONE]),
        (KNOWN | {"new": Count(9, 0, 0)}, [Move("new", "bytecodes", 0, 9)]),
    ],
)
def test_what_moves_away_from_its_record_is_named(counted: dict[str, Count], expected: list[Move]) -> None:
    assert moved(KNOWN, counted) == expected


def test_a_move_says_what_was_and_what_is() -> None:
    assert str(Move("read", "bytes", 10_000, 12_345)) == "read: 10,000 bytes recorded, 12,345 now (+23.4%)"


def test_every_version_has_a_record_of_its_own(tmp_path: Path) -> None:
    other = {"read": KNOWN["read"]}
    assert record.read(record.REFERENCE, tmp_path) is None
    assert record.write(KNOWN, record.REFERENCE, tmp_path) == tmp_path / "recorded.json"
    assert record.write(other, "cpython 3.99", tmp_path) == tmp_path / "recorded-cpython-3.99.json"
    assert record.read(record.REFERENCE, tmp_path) == KNOWN
    assert record.read("cpython 3.99", tmp_path) == other
    assert record.read("cpython 3.98", tmp_path) is None
    lines = (tmp_path / "recorded.json").read_text().splitlines()
    assert len([line for line in lines if '"bytecodes"' in line]) == 2


def test_a_record_does_not_count_after_the_reference_was_renewed(tmp_path: Path) -> None:
    record.write(KNOWN, record.REFERENCE, tmp_path)
    record.write(KNOWN, "cpython 3.99", tmp_path)
    record.write(KNOWN | {"plan": Count(41, 4, 400)}, record.REFERENCE, tmp_path)
    assert record.read("cpython 3.99", tmp_path) is None
    record.write(KNOWN, "cpython 3.99", tmp_path)
    assert record.read("cpython 3.99", tmp_path) == KNOWN


def test_the_reference_is_recorded() -> None:
    assert record.read(record.REFERENCE)
