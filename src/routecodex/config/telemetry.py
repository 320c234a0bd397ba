"""The table `[telemetry]`: where traces go. Variables of OpenTelemetry fill in what the file leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote

from msgspec import Meta, Struct, field

from routecodex.config.http_values import header_fault, split_url
from routecodex.config.problems import ConfigPath, Problem, warning
from routecodex.config.values import DAY_MS, Secret

_TRACES_PATH = "/v1/traces"
_PROTOCOLS: Final = ("http/protobuf", "http/json")


class TelemetryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenTelemetry traces."""

    endpoint: Annotated[
        str | None,
        Meta(
            description="Address of a collector that takes OTLP over HTTP; `/v1/traces` is added. Without "
            "it and `traces_endpoint`, traces are off."
        ),
    ] = None
    traces_endpoint: Annotated[
        str | None, Meta(description="The whole address for traces, used as it is.")
    ] = None
    protocol: Annotated[Literal["http/protobuf", "http/json"], Meta(description="Encoding of the spans.")] = (
        "http/protobuf"
    )
    headers: Annotated[
        dict[str, Secret], Meta(description="Headers for the collector, such as a key; never shown.")
    ] = field(default_factory=dict)
    service_name: Annotated[
        str, Meta(description="Name of this gateway, as `service.name`.", min_length=1)
    ] = "routecodex"
    resource: Annotated[
        dict[str, str], Meta(description="Further attributes of the resource that spans belong to.")
    ] = field(default_factory=dict)
    sample: Annotated[
        float,
        Meta(
            description="Share of the traces begun here that are sampled. If the client sends a "
            "`traceparent`, its flag decides.",
            ge=0,
            le=1,
        ),
    ] = 1.0
    content: Annotated[
        bool,
        Meta(
            description="Put the messages of requests and answers into spans: text of users leaves the "
            "gateway."
        ),
    ] = False
    openinference: Annotated[
        bool, Meta(description="Add the attribute names of OpenInference beside `gen_ai.*`.")
    ] = False
    batch_ms: Annotated[
        int, Meta(description="Longest time that spans wait to be sent together.", ge=1, le=DAY_MS)
    ] = 5000
    queue: Annotated[
        int, Meta(description="Most spans that wait; further ones are dropped and counted.", ge=1)
    ] = 2048

    @property
    def url(self) -> str | None:
        """Address that spans are sent to; None if traces are off."""
        if self.traces_endpoint is not None:
            return self.traces_endpoint
        return None if self.endpoint is None else self.endpoint.rstrip("/") + _TRACES_PATH


def fill_telemetry(
    tree: dict[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], frozenset[ConfigPath], list[Problem]]:
    """Return the tree with values of the `OTEL_*` variables, their places, and warnings.

    A variable that cannot be used is a warning: it may be meant for other programs of the same environment.
    `OTEL_SDK_DISABLED=true` turns traces off, whatever the file says.
    """
    row = tree.get("telemetry", {})
    if not isinstance(row, dict):
        return tree, frozenset(), []
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        off = {name: value for name, value in row.items() if name not in ("endpoint", "traces_endpoint")}
        return ({**tree, "telemetry": off} if "telemetry" in tree else tree), frozenset(), []
    filled: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, names, read in _VARIABLES:
        if key in row or (key in _ADDRESSES and not _ADDRESSES.isdisjoint(row)):
            continue
        name = next((name for name in names if environ.get(name, "").strip()), None)
        if name is None:
            continue
        try:
            filled[key] = read(_text(environ[name].strip()))
        except ValueError as exc:
            message = f"{name} {exc}, so it is ignored"
            problems.append(warning(("telemetry", key), message, f"correct {name}, or set {key} in the file"))
    if not filled:
        return tree, frozenset(), problems
    return {**tree, "telemetry": {**_service_name(filled), **filled, **row}}, _places(filled), problems


def _service_name(filled: dict[str, Any]) -> dict[str, Any]:
    """Take `service.name` out of the resource attributes: it is a setting of its own, as in the SDKs."""
    name = filled["resource"].pop("service.name", "") if "resource" in filled else ""
    return {"service_name": name} if name else {}


def _places(filled: Mapping[str, Any]) -> frozenset[ConfigPath]:
    """Return the places of values whose text must not be shown."""
    places: set[ConfigPath] = {("telemetry", key) for key in _ADDRESSES & filled.keys()}
    for key in ("headers", "resource"):
        places |= {("telemetry", key, name) for name in filled.get(key, ())}
    return frozenset(places)


def _text(text: str) -> str:
    # Bytes that are not UTF-8 come as halves of characters (PEP 383), which no encoding of spans can hold.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("is not UTF-8")
    return text


def _url(text: str) -> str:
    parts = split_url(text)
    if parts is None:
        raise ValueError("is not an http or https URL")
    if "@" in parts.netloc:
        raise ValueError("contains a user name or password")
    return text


def _protocol(text: str) -> str:
    if text not in _PROTOCOLS:
        raise ValueError(f"is neither {' nor '.join(_PROTOCOLS)}")
    return text


def _pairs(text: str) -> dict[str, str]:
    """Return `k=v,k2=v2` as a table; names and values are percent-decoded (W3C Baggage)."""
    pairs = {}
    for pair in filter(None, (one.strip() for one in text.split(","))):
        name, mark, value = pair.partition("=")
        if not mark or not name.strip():
            raise ValueError("is not a list of name=value")
        pairs[unquote(name.strip())] = unquote(value.strip())
    return pairs


def _headers(text: str) -> dict[str, str]:
    headers = {name.lower(): value for name, value in _pairs(text).items()}
    if any(header_fault(name, value) for name, value in headers.items()):
        raise ValueError("has a header that cannot be sent")
    return headers


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ValueError("is not a number from 0 to 1")
    return share


def _milliseconds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= DAY_MS:
        raise ValueError("is not a number of milliseconds")
    return int(text)


_OTLP = "OTEL_EXPORTER_OTLP"
_ADDRESSES = frozenset({"endpoint", "traces_endpoint"})
_VARIABLES: tuple[tuple[str, tuple[str, ...], Callable[[str], Any]], ...] = (
    ("endpoint", (f"{_OTLP}_ENDPOINT",), _url),
    ("traces_endpoint", (f"{_OTLP}_TRACES_ENDPOINT",), _url),
    ("protocol", (f"{_OTLP}_TRACES_PROTOCOL", f"{_OTLP}_PROTOCOL"), _protocol),
    ("headers", (f"{_OTLP}_TRACES_HEADERS", f"{_OTLP}_HEADERS"), _headers),
    ("service_name", ("OTEL_SERVICE_NAME",), str),
    ("resource", ("OTEL_RESOURCE_ATTRIBUTES",), _pairs),
    ("sample", ("OTEL_TRACES_SAMPLER_ARG",), _share),
    ("batch_ms", ("OTEL_BSP_SCHEDULE_DELAY",), _milliseconds),
)
"""Settings, the variables that fill them (the first that is set), and how their text is read."""
