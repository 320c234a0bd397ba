"""The model of large deployments: figures grow as they should, and a missing run is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.capacity import GatewayCosts, NoFigures, Traffic, deploy, read_costs
from bench.report import Machine
from bench.store_costs import CallCosts, StoreCosts, measure_store

COSTS = GatewayCosts(
    machine=Machine("2026-01-01", "a processor", 2, "3.11"),
    request_us=35.0,
    event_us=8.0,
    converted_event_us=10.0,
    body_kb_us=0.6,
    stream_kb=40.0,
    worker_mb=50.0,
)
STORE = StoreCosts(
    change=CallCosts(client_us=80.0, server_us=30.0),
    limits=CallCosts(client_us=200.0, server_us=80.0),
    message_us=2.0,
)


def test_ten_thousand_times_the_streams_need_ten_thousand_times_the_cores() -> None:
    small, large = (deploy(streams, Traffic(), COSTS, STORE) for streams in (100, 1_000_000))
    assert large.cores == pytest.approx(10_000 * small.cores)
    assert large.gigabits == pytest.approx(10_000 * small.gigabits)


def test_a_deployment_has_one_node_to_spare() -> None:
    assert deploy(1, Traffic(), COSTS, STORE).nodes == 2


def test_memory_can_decide_the_number_of_nodes() -> None:
    few = deploy(100_000, Traffic(), COSTS, STORE)
    many = deploy(100_000, Traffic(), replace(COSTS, stream_kb=20_000.0), STORE)
    assert many.nodes > few.nodes
    assert many.cores == few.cores


def test_a_large_fleet_is_divided_so_that_messages_do_not_fill_a_shard() -> None:
    traffic = Traffic()
    large = deploy(1_000_000, traffic, COSTS, STORE)
    assert large.cells > 1
    assert large.invalidations * STORE.message_us <= traffic.store_busy / 2 * 1e6 * 1.01
    assert large.shards >= large.cells


@pytest.mark.parametrize("changes", [0.05, 0.2, 0.5, 1.0])
def test_no_shard_is_busier_than_allowed_though_each_passes_every_message_on(changes: float) -> None:
    traffic = Traffic(state_changes=changes)
    large = deploy(1_000_000, traffic, COSTS, STORE)
    allowed_us, messages_us = traffic.store_busy * 1e6, large.invalidations * STORE.message_us
    limits_us = large.requests * traffic.limited * STORE.limits.server_us
    changes_us = large.requests * (traffic.state_changes + traffic.first_reads) * STORE.change.server_us
    assert limits_us / large.cells + messages_us <= allowed_us
    assert (limits_us + changes_us) / large.shards + messages_us <= allowed_us


@pytest.mark.parametrize("streams", [1, 1_000_000])
def test_every_core_of_every_node_has_a_worker_in_memory(streams: int) -> None:
    traffic = Traffic()
    found = deploy(streams, traffic, COSTS, STORE)
    of_streams = streams * (COSTS.stream_kb + traffic.body_kb) / 1e6
    of_workers = found.nodes * traffic.cores * COSTS.worker_mb / 1e3
    assert found.memory_gb == pytest.approx(of_streams + of_workers)


def test_a_node_that_is_away_leaves_enough_memory_for_its_streams() -> None:
    traffic, heavy = Traffic(), replace(COSTS, stream_kb=20_000.0, worker_mb=1000.0)
    found = deploy(100_000, traffic, heavy, STORE)
    left = found.nodes - 1
    of_workers = left * traffic.cores * heavy.worker_mb / 1e3
    of_streams = 100_000 * (heavy.stream_kb + traffic.body_kb) / 1e6
    assert of_streams + of_workers <= left * traffic.memory_share * traffic.node_memory_gb


def test_without_limits_and_state_the_store_is_not_asked() -> None:
    traffic = Traffic(limited=0.0, state_changes=0.0, first_reads=0.0)
    assert deploy(10_000, traffic, COSTS, STORE).store_calls == 0


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoFigures, match="n16, m16, A16, B4"):
        read_costs(tmp_path)


def test_the_cost_of_redis_is_measured_at_a_real_server() -> None:
    costs = measure_store()
    for one in (costs.change, costs.limits):
        assert one.client_us > 0
        assert one.server_us > 0
    assert costs.message_us > 0
