"""Changes to the tasks of a session."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.arguments import ActionRefused
from routecodex.server_tools.clock.task import LATEST_MS, DeliveryMark, decode, encode
from tests.server_tools.clock.world import DAY, HOUR, MINUTE, RULES, START, at, state, task, task_fields

EMPTY = state()
MARK = DeliveryMark("m1", START + RULES.lease_ms)


def test_a_new_task_has_every_field_of_the_design() -> None:
    item = task_fields(START + HOUR, tool="shell", arguments={"cmd": "make"})
    after, made = edits.add(EMPTY, [item], ids=["t1"], at=at())
    assert msgspec.json.decode(encode(replace(after, updated_at_ms=START))) == {
        "version": 1,
        "sessionId": "s1",
        "tasks": [
            {
                "taskId": "t1",
                "sessionId": "s1",
                "dueAtMs": START + HOUR,
                "createdAtMs": START,
                "updatedAtMs": START,
                "task": "water the plants",
                "tool": "shell",
                "arguments": {"cmd": "make"},
                "deliveryCount": 0,
            }
        ],
        "updatedAtMs": START,
    }
    assert made == after.tasks


def test_every_optional_field_survives_being_written() -> None:
    full = task(
        tool="x",
        arguments={"a": [1]},
        delivered_at_ms=START,
        delivery_count=2,
        not_before_request_id="r0",
        repeat="every 5 minutes",
        max_runs=4,
        reservation=MARK,
    )
    assert decode(encode(state(full))) == state(full)
    assert list(msgspec.json.decode(encode(state(full)))["tasks"][0]) == [
        "taskId", "sessionId", "dueAtMs", "createdAtMs", "updatedAtMs", "task", "tool", "arguments",
        "deliveredAtMs", "deliveryCount", "notBeforeRequestId", "repeat", "maxRuns", "reservation",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ahead", "guard"), [(-MINUTE, "r1"), (0, "r1"), (MINUTE, "r1"), (MINUTE + 1, None), (HOUR, None)]
)
def test_a_task_set_inside_the_window_is_kept_out_of_the_request_that_set_it(
    ahead: int, guard: str | None
) -> None:
    _, made = edits.add(EMPTY, [task_fields(START + ahead)], ids=["t1"], at=at())
    assert [one.not_before_request_id for one in made] == [guard]


def test_the_same_time_and_text_again_is_the_same_task() -> None:
    before = state(task(START + HOUR), task(START + HOUR, task_id="t2", task="else"))
    after, made = edits.add(before, [task_fields(START + HOUR)] * 2, ids=["n1", "n2"], at=at())
    assert (after, made) == (before, (before.tasks[0],))
    twice, made = edits.add(EMPTY, [task_fields(START + HOUR)] * 2, ids=["n1", "n2"], at=at())
    assert [one.task_id for one in (*twice.tasks, *made)] == ["n1", "n1"]
    others = [task_fields(START + HOUR + 1), task_fields(START + HOUR, "else")]
    apart, _ = edits.add(state(task(START + HOUR)), others, ids=["n1", "n2"], at=at())
    assert [one.task_id for one in apart.tasks] == ["t1", "n1", "n2"]


def test_the_same_task_again_takes_the_new_hints_and_stays_delivered() -> None:
    before = task(delivered_at_ms=START - 5, delivery_count=1, tool="old")
    after, _ = edits.add(state(before), [task_fields(tool="new")], ids=["n1"], at=at())
    assert after.tasks == (replace(before, tool="new", updated_at_ms=START),)


def test_a_repeated_task_is_the_same_at_a_later_occurrence() -> None:
    before = state(task(START + 2 * DAY, repeat="daily"))
    same, _ = edits.add(before, [task_fields(START, repeat="daily")], ids=["n1"], at=at())
    assert same == before
    other, _ = edits.add(before, [task_fields(START + 1, repeat="daily")], ids=["n1"], at=at())
    assert [one.task_id for one in other.tasks] == ["t1", "n1"]


def test_a_delivered_task_that_is_to_be_repeated_comes_again() -> None:
    before = state(task(delivered_at_ms=START, delivery_count=1))
    after, _ = edits.add(before, [task_fields(repeat="daily")], ids=["n1"], at=at())
    found = after.tasks[0]
    assert (found.task_id, found.due_at_ms, found.delivered_at_ms) == ("t1", START + DAY, None)


def test_a_time_too_long_past_is_refused_with_the_whole_batch() -> None:
    items = [task_fields(START + HOUR), task_fields(START - RULES.retention_ms - 1)]
    with pytest.raises(
        ActionRefused, match=r"too long ago to be delivered; it is 2026-01-21T20:30:00\.000Z now"
    ):
        edits.add(EMPTY, items, ids=["n1", "n2"], at=at())
    at_the_edge, _ = edits.add(EMPTY, [task_fields(START - RULES.retention_ms)], ids=["n1"], at=at())
    repeated, _ = edits.add(EMPTY, [task_fields(START - DAY, repeat="daily")], ids=["n1"], at=at())
    assert (len(at_the_edge.tasks), len(repeated.tasks)) == (1, 1)


def test_cancel_and_clear() -> None:
    one, two = task(), task(task_id="t2")
    assert edits.cancel(state(one, two), "t1") == (state(two), one)
    assert edits.clear(state(one, two)) == (EMPTY, 2)
    assert edits.clear(EMPTY) == (EMPTY, 0)
    with pytest.raises(ActionRefused) as caught:
        edits.cancel(state(two), "t1")
    assert (caught.value.code, str(caught.value)) == (
        "unknown_task",
        "this session has no task 't1'; use list to see the tasks",
    )


DONE = task(delivered_at_ms=START - 1, delivery_count=1, tool="old", not_before_request_id="r0")
CHANGES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "the hint": (DONE, {"tool": "new"}, {"tool": "new"}),
    "the text": (task(reservation=MARK), {"task": "else"}, {"task": "else", "reservation": None}),
    "a hint while it is delivered": (task(reservation=MARK), {"tool": "x"}, {"tool": "x"}),
    "the time": (
        DONE,
        {"due_at_ms": START + HOUR},
        {"due_at_ms": START + HOUR, "delivered_at_ms": None, "delivery_count": 0}
        | {"not_before_request_id": None},
    ),
    "a time inside the window": (
        task(START + HOUR, reservation=MARK),
        {"due_at_ms": START + 5},
        {"due_at_ms": START + 5, "not_before_request_id": "r1", "reservation": None},
    ),
    "a rhythm": (task(), {"repeat": "daily", "max_runs": 2}, {"repeat": "daily", "max_runs": 2}),
    "a rhythm after it was delivered": (
        DONE,
        {"repeat": "daily"},
        {"repeat": "daily", "due_at_ms": START + DAY, "delivered_at_ms": None}
        | {"not_before_request_id": None},
    ),
    "no rhythm any more": (
        task(repeat="daily", max_runs=3),
        {"repeat": "none"},
        {"repeat": None, "max_runs": None},
    ),
    "runs without a rhythm": (task(), {"max_runs": 3}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("before", "changes", "expected"), CHANGES.values(), ids=CHANGES)
def test_update_changes_what_is_named(before: Any, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    after, changed = edits.change(state(before), "t1", changes, at=at())
    assert changed == replace(before, **expected, updated_at_ms=START)
    assert after.tasks == (changed,)


def test_update_refuses_a_time_too_long_past_and_a_task_that_is_not_there() -> None:
    for task_id, due, code in [("t1", START - DAY, "already_expired"), ("t9", START, "unknown_task")]:
        with pytest.raises(ActionRefused) as caught:
            edits.change(state(task()), task_id, {"due_at_ms": due}, at=at())
        assert caught.value.code == code


def test_prune_drops_what_is_over_and_nothing_else() -> None:
    over, due = task(START - DAY), task(START, task_id="t2")
    assert edits.prune(state(over, due), at()) == (state(due), 1)


def test_reserve_marks_and_roll_back_leaves_no_trace() -> None:
    before = state(task(), task(START + HOUR, task_id="t2"))
    after, reserved = edits.reserve(before, "m1", at=at())
    assert reserved == (replace(before.tasks[0], reservation=MARK),)
    assert after == state(reserved[0], before.tasks[1])
    assert edits.reserve(after, "m2", at=at(request_id="r2")) == (after, ())
    assert edits.roll_back(after, "m2") == (after, 0)
    assert edits.roll_back(after, "m1") == (before, 1)


def test_renew_makes_a_reservation_last() -> None:
    marked = state(task(reservation=MARK))
    assert edits.renew(marked, "m2", at=at(START + 1000)) == (marked, 0)
    after, count = edits.renew(marked, "m1", at=at(START + 1000))
    assert (count, after.tasks[0].reservation) == (1, DeliveryMark("m1", START + 1000 + RULES.lease_ms))


def test_commit_writes_the_delivery() -> None:
    marked = state(task(reservation=MARK))
    after, done = edits.commit(marked, marked.tasks, at=at(START + 7))
    expected = task(delivered_at_ms=START + 7, delivery_count=1, updated_at_ms=START + 7)
    assert (after, done) == (state(expected), (expected,))
    assert edits.commit(after, marked.tasks, at=at(START + 9)) == (after, ())


def test_commit_passes_over_what_was_cancelled_or_changed_meanwhile() -> None:
    marked = state(task(reservation=MARK))
    both: list[dict[str, Any]] = [{"task": "else"}, {"due_at_ms": START + HOUR}]
    for changes in both:
        changed, _ = edits.change(marked, "t1", changes, at=at())
        assert edits.commit(changed, marked.tasks, at=at()) == (changed, ())
    assert edits.commit(EMPTY, marked.tasks, at=at()) == (EMPTY, ())


def test_only_the_owner_commits_when_the_lease_has_lapsed_and_another_has_the_task() -> None:
    before, reserved = edits.reserve(state(task()), "m1", at=at())
    late = START + RULES.lease_ms
    taken, again = edits.reserve(before, "m2", at=at(late, request_id="r2"))
    assert len(again) == 1
    assert edits.commit(taken, reserved, at=at(late)) == (taken, ())
    after, done = edits.commit(taken, again, at=at(late))
    assert [one.delivery_count for one in done] == [1]
    assert edits.commit(after, reserved, at=at(late)) == (after, ())


def test_the_owner_commits_when_the_lease_has_lapsed_and_nobody_has_the_task() -> None:
    before, reserved = edits.reserve(state(task()), "m1", at=at())
    after, done = edits.commit(before, reserved, at=at(START + 2 * RULES.lease_ms))
    assert [one.delivery_count for one in done] == [1]
    assert edits.commit(after, reserved, at=at()) == (after, ())


def test_a_repeated_task_in_delivery_stays_at_its_occurrence_until_its_reservation_ends() -> None:
    """A retention that ends during a delivery ends neither the delivery nor its reservation."""
    last = START + RULES.retention_ms
    before, reserved = edits.reserve(state(task(repeat="every 1 minutes")), "m1", at=at(last))
    renewed, count = edits.renew(before, "m1", at=at(last + 1000))
    assert count == 1
    assert edits.reserve(renewed, "m2", at=at(last + 1000, request_id="r2")) == (renewed, ())
    after, (done,) = edits.commit(renewed, reserved, at=at(last + 2000))
    assert (done.due_at_ms, done.delivery_count) == (last + MINUTE, 1)
    assert edits.reserve(after, "m3", at=at(last + 2000, request_id="r1:again")) == (after, ())


@pytest.mark.parametrize("ended", ["rolled back", "expired"])
def test_a_repeated_task_moves_on_once_its_reservation_has_ended(ended: str) -> None:
    last = START + RULES.retention_ms
    marked, _ = edits.reserve(state(task(repeat="every 1 minutes")), "m1", at=at(last))
    now = last + RULES.lease_ms
    if ended == "rolled back":
        marked, now = edits.roll_back(marked, "m1")[0], last + 1
    _, (found,) = edits.reserve(marked, "m2", at=at(now, request_id="r2"))
    assert found.due_at_ms == START + (now - START) // MINUTE * MINUTE
    assert found.reservation == DeliveryMark("m2", now + RULES.lease_ms)


REPEATED = {
    "early": (-MINUTE, "daily", None, {"due_at_ms": START + DAY}),
    "late": (10 * MINUTE, "weekly", None, {"due_at_ms": START + 7 * DAY}),
    "after others were missed": (12 * MINUTE, "every 5 minutes", None, {"due_at_ms": START + 15 * MINUTE}),
    "runs are left": (0, "daily", 2, {"due_at_ms": START + DAY}),
    "the last run": (0, "daily", 1, {"delivered_at_ms": START}),
    "due again at once": (
        30_000,
        "every 1 minutes",
        None,
        {"due_at_ms": START + MINUTE, "not_before_request_id": "r1"},
    ),
}


@pytest.mark.parametrize(("after", "repeat", "runs", "expected"), REPEATED.values(), ids=REPEATED)
def test_a_repeated_task_moves_on(
    after: int, repeat: str, runs: int | None, expected: dict[str, Any]
) -> None:
    before = task(repeat=repeat, max_runs=runs, not_before_request_id="r0")
    _, (done,) = edits.commit(state(before), [before], at=at(START + after))
    fields: dict[str, Any] = {"delivery_count": 1, "updated_at_ms": START + after}
    guard = {} if "delivered_at_ms" in expected else {"not_before_request_id": None}
    assert done == replace(before, **{**fields, **guard, **expected})


def test_a_repeated_task_at_the_end_of_time_is_done() -> None:
    before = task(LATEST_MS, repeat="daily")
    _, (done,) = edits.commit(state(before), [before], at=at(START))
    assert (done.due_at_ms, done.delivered_at_ms) == (LATEST_MS, START)


def test_a_daily_task_is_delivered_so_many_times_and_no_more() -> None:
    now, delivered, found = START, [], state(task(repeat="daily", max_runs=3))
    for day in range(6):
        now = START + day * DAY
        found, reserved = edits.reserve(found, f"m{day}", at=at(now, request_id=f"q{day}"))
        found, done = edits.commit(found, reserved, at=at(now, request_id=f"q{day}"))
        delivered.append(len(done))
    assert delivered == [1, 1, 1, 0, 0, 0]


SHAPES = {
    "no version": b'{"sessionId":"s1","tasks":[],"updatedAtMs":0}',
    "another version": b'{"version":2,"sessionId":"s1","tasks":[],"updatedAtMs":0}',
    "no session": b'{"version":1,"tasks":[],"updatedAtMs":0}',
    "tasks that are none": b'{"version":1,"sessionId":"s1","tasks":[{}],"updatedAtMs":0}',
    "a time past all calendars": encode(state(task())).replace(str(START).encode(), b"9" * 18),
    "another rhythm": encode(state(task(repeat="daily"))).replace(b"daily", b"hourly"),
    "two of one id": encode(state(task(), task(START + 1))),
    "a list": b"[]",
    "no JSON": b"{",
    "no UTF-8": encode(state(task())).replace(b"water", b"\xff"),
}


@pytest.mark.parametrize("raw", SHAPES.values(), ids=SHAPES)
def test_what_is_not_the_state_of_a_session(raw: bytes) -> None:
    with pytest.raises(ValueError, match="it does not contain the tasks of a session"):
        decode(raw)
