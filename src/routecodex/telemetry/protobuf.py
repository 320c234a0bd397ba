"""OTLP in protobuf, written by hand: ExportTraceServiceRequest out, ExportTraceServiceResponse in.

Fields and numbers are those of opentelemetry-proto 1.x (collector/trace/v1/trace_service.proto,
trace/v1/trace.proto, common/v1/common.proto). A field is its tag (number << 3 | wire type) and its value.
Wire type 0 is a varint, 1 is eight bytes, 2 is a length with that many bytes.
"""

from __future__ import annotations

import struct
from binascii import unhexlify
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from routecodex.telemetry.span import (
    SCOPE,
    STATUS_ERROR,
    AttributeValue,
    PartialSuccess,
    Resource,
    Span,
    SpanShape,
)

CONTENT_TYPE = "application/x-protobuf"

_FIXED64 = struct.Struct("<Q")
_DOUBLE = struct.Struct("<d")
_MASK = (1 << 64) - 1
_SHORT = 0x7D
"""Bytes of a text whose length, also that of the message around it, is a single byte."""


def encode_request(resource: Resource, spans: Iterable[Span]) -> bytes:
    """Encode the spans of one process as the body of an export request."""
    scope = _bytes(1, _bytes(1, SCOPE.encode()) + _bytes(2, resource.version.encode()))
    scope_spans = scope + b"".join([_bytes(2, _span(span)) for span in spans])
    attributes = b"".join([_attribute(1, name, value) for name, value in resource.attributes])
    resource_spans = _bytes(1, attributes) + _bytes(2, scope_spans)
    return _bytes(1, resource_spans)


def decode_response(body: bytes) -> PartialSuccess:
    """Return the partial success of a response; ValueError if it is not protobuf."""
    rejected, message = 0, b""
    for number, value in _fields(body):
        if number != 1 or not isinstance(value, bytes):
            continue
        for inner, detail in _fields(value):
            if inner == 1 and isinstance(detail, int):
                rejected = detail if detail < 1 << 63 else 0
            elif inner == 2 and isinstance(detail, bytes):
                message = detail
    return PartialSuccess(rejected, message.decode("utf-8", "replace"))


def _span(span: Span) -> bytes:
    shape = span.shape
    parent = b"\x22\x08%b" % unhexlify(span.parent_id) if span.parent_id else b""
    return b"\x0a\x10%b\x12\x08%b%b%b\x39%b\x41%b%b%b" % (
        unhexlify(span.trace_id),
        unhexlify(span.span_id),
        parent,
        _bytes(3, span.state.encode()) if span.state else b"",
        _FIXED64.pack(span.start),
        _FIXED64.pack(span.end),
        shape.protobuf or _shape(shape),
        b"".join([_attribute(9, name, value) for name, value in span.attributes]),
    )


def _shape(shape: SpanShape) -> bytes:
    """Return the fields of a shape, and keep them."""
    shape.protobuf = b"".join(
        (
            _bytes(5, shape.name.encode("utf-8", "replace")),
            _varint_field(6, shape.kind),
            *(_attribute(9, name, value) for name, value in shape.attributes),
            _STATUS_FAILED if shape.failed else b"",
        )
    )
    return shape.protobuf


def _attribute(number: int, name: str, value: AttributeValue) -> bytes:
    """Return a KeyValue as a field."""
    # Most values of a span are short: they are written without further calls.
    if type(value) is str:
        text = value.encode("utf-8", "replace")
        size = len(text)
        if size > _SHORT:
            return _bytes(number, _name(name) + _bytes(2, _bytes(1, text)))
        encoded = b"\x12%b\x0a%b%b" % (_SINGLE[size + 2], _SINGLE[size], text)
    elif type(value) is int and 0 <= value < 0x4000:
        encoded = b"\x12\x02\x18%b" % _SINGLE[value] if value < 0x80 else b"\x12\x03\x18%b" % _varint(value)
    elif type(value) is float:
        encoded = b"\x12\x09\x21%b" % _DOUBLE.pack(value)
    else:
        encoded = _bytes(2, _any_value(value))
    key = _name(name)
    size = len(key) + len(encoded)
    if size > _SHORT:
        return _bytes(number, key + encoded)
    return b"%b%b%b%b" % (_SINGLE[number << 3 | 2], _SINGLE[size], key, encoded)


@lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    return _bytes(1, name.encode())


def _any_value(value: AttributeValue) -> bytes:
    if isinstance(value, str):
        return _bytes(1, value.encode("utf-8", "replace"))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & _MASK)
    if isinstance(value, float):
        return b"\x21" + _DOUBLE.pack(value)
    return _bytes(5, b"".join([_bytes(1, _any_value(one)) for one in value]))


def _bytes(number: int, value: bytes) -> bytes:
    return b"%b%b%b" % (_varint(number << 3 | 2), _varint(len(value)), value)


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SINGLE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SINGLE: Sequence[bytes] = [bytes([value]) for value in range(0x80)]
_STATUS_FAILED = _bytes(15, _varint_field(3, STATUS_ERROR))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field; ValueError for bytes that are not a message."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value: int | bytes
            value, at = _read_varint(data, at)
        elif kind == 2:
            size, at = _read_varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise ValueError("a group is not expected in a response")
        if at > len(data):
            raise ValueError("the message ends inside a field")
        yield tag >> 3, value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("the message ends inside a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number is too long")
