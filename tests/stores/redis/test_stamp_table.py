"""Stamps from messages and replies that arrive in any order."""

from __future__ import annotations

import pytest

from routecodex.stores.redis.stamp_table import StampTable

SPACE = "sessions"


@pytest.fixture
def table() -> StampTable:
    made = StampTable(most=4)
    made.is_live = True
    return made


def learn(table: StampTable, key: str, stamp: int, *, at: int, stripe: int = 0) -> None:
    table.learn(SPACE, stripe, at, key=key, stamp=stamp, era=table.era)


def hear(table: StampTable, key: str, stamp: int, *, at: int, stripe: int = 0) -> None:
    table.hear(SPACE, stripe, at, key=key, stamp=stamp)


def test_a_reply_older_than_a_message_does_not_replace_it(table: StampTable) -> None:
    learn(table, "a", 1, at=10)
    hear(table, "b", 7, at=11)
    learn(table, "b", 3, at=10)
    assert table.stamp_of(SPACE, "b") == 7


def test_a_message_older_than_a_reply_does_not_replace_it(table: StampTable) -> None:
    learn(table, "a", 1, at=10)
    learn(table, "b", 8, at=12)
    hear(table, "b", 7, at=11)
    assert table.stamp_of(SPACE, "b") == 8


def test_a_gap_makes_the_stripe_unknown_and_no_other(table: StampTable) -> None:
    learn(table, "a", 1, at=10)
    learn(table, "b", 2, at=5, stripe=1)
    before = table.stamp(SPACE)
    hear(table, "c", 3, at=12)
    assert table.stamp_of(SPACE, "a") < 0
    assert table.stamp_of(SPACE, "b") == 2
    assert table.stamp_of(SPACE, "c") == 3
    assert table.stamp(SPACE) != before
    assert table.missed == 1


def test_a_reply_from_before_a_gap_is_not_used(table: StampTable) -> None:
    learn(table, "a", 1, at=10)
    hear(table, "c", 3, at=12)
    learn(table, "a", 1, at=11)
    assert table.stamp_of(SPACE, "a") < 0
    learn(table, "a", 1, at=12)
    assert table.stamp_of(SPACE, "a") == 1


def test_a_reply_that_missed_a_key_dropped_for_room_is_not_used(table: StampTable) -> None:
    learn(table, "first", 1, at=10)
    for number in range(5):
        hear(table, f"k-{number}", number + 1, at=11 + number)
    assert table.stamp_of(SPACE, "k-0") < 0
    learn(table, "k-0", 99, at=10)
    assert table.stamp_of(SPACE, "k-0") < 0


def test_what_was_asked_before_everything_was_forgotten_is_not_used(table: StampTable) -> None:
    era = table.era
    table.forget_all()
    table.learn(SPACE, 0, 10, key="a", stamp=1, era=era)
    assert table.stamp_of(SPACE, "a") < 0


def test_nothing_is_known_without_a_subscription_but_while_the_store_is_down(table: StampTable) -> None:
    learn(table, "a", 1, at=10)
    table.is_live = False
    assert table.stamp_of(SPACE, "a") < 0
    assert table.stamp(SPACE) != table.stamp(SPACE)
    table.is_frozen = True
    assert table.stamp_of(SPACE, "a") == 1
    assert table.stamp(SPACE) == table.stamp(SPACE)


@pytest.mark.parametrize(("read", "known"), [(10, True), (11, False), (9, False)])
def test_a_generation_that_differs_at_a_check_makes_the_stripe_unknown(
    table: StampTable, read: int, known: bool
) -> None:
    learn(table, "a", 1, at=10)
    table.check(SPACE, 0, read, before=10)
    assert (table.stamp_of(SPACE, "a") == 1) is known
    assert table.missed == (0 if known else 1)


def test_a_message_that_was_under_way_at_a_check_was_not_missed(table: StampTable) -> None:
    learn(table, "a", 1, at=10)
    hear(table, "b", 2, at=11)
    hear(table, "b", 3, at=12)
    table.check(SPACE, 0, 11, before=10)
    assert table.missed == 0
    assert table.stamp_of(SPACE, "a") == 1


def test_the_stamp_of_a_space_changes_once_with_a_write_of_this_process(table: StampTable) -> None:
    learn(table, "a", 1, at=10)
    before = table.stamp(SPACE)
    table.wrote(SPACE, 0, 11, key="a", stamp=2, era=table.era)
    after = table.stamp(SPACE)
    hear(table, "a", 2, at=11)
    assert after != before
    assert table.stamp(SPACE) == after
    assert table.missed == 0


def test_changes_of_data_that_began_anew_change_the_stamp_of_the_space() -> None:
    """A Redis that lost its data counts generations from 1 again."""
    table = StampTable()
    table.is_live = True
    for generation in range(1, 50):
        table.hear("health", 0, generation, key="glm", stamp=generation)
    table.forget_all()
    stamps = [table.stamp("health")]
    table.observe("health", 0, 1, era=table.era)
    for generation in (2, 3):
        table.hear("health", 0, generation, key="glm", stamp=generation)
        stamps.append(table.stamp("health"))
    assert len(set(stamps)) == 3


def test_the_first_change_that_is_heard_of_changes_the_stamp_of_the_space() -> None:
    table = StampTable()
    table.is_live = True
    before = table.stamp("health")
    table.hear("health", 0, 7, key="glm", stamp=7)
    assert table.stamp("health") != before
