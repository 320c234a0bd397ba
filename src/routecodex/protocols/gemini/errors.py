"""Errors in Google's envelope, `{"error": {"code", "message", "status", "details"}}`, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routecodex.canon.errors import GatewayError, Kind, UpstreamError
from routecodex.canon.parts import Json
from routecodex.protocols.upstream_errors import plain_text, upstream_error
from routecodex.wire import json

_RPC = "type.googleapis.com/google.rpc."
_MAX_WAIT = 60
_STATUS: dict[Kind, str] = {
    "invalid_request": "INVALID_ARGUMENT",
    "authentication": "UNAUTHENTICATED",
    "permission": "PERMISSION_DENIED",
    "not_found": "NOT_FOUND",
    "too_large": "INVALID_ARGUMENT",
    "key_unusable": "FAILED_PRECONDITION",
    "model_unknown": "NOT_FOUND",
    "rate_limit": "RESOURCE_EXHAUSTED",
    "overloaded": "UNAVAILABLE",
    "timeout": "DEADLINE_EXCEEDED",
    "api": "INTERNAL",
}
_HTTP = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


def encode_error(error: GatewayError) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the envelope; `error` is first, where Google's Python SDK looks for it."""
    body: dict[str, Any] = {
        "code": error.status,
        "message": error.message,
        "status": _STATUS[error.kind],
    }
    details = _details(error)
    if details:
        body["details"] = details
    envelope: dict[str, Any] = {"error": body}
    if error.code is not None:
        envelope["code"] = error.code
    if error.details is not None:
        envelope["details"] = error.details
    return error.status, envelope


def _details(error: GatewayError) -> list[Json]:
    details: list[Json] = []
    if error.param is not None:
        violation = {"field": error.param, "description": error.message}
        details.append({"@type": f"{_RPC}BadRequest", "fieldViolations": [violation]})
    if error.retry_after is not None:
        delay = f"{min(error.retry_after, _MAX_WAIT):g}s"
        details.append({"@type": f"{_RPC}RetryInfo", "retryDelay": delay})
    return details


def decode_error(status: int, headers: Mapping[str, str], body: bytes, provider: str) -> UpstreamError:
    """Return a provider's error response as a typed error."""
    try:
        value = json.decode(body)
    except ValueError:
        value = None
    error = error_object(value)
    if error is None:
        return upstream_error(status, plain_text(body), provider=provider, headers=headers)
    return typed_error(error, status=status, provider=provider, headers=headers)


def error_object(value: Json) -> dict[str, Json] | None:
    """Return the error in a body: an object, or a list with one, which Google sends for streaming calls."""
    if isinstance(value, list) and value:
        value = value[0]
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else None


def typed_error(
    error: dict[str, Json],
    *,
    status: int | None = None,
    provider: str = "gemini",
    headers: Mapping[str, str] | None = None,
) -> UpstreamError:
    """Return Google's error object as a typed error; without an HTTP status its own code applies."""
    status_name = error.get("status")
    status_name = status_name if isinstance(status_name, str) else None
    message = error.get("message")
    text = message if isinstance(message, str) else ""
    listed = error.get("details")
    details = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    http = status or _http(error.get("code"), status_name)
    code = status_name if 400 <= http < 500 and http != 429 else None
    # Google answers an invalid key with status 400, not 401.
    bad_key = any(item.get("reason") == "API_KEY_INVALID" for item in details)
    if bad_key or (http == 400 and text.startswith("API key ")):
        code = "API_KEY_INVALID"
    typed = upstream_error(http, text, provider=provider, code=code, type=status_name, headers=headers)
    if typed.retry_after is None:
        typed.retry_after = _retry_delay(details)
    return typed


def _http(code: Json, status_name: str | None) -> int:
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return _HTTP.get(status_name or "", 500)


def _retry_delay(details: list[dict[str, Json]]) -> float | None:
    for item in details:
        delay = item.get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s"):
            try:
                return max(0.0, float(delay[:-1]))
            except ValueError:
                return None
    return None
