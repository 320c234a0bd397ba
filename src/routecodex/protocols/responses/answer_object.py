"""The response object: one source for the answer that is streamed and the one that is sent whole."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from routecodex.canon.errors import GatewayError
from routecodex.canon.usage import Usage
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.responses.schema import RequestView
from routecodex.wire import json

_ECHOED: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of the request that its answer repeats, with what the answer says when the request did not."""

_TOLD = frozenset({"insufficient_quota", "context_length_exceeded", "invalid_prompt", "rate_limit_exceeded"})


class ResponseObject:
    """Renders the response object of one answer at any moment of its life.

    `tier` is the service tier that was asked for, until the provider tells the one it used.
    """

    __slots__ = ("_head", "_tail", "id", "tier")

    def __init__(self, reply: ReplyContext) -> None:
        self.id = f"resp_{reply.id}"
        head = {"id": self.id, "object": "response", "created_at": reply.created, "model": reply.model}
        self._head = json.encode(head)[:-1]
        echo = _echo(reply)
        self.tier: Any = echo.pop("service_tier")
        self._tail = json.encode(echo)[1:]

    def render(
        self,
        status: str,
        *,
        output: list[bytes],
        usage: Usage | None = None,
        reason: str | None = None,
        error: GatewayError | None = None,
    ) -> bytes:
        """The object as JSON; `reason` is why it is incomplete, `error` why it failed."""
        state: dict[str, Any] = {
            "status": status,
            "error": None if error is None else error_object(error),
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": None if usage is None else usage_object(usage),
            "output": [Raw(item) for item in output],
            "service_tier": self.tier,
        }
        return b"%b,%b,%b" % (self._head, json.encode(state)[1:-1], self._tail)


def _echo(reply: ReplyContext) -> dict[str, Any]:
    if not isinstance(reply.wire, RequestView):
        return dict(_ECHOED)
    sent = json.read_fields(reply.wire.body)
    return {
        name: sent[name] if name in sent and bytes(sent[name]) != b"null" else default
        for name, default in _ECHOED.items()
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts as Responses tells them; cached tokens are part of the input."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def error_object(error: GatewayError) -> dict[str, str]:
    """An error as the `error` of a failed response; clients act on a few codes only."""
    return {"code": _error_code(error), "message": error.message}


def _error_code(error: GatewayError) -> str:
    if error.code in _TOLD:
        return str(error.code)
    by_kind = {"rate_limit": "rate_limit_exceeded", "invalid_request": "invalid_prompt"}
    return by_kind.get(error.kind, "server_error")
