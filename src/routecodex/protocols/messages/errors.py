"""Encodes and decodes the messages error envelope: `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routecodex.canon.errors import GatewayError, Kind, UpstreamError, UpstreamFailed, UpstreamOverloaded
from routecodex.canon.parts import Json
from routecodex.protocols import upstream_errors
from routecodex.wire import json, sse

_TYPES: dict[Kind, str] = {
    "invalid_request": "invalid_request_error",
    "authentication": "authentication_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "key_unusable": "api_error",
    "model_unknown": "not_found_error",
    "rate_limit": "rate_limit_error",
    "overloaded": "overloaded_error",
    "timeout": "timeout_error",
    "api": "api_error",
}
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_OVERLOADED = 529
UNNAMED_PROVIDER = "upstream"


def encode_error(error: GatewayError) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the envelope for a messages client."""
    status = _OVERLOADED if isinstance(error, UpstreamOverloaded) else error.status
    envelope: dict[str, Any] = {
        "type": "error",
        "error": {"type": _TYPES[error.kind], "message": error.message},
    }
    if error.code is not None:
        envelope["code"] = error.code
    if error.details is not None:
        envelope["details"] = error.details
    return status, envelope


def error_frame(error: GatewayError) -> bytes:
    """Return the `error` event that ends a broken stream."""
    return sse.frame(json.encode(encode_error(error)[1]), b"error")


def decode_error(status: int, headers: Mapping[str, str], body: bytes, provider: str) -> UpstreamError:
    """Decode the error response of a provider, with any envelope or none."""
    try:
        value = json.decode(body)
    except ValueError:
        value = None
    message, type, code = _error_fields(value)
    return upstream_errors.upstream_error(
        status,
        message or ("" if value is not None else upstream_errors.plain_text(body)),
        provider=provider,
        code=code,
        type=type,
        headers=headers,
    )


def typed_error(error: Json, *, provider: str) -> UpstreamError:
    """Return the typed error for an `error` object in a stream or an answer."""
    message, type, code = _error_fields({"error": error})
    status = _STATUSES.get(type or "", 500)
    return upstream_errors.upstream_error(
        status,
        message or "the provider gave no reason",
        provider=provider or UNNAMED_PROVIDER,
        code=code,
        type=type,
    )


def unparsable(subject: str = "the upstream's answer") -> UpstreamFailed:
    """Return the error for a response that is not messages."""
    return UpstreamFailed(f"{subject} is not a messages answer", code="upstream_unparsable")


def _error_fields(value: Json) -> tuple[str, str | None, str | None]:
    """Return (message, type, code) from any envelope; `detail` is FastAPI's field."""
    if not isinstance(value, dict):
        return (value if isinstance(value, str) else ""), None, None
    inner = value.get("error")
    if isinstance(inner, str):
        inner = {"message": inner}
    if not isinstance(inner, dict):
        inner = value
    found = next((inner[name] for name in ("message", "detail", "error") if inner.get(name)), "")
    message = found if isinstance(found, str) else json.encode(found).decode()
    return message, _nonempty(inner.get("type")), _nonempty(inner.get("code"))


def _nonempty(value: Json) -> str | None:
    return value if isinstance(value, str) and value else None
