"""Metrics of cost and clients, from the calls of requests."""

from __future__ import annotations

from typing import Any

from routecodex.accounting.cost import Cost, CostKind
from routecodex.canon.events import Usage
from routecodex.gateway.call_record import CallKind, CallRecord
from routecodex.routing.registry import Target
from tests.server.test_metrics import GLM, Samples, by, measured, record

OPUS = Target("claude", "primary", "opus")


def call(
    target: Target = GLM,
    *,
    nanos: int | None = 1_000_000,
    certainty: CostKind = "reported",
    kind: CallKind = "round",
    usage: Usage | None = None,
) -> CallRecord:
    cost = Cost(nanos, certainty, "package")
    return CallRecord(kind, target, usage or Usage(10, 5), cost=cost, status=200, ms=1.0)


def costs(found: Samples) -> dict[tuple[str, ...], float]:
    return by(found, "routecodex_cost_usd_total", "client", "team", "provider", "model", "kind")


def test_cost_is_counted_by_client_team_target_and_kind() -> None:
    ann: dict[str, Any] = {"client_name": "ann", "team": "core"}
    found = measured(
        record(calls=[call()], **ann),
        record(calls=[call(), call(OPUS, nanos=5_000_000, certainty="observed")], **ann),
        record(calls=[call(Target("glm", "spare", "glm-4.7"))], client_name="ci"),
    )
    assert costs(found) == {
        ("ann", "core", "glm", "glm-4.7", "reported"): 0.002,
        ("ann", "core", "claude", "opus", "observed"): 0.005,
        ("ci", "", "glm", "glm-4.7", "reported"): 0.001,
    }


def test_a_call_without_a_price_is_counted_and_costs_nothing() -> None:
    found = measured(record(calls=[call(nanos=None), call(OPUS, nanos=0)]))
    assert by(found, "routecodex_cost_unknown_total", "provider", "model") == {("glm", "glm-4.7"): 1}
    assert costs(found) == {("", "", "claude", "opus", "reported"): 0}


def test_tokens_count_where_each_call_went() -> None:
    usages = [Usage(10, 5, reasoning=4), Usage(100, 50, cache_read=80, cache_write=7)]
    entry = record(usage=usages[0] + usages[1], calls=[call(usage=usages[0]), call(OPUS, usage=usages[1])])
    found = by(measured(entry), "routecodex_tokens_total", "provider", "kind")
    assert {key: count for key, count in found.items() if count} == {
        ("glm", "input"): 10,
        ("glm", "output"): 5,
        ("glm", "reasoning"): 4,
        ("claude", "input"): 100,
        ("claude", "output"): 50,
        ("claude", "cache_read"): 80,
        ("claude", "cache_write"): 7,
    }


def test_a_call_of_the_gateway_counts_its_tokens_once_and_its_cost_for_the_client() -> None:
    usage = Usage(30, 3)
    found = measured(
        record(target=OPUS, client_name="gateway", usage=usage),
        record(client_name="ann", usage=usage, calls=[call(OPUS, kind="internal", usage=usage), call()]),
    )
    tokens = by(found, "routecodex_tokens_total", "provider", "kind")
    assert (tokens["claude", "input"], tokens["glm", "input"]) == (30, 10)
    assert set(costs(found)) == {
        ("ann", "", "claude", "opus", "reported"),
        ("ann", "", "glm", "glm-4.7", "reported"),
    }
    assert by(found, "routecodex_client_requests_total", "client", "status") == {("ann", "200"): 1}


def test_requests_are_counted_by_client_and_status() -> None:
    found = measured(
        record(client_name="ann"),
        record(client_name="ann", status=429),
        record(client_name="ci", status=0, gone=True),
        record(),
    )
    assert by(found, "routecodex_client_requests_total", "client", "status") == {
        ("ann", "200"): 1,
        ("ann", "429"): 1,
        ("ci", "499"): 1,
        ("", "200"): 1,
    }


def test_past_two_hundred_clients_the_rest_is_other() -> None:
    found = measured(*(record(client_name=f"c{number}", calls=[call()]) for number in range(250)))
    requests = by(found, "routecodex_client_requests_total", "client")
    assert (len(requests), requests["other",]) == (201, 50)
    spent = by(found, "routecodex_cost_usd_total", "client")
    assert (len(spent), spent["other",]) == (201, 0.05)
