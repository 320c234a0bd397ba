"""Traces of one server process: begins them, and hands finished requests to the exporter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from routecodex.config import Config
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.request import RequestRecord
from routecodex.server.request_spans import SpanBuilder, resource_of
from routecodex.telemetry.exporter import ExportOptions, QueuedTrace, SpanExporter
from routecodex.telemetry.request_trace import Tracer
from routecodex.telemetry.span import Span


class TraceService:
    """Traces as the configuration wants them, sent by the HTTP client of the gateway, which a reload keeps.

    `tracer` is None while they are off.
    """

    def __init__(self, config: Config, gateway: Gateway, *, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._exporter: SpanExporter[RequestRecord] = SpanExporter(gateway.http, self._spans)
        self.tracer: Tracer | None = None
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use this configuration for requests that begin from now on."""
        options = export_options(config, self._environ)
        row = config.telemetry
        self._builder = SpanBuilder(config)
        self._exporter.configure(options)
        self.tracer = None if options is None else Tracer(share=row.sample, captures=row.content)

    def add(self, record: RequestRecord) -> None:
        """Queue the spans of a request that has ended."""
        trace = record.trace
        if trace is not None and trace.sampled:
            self._exporter.add(record, trace.spans, trace.content_bytes if trace.captures else 0)

    @property
    def counts(self) -> tuple[int, int]:
        """Spans that were exported, and spans that were dropped."""
        return self._exporter.exported, self._exporter.dropped

    async def close(self) -> None:
        """Send the spans that wait, for two seconds at most."""
        await self._exporter.close()

    def _spans(self, batch: Sequence[QueuedTrace[RequestRecord]]) -> list[Span]:
        return self._builder.spans(batch)


def export_options(config: Config, environ: Mapping[str, str]) -> ExportOptions | None:
    """Return where spans go; None if traces are off."""
    row = config.telemetry
    if row.url is None:
        return None
    return ExportOptions(
        url=row.url,
        environ=environ,
        protocol=row.protocol,
        headers=tuple((name.lower(), secret.reveal()) for name, secret in row.headers.items()),
        resource=resource_of(config),
        batch_seconds=row.batch_ms / 1000,
        queue=row.queue,
    )


class TelemetryMetrics(Collector):
    """Spans that left for a collector, and those that did not; 0 while traces are off."""

    def __init__(self, traces: TraceService, *, worker: str) -> None:
        self._traces = traces
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families for prometheus_client."""
        exported, dropped = self._traces.counts
        rows = (
            ("routecodex_telemetry_exported", "Spans that a collector took.", exported),
            ("routecodex_telemetry_dropped", "Spans that no collector got.", dropped),
        )
        for name, about, count in rows:
            family = CounterMetricFamily(name, about, labels=("worker",))
            family.add_metric((self._worker,), count)
            yield family
