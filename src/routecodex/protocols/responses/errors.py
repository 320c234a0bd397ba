"""Errors in OpenAI's envelope, both ways, and the errors inside Responses answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from routecodex.canon.errors import GatewayError, Kind, LimitExceeded, UpstreamError, UpstreamFailed
from routecodex.protocols.upstream_errors import plain_text, upstream_error
from routecodex.wire import json

_TYPES: dict[Kind, str] = {
    "invalid_request": "invalid_request_error",
    # As OpenAI answers a wrong key: the code tells it from other errors of the request.
    "authentication": "invalid_request_error",
    "permission": "permission_error",
    "not_found": "invalid_request_error",
    "too_large": "invalid_request_error",
    "key_unusable": "invalid_request_error",
    "model_unknown": "invalid_request_error",
    "rate_limit": "rate_limit_error",
    "overloaded": "server_error",
    "timeout": "server_error",
    "api": "server_error",
}

# Codes of failed responses: OpenAI API reference (`ResponseError`), and those the Codex CLI handles.
_STATUS_OF_CODE = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "usage_limit_reached": 429,
    "server_is_overloaded": 529,
    "slow_down": 529,
    "overloaded": 529,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "cyber_policy": 400,
    "bio_policy": 400,
    "vector_store_timeout": 504,
    "invalid_api_key": 401,
}
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    "overloaded_error": 529,
}


class _Error(Struct):
    message: str | None = None
    type: str | None = None
    code: str | int | None = None
    param: str | None = None


class _Envelope(Struct):
    error: _Error | str | None = None
    message: str | None = None
    detail: Any = None


_envelope = Decoder(_Envelope)


def decode_error(status: int, headers: Mapping[str, str], body: bytes, provider: str) -> UpstreamError:
    """Return a provider's error response as a typed error.

    Besides OpenAI's envelope, an `error` text, a top-level `message` and FastAPI's `detail` (vLLM) are read.
    """
    envelope = json.try_read(body, _envelope)
    if envelope is None:
        return upstream_error(status, plain_text(body), provider=provider, headers=headers)
    error = envelope.error
    if not isinstance(error, _Error):
        detail = error or envelope.message or envelope.detail or ""
        message = detail if isinstance(detail, str) else json.encode(detail).decode()
        return upstream_error(status, message, provider=provider, headers=headers)
    return upstream_error(
        status,
        error.message or envelope.message or "",
        provider=provider,
        code=None if error.code is None else str(error.code),
        type=error.type,
        param=error.param,
        headers=headers,
    )


def encode_error(error: GatewayError) -> tuple[int, dict[str, Any]]:
    """Return the status and OpenAI's error envelope, with the gateway's `code` and `details` at the top."""
    envelope: dict[str, Any] = {
        "error": {
            "message": error.message,
            "type": _TYPES[error.kind],
            "param": error.param,
            "code": error.protocol_code or error.code,
        }
    }
    if isinstance(error, LimitExceeded):
        # Codex shows its own text with the time of the reset, and does not retry.
        envelope["error"]["type"] = "usage_limit_reached"
        envelope["error"]["resets_at"] = error.resets_at
    if error.code is not None:
        envelope["code"] = error.code
    if error.details is not None:
        envelope["details"] = error.details
    # Codex retries every status but 400 and 429, and shows the text of a 400.
    return 400 if error.kind == "key_unusable" else error.status, envelope


def unparsable() -> UpstreamFailed:
    """Return the error for a frame larger than the gateway reads."""
    return UpstreamFailed("a frame of the upstream's answer is too large", code="upstream_unparsable")


def answer_error(value: Any) -> UpstreamError:
    """Return the error inside an answer, of a failed response or an `error` event, as a typed error."""
    if not isinstance(value, dict):
        return UpstreamFailed(
            value if isinstance(value, str) and value else "the upstream reported a failure"
        )
    code, kind, message = value.get("code"), value.get("type"), value.get("message")
    code, kind = None if code is None else str(code), kind if isinstance(kind, str) else None
    status = _STATUS_OF_CODE.get(code or "") or _STATUS_OF_TYPE.get(kind or "") or _default_status(code)
    # OpenRouter and others send the HTTP status as `code`.
    if code is not None and len(code) == 3 and code.isdecimal() and 400 <= int(code) < 600:
        status = int(code)
    return upstream_error(
        status,
        message if isinstance(message, str) and message else "the upstream reported a failure",
        provider="upstream",
        code=code,
        type=kind,
        param=value["param"] if isinstance(value.get("param"), str) else None,
    )


def _default_status(code: str | None) -> int:
    """Return 400 for codes about the input (`invalid_image_url`, `image_too_large`, …), else 500."""
    about_input = code is not None and ("image" in code or code.startswith("invalid_"))
    return 400 if about_input else 500
