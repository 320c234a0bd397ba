"""Recurrences: their text and their occurrences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.server_tools.clock import due_rules
from tests.server_tools.clock.world import DAY, MINUTE, START


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("none", None),
        ("daily", "daily"),
        (" Weekly ", "weekly"),
        ("every 15 minutes", "every 15 minutes"),
        ("Every  1 minute", "every 1 minutes"),
        ("every 007 minutes", "every 7 minutes"),
        ("every 525600 minutes", "every 525600 minutes"),
    ],
)
def test_rhythms_that_are_understood(text: str, stored: str | None) -> None:
    assert due_rules.normalize_recurrence(text) == stored


@pytest.mark.parametrize(
    "text", ["", "hourly", "every minutes", "every 0 minutes", "every -5 minutes", "every 1.5 minutes",
    "every 525601 minutes", "every 9999999 minutes", "every 5 hours", "daily weekly", "every ٣ minutes"],
)  # fmt: skip
def test_invalid_recurrences_are_rejected(text: str) -> None:
    with pytest.raises(
        ValueError, match="is not a valid repeat; use none, daily, weekly, or every N minutes"
    ):
        due_rules.normalize_recurrence(text)


@pytest.mark.parametrize(
    ("recurrence", "period"), [("daily", DAY), ("weekly", 7 * DAY), ("every 90 minutes", 90 * MINUTE)]
)
def test_periods(recurrence: str, period: int) -> None:
    assert due_rules.period_ms(recurrence) == period


@pytest.mark.parametrize(
    ("moment", "after", "until"),
    [(-1, 5, 0), (0, 5, 0), (1, 5, 0), (5 * MINUTE - 1, 5, 0), (5 * MINUTE, 10, 5), (12 * MINUTE, 15, 10)],
)  # fmt: skip
def test_occurrences_around_a_moment(moment: int, after: int, until: int) -> None:
    found = (
        due_rules.first_after(START, "every 5 minutes", moment_ms=START + moment),
        due_rules.last_until(START, "every 5 minutes", moment_ms=START + moment),
    )
    assert found == (START + after * MINUTE, START + until * MINUTE)


@given(st.integers(0, 10**13), st.integers(1, 525_600), st.integers(0, 10**13))
def test_the_next_occurrence_is_the_first_one_ahead(due: int, minutes: int, moment: int) -> None:
    recurrence = due_rules.normalize_recurrence(f"every {minutes} minutes")
    assert recurrence is not None
    period = due_rules.period_ms(recurrence)
    later = due_rules.first_after(due, recurrence, moment_ms=moment)
    assert later > max(due, moment)
    assert (later - due) % period == 0
    assert later - period <= max(due, moment)
