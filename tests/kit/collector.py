"""A fake OpenTelemetry collector on a real socket; it decodes what it gets with opentelemetry-proto.

async with Collector() as collector:
    …                                     # a gateway with collector.config() in its configuration, stopped
    assert collector.span("chat m").attributes["gen_ai.request.model"] == "m"
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped] # it has no stubs of its own
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service

from routecodex.wire import json
from tests.kit.steps import Answer, Json
from tests.kit.upstream import Request, Script, Upstream

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as a collector reads it, with the attributes of its resource."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    start: int
    end: int
    attributes: dict[str, Any]
    status: int
    resource: dict[str, Any] = field(repr=False)
    scope: tuple[str, str] = field(repr=False)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def decode(body: bytes, content_type: str) -> list[ReceivedSpan]:
    """Decode the body of an export request."""
    message = service.ExportTraceServiceRequest()
    if content_type == "application/x-protobuf":
        message.ParseFromString(body)
    else:
        json_format.ParseDict(_with_base64_ids(json.decode(body)), message)
    return list(_spans(message))


def _with_base64_ids(value: Any) -> Any:
    """Return OTLP/JSON in the JSON of protobuf, which has bytes in base64 where OTLP has hex digits."""
    if isinstance(value, list):
        return [_with_base64_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        name: base64.b64encode(bytes.fromhex(one)).decode() if name in ids else _with_base64_ids(one)
        for name, one in value.items()
    }


def _spans(message: Any) -> Iterator[ReceivedSpan]:
    for resource in message.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    kind=KINDS[span.kind],
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    state=span.trace_state,
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes=_attributes(span.attributes),
                    status=span.status.code,
                    resource=_attributes(resource.resource.attributes),
                    scope=(scope.scope.name, scope.scope.version),
                )


def partial_success(rejected: int, message: str) -> Json:
    """Return the answer of a collector that took only a part."""
    response = service.ExportTraceServiceResponse()
    response.partial_success.rejected_spans = rejected
    response.partial_success.error_message = message
    return Json(200, response.SerializeToString(), {"content-type": "application/x-protobuf"})


def _accept(_request: Request) -> Answer:
    return Json(200, b"", {"content-type": "application/x-protobuf"})


class Collector(Upstream):
    """The collector; requests can be answered by a script, as those of any upstream."""

    def __init__(self, script: Script = _accept) -> None:
        super().__init__(script)

    async def __aenter__(self) -> Collector:
        await super().__aenter__()
        return self

    def config(self, more: str = "") -> str:
        """Return the table of a configuration that sends traces here."""
        return f'[telemetry]\nendpoint = "{self.url}"\n{more}\n'

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans that were received, by their start."""
        found = [
            span
            for request in self.requests
            for span in decode(request.body, request.headers["content-type"])
        ]
        return sorted(found, key=lambda span: span.start)

    def span(self, name: str) -> ReceivedSpan:
        """Return the only span of a name."""
        (span,) = [one for one in self.spans if one.name == name]
        return span
