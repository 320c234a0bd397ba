"""OTLP in JSON: the same messages as in `protobuf`.

By docs/specification.md of opentelemetry-proto: names in camelCase, ids in hex digits, 64-bit numbers as
strings, enums as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from routecodex.telemetry.span import (
    SCOPE,
    STATUS_ERROR,
    Attributes,
    AttributeValue,
    PartialSuccess,
    Resource,
    Span,
)
from routecodex.wire import json

CONTENT_TYPE = "application/json"


def encode_request(resource: Resource, spans: Iterable[Span]) -> bytes:
    """Encode the spans of one process as the body of an export request."""
    scope_spans = {
        "scope": {"name": SCOPE, "version": resource.version},
        "spans": [_span(span) for span in spans],
    }
    resource_spans = {
        "resource": {"attributes": _attributes(resource.attributes)},
        "scopeSpans": [scope_spans],
    }
    message = {"resourceSpans": [resource_spans]}
    try:
        return json.encode(message)
    except UnicodeEncodeError:
        return json.encode(_without_surrogates(message))


def _without_surrogates(value: Any) -> Any:
    """Return a value with `?` for halves of characters, which clients send as JSON escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_without_surrogates(one) for one in value]
    return {key: _without_surrogates(one) for key, one in value.items()} if isinstance(value, dict) else value


def decode_response(body: bytes) -> PartialSuccess:
    """Return the partial success of a response; ValueError if it is not JSON."""
    value = json.decode(body) if body else {}
    partial = value.get("partialSuccess") if isinstance(value, dict) else None
    if not isinstance(partial, dict):
        return PartialSuccess()
    rejected = str(partial.get("rejectedSpans") or 0)
    return PartialSuccess(
        int(rejected) if rejected.isdecimal() else 0, str(partial.get("errorMessage") or "")
    )


def _span(span: Span) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.shape.name,
        "kind": span.shape.kind,
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes([*span.shape.attributes, *span.attributes]),
    }
    if span.state:
        encoded["traceState"] = span.state
    if span.parent_id:
        encoded["parentSpanId"] = span.parent_id
    if span.shape.failed:
        encoded["status"] = {"code": STATUS_ERROR}
    return encoded


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": name, "value": _any_value(value)} for name, value in attributes]


def _any_value(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_any_value(one) for one in value]}}
