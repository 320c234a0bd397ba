"""countTokens: a generateContent request, counted instead of answered."""

from __future__ import annotations

from msgspec import Raw

from routecodex.canon.request import Request
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.gemini.outgoing import encode_body
from routecodex.protocols.gemini.rewriting import rewrite
from routecodex.protocols.gemini.schema import RequestView
from routecodex.protocols.gemini.spelling import camel
from routecodex.protocols.notices import Notices
from routecodex.wire import json


def encode_count(request: Request, aim: EncodeOptions) -> bytes:
    """The body of a countTokens request for a request in canon."""
    body = {"model": _resource(aim.model), **encode_body(request, aim, notices=Notices())}
    return json.encode({"generateContentRequest": body})


def rewrite_count(inbound: WireRequest, aim: EncodeOptions) -> EncodedRequest:
    """A Gemini client's countTokens request for a Gemini provider."""
    view: RequestView = inbound.wire
    rewritten = rewrite(inbound, aim)
    fields = json.read_fields(rewritten.body)
    if not view.counted and fields.keys() == {"contents"}:
        return rewritten
    named = {"model": Raw(json.encode(_resource(aim.model))), **_without_twins(fields)}
    return EncodedRequest(json.encode({"generateContentRequest": named}), rewritten.notices)


def encode_total(tokens: int) -> bytes:
    """The answer to a countTokens request."""
    return json.encode({"totalTokens": tokens})


def decode_total(body: bytes) -> int | None:
    """The count a provider gave, or None when its answer holds none."""
    try:
        value = json.decode(body)
    except ValueError:
        return None
    total = value.get("totalTokens") if isinstance(value, dict) else None
    return total if isinstance(total, int) else None


def count_path(model: str) -> str:
    """Where a countTokens request goes, below the provider's base URL."""
    return f"/v1beta/{_resource(model)}:countTokens"


def _without_twins(fields: dict[str, Raw]) -> dict[str, Raw]:
    """The fields by their camelCase names: one spelling, so that none is said twice."""
    return {camel(name): value for name, value in fields.items()}


def _resource(model: str) -> str:
    return f"models/{model.removeprefix('models/')}"
