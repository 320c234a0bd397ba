"""OpenTelemetry traces: what a request collects for them, and how spans leave the process.

trace_context  TraceContext: `traceparent` and `tracestate` (W3C Trace Context), read and written; random ids
request_trace  Tracer begins a RequestTrace for each request; AttemptTrace and ToolTrace are parts of it
names          the names of all attributes, the well-known names of providers
span           Span: one finished span, independent of its encoding; Resource
protobuf       encodes spans as an OTLP request in protobuf, reads the response
otlp_json      the same in JSON
exporter       SpanExporter: queue, batches, retries, counts

Nothing is encoded while a request runs: it only collects references, and the spans are made from its record
later, in a thread (`server/request_spans.py`).
"""
