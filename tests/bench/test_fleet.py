"""The simulation of an outage over a fleet: small, seeded, with the gateway's own plans and health."""

from __future__ import annotations

import pytest

from bench.fleet.outage import Fleet, Outage, Outcome
from bench.fleet.shared_health import Delivery

SMALL = Fleet(nodes=40, providers=4, keys=20, rate=60.0, conversations=500, outage=30.0, after=25.0)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return Outage(SMALL).run()


def test_the_same_seed_gives_the_same_figures(outcome: Outcome) -> None:
    assert Outage(SMALL).run() == outcome


def test_attempts_at_dead_keys_are_bounded_by_keys_and_not_by_nodes(outcome: Outcome) -> None:
    # Three open the breaker; some more are under way by then; then one probe for each opening.
    openings = 3
    assert outcome.dead_attempts < SMALL.keys * (3 + openings) * 2
    assert 0 < outcome.met < outcome.requests / 4


def test_no_request_fails_while_a_backup_works(outcome: Outcome) -> None:
    assert outcome.failed == 0


def test_one_node_probes_a_key_at_a_time(outcome: Outcome) -> None:
    assert outcome.probes > 0
    assert outcome.probes_at_once == 1


def test_the_traffic_comes_back_without_a_herd(outcome: Outcome) -> None:
    back = outcome.back_after(0.8, SMALL.rate)
    assert back is not None
    assert back < 25
    assert max(outcome.back_by_second.values()) < 2 * SMALL.rate


def test_every_node_knows_of_an_open_breaker_within_a_second(outcome: Outcome) -> None:
    assert outcome.spread
    assert max(outcome.spread) < 1.0


def test_lost_messages_delay_the_news_and_no_more() -> None:
    fleet = Fleet(
        nodes=40, providers=2, keys=10, rate=60.0, conversations=500, outage=20.0, after=5.0,
        delivery=Delivery(lost=0.5),
    )  # fmt: skip
    outcome = Outage(fleet).run()
    assert 0.1 < max(outcome.spread) < 1.0
    assert outcome.probes_at_once == 1
