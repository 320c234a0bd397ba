"""Reads the sampling parameters of a request from its typed view, for traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from routecodex.protocols.codec import WireRequest
from routecodex.telemetry.request_trace import NO_PARAMETERS, RequestParameters


def _of_chat(view: Any) -> RequestParameters:
    fields = view.fields
    limit = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    return limit, fields.temperature, fields.top_p


def _of_responses(view: Any) -> RequestParameters:
    typed = view.typed
    return typed.max_output_tokens, typed.temperature, typed.top_p


def _of_gemini(view: Any) -> RequestParameters:
    options = view.body.generation_config
    if options is None:
        return NO_PARAMETERS
    return options.max_output_tokens, options.temperature, options.top_p


def _of_messages(view: Any) -> RequestParameters:
    return view.max_tokens, view.temperature, view.top_p


_READERS: dict[str, Callable[[Any], RequestParameters]] = {
    "chat": _of_chat,
    "responses": _of_responses,
    "messages": _of_messages,
    "gemini": _of_gemini,
}


def parameters_of(wire: WireRequest) -> RequestParameters:
    """Return `max_tokens`, `temperature` and `top_p` as the client sent them."""
    return _READERS[wire.protocol](wire.view)
