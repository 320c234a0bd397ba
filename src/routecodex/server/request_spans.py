"""Makes spans of the records of requests: one for the request, one for each attempt and each server tool.

Runs in a thread, after the requests have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from routecodex import __version__
from routecodex.canon.events import Usage
from routecodex.config import Config
from routecodex.config.providers import ProviderConfig
from routecodex.gateway.request import RequestRecord
from routecodex.routing.registry import Target
from routecodex.server import paths
from routecodex.server.logs import session_name
from routecodex.server.trace_content import content_attributes
from routecodex.telemetry import names
from routecodex.telemetry.exporter import QueuedTrace
from routecodex.telemetry.request_trace import AttemptTrace, RequestTrace, ToolTrace, error_type
from routecodex.telemetry.span import CLIENT, INTERNAL, SERVER, Attributes, Resource, Span, SpanShape
from routecodex.wire import json

_PORTS: Final = {"http": 80, "https": 443}
_MAX_TEXT: Final = 1024
"""Characters of a text that a client or a provider chooses."""
_GONE: Final = 499
_MAX_SHAPES: Final = 512
_EMBEDDINGS: Final = "embeddings"
_INT64: Final = range(-(1 << 63), 1 << 63)


class ProviderFacts(Struct, frozen=True):
    """Attributes that all attempts at one provider share, and the ids of its models."""

    name: str
    operation: str
    address: str
    port: int
    models: dict[str, str]

    def model_id(self, target: Target) -> str:
        """Return the name of a model as the provider knows it."""
        return self.models.get(target.model) or target.model


def provider_facts(name: str, row: ProviderConfig) -> ProviderFacts:
    """Return the facts of one provider of the configuration."""
    known = names.WELL_KNOWN_PROVIDERS.get(row.preset or "", name)
    operation = "generate_content" if row.protocol == "gemini" else "chat"
    parts = urlsplit(row.base_url)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    models = {key: model.id or key for key, model in row.named_models.items()}
    return ProviderFacts(known, operation, parts.hostname or "", port, models)


def resource_of(config: Config) -> Resource:
    """Return the resource of this server."""
    row = config.telemetry
    fixed = {
        names.SERVICE_NAME: row.service_name,
        names.SERVICE_VERSION: __version__,
        names.SERVICE_INSTANCE: config.server.identity,
    }
    return Resource([*{**row.resource, **fixed}.items()], __version__)


class SpanBuilder:
    """Makes spans for one configuration; what many spans have in common is made once, within bounds."""

    def __init__(self, config: Config) -> None:
        self._providers = {name: provider_facts(name, row) for name, row in config.providers.items()}
        self._openinference = config.telemetry.openinference
        self._shapes: dict[tuple[object, ...], SpanShape] = {}

    def spans(self, batch: Sequence[QueuedTrace[RequestRecord]]) -> list[Span]:
        """Return the spans of finished requests."""
        return [span for queued in batch for span in self._spans_of(queued.item, queued.at)]

    def _spans_of(self, record: RequestRecord, at: int) -> Iterator[Span]:
        trace = record.trace
        if trace is None or not trace.sampled:
            return
        # Records have times of the monotonic clock; `at` is the time at which the request finished.
        offset = at - int(record.finished * 1e9)
        if not trace.is_internal:
            yield self._request_span(record, trace, offset)
        for attempt in trace.attempts:
            yield self._attempt_span(record, trace, attempt, offset=offset)
        for tool in trace.tools:
            yield self._tool_span(trace, tool, offset)

    def _shape(self, key: tuple[object, ...], make: Callable[[], SpanShape]) -> SpanShape:
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _MAX_SHAPES:
                # Clients choose some of the texts.
                self._shapes.clear()
            shape = self._shapes[key] = make()
        return shape

    def _request_span(self, record: RequestRecord, trace: RequestTrace, offset: int) -> Span:
        failure = "" if record.error is None or record.status >= 400 else error_type(record.error)
        key = (
            trace.method,
            trace.path[:_MAX_TEXT],
            _GONE if record.gone else record.status,
            failure,
            record.client_name,
            record.route,
            record.target,
            record.reason,
            record.rounds,
        )
        attributes: Attributes = []
        if record.session:
            session = session_name(record.session)[:_MAX_TEXT]
            attributes += ((names.CONVERSATION, session), (names.SESSION, session))
        cost = record.cost
        if cost is not None and cost.usd is not None:
            attributes.append((names.OUR_COST, cost.usd))
        return Span(
            self._shape(key, lambda: self._request_shape(record, trace, failure)),
            trace.trace_id,
            trace.span_id,
            trace.parent_id,
            trace.state,
            offset + int(record.arrived * 1e9),
            offset + int(record.finished * 1e9),
            attributes,
        )

    def _request_shape(self, record: RequestRecord, trace: RequestTrace, failure: str) -> SpanShape:
        """Return the shape of a request; `failure` is that of a stream that broke, whose status is 200.

        Errors of the client are not errors of a server span (docs/http/http-spans.md, "Status").
        """
        status = _GONE if record.gone else record.status
        route = paths.route_of(trace.path)
        attributes: Attributes = [
            (names.METHOD, trace.method),
            *([(names.ROUTE, route)] if route else ()),
            (names.STATUS, status),
            (names.PATH, trace.path[:_MAX_TEXT]),
            (names.OUR_ROUTE, record.route),
        ]
        if record.client_name:
            attributes.append((names.USER, record.client_name))
        if record.target is not None:
            attributes.append((names.OUR_TARGET, str(record.target)))
        if record.reason:
            attributes.append((names.OUR_REASON, record.reason[:_MAX_TEXT]))
        if record.rounds:
            attributes.append((names.OUR_ROUNDS, record.rounds))
        if status >= 400 or failure:
            attributes.append((names.ERROR, failure or str(status)))
        if self._openinference:
            attributes.append((names.OI_KIND, "CHAIN"))
        name = f"{trace.method} {route}" if route else trace.method
        return SpanShape(name, SERVER, attributes, failed=bool(status >= 500 or failure))

    def _attempt_span(
        self, record: RequestRecord, trace: RequestTrace, attempt: AttemptTrace, *, offset: int
    ) -> Span:
        key = (
            attempt.target,
            attempt.round,
            attempt.failure,
            attempt.model[:_MAX_TEXT],
            attempt.finish,
            trace.stream,
            trace.endpoint == _EMBEDDINGS,
            trace.parameters,
        )
        attributes: Attributes = []
        if attempt.response_id:
            attributes.append((names.RESPONSE_ID, attempt.response_id[:_MAX_TEXT]))
        if trace.stream and attempt.opened:
            attributes.append((names.RESPONSE_FIRST_CHUNK, attempt.opened - attempt.began))
        usage = attempt.usage
        if usage is not None and not usage.estimated:
            attributes += _tokens(usage, _TOKEN_NAMES)
            if self._openinference:
                attributes += _tokens(usage, _OI_TOKEN_NAMES)
                attributes.append((names.OI_TOTAL_TOKENS, usage.input + usage.output))
        if attempt.content is not None:
            attributes += content_attributes(attempt.content, openinference=self._openinference)
        return Span(
            self._shape(key, lambda: self._attempt_shape(trace, attempt)),
            trace.trace_id,
            attempt.span_id,
            trace.span_id,
            trace.state,
            offset + int(attempt.began * 1e9),
            offset + int((attempt.ended or record.finished) * 1e9),
            attributes,
        )

    def _attempt_shape(self, trace: RequestTrace, attempt: AttemptTrace) -> SpanShape:
        target: Target = attempt.target
        facts = self._providers.get(target.provider) or _UNKNOWN
        operation = _EMBEDDINGS if trace.endpoint == _EMBEDDINGS else facts.operation
        model = facts.model_id(target)
        attributes: Attributes = [
            (names.OPERATION, operation),
            (names.PROVIDER, facts.name or target.provider),
            (names.REQUEST_MODEL, model),
            (names.OUR_ROUND, attempt.round),
            (names.OUR_KEY, target.key),
        ]
        if operation != _EMBEDDINGS:
            attributes.append((names.REQUEST_STREAM, trace.stream))
        attributes += _parameters(trace)
        if attempt.model:
            attributes.append((names.RESPONSE_MODEL, attempt.model[:_MAX_TEXT]))
        if attempt.finish:
            attributes.append((names.RESPONSE_FINISH, [attempt.finish]))
        if facts.address:
            attributes += ((names.ADDRESS, facts.address), (names.PORT, facts.port))
        if attempt.failure:
            attributes.append((names.ERROR, attempt.failure))
        if self._openinference:
            attributes += _openinference(attempt, trace, operation=operation, facts=facts, model=model)
        return SpanShape(f"{operation} {model}", CLIENT, attributes, failed=bool(attempt.failure))

    def _tool_span(self, trace: RequestTrace, tool: ToolTrace, offset: int) -> Span:
        attributes: Attributes = [(names.TOOL_CALL, tool.call_id)]
        if self._openinference:
            attributes.append((names.OI_TOOL_CALL, tool.call_id))
        return Span(
            self._shape((tool.name, tool.failure), lambda: self._tool_shape(tool)),
            trace.trace_id,
            tool.span_id,
            trace.span_id,
            trace.state,
            offset + int(tool.began * 1e9),
            offset + int((tool.ended or tool.began) * 1e9),
            attributes,
        )

    def _tool_shape(self, tool: ToolTrace) -> SpanShape:
        attributes: Attributes = [
            (names.OPERATION, "execute_tool"),
            (names.TOOL_NAME, tool.name),
            (names.TOOL_TYPE, "function"),
        ]
        if tool.failure:
            attributes.append((names.ERROR, tool.failure))
        if self._openinference:
            attributes += ((names.OI_KIND, "TOOL"), (names.OI_TOOL_NAME, tool.name))
        return SpanShape(f"execute_tool {tool.name}", INTERNAL, attributes, failed=bool(tool.failure))


_UNKNOWN: Final = ProviderFacts("", "chat", "", 0, {})
"""Facts of a provider that a reload has removed."""


def _parameters(trace: RequestTrace) -> Attributes:
    limit, temperature, top_p = trace.parameters
    attributes: Attributes = []
    # A collector refuses a whole batch for one number that is too large; usage is bounded where it is read.
    if limit is not None and limit in _INT64:
        attributes.append((names.REQUEST_MAX_TOKENS, limit))
    if temperature is not None:
        attributes.append((names.REQUEST_TEMPERATURE, float(temperature)))
    if top_p is not None:
        attributes.append((names.REQUEST_TOP_P, float(top_p)))
    return attributes


_TOKEN_NAMES: Final = (
    names.INPUT_TOKENS,
    names.OUTPUT_TOKENS,
    names.CACHE_READ_TOKENS,
    names.CACHE_WRITE_TOKENS,
    names.REASONING_TOKENS,
)
_OI_TOKEN_NAMES: Final = (
    names.OI_INPUT_TOKENS,
    names.OI_OUTPUT_TOKENS,
    names.OI_CACHE_READ_TOKENS,
    names.OI_CACHE_WRITE_TOKENS,
    names.OI_REASONING_TOKENS,
)


def _tokens(usage: Usage, labels: tuple[str, ...]) -> Attributes:
    """Return the counts; parts of them only where there are any."""
    attributes: Attributes = [(labels[0], usage.input), (labels[1], usage.output)]
    if usage.cache_read:
        attributes.append((labels[2], usage.cache_read))
    if usage.cache_write:
        attributes.append((labels[3], usage.cache_write))
    if usage.reasoning:
        attributes.append((labels[4], usage.reasoning))
    return attributes


def _openinference(
    attempt: AttemptTrace, trace: RequestTrace, *, operation: str, facts: ProviderFacts, model: str
) -> Attributes:
    if operation == _EMBEDDINGS:
        return [(names.OI_KIND, "EMBEDDING"), (names.OI_EMBEDDING_MODEL, model)]
    attributes: Attributes = [
        (names.OI_KIND, "LLM"),
        (names.OI_MODEL, attempt.model or model),
        (names.OI_PROVIDER, facts.name or attempt.target.provider),
    ]
    parameters = {name.rpartition(".")[2]: value for name, value in _parameters(trace)}
    if parameters:
        attributes.append((names.OI_PARAMETERS, json.encode(parameters).decode()))
    return attributes
