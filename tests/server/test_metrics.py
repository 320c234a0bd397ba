from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Usage
from routecodex.gateway.records import FailedAttempt
from routecodex.gateway.request import RequestRecord
from routecodex.routing.cooldown import AttemptOutcome
from routecodex.routing.registry import Target
from routecodex.server.metrics import CONTENT_TYPE, Metrics

GLM = Target("glm", "primary", "glm-4.7")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def record(**settings: Any) -> RequestRecord:
    usual = {
        "id": "req_1",
        "protocol": "chat",
        "model": "asked",
        "stream": True,
        "target": GLM,
        "attempts": 1,
        "status": 200,
        "arrived": 10.0,
        "first_byte": 10.2,
        "finished": 11.0,
    }
    entry = RequestRecord(id="", protocol="", model="", stream=False, arrived=0.0)
    for name, value in {**usual, **settings}.items():
        setattr(entry, name, value)
    return entry


def samples(metrics: Metrics) -> Samples:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset({"worker": "0", **labels}.items())]


def measured(*records: RequestRecord, active: int = 0) -> Samples:
    metrics = Metrics(active=lambda: active, worker="0")
    for each in records:
        metrics.observe(each)
    return samples(metrics)


def test_requests_are_counted_by_where_they_went_and_how_they_ended() -> None:
    found = measured(
        record(),
        record(),
        record(status=429),
        record(gone=True, status=0),
        record(target=None, protocol="messages", status=404),
    )
    served = {"protocol": "chat", "provider": "glm", "model": "glm-4.7"}
    assert value(found, "routecodex_requests_total", **served, status="200") == 2
    assert value(found, "routecodex_requests_total", **served, status="429") == 1
    assert value(found, "routecodex_requests_total", **served, status="gone") == 1
    lost = {"protocol": "messages", "provider": "", "model": "", "status": "404"}
    assert value(found, "routecodex_requests_total", **lost) == 1


def test_all_keys_of_a_provider_count_as_one() -> None:
    metrics = Metrics(active=lambda: 0, worker="0")
    for key in ("primary", "spare"):
        metrics.observe(record(target=Target("glm", key, "glm-4.7"), usage=Usage(1, 1)))
    lines = [line.rpartition(" ")[0] for line in metrics.text().decode().splitlines() if line[0] != "#"]
    assert len(lines) == len(set(lines))


def test_names_clients_send_make_no_series() -> None:
    found = measured(*(record(model=f"made-up-{number}") for number in range(20)))
    assert sum(name == "routecodex_requests_total" for name, _ in found) == 1


def test_tokens_add_up_by_kind() -> None:
    found = measured(
        record(usage=Usage(10, 5, cache_read=4, cache_write=3)), record(usage=Usage(1, 1)), record()
    )
    counted = {
        kind: value(found, "routecodex_tokens_total", provider="glm", model="glm-4.7", kind=kind)
        for kind in ("input", "output", "cache_read", "cache_write")
    }
    assert counted == {"input": 11, "output": 6, "cache_read": 4, "cache_write": 3}


def failed(provider: str, outcome: AttemptOutcome = "failed") -> FailedAttempt:
    return FailedAttempt(Target(provider, "primary", "m"), outcome, "it broke")


def by(found: Samples, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the values of one metric by these labels."""
    rows = ((dict(named), amount) for (metric, named), amount in found.items() if metric == name)
    return {tuple(named[label] for label in labels): amount for named, amount in rows}


def test_attempts_after_a_failure_are_failovers_from_the_provider_that_failed() -> None:
    found = measured(
        record(attempts=1),
        record(attempts=3, failures=[failed("a"), failed("b")]),
        record(attempts=2, failures=[failed("a"), failed("b")], status=502),
        record(attempts=4),
        record(attempts=0),
    )
    assert by(found, "routecodex_failovers_total", "provider") == {("a",): 2, ("b",): 1}


def test_attempts_are_counted_by_provider_and_outcome() -> None:
    found = measured(
        record(),
        record(),
        record(attempts=3, failures=[failed("a", "timeout"), failed("b", "limited")]),
        record(attempts=2, failures=[failed("a"), failed("glm")], status=502, error=GatewayError("no")),
        record(attempts=4),
        record(gone=True, status=0),
        record(error=GatewayError("it broke off")),
        record(attempts=3, error=GatewayError("it broke off")),
        record(attempts=0, target=None),
        record(status=500),
    )
    counted = by(found, "routecodex_attempts_total", "provider", "model", "outcome")
    assert counted == {
        ("a", "m", "timeout"): 1,
        ("a", "m", "failed"): 1,
        ("b", "m", "limited"): 1,
        ("glm", "m", "failed"): 1,
        ("glm", "glm-4.7", "ok"): 2 + 1 + 4 + 2,
        ("glm", "glm-4.7", "gone"): 1,
        ("glm", "glm-4.7", "broken"): 2,
        ("glm", "glm-4.7", "failed"): 1,
    }


def test_a_stream_that_broke_off_is_not_a_success() -> None:
    found = measured(record(), record(error=GatewayError("it broke off"), usage=Usage(1, 1)))
    statuses = by(found, "routecodex_requests_total", "status")
    assert statuses == {("200",): 1, ("broken",): 1}
    assert by(found, "routecodex_broken_streams_total", "provider", "model") == {("glm", "glm-4.7"): 1}


def test_what_is_in_flight_is_asked_when_shown() -> None:
    assert value(measured(active=7), "routecodex_active_requests") == 7


def test_times_fall_into_buckets_that_add_up() -> None:
    found = measured(record(finished=10.004), record(finished=10.5), record(finished=1000.0, first_byte=0.0))
    labels = {"protocol": "chat", "provider": "glm"}

    def bucket(le: str) -> float:
        return value(found, "routecodex_request_seconds_bucket", **labels, le=le)

    assert [bucket(le) for le in ("0.005", "0.25", "0.5", "300.0", "+Inf")] == [1, 1, 2, 2, 3]
    assert value(found, "routecodex_request_seconds_count", **labels) == 3
    assert round(value(found, "routecodex_request_seconds_sum", **labels), 3) == 990.504
    assert value(found, "routecodex_first_byte_seconds_count", **labels) == 2


def test_workers_can_be_told_apart() -> None:
    metrics = Metrics(active=lambda: 0, worker="3")
    metrics.observe(record())
    assert all(("worker", "3") in labels for _, labels in samples(metrics))


def test_an_idle_server_has_metrics_too() -> None:
    found = measured()
    assert value(found, "routecodex_active_requests") == 0
    assert CONTENT_TYPE.startswith(b"text/plain")
