"""Counts tokens: the upstream's count, or an estimate that errs high.

How many tokens a request has: the upstream's own count, or an estimate that errs high.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

from msgspec import Struct

from routecodex.canon.errors import UpstreamError
from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, Tool
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.gateway.state.reasoning_cache import ReasoningCache
from routecodex.gateway.state.signature_owners import is_ours
from routecodex.protocols import gemini, messages
from routecodex.protocols.codec import EncodeOptions, WireRequest
from routecodex.providers.upstream import Upstream
from routecodex.routing.registry import Registry
from routecodex.routing.route_plan import RoutePlan
from routecodex.wire import json

_BYTES_PER_TOKEN = 3
_MESSAGE_TOKENS = 6
_DIGITS = b"0123456789"
_MEDIA_TOKENS = {"image": 1700, "file": 3000, "audio": 2000, "video": 20_000}


class CountEndpoint(Struct, frozen=True):
    """How a protocol counts: where, with which body (`rewrite`: of its own clients), in which field."""

    path: Callable[[str], str]
    encode: Callable[[Request, EncodeOptions], bytes]
    rewrite: Callable[[WireRequest, EncodeOptions], bytes]
    field: str


_COUNTERS = {
    "messages": CountEndpoint(
        lambda _model: "/v1/messages/count_tokens",
        messages.encode_count,
        messages.rewrite_count,
        "input_tokens",
    ),
    "gemini": CountEndpoint(
        lambda model: gemini.count_path(quote(model, safe="/:@")),
        gemini.encode_count,
        lambda inbound, aim: gemini.rewrite_count(inbound, aim).body,
        "totalTokens",
    ),
}


class CountServices(Protocol):
    """What counting needs of the gateway."""

    @property
    def registry(self) -> Registry: ...
    @property
    def upstreams(self) -> dict[str, Upstream]: ...
    async def plan(self, ask: ClientRequest) -> RoutePlan: ...


async def count(
    parts: CountServices,
    ask: ClientRequest,
    *,
    memory: ReasoningCache | None = None,
    record: RequestRecord | None = None,
) -> int:
    """Tokens of a request, without generating anything; `memory` keeps signatures from other providers."""
    plan = await parts.plan(ask)
    target = plan.steps[0].target
    if record is not None:
        record.target, record.reason, record.session = target, plan.reason, ask.session
    upstream = parts.upstreams.get(target.provider)
    request = ask.codec.decode_request(ask.inbound)
    if upstream is None or upstream.codec.name not in _COUNTERS:
        return estimate(request)
    model = parts.registry.model(target)
    aim = EncodeOptions(
        model=model.id,
        provider=target.provider,
        dialect=upstream.dialect,
        max_output_tokens=model.max_output_tokens,
        vision=model.vision,
        is_ours=(lambda _signature: True) if memory is None else is_ours(memory.makers, target.provider),
    )
    if memory is not None:
        request = memory.recall(request, target.provider)
    try:
        return await _counted(upstream, ask, request, key=target.key, aim=aim)
    except (UpstreamError, ValueError, KeyError, TypeError):
        # A provider without a working counter must not stop an agent that asks before every turn.
        return estimate(request)


async def _counted(
    upstream: Upstream, ask: ClientRequest, request: Request, *, key: str, aim: EncodeOptions
) -> int:
    counter = _COUNTERS[upstream.codec.name]
    same = upstream.codec is ask.codec
    body = counter.rewrite(ask.inbound, aim) if same else counter.encode(request, aim)
    answer = await upstream.call(
        body, key=key, path=counter.path(aim.model), headers=ask.headers if same else None
    )
    return int(json.decode(answer)[counter.field])


def estimate(request: Request) -> int:
    """A count that is rarely below the truth: three bytes or one digit a token, a flat price for media."""
    total = sum(_text(part.text) for part in request.system)
    total += sum(_message(message) for message in request.messages)
    total += sum(_tool(tool) for tool in request.tools)
    return total + _MESSAGE_TOKENS


def estimate_body(body: bytes) -> int:
    """A cheap upper guess from the size of a body alone."""
    return len(body) // _BYTES_PER_TOKEN + 1


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
            return estimate_body(json.encode(part.value))


def _tool(tool: Tool) -> int:
    described = tool.hosted if tool.kind == "hosted" else tool.parameters
    return (
        _text(tool.name) + _text(tool.description) + estimate_body(json.encode(described)) + _MESSAGE_TOKENS
    )
