"""Encodes and decodes chat's error envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routecodex.canon.errors import GatewayError, Kind, LimitExceeded, UpstreamError
from routecodex.protocols.upstream_errors import plain_text, upstream_error
from routecodex.wire import json, sse

_TYPES: dict[Kind, str] = {
    "invalid_request": "invalid_request_error",
    # As OpenAI answers a wrong key: the code tells it from other errors of the request.
    "authentication": "invalid_request_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "too_large": "invalid_request_error",
    "key_unusable": "upstream_error",
    "model_unknown": "invalid_request_error",
    "rate_limit": "rate_limit_error",
    "overloaded": "overloaded_error",
    "timeout": "timeout_error",
    "api": "api_error",
}


def error_object(error: GatewayError) -> dict[str, Any]:
    """Return the `error` object of a response or of a stream's last chunk."""
    code = error.protocol_code or error.code
    return {"message": error.message, "type": _type(error), "param": error.param, "code": code}


def _type(error: GatewayError) -> str:
    if not isinstance(error, LimitExceeded):
        return _TYPES[error.kind]
    # As OpenAI answers: an account without credit, or the kind of limit that is used.
    return "insufficient_quota" if error.code == "budget_exceeded" else error.counts


def encode_error(error: GatewayError) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the envelope for a chat client."""
    body: dict[str, Any] = {"error": error_object(error)}
    if error.code is not None:
        body["code"] = error.code
    if error.details is not None:
        body["details"] = error.details
    return error.status, body


def error_frame(error: GatewayError) -> bytes:
    """Return the frame that ends a broken stream."""
    return sse.frame(json.encode(encode_error(error)[1]))


def decode_error(status: int, headers: Mapping[str, str], body: bytes, provider: str) -> UpstreamError:
    """Decode the error response of a chat provider."""
    try:
        value = json.decode(body)
    except ValueError:
        return upstream_error(status, plain_text(body), provider=provider, headers=headers)
    error = (value.get("error") or value) if isinstance(value, dict) else value
    return typed_error(status, error, provider=provider, headers=headers)


def typed_error(
    status: int, error: Any, *, provider: str, headers: Mapping[str, str] | None = None
) -> UpstreamError:
    """Return the typed error for an `error` value of any shape.

    Inside a response of status 200 the error's own numeric code is the status, as OpenRouter sends it in a
    stream. `detail` is FastAPI's field (vLLM and other Python servers).
    """
    if not isinstance(error, dict):
        return upstream_error(status, str(error), provider=provider, headers=headers)
    message = error.get("message") or error.get("detail") or error.get("msg") or ""
    code, kind, param = error.get("code"), error.get("type"), error.get("param")
    if isinstance(code, int) and 400 <= code < 600 and status < 400:
        status = code
    return upstream_error(
        status if status >= 400 else 502,
        message if isinstance(message, str) else json.encode(message).decode(),
        provider=provider,
        code=code if isinstance(code, str) else None,
        type=kind if isinstance(kind, str) else None,
        param=param if isinstance(param, str) else None,
        headers=headers,
    )


def is_chat_error(error: Any) -> bool:
    """Whether an `error` value has the shape that chat clients read, and can be relayed unchanged."""
    return isinstance(error, dict) and all(
        isinstance(error.get(field), str) and error[field] for field in ("message", "type")
    )
