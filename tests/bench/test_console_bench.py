"""The cost of an open console: a real subscriber under load, and the budget it is held against."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.console import Cost, measure, shown
from bench.measure import Settings

SETTINGS = Settings(rounds=1, seconds=1.0, warmup=0.5, repeats=0, load_core=None, gateway_core=None, rate=100)
CHEAP = Cost(closed_rps=2000, open_rps=1990, closed_us=100, open_us=102, frames=40, errors=0)


def test_subscriber_receives_frames_under_load_and_all_answers_are_right(tmp_path: Path) -> None:
    cost = measure(SETTINGS, tmp_path)
    assert cost.errors == 0
    assert cost.frames > 0
    # The generator keeps the rate, and does not send as much as it can.
    assert cost.rate == 100
    assert 70 < cost.closed_rps < 130
    assert min(cost.open_rps, cost.closed_us, cost.open_us) > 0


def test_cost_is_held_against_the_budget() -> None:
    assert CHEAP.holds
    assert shown(CHEAP).endswith("costs 2.0% of the capacity; at most 5% is allowed")
    for broken in ({"open_us": 106.0}, {"frames": 0}, {"errors": 1}, {"open_rps": 1900.0}):
        assert not replace(CHEAP, **broken).holds
