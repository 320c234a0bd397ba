"""Steps of the usual request: each leaves the cells that the general steps leave, or does nothing."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routecodex import IS_COMPILED
from routecodex.accounting import counter_file, limit_steps, shared_counters, windows
from routecodex.accounting.counter_file import SILENCE
from routecodex.accounting.counters import LimitFigures, LimitRefusal, LimitReservation
from routecodex.accounting.limit_packing import PreparedLimits, pack
from routecodex.accounting.limits import Limit, amount_of, make_limits
from routecodex.accounting.shared_counters import SharedCounters
from routecodex.accounting.windows import MICROS
from routecodex.config import LimitConfig
from routecodex.gateway.limit_headers import LimitHeaders
from tests.accounting.test_shared_counters import NOW, limits, state
from tests.reference import limit_steps as reference
from tests.reference.installed import using
from tests.wire.twins import functions, twin

WAY = "compiled" if IS_COMPILED else "references"
"""From the sources no step is done at once; the reference stands in for the C."""


@pytest.fixture(autouse=True)
def steps() -> Iterator[None]:
    with using(WAY):
        yield


@pytest.fixture
def counters(tmp_path: Path) -> Iterator[SharedCounters]:
    made = SharedCounters(tmp_path / "gateway.limits")
    yield made
    made.close()


def prepared(counters: SharedCounters, rows: tuple[Limit, ...], now: int = NOW) -> PreparedLimits:
    """The limits after a first request, which gives them their places."""
    held = counters.reserve(rows, [0] * len(rows), now)
    assert isinstance(held, LimitReservation)
    counters.settle(held, [0] * len(rows), now)
    made = counters.prepare(rows)
    assert made is not None
    return made


def reserved(found: LimitReservation | None) -> LimitReservation:
    assert found is not None
    return found


def test_the_sources_do_nothing_at_once() -> None:
    source = twin("limit_steps", "accounting")
    assert source.reserve([], b"", 0, 0, 0, 0, 0, 0, True) is None
    assert source.settle([], b"", [], 0, 0, 0, 0, 0, 0, 0) is False
    assert source.header_lines([], b"", (), 0, False) is None


def test_the_sources_the_reference_and_the_c_offer_the_same() -> None:
    source = twin("limit_steps", "accounting")
    for name in functions(source):
        assert inspect.signature(getattr(source, name)) == inspect.signature(getattr(reference, name))
    assert functions(source) == functions(reference)
    assert functions(source) <= set(vars(limit_steps))
    assert (limit_steps.__file__ or "").endswith(".py") is not IS_COMPILED


def test_the_steps_know_the_layout_of_the_file() -> None:
    size: Any = vars(shared_counters)["_SLOT_SIZE"]
    sizes = {limit_steps.SLOT_SIZE, reference.SLOT_SIZE, twin("limit_steps", "accounting").SLOT_SIZE}
    assert sizes == {size}
    assert counter_file.ROWS == 128
    assert windows.BUCKETS == 60


def test_a_request_is_reserved_and_settled_at_once(counters: SharedCounters) -> None:
    rows = limits("$1/day", "5 requests/60s", "900 tokens/day", "80 uncached/5h", concurrent=3)
    at_once = prepared(counters, rows)
    held = reserved(at_once.reserve(30, 40, 700, NOW, is_request=True))
    assert held.amounts == [700, 1, 70, 70, 1]
    assert state(counters, rows) == [(0, 700), (0, 1), (0, 70), (0, 70), (0, 1)]
    at_once = prepared(counters, rows)
    assert at_once.settle(held, 31, 9, 20, 123, NOW)
    assert held.amounts == [0] * 5
    assert state(counters, rows) == [(123, 0), (1, 0), (40, 0), (20, 0), (0, 0)]


def test_a_further_call_of_a_request_is_not_a_request(counters: SharedCounters) -> None:
    rows = limits("5 requests/60s", "900 input/day", concurrent=3)
    held = prepared(counters, rows).reserve(30, 40, 0, NOW, is_request=False)
    assert reserved(held).amounts == [0, 30, 0]


def test_a_limit_without_room_is_left_to_the_general_step(counters: SharedCounters) -> None:
    rows = limits("100 tokens/day", "9 requests/60s")
    at_once = prepared(counters, rows)
    reserved(at_once.reserve(60, 0, 0, NOW, is_request=True))
    assert at_once.reserve(41, 0, 0, NOW, is_request=True) is None
    assert isinstance(counters.reserve(rows, [41, 1], NOW), LimitRefusal)
    assert state(counters, rows) == [(0, 60), (0, 1)]


def test_a_shadow_limit_refuses_nothing_at_once(counters: SharedCounters) -> None:
    rows = make_limits("client:a", [LimitConfig(limit="1 requests/day", mode="shadow", warn_at=1.0)])
    at_once = prepared(counters, rows)
    held = [reserved(at_once.reserve(0, 0, 0, NOW, is_request=True)) for _ in range(3)]
    # The first use is the whole limit, which is reported.
    assert not at_once.settle(held[0], 0, 0, 0, 0, NOW)
    counters.settle(held[0], [1], NOW)
    assert [event.name for event in held[0].events] == ["limit_warn", "limit_exceeded"]
    at_once = prepared(counters, rows)
    assert at_once.settle(held[1], 0, 0, 0, 0, NOW)
    assert at_once.settle(held[2], 0, 0, 0, 0, NOW)
    assert state(counters, rows) == [(3, 0)]


def test_use_beyond_the_warning_is_left_to_the_general_step_once(counters: SharedCounters) -> None:
    rows = make_limits("client:a", [LimitConfig(limit="10 tokens/day", warn_at=0.5)])
    at_once = prepared(counters, rows)
    held = reserved(at_once.reserve(5, 0, 0, NOW, is_request=True))
    assert not at_once.settle(held, 5, 0, 0, 0, NOW)
    counters.settle(held, [5], NOW)
    assert [event.name for event in held.events] == ["limit_warn"]
    again = prepared(counters, rows)
    assert again.settle(reserved(again.reserve(2, 0, 0, NOW, is_request=True)), 2, 0, 0, 0, NOW)
    assert state(counters, rows) == [(7, 0)]


@pytest.mark.parametrize("step", [MICROS, 60 * MICROS, 86_400 * MICROS, -3 * MICROS])
def test_a_window_is_moved_by_the_general_step_alone(counters: SharedCounters, step: int) -> None:
    rows = limits("$1/day", "5 requests/60s")
    at_once = prepared(counters, rows)
    held = reserved(at_once.reserve(0, 0, 5, NOW, is_request=True))
    assert at_once.reserve(0, 0, 5, NOW + step, is_request=True) is None
    assert not at_once.settle(held, 0, 0, 0, 5, NOW + step)
    counters.settle(held, [5, 1], NOW + step)
    assert state(counters, rows, NOW + step) == [(5, 0), (1, 0)]


def test_the_general_step_sees_what_was_done_at_once(counters: SharedCounters) -> None:
    rows = limits("3 requests/day")
    at_once = prepared(counters, rows)
    reserved(at_once.reserve(0, 0, 0, NOW, is_request=True))
    assert [(row.used, row.reserved) for row in counters.latest(rows)] == [(0, 1)]
    assert isinstance(counters.reserve(rows, [1], NOW), LimitReservation)
    reserved(prepared(counters, rows).reserve(0, 0, 0, NOW, is_request=True))
    assert isinstance(counters.reserve(rows, [1], NOW), LimitRefusal)


def test_other_processes_see_what_was_done_at_once(tmp_path: Path, counters: SharedCounters) -> None:
    other, theirs = SharedCounters(counters.path), limits("2 requests/day")
    rows = limits("2 requests/day")
    for _ in range(2):
        # The other process has stepped last: its own mark is in the file.
        assert isinstance(other.reserve(theirs, [0], NOW), LimitReservation)
        at_once = prepared(counters, rows)
        assert isinstance(other.reserve(theirs, [0], NOW), LimitReservation)
        reserved(at_once.reserve(0, 0, 0, NOW, is_request=True))
    assert isinstance(other.reserve(theirs, [1], NOW), LimitRefusal)
    other.close()


def test_a_row_that_was_lost_is_left_to_the_general_step(tmp_path: Path) -> None:
    clock = [0.0]
    here, there = (SharedCounters(tmp_path / "limits", monotonic=lambda: clock[0]) for _ in range(2))
    rows, theirs = limits("9 tokens/day"), limits("9 tokens/day")
    at_once = prepared(here, rows)
    held = reserved(at_once.reserve(5, 0, 0, NOW, is_request=True))
    clock[0] = SILENCE + 1
    assert isinstance(there.reserve(theirs, [9], NOW), LimitReservation)
    assert not at_once.settle(held, 5, 0, 0, 0, NOW)
    here.settle(held, [5], NOW)
    assert state(there, theirs) == [(5, 9)]
    assert at_once.reserve(1, 0, 0, NOW, is_request=True) is None
    here.close()
    there.close()


def test_a_file_that_was_replaced_is_left_to_the_general_step(counters: SharedCounters) -> None:
    rows = limits("9 tokens/day")
    at_once = prepared(counters, rows)
    counters.path.unlink()
    counters.beat()
    assert at_once.reserve(5, 0, 0, NOW, is_request=True) is None
    assert state(counters, rows) == [(0, 0)]


def test_a_slot_that_now_counts_another_limit_is_not_touched(counters: SharedCounters) -> None:
    rows, others = limits("9 tokens/60s"), limits("7 tokens/60s", owner="client:other")
    at_once = prepared(counters, rows)
    later = NOW + 3 * 86_400 * MICROS
    prepared(counters, others, later)
    assert at_once.reserve(5, 0, 0, later, is_request=True) is None
    assert state(counters, others, later) == [(0, 0)]


TEXTS = (
    "$2/day",
    "$0.5/5h",
    "40 requests/60s",
    "9k tokens/hour",
    "3k input/7d",
    "2k output/minute",
    "5k uncached/24h",
)
Op = tuple[str, int, int, int, int]
OPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "settle", "lines"]),
        st.sampled_from([0, 1, 300_000, 999_999, MICROS, 7 * MICROS, 3600 * MICROS, -MICROS, -60 * MICROS]),
        st.integers(0, 900),
        st.integers(0, 900),
        st.integers(0, 300_000_000),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4, unique=True),
    concurrent=st.sampled_from([None, 2]),
    shadow=st.booleans(),
    ops=OPS,
)
def test_any_order_of_steps_leaves_the_cells_that_the_general_steps_leave(
    texts: list[str], concurrent: int | None, shadow: bool, ops: list[Op]
) -> None:
    with tempfile.TemporaryDirectory() as folder, using(WAY):
        one, other = (_Client(Path(folder) / name, texts, concurrent, shadow) for name in ("one", "other"))
        now = NOW
        for kind, step, input, output, nanos in ops:
            now = max(now + step, NOW)
            found = [client.do(kind, now, input, output, nanos) for client in (one, other)]
            assert found[0] == found[1]
            assert one.cells(now) == other.cells(now)
        for client in (one, other):
            client.counters.close()


class _Client:
    """Requests of one client: `one` takes a step at once where it can, the other never does."""

    def __init__(self, path: Path, texts: list[str], concurrent: int | None, shadow: bool) -> None:
        rows = [
            LimitConfig(limit=text, mode="shadow" if shadow and not i else "enforce")
            for i, text in enumerate(texts)
        ]
        self.rows = make_limits("client:a", rows, concurrent=concurrent)
        self.headers = LimitHeaders(self.rows)
        self.counters = SharedCounters(path)
        self.at_once = path.name == "one"
        made = self.counters.prepare(self.rows)
        assert made is not None
        self.prepared = made
        self.held: list[LimitReservation] = []

    def do(self, kind: str, now: int, input: int, output: int, nanos: int) -> object:
        act: dict[str, Callable[[], object]] = {
            "reserve": lambda: self.reserve(now, input, output, nanos),
            "settle": lambda: self.settle(now, input, output, nanos),
            "lines": lambda: [self.lines(now, protocol) for protocol in ("chat", "messages")],
        }
        return act[kind]()

    def reserve(self, now: int, input: int, output: int, nanos: int) -> object:
        found: LimitReservation | LimitRefusal | None = None
        if self.at_once:
            found = self.prepared.reserve(input, output, nanos, now, is_request=True)
        if found is None:
            amounts = [
                1
                if row.unit in ("requests", "concurrent")
                else amount_of(row.unit, input, output, nanos=nanos)
                for row in self.rows
            ]
            found = self.counters.reserve(self.rows, amounts, now)
        if isinstance(found, LimitRefusal):
            return figures(found.exceeded), found.frees_at
        self.held.append(found)
        return found.amounts

    def settle(self, now: int, input: int, output: int, nanos: int) -> object:
        if not self.held:
            return None
        held = self.held.pop(0)
        if self.at_once and self.prepared.settle(held, input, output, input // 2, nanos, now):
            return [], held.amounts
        used = [
            held.amounts[index]
            if row.unit == "requests"
            else amount_of(row.unit, input, output, nanos=nanos, cache_read=input // 2)
            for index, row in enumerate(self.rows)
        ]
        self.counters.settle(held, used, now)
        return [(event.name, figures(event.figures)) for event in held.events], held.amounts

    def lines(self, now: int, protocol: str) -> bytes:
        is_messages = protocol == "messages"
        texts = self.headers.messages_texts if is_messages else self.headers.other_texts
        lines = self.prepared.header_lines(texts, now, is_messages=is_messages) if self.at_once else None
        if lines is not None:
            return lines
        rows = self.counters.latest(self.rows)
        return self.headers.lines(rows, protocol, now) if rows else b""

    def cells(self, now: int) -> list[object]:
        return [figures(row) for row in self.counters.figures(self.rows, now)]


def figures(row: LimitFigures) -> tuple[int, int, int | None]:
    return row.used, row.reserved, row.resets_at


def test_header_lines_show_the_tightest_limit_of_each_kind(counters: SharedCounters) -> None:
    rows = limits("$20/day", "$2/5h", "50 requests/60s", "9k input/hour", concurrent=4)
    at_once, headers = prepared(counters, rows), LimitHeaders(rows)
    held = reserved(at_once.reserve(100, 0, 1_500_000_000, NOW, is_request=True))
    assert at_once.settle(held, 90, 10, 0, 1_234_500_000, NOW)
    for protocol in ("chat", "messages"):
        is_messages = protocol == "messages"
        texts = headers.messages_texts if is_messages else headers.other_texts
        lines = at_once.header_lines(texts, NOW, is_messages=is_messages)
        assert lines == headers.lines(counters.latest(rows), protocol, NOW)
    assert lines is not None
    assert b"x-routecodex-budget: $2/5h; used=1.2345; remaining=0.7655; resets=2026-11-18T" in lines


@pytest.mark.skipif(not IS_COMPILED, reason="the type checker holds Python to this")
def test_arguments_that_do_not_fit_are_refused(counters: SharedCounters) -> None:
    rows = limits("9 tokens/day")
    prepared(counters, rows)
    slot = rows[0].slot
    assert slot is not None
    cells: Any = slot.state.cells
    good, outside = pack(rows[0], slot.at), pack(rows[0], 1 << 40)
    numbers = (0, 0, NOW, 1, 1, 1)
    for packed in (outside, good[:-1], good * 33, pack(rows[0], -1)):
        with pytest.raises(ValueError, match="do not fit"):
            limit_steps.reserve(cells, packed, *numbers, True)
        with pytest.raises(ValueError, match="do not fit"):
            limit_steps.header_lines(cells, packed, (None,), NOW, False)
    with pytest.raises(ValueError, match="one entry for each"):
        limit_steps.header_lines(cells, good, (), NOW, False)
    calls: list[Callable[..., object]] = [limit_steps.settle, limit_steps.reserve]
    with pytest.raises(TypeError, match="list expected, not tuple"):
        calls[0](cells, good, (1,), *numbers, 1)
    with pytest.raises(TypeError, match="9 arguments expected, not 1"):
        calls[1](cells)
