"""Spans in protobuf and JSON: what the official decoder reads is what was encoded, in both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service

from routecodex.telemetry import otlp_json, protobuf
from routecodex.telemetry.span import CLIENT, SERVER, Attributes, PartialSuccess, Resource, Span, SpanShape
from routecodex.wire import json
from tests.kit.collector import ReceivedSpan, decode, partial_success

TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "b7ad6b7169203331"
START, END = 1_700_000_000_000_000_001, 1_700_000_000_500_000_000
RESOURCE = Resource([("service.name", "routecodex"), ("service.instance.id", "main")], "1.2.3")
VALUES: Attributes = [
    ("text", "héllo"),
    ("empty", ""),
    ("long", "x" * 5000),
    ("yes", True),
    ("no", False),
    ("zero", 0),
    ("small", 127),
    ("middle", 128),
    ("large", 2**40),
    ("negative", -5),
    ("share", 0.25),
    ("list", ["stop", "length"]),
    ("none", []),
]


def span(attributes: Attributes, *, own: Attributes | None = None, failed: bool = False) -> Span:
    shape = SpanShape("chat m", CLIENT, attributes, failed=failed)
    return Span(
        shape, TRACE, SPAN, PARENT, "a=b", 1_700_000_000_000_000_001, 1_700_000_000_500_000_000, own or []
    )


def read(encoded: bytes, content_type: str) -> list[ReceivedSpan]:
    return decode(encoded, content_type)


def both(*spans: Span) -> tuple[list[ReceivedSpan], list[ReceivedSpan]]:
    return (
        read(protobuf.encode_request(RESOURCE, spans), protobuf.CONTENT_TYPE),
        read(otlp_json.encode_request(RESOURCE, spans), otlp_json.CONTENT_TYPE),
    )


@pytest.mark.parametrize("failed", [False, True])
def test_both_encodings_decode_to_the_same_span(failed: bool) -> None:
    expected = ReceivedSpan(
        name="chat m",
        kind="CLIENT",
        trace_id=TRACE,
        span_id=SPAN,
        parent_id=PARENT,
        state="a=b",
        start=START,
        end=END,
        attributes={**dict(VALUES), "own": "1", "count": 9000},
        status=2 if failed else 0,
        resource=dict(RESOURCE.attributes),
        scope=("routecodex", "1.2.3"),
    )
    own: Attributes = [("own", "1"), ("count", 9000)]
    assert both(span(VALUES, own=own, failed=failed)) == ([expected], [expected])


def test_a_span_without_parent_and_state_has_neither() -> None:
    root = Span(SpanShape("POST /v1/messages", SERVER, []), TRACE, SPAN, "", "", 1, 2, [])
    for (found,) in both(root):
        assert (found.kind, found.parent_id, found.state) == ("SERVER", "", "")


texts = st.text(max_size=300)
values = st.one_of(
    texts,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(texts, max_size=3),
)


@given(st.dictionaries(st.text(min_size=1, max_size=60), values, max_size=6))
def test_any_attributes_survive_both_encodings(attributes: dict[str, str]) -> None:
    pairs: Attributes = list(attributes.items())
    (first,), (second,) = both(span(pairs[:2], own=pairs[2:]))
    assert first == second
    assert first.attributes == attributes


@pytest.mark.parametrize("name", ["n", "name" * 30, "name" * 40])
def test_texts_around_the_length_of_a_single_byte_survive(name: str) -> None:
    for size in range(280):
        (first,), (second,) = both(span([], own=[(name, "x" * size)]))
        assert first.attributes == second.attributes == {name: "x" * size}


def test_half_a_character_is_replaced_in_both_encodings() -> None:
    (first,), (second,) = both(span([("text", "a\ud800b")]))
    assert first.attributes == second.attributes == {"text": "a?b"}


def test_json_follows_the_rules_of_otlp() -> None:
    encoded = json.decode(otlp_json.encode_request(RESOURCE, [span([("count", 3)], failed=True)]))
    (found,) = encoded["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert found == {
        "traceId": TRACE,
        "spanId": SPAN,
        "parentSpanId": PARENT,
        "traceState": "a=b",
        "name": "chat m",
        "kind": 3,
        "startTimeUnixNano": "1700000000000000001",
        "endTimeUnixNano": "1700000000500000000",
        "attributes": [{"key": "count", "value": {"intValue": "3"}}],
        "status": {"code": 2},
    }


def test_a_shape_is_encoded_once() -> None:
    shape = SpanShape("chat m", CLIENT, VALUES)
    spans = [Span(shape, TRACE, f"{number:016x}", "", "", 1, 2, []) for number in (1, 2)]
    first = protobuf.encode_request(RESOURCE, spans)
    assert shape.protobuf
    assert [one.attributes for one in read(first, protobuf.CONTENT_TYPE)] == [dict(VALUES)] * 2


def test_a_partial_success_is_read_in_both_encodings() -> None:
    expected = PartialSuccess(3, "quota")
    assert protobuf.decode_response(partial_success(3, "quota").data) == expected
    body = b'{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "quota"}}'
    assert otlp_json.decode_response(body) == expected


@pytest.mark.parametrize("body", [b"", b"{}", b'{"partialSuccess": {}}', b"[]", b'{"partialSuccess": 1}'])
def test_a_whole_success_in_json_rejects_nothing(body: bytes) -> None:
    assert otlp_json.decode_response(body) == PartialSuccess()


@pytest.mark.parametrize("body", [b"\x0a\x05a", b"\xff" * 20, b"\x08", b"\x0b\x0c"])
def test_bytes_that_are_not_protobuf_are_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|number|group"):
        protobuf.decode_response(body)


def test_unknown_fields_of_a_response_are_skipped() -> None:
    response = service.ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 1
    unknown = b"\x79" + b"\0" * 8 + b"\x7d" + b"\0" * 4 + b"\x70\x01"
    assert protobuf.decode_response(unknown + response.SerializeToString()) == PartialSuccess(1, "")
