"""One finished span and its resource, independent of their encoding."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

AttributeValue: TypeAlias = str | bool | int | float | list[str]
Attributes: TypeAlias = list[tuple[str, AttributeValue]]

INTERNAL = 1
SERVER = 2
CLIENT = 3
"""Kinds of spans, with their numbers in OTLP (trace.proto, SpanKind)."""

STATUS_ERROR = 2
"""Number of the status ERROR (trace.proto, StatusCode)."""

SCOPE = "routecodex"


class SpanShape:
    """The part that many spans have in common: name, kind, status and most attributes.

    It is encoded once: `protobuf` is empty until then. With `failed` the status is ERROR.
    """

    __slots__ = ("attributes", "failed", "kind", "name", "protobuf")

    def __init__(self, name: str, kind: int, attributes: Attributes, *, failed: bool = False) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.attributes: Final = attributes
        self.failed: Final = failed
        self.protobuf = b""


class Span(NamedTuple):
    """One span: its shape, and its own attributes. Ids are hex digits, times nanoseconds since 1970."""

    shape: SpanShape
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    start: int
    end: int
    attributes: Attributes


class Resource(NamedTuple):
    """The process that spans come from, and the version of the scope."""

    attributes: Attributes
    version: str


class PartialSuccess(NamedTuple):
    """Answer of a collector to a request that it accepted: the spans it rejected, and why."""

    rejected: int = 0
    message: str = ""
