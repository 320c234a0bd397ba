"""Rules for due, expired, deferred and reserved tasks, and for the next check."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routecodex.server_tools.clock import due_rules
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.task import LATEST_MS, DeliveryMark, Task
from tests.server_tools.clock.world import DAY, HOUR, MINUTE, RULES, START, state, task

WINDOW, KEPT = RULES.due_window_ms, RULES.retention_ms

JUDGED = {
    "long before": (-WINDOW - 1, False, False),
    "window opens": (-WINDOW, True, False),
    "on time": (0, True, False),
    "late": (KEPT, True, False),
    "too late": (KEPT + 1, True, True),
}


@pytest.mark.parametrize(("after", "due", "expired"), JUDGED.values(), ids=JUDGED)
def test_a_task_is_due_from_the_window_on_and_expired_past_retention(
    after: int, due: bool, expired: bool
) -> None:
    one, now = task(), START + after
    found = (due_rules.is_due(one, now, RULES), due_rules.is_expired(one, now, RULES))
    assert found == (due, expired)
    assert due_rules.should_inject(one, now, RULES) is (due and not expired)
    assert due_rules.should_inject(replace(one, delivered_at_ms=START), now, RULES) is False


def test_the_numbers_are_those_of_the_design() -> None:
    assert DueRules() == DueRules(
        due_window_ms=60_000, retention_ms=1_200_000, lease_ms=60_000, idle_ms=30 * DAY
    )


def test_window_and_retention_can_be_set() -> None:
    short = DueRules(due_window_ms=10, retention_ms=20)
    judged = [due_rules.should_inject(task(), START + after, short) for after in (-11, -10, 20, 21)]
    assert judged == [False, True, True, False]


@pytest.mark.parametrize(
    ("guard", "request_id", "held"),
    [
        (None, "r1", False),
        ("r1", "r1", True),
        ("r1", "r1:clock_followup", True),
        ("r1", "r1:stop_followup:2", True),
        ("r1", "r10", False),
        ("r1", "r1-other", False),
        ("r1", "r", False),
        ("r1:tools", "r1", False),
    ],
)
def test_a_task_is_kept_out_of_the_chain_that_set_it(guard: str | None, request_id: str, held: bool) -> None:
    assert due_rules.is_held_back(task(not_before_request_id=guard), request_id) is held


@pytest.mark.parametrize(
    ("until", "reserved"),
    [
        (START, False),
        (START + 1, True),
        (START + RULES.lease_ms, True),
        (START + 2 * RULES.lease_ms, True),
        (START + 2 * RULES.lease_ms + 1, False),
    ],
)
def test_a_reservation_lapses_and_one_from_the_far_future_does_not_count(until: int, reserved: bool) -> None:
    assert due_rules.is_reserved(task(reservation=DeliveryMark("x", until)), START, RULES) is reserved


def test_what_can_be_delivered_comes_earliest_first() -> None:
    tasks = [
        task(START + 30_000, task_id="soon"),
        task(START - MINUTE, task_id="late"),
        task(START + HOUR, task_id="far"),
        task(task_id="done", delivered_at_ms=START),
        task(task_id="ours", not_before_request_id="r1"),
        task(task_id="taken", reservation=DeliveryMark("x", START + 1)),
        task(START - KEPT - 1, task_id="over"),
        task(task_id="lapsed", reservation=DeliveryMark("x", START - 1)),
    ]
    found = due_rules.deliverable(state(*tasks), START, rules=RULES, request_id="r1:tools")
    assert [one.task_id for one in found] == ["late", "lapsed", "soon"]


WAKES = {
    "nothing": ([], None),
    "one to come": ([task(START + HOUR)], START + HOUR - WINDOW),
    "the earlier of two": (
        [task(START + HOUR), task(START + 5 * MINUTE, task_id="t2")],
        START + 5 * MINUTE - WINDOW,
    ),
    "due already": ([task(START)], START - WINDOW),
    "delivered": ([task(START + HOUR, delivered_at_ms=START)], None),
    "of this chain": ([task(START + HOUR, not_before_request_id="r1")], None),
    "over": ([task(START - HOUR)], None),
    "somebody has it": ([task(START, reservation=DeliveryMark("x", START + 5000))], None),
    "this request has it": ([task(START, reservation=DeliveryMark("r1:clock:x", START + 5000))], None),
    "it comes again": ([task(START - HOUR, repeat="daily")], START + 23 * HOUR - WINDOW),
}


@pytest.mark.parametrize(("tasks", "moment"), WAKES.values(), ids=WAKES)
def test_the_next_moment_to_look(tasks: list[Task], moment: int | None) -> None:
    assert due_rules.wake_at(state(*tasks), START, rules=RULES, request_id="r1") == moment


CURRENT = {
    "in time": ("daily", 10 * MINUTE, 0),
    "the day after": ("daily", HOUR, DAY),
    "late on the third day": ("daily", 2 * DAY + 10 * MINUTE, 2 * DAY),
    "weekly": ("weekly", DAY, 7 * DAY),
    "the last of many": ("every 1 minutes", HOUR + 30_000, HOUR),
}


@pytest.mark.parametrize(("repeat", "after", "due"), CURRENT.values(), ids=CURRENT)
def test_occurrences_that_nobody_was_there_for_are_passed_over(repeat: str, after: int, due: int) -> None:
    one = task(repeat=repeat)
    assert due_rules.current(one, START + after, RULES) == replace(one, due_at_ms=START + due)


def test_a_repeated_task_whose_next_time_cannot_be_written_stays_where_it_is() -> None:
    one = task(LATEST_MS, repeat="weekly")
    assert due_rules.current(one, LATEST_MS + HOUR, RULES) == one


@pytest.mark.parametrize(
    ("fields", "last"),
    [
        ({}, KEPT),
        ({"delivered_at_ms": START}, KEPT),
        ({"repeat": "daily"}, 30 * DAY),
        ({"repeat": "daily", "updated_at_ms": START + DAY}, 31 * DAY),
        ({"repeat": "daily", "delivered_at_ms": START}, KEPT),
    ],
)
def test_how_long_tasks_are_kept(fields: dict[str, Any], last: int) -> None:
    one = task(**fields)
    judged = [due_rules.is_over(one, START + last + after, RULES) for after in (0, 1)]
    assert judged == [False, True]


@given(
    st.integers(0, LATEST_MS),
    st.integers(-40 * DAY, 40 * DAY),
    st.sampled_from([None, "daily", "weekly", "every 1 minutes", "every 45 minutes"]),
    st.integers(0, DAY),
    st.integers(0, DAY),
)
def test_what_is_injected_is_due_and_kept_and_never_expired(
    due: int, apart: int, repeat: str | None, window: int, retention: int
) -> None:
    now = max(0, due + apart)
    given_rules = DueRules(due_window_ms=window, retention_ms=retention)
    one = task(due, repeat=repeat, updated_at_ms=due)
    found = due_rules.deliverable(state(one), now, rules=given_rules, request_id="r1")
    moment = due_rules.wake_at(state(one), now, rules=given_rules, request_id="r1")
    assert bool(found) is (moment is not None and moment <= now)
    for each in found:
        assert each.due_at_ms - window <= now <= each.due_at_ms + retention
        assert not due_rules.is_over(one, now, given_rules)
