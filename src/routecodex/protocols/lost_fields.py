"""What could not be said in the other protocol: collected while encoding, shown to the client."""

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
"""Fields that only speak to their own server, or that the gateway acted on: nothing is lost with them."""

_HARMLESS = frozenset(
    {
        "caller",
        "created_by",
        "eager_input_streaming",
        "id",
        "logprobs",
        "parsed_arguments",
        "responses.item",
        "source",
        "status",
        "thought",
        "thoughtSignature",
        "type",
        "wrapper",
    }
)
"""Fields of parts and tools that mean nothing elsewhere, or that the codecs keep for themselves."""

_IN_PARTS_TOO = frozenset({"cache_control", "content", "title"})
"""What a block that is kept whole, as its type among the fields tells, says in its parts as well."""

_PROVIDER_STATE = ("conversation", "prompt")
"""Fields of Responses that stand for what its provider keeps: without it, the request is another one."""

_NOTHING: tuple[Json, ...] = (None, False, "", [], {}, {"enabled": False})
_PARTS, _EXTRAS = attrgetter("parts"), attrgetter("extras")
_NAMES: dict[type, str] = {Tool: "tool", Text: "text", ToolCall: "call", ToolResult: "result"}


def lost_fields(request: Request) -> list[str]:
    """Fields of parts and tools that only the request's own protocol has, each once: `tool.defer_loading`."""
    parts = list(chain.from_iterable(map(_PARTS, request.messages)))
    results = [part.parts for part in parts if type(part) is ToolResult]
    lost: dict[str, None] = {}
    for holder in filter(_EXTRAS, chain(request.tools, request.system, parts, *results)):
        lost |= dict.fromkeys(_named(holder))
    return list(lost)


def _named(holder: Any) -> list[str]:
    # What goes elsewhere of a thought is its text, and where it does not go there is a notice of its own.
    if isinstance(holder, Reasoning):
        return []
    what = _NAMES.get(type(holder)) or holder.kind
    known = _HARMLESS | _IN_PARTS_TOO if "type" in holder.extras else _HARMLESS
    fields = holder.extras.items()
    return [f"{what}.{name}" for name, value in fields if name not in known and value not in _NOTHING]


def reject_provider_state(request: Request) -> None:
    """Refuses a request that means something only its own provider keeps."""
    if request.source != "responses" or not request.extras:
        return
    for field in _PROVIDER_STATE:
        if field in request.extras:
            raise BadRequest(
                f"{field}: only a provider that speaks Responses can have it; send what it stands for",
                param=field,
                code="unsupported_value",
            )
