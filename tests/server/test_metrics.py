from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from routecodex.canon.events import Usage
from routecodex.gateway.request import RequestRecord
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


def test_attempts_after_a_failure_are_failovers_and_rounds_are_none() -> None:
    found = measured(
        record(attempts=1),
        record(attempts=3, failures=["a", "b"]),
        record(attempts=2, failures=["a", "b"]),
        record(attempts=4),
        record(attempts=0),
    )
    assert value(found, "routecodex_failovers_total") == 3


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
    assert value(found, "routecodex_failovers_total") == 0
    assert CONTENT_TYPE.startswith(b"text/plain")
