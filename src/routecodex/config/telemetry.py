"""The table `[telemetry]`: where traces go. Variables of OpenTelemetry fill in what the file leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

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
        if self.endpoint is None:
            return None
        parts = urlsplit(self.endpoint)
        return urlunsplit(parts._replace(path=parts.path.rstrip("/") + _TRACES_PATH))


def url_fault(url: str) -> tuple[str, str] | None:
    """Return why spans cannot be sent to a URL, and what to do about it; None if they can."""
    parts = split_url(url)
    if parts is None:
        return "is not an http or https URL", "write it as http://host:4318"
    if "@" in parts.netloc:
        return "contains a user name or password", "put the key in headers"
    if "#" in url:
        return "contains a fragment", "remove it and the #: it is never sent"
    return None


def fill_telemetry(
    tree: dict[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[ConfigPath, str], list[Problem]]:
    """Return the tree with values of the `OTEL_*` variables, the variable of each place, and warnings.

    A variable that cannot be used is a warning: it may be meant for other programs of the same environment.
    `OTEL_SDK_DISABLED=true` turns traces off, whatever the file says.
    """
    row = tree.get("telemetry", {})
    if not isinstance(row, dict):
        return tree, {}, []
    if environ.get(_DISABLED, "").strip().lower() == "true":
        off = {name: value for name, value in row.items() if name not in _ADDRESSES}
        hidden: dict[ConfigPath, str] = {("telemetry", key): _DISABLED for key in _ADDRESSES & row.keys()}
        return ({**tree, "telemetry": off} if "telemetry" in tree else tree), hidden, []
    filled: dict[str, Any] = {}
    variables: dict[str, str] = {}
    problems: list[Problem] = []
    for key, names, read in _VARIABLES:
        if key in row or (key in _ADDRESSES and not _ADDRESSES.isdisjoint(row)):
            continue
        for name in names:
            text = environ.get(name, "").strip()
            if not text:
                continue
            try:
                filled[key], variables[key] = read(_text(text)), name
                break
            except ValueError as exc:
                fix = f"correct {name}, or set {key} in the file"
                problems.append(warning(("telemetry", key), f"{name} {exc}, so it is ignored", fix))
    if not filled:
        return tree, {}, problems
    # `service.name` is a setting of its own, as in the SDKs.
    name = filled["resource"].pop("service.name", "") if "resource" in filled else ""
    if name and "service_name" not in {**filled, **row}:
        filled["service_name"], variables["service_name"] = name, variables["resource"]
    return {**tree, "telemetry": {**filled, **row}}, dict(_places(filled, variables)), problems


def _places(filled: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[tuple[ConfigPath, str]]:
    """Yield the place of each value, with its variable."""
    for key, value in filled.items():
        if isinstance(value, dict):
            yield from ((("telemetry", key, name), variables[key]) for name in value)
        else:
            yield ("telemetry", key), variables[key]


def _text(text: str) -> str:
    # Bytes that are not UTF-8 come as halves of characters (PEP 383), which no encoding of spans can hold.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("is not UTF-8")
    return text


def _url(text: str) -> str:
    fault = url_fault(text)
    if fault is not None:
        raise ValueError(fault[0])
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


_DISABLED = "OTEL_SDK_DISABLED"
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
"""Settings, the variables that fill them (the first that can be used), and how their text is read."""
