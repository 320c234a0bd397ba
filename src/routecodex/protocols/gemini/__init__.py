"""Google's Gemini protocol: generateContent, streamGenerateContent and countTokens.

reading     bytes of a client, checked (`read`, `validate_count`); schema and spelling are its tables
look        what routing sees of a request
requests    a request in canon's words
outgoing    canon as a request; contents is the conversation, models what each generation takes
media       images, sounds and files; json_schema: schemas of tools and of structured output
rewriting   the request of a Gemini client for a Gemini provider
counting    countTokens, both ways
decoder     a provider's answer as events; chunks are its pieces
grounding   what an answer was found on, as citations
showing     what clients of other protocols get for parts of an answer that only Gemini has
encoder     events as a client's answer
relay       an answer from Gemini to Gemini
framing     events or a JSON array: `JsonArray` writes what clients without `alt=sse` read
errors      Google's error envelope, both ways
marks       thought signatures on this wire
"""

from __future__ import annotations

from urllib.parse import quote

from routecodex.protocols.codec import Codec
from routecodex.protocols.gemini.decode_request import decode_request
from routecodex.protocols.gemini.decode_stream import StreamDecoder
from routecodex.protocols.gemini.encode_request import count_path, encode_count, encode_request, rewrite_count
from routecodex.protocols.gemini.encode_stream import StreamEncoder
from routecodex.protocols.gemini.errors import decode_error, encode_error
from routecodex.protocols.gemini.features import features, fingerprint
from routecodex.protocols.gemini.framing import JsonArray
from routecodex.protocols.gemini.relay import relay
from routecodex.protocols.gemini.rewrite import rewrite
from routecodex.protocols.gemini.validate import validate, validate_count
from routecodex.protocols.gemini.whole import (
    decode_response,
    decode_total,
    encode_response,
    encode_total,
    relay_response,
)

__all__ = [
    "CODEC",
    "JsonArray",
    "count_path",
    "decode_total",
    "encode_count",
    "encode_total",
    "path",
    "rewrite_count",
    "validate_count",
]


def path(model: str, stream: bool) -> str:
    """Where a request goes, below the provider's base URL."""
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/v1beta/models/{quote(model.removeprefix('models/'), safe='/:@')}:{method}"


CODEC: Codec = Codec(
    name="gemini",
    validate=validate,
    features=features,
    fingerprint=fingerprint,
    decode_request=decode_request,
    encode_request=encode_request,
    rewrite=rewrite,
    path=path,
    decode_response=decode_response,
    encode_response=encode_response,
    relay_response=relay_response,
    stream_decoder=StreamDecoder,
    stream_encoder=StreamEncoder,
    relay=relay,
    decode_error=decode_error,
    encode_error=encode_error,
    keep_alive=b"",
    abort_after_error=True,
)
"""The protocol as functions; nothing may stand between an answer's frames but a frame of its encoder."""
