"""A gateway that sends traces to a collector, for tests of spans."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.kit import asking
from tests.kit.collector import Collector, ReceivedSpan
from tests.kit.gateway import serving
from tests.kit.raw_client import Answer, call

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=a,other=b"}
ERROR = 2
"""Number of the status ERROR."""


@dataclass(frozen=True)
class Traced:
    """A gateway that sends traces; its spans are complete when it has stopped."""

    port: int
    collector: Collector

    async def ask(
        self,
        protocol: str = "chat",
        *,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        body = asking.body(protocol, "Hello", stream=stream) | fields
        return await call(self.port, asking.path(protocol, stream=stream), body, headers=headers or {})

    @property
    def request(self) -> ReceivedSpan:
        """The span of the only request."""
        (request,) = [span for span in self.collector.spans if span.kind == "SERVER"]
        return request

    @property
    def children(self) -> list[ReceivedSpan]:
        """All other spans, by their start."""
        return [span for span in self.collector.spans if span.kind != "SERVER"]


@contextlib.asynccontextmanager
async def traced(config: str, *, telemetry: str = "") -> AsyncIterator[Traced]:
    """Run a gateway with traces on; they are flushed when the block ends."""
    async with Collector() as collector, serving(collector.config(telemetry) + config) as gateway:
        yield Traced(gateway.port, collector)


def parent_of(headers: Mapping[str, str]) -> tuple[str, str, str]:
    """Return trace, span and flags of a `traceparent`."""
    version, trace, span, flags = headers["traceparent"].split("-")
    assert version == "00"
    return trace, span, flags
