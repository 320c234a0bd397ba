"""`[telemetry]` and the variables of OpenTelemetry that fill in what the file leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.config import Problem, Secret, TelemetryConfig, examine, loads
from routecodex.config.effective import effective
from tests.config.test_load import MINIMAL

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def telemetry(text: str = "", **environ: str) -> TelemetryConfig:
    return loads(f"{MINIMAL}\n[telemetry]\n{text}", environ=environ).telemetry


def problems(text: str = "", **environ: str) -> list[Problem]:
    return examine(f"{MINIMAL}\n[telemetry]\n{text}", environ=environ)[1]


def test_without_an_address_traces_are_off() -> None:
    assert loads(MINIMAL, environ={}).telemetry == TelemetryConfig()
    assert TelemetryConfig().url is None


def test_the_defaults_are_those_of_the_documents() -> None:
    found = telemetry('endpoint = "http://c:4318"')
    assert (found.protocol, found.service_name, found.sample) == ("http/protobuf", "routecodex", 1.0)
    assert (found.content, found.openinference) == (False, False)
    assert (found.batch_ms, found.queue) == (5000, 2048)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ('endpoint = "http://c:4318"', "http://c:4318/v1/traces"),
        ('endpoint = "https://c/api/public/otel/"', "https://c/api/public/otel/v1/traces"),
        ('traces_endpoint = "http://c:4318/x?y=1"', "http://c:4318/x?y=1"),
        ('endpoint = "http://c:4318?k=1"', "http://c:4318/v1/traces?k=1"),
        ('endpoint = "http://c:4318/?k=a/"', "http://c:4318/v1/traces?k=a/"),
        ('endpoint = "https://c/otel/?k=1&l"', "https://c/otel/v1/traces?k=1&l"),
        ('endpoint = "http://a"\ntraces_endpoint = "http://b/t"', "http://b/t"),
    ],
)
def test_the_path_is_added_to_an_endpoint_and_not_to_that_of_traces(text: str, url: str) -> None:
    assert telemetry(text).url == url


def test_variables_fill_in_everything() -> None:
    found = loads(
        MINIMAL,
        environ={
            ENDPOINT: "http://c:4318",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
            "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20abc%3D, x-key = v=1",
            "OTEL_SERVICE_NAME": "gw",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,deployment.environment.name=prod%2C1",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_BSP_SCHEDULE_DELAY": "250",
        },
    ).telemetry
    assert found == TelemetryConfig(
        endpoint="http://c:4318",
        protocol="http/json",
        headers={"authorization": Secret("Basic abc="), "x-key": Secret("v=1")},
        service_name="gw",
        resource={"deployment.environment.name": "prod,1"},
        sample=0.25,
        batch_ms=250,
    )


def test_the_file_wins_over_variables() -> None:
    found = telemetry(
        'endpoint = "http://mine"\nservice_name = "mine"\nsample = 0.5\nheaders = { a = "1" }',
        OTEL_EXPORTER_OTLP_ENDPOINT="http://theirs",
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://theirs/t",
        OTEL_EXPORTER_OTLP_HEADERS="b=2",
        OTEL_SERVICE_NAME="theirs",
        OTEL_RESOURCE_ATTRIBUTES="service.name=theirs,k=v",
        OTEL_TRACES_SAMPLER_ARG="1",
    )
    assert (found.url, found.service_name, found.sample) == ("http://mine/v1/traces", "mine", 0.5)
    assert (found.headers, found.resource) == ({"a": Secret("1")}, {"k": "v"})


def test_the_variables_of_traces_come_before_the_general_ones() -> None:
    found = telemetry(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://all",
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://traces/t",
        OTEL_EXPORTER_OTLP_HEADERS="a=1",
        OTEL_EXPORTER_OTLP_TRACES_HEADERS="b=2",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/json",
    )
    assert (found.url, found.protocol, found.headers) == ("http://traces/t", "http/json", {"b": Secret("2")})


@pytest.mark.parametrize(
    ("kind", "unusable", "usable", "key", "found"),
    [
        ("PROTOCOL", "grpc", "http/json", "protocol", "http/json"),
        ("HEADERS", "token-without-a-name", "a=1", "headers", {"a": Secret("1")}),
    ],
)
def test_a_general_variable_counts_if_that_of_traces_cannot_be_used(
    kind: str, unusable: str, usable: str, key: str, found: Any
) -> None:
    specific, general = f"OTEL_EXPORTER_OTLP_TRACES_{kind}", f"OTEL_EXPORTER_OTLP_{kind}"
    environ = {specific: unusable, general: usable}
    assert getattr(telemetry(**environ), key) == found
    (problem,) = problems(**environ)
    assert (problem.severity, problem.message.startswith(f"{specific} ")) == ("warning", True)
    both = problems(**{specific: unusable, general: unusable})
    assert [one.message.partition(" ")[0] for one in both] == [specific, general]


@pytest.mark.parametrize("value", ["true", "TRUE", " true "])
def test_a_disabled_sdk_turns_traces_off(value: str) -> None:
    found = telemetry(
        'endpoint = "http://mine"\nsample = 0.5',
        OTEL_SDK_DISABLED=value,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://theirs",
    )
    assert (found.url, found.sample) == (None, 0.5)
    assert loads(MINIMAL, environ={"OTEL_SDK_DISABLED": value, ENDPOINT: "http://c"}).telemetry.url is None
    assert telemetry('endpoint = "http://mine"', OTEL_SDK_DISABLED="false").url is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (ENDPOINT, "collector:4317"),
        (ENDPOINT, "http://[broken"),
        (ENDPOINT, "http://collector/a b"),
        (ENDPOINT, "http://name:word@collector:4318"),
        (ENDPOINT, "http://collector:4318#part"),
        (ENDPOINT, "http://collector:4318?k=\u00e9"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/t#part"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "token-without-a-name"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "key=one%0Atwo"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "my%20key=one"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "content-length=5"),
        ("OTEL_SERVICE_NAME", "half\udc80"),
        ("OTEL_RESOURCE_ATTRIBUTES", "half\udc80=1"),
        ("OTEL_RESOURCE_ATTRIBUTES", "=x"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_TRACES_SAMPLER_ARG", "often"),
        ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
    ],
)
def test_a_variable_that_cannot_be_used_is_a_warning_without_its_value(name: str, value: str) -> None:
    (problem,) = problems(**{name: value})
    assert (problem.severity, name in problem.message) == ("warning", True)
    assert value not in str(problem)
    assert telemetry(**{name: value}) == TelemetryConfig()


def test_an_empty_variable_counts_as_unset() -> None:
    assert telemetry(OTEL_EXPORTER_OTLP_ENDPOINT=" ", OTEL_TRACES_SAMPLER_ARG="") == TelemetryConfig()


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ('endpoint = "collector:4318"', "telemetry.endpoint", "is not a URL"),
        ('traces_endpoint = "ftp://c/x"', "telemetry.traces_endpoint", "is not a URL"),
        ('endpoint = "http://u:p@c"', "telemetry.endpoint", "contains a user name or password"),
        ('endpoint = "http://c:4318#part"', "telemetry.endpoint", "contains a fragment"),
        ('endpoint = "http://c:4318?k=1#"', "telemetry.endpoint", "contains a fragment"),
        ('traces_endpoint = "http://c/t#part"', "telemetry.traces_endpoint", "contains a fragment"),
        ('endpoint = "http://c:4318?k=\u00e9"', "telemetry.endpoint", "is not a URL"),
        ('headers = { "a b" = "1" }', 'telemetry.headers."a b"', "is not a valid header name"),
        ('headers = { a = "1\\n2" }', "telemetry.headers.a", "not allowed in a header"),
        ("sample = 1.5", "telemetry.sample", "from 0 to 1"),
        ('protocol = "grpc"', "telemetry.protocol", "one of"),
        ("queue = 0", "telemetry.queue", "at least 1"),
        ("batch_ms = 0", "telemetry.batch_ms", "from 1"),
        ("endpiont = 1", "telemetry.endpiont", "is not a known key"),
    ],
)
def test_a_mistake_in_the_file_is_an_error(text: str, path: str, message: str) -> None:
    (problem,) = problems(text)
    assert (problem.severity, problem.path) == ("error", path)
    assert message in problem.message


def shown(text: str, **environ: str) -> dict[str, tuple[Any, str, int | None]]:
    """Return value, source and line of the settings of [telemetry] that are no defaults."""
    whole = f"[telemetry]\n{text}\n{MINIMAL}"
    rows = effective(loads(whole, environ=environ), whole, environ=environ, presets={})
    return {
        row.key.removeprefix("telemetry."): (row.value, row.source, row.line)
        for row in rows
        if row.key.startswith("telemetry.") and row.source != "default"
    }


def test_values_of_variables_are_shown_as_their_variable() -> None:
    found = shown(
        "sample = 0.5",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://c:4318?token=12345678",
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="grpc",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/json",
        OTEL_EXPORTER_OTLP_HEADERS="x-key=12345678",
        OTEL_RESOURCE_ATTRIBUTES="service.name=gw,k=v",
        OTEL_TRACES_SAMPLER_ARG="1",
        OTEL_BSP_SCHEDULE_DELAY="250",
    )
    assert found == {
        "endpoint": ("${OTEL_EXPORTER_OTLP_ENDPOINT}", "env", None),
        "protocol": ("${OTEL_EXPORTER_OTLP_PROTOCOL}", "env", None),
        "headers.x-key": ("${OTEL_EXPORTER_OTLP_HEADERS}", "env", None),
        "service_name": ("${OTEL_RESOURCE_ATTRIBUTES}", "env", None),
        "resource.k": ("${OTEL_RESOURCE_ATTRIBUTES}", "env", None),
        "sample": (0.5, "file", 2),
        "batch_ms": ("${OTEL_BSP_SCHEDULE_DELAY}", "env", None),
    }


def test_a_name_of_the_file_is_not_shown_as_that_of_a_variable() -> None:
    found = shown('service_name = "mine"', OTEL_RESOURCE_ATTRIBUTES="service.name=theirs")
    assert found == {"service_name": ("mine", "file", 2)}


def test_an_address_that_the_disabled_sdk_hides_is_shown_as_that_variable() -> None:
    found = shown('endpoint = "http://mine"\nqueue = 9', OTEL_SDK_DISABLED="true")
    assert found == {"endpoint": (None, "env", None), "queue": (9, "file", 3)}


def test_headers_are_never_shown() -> None:
    found: Any = telemetry('endpoint = "http://c"\nheaders = { authorization = "Bearer 12345" }')
    assert "12345" not in repr(found)
    assert "12345" not in str(found)
