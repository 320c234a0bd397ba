"""Fields of a request that another protocol does not have."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import Any

from routecodex.canon.errors import BadRequest
from routecodex.canon.parts import Json, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Request, Tool

SERVER_HINTS = frozenset(
    {
        "anthropic_beta",
        "anthropic_version",
        "background",
        "betas",
        "client_metadata",
        "include",
        "previous_response_id",
        "store",
        "stream_options",
    }
)
"""Fields for the provider's own server, or handled by the gateway: they are dropped without a notice."""

_HARMLESS = frozenset(
    {
        "caller",
        "created_by",
        "eager_input_streaming",
        "encrypted_function_args",
        "id",
        "internal_chat_message_metadata_passthrough",
        "logprobs",
        "parsed_arguments",
        "responses.declaration",
        "responses.item",
        "source",
        "status",
        "thought",
        "thoughtSignature",
        "type",
        "wrapper",
    }
)
"""Fields of parts and tools without meaning in another protocol, or kept by the codecs for themselves."""

_IN_PARTS_TOO = frozenset({"cache_control", "content", "title"})
"""Fields of a block with its type among its extras, whose contents its parts have too."""

_PROVIDER_STATE = ("conversation", "prompt")
"""Fields of Responses that refer to data stored at OpenAI; the request is incomplete without it."""

_NOTHING: tuple[Json, ...] = (None, False, "", [], {}, {"enabled": False})
_PARTS, _EXTRAS = attrgetter("parts"), attrgetter("extras")
_NAMES: dict[type, str] = {Tool: "tool", Text: "text", ToolCall: "call", ToolResult: "result"}


def lost_fields(request: Request) -> list[str]:
    """Return fields of parts and tools that only the request's protocol has, as `tool.defer_loading`."""
    parts = list(chain.from_iterable(map(_PARTS, request.messages)))
    results = [part.parts for part in parts if type(part) is ToolResult]
    lost: dict[str, None] = {}
    for holder in filter(_EXTRAS, chain(request.tools, request.system, parts, *results)):
        lost |= dict.fromkeys(_field_names(holder))
    return list(lost)


def _field_names(holder: Any) -> list[str]:
    # Other protocols get only the text of reasoning; if that is dropped, it has its own notice.
    if isinstance(holder, Reasoning):
        return []
    prefix = _NAMES.get(type(holder)) or holder.kind
    known = _HARMLESS | _IN_PARTS_TOO if "type" in holder.extras else _HARMLESS
    fields = holder.extras.items()
    return [f"{prefix}.{name}" for name, value in fields if name not in known and value not in _NOTHING]


def reject_provider_state(request: Request) -> None:
    """Reject a request that refers to data stored at its own provider."""
    if request.source != "responses" or not request.extras:
        return
    for field in _PROVIDER_STATE:
        if field in request.extras:
            raise BadRequest(
                f"{field}: it refers to data stored at a Responses provider; send the data itself",
                param=field,
                code="unsupported_value",
            )
