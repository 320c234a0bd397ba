"""Counts tokens: the upstream's count, or an estimate that errs high."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from msgspec import Struct

from routecodex.canon.errors import UpstreamError
from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, Tool
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.gateway.services import GatewayServices
from routecodex.protocols.codec import EncodeOptions, WireRequest
from routecodex.protocols.gemini import encode_request as gemini
from routecodex.protocols.messages import encode_request as messages
from routecodex.providers.upstream import trace_headers
from routecodex.routing.route_plan import RoutePlan
from routecodex.routing.tokens import estimate_by_size
from routecodex.wire import json

_BYTES_PER_TOKEN = 3
_MESSAGE_TOKENS = 6
_DIGITS = b"0123456789"
_MEDIA_TOKENS = {"image": 1700, "file": 3000, "audio": 2000, "video": 20_000}


class CountEndpoint(Struct, frozen=True):
    """The counting endpoint of a protocol: its path, its bodies, and the field of the count."""

    path: Callable[[str], str]
    encode: Callable[[Request, EncodeOptions], bytes]
    rewrite: Callable[[WireRequest, EncodeOptions], bytes]
    field: str


_ENDPOINTS = {
    "messages": CountEndpoint(
        lambda _model: "/v1/messages/count_tokens",
        messages.encode_count,
        messages.rewrite_count,
        "input_tokens",
    ),
    "gemini": CountEndpoint(
        lambda model: gemini.count_path(quote(model, safe="/:@")),
        gemini.encode_count,
        lambda request, options: gemini.rewrite_count(request, options).body,
        "totalTokens",
    ),
}


async def count(
    services: GatewayServices,
    request: ClientRequest,
    plan: RoutePlan,
    *,
    record: RequestRecord | None = None,
    estimates: bool = False,
) -> int:
    """Count the tokens of a request for the first target of its plan, without generating anything.

    With `estimates` no provider is asked: a message of instructions alone leaves nothing to count.
    """
    target = plan.steps[0].target
    if record is not None:
        record.target, record.reason, record.session = target, plan.reason, request.session
    canonical = request.canonical()
    prepared = services.prepare(target)
    if estimates or not isinstance(prepared, PreparedTarget) or prepared.codec.name not in _ENDPOINTS:
        return estimate(canonical)
    unknown = services.reasoning.unknown_calls(canonical, request.owner)
    if unknown:
        await services.reasoning.learn(unknown, request.owner)
    canonical = prepared.fit(services.reasoning.recall(canonical, target.provider, request.owner))
    try:
        return await _count_upstream(prepared, request, canonical)
    except (UpstreamError, ValueError, KeyError, TypeError):
        # Agents count before every turn: a provider without a working counter must not stop them.
        return estimate(canonical)


async def _count_upstream(prepared: PreparedTarget, request: ClientRequest, canonical: Request) -> int:
    endpoint, options = _ENDPOINTS[prepared.codec.name], prepared.options
    same = prepared.codec is request.codec
    body = endpoint.rewrite(request.wire, options) if same else endpoint.encode(canonical, options)
    answer = await prepared.upstream.call(
        body,
        key=prepared.target.key,
        path=endpoint.path(options.model),
        headers=request.headers if same else None,
        trace=trace_headers(request.headers) if request.trace is None else request.trace.lines(),
    )
    return int(json.decode(answer)[endpoint.field])


def estimate(request: Request) -> int:
    """Estimate tokens and err high: three bytes or one digit a token, a flat price for media."""
    total = sum(_text(part.text) for part in request.system)
    total += sum(_message(message) for message in request.messages)
    total += sum(_tool(tool) for tool in request.tools)
    return total + _MESSAGE_TOKENS


def _text(text: str | None) -> int:
    data = (text or "").encode("utf-8", "surrogatepass")
    # Many tokenizers give every digit a token of its own.
    digits = len(data) - len(data.translate(None, _DIGITS))
    return (len(data) - digits) // _BYTES_PER_TOKEN + digits + 1


def _message(message: Message) -> int:
    return _MESSAGE_TOKENS + sum(_part(part) for part in message.parts)


def _part(part: Part) -> int:
    match part:
        case Text() | Refusal() | Reasoning():
            return _text(part.text)
        case ToolCall():
            return _text(part.name) + _text(part.arguments) + _MESSAGE_TOKENS
        case ToolResult():
            return _MESSAGE_TOKENS + sum(_part(inner) for inner in part.parts)
        case Media():
            return _text(part.text) if part.text is not None else _MEDIA_TOKENS[part.kind]
        case Opaque():
            return estimate_by_size(json.encode(part.value))


def _tool(tool: Tool) -> int:
    described = tool.hosted if tool.kind == "hosted" else tool.parameters
    return (
        _text(tool.name)
        + _text(tool.description)
        + estimate_by_size(json.encode(described))
        + _MESSAGE_TOKENS
    )
