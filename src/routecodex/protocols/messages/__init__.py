"""Anthropic messages: the codec for `POST /v1/messages`.

schema        the request's shape; `read` and `validate_count` validate it
look          what routing sees of a request
incoming      decode_request: a client's request as the canonical one
outgoing      encode_request: the canonical request as a messages one (conversation, media, thoughts, schemas)
rewrite       the same-protocol request, nearly byte for byte
count         requests for token counts
answers       whole answers: decode, encode, pass
decoder       a stream as events
encoder       events as a stream
relay         a stream for a client of the same protocol
errors        the error envelope, both ways
clients       which clients need `message_stop` after a tool turn, and which know `refusal`
"""

from __future__ import annotations

from routecodex.protocols.codec import Codec
from routecodex.protocols.messages.client_quirks import ends_with_message_stop, knows_refusal
from routecodex.protocols.messages.content import NAME
from routecodex.protocols.messages.decode_request import decode_request
from routecodex.protocols.messages.decode_stream import StreamDecoder
from routecodex.protocols.messages.encode_request import encode_count, encode_request, rewrite_count
from routecodex.protocols.messages.encode_stream import StreamEncoder
from routecodex.protocols.messages.errors import decode_error, encode_error
from routecodex.protocols.messages.features import features, fingerprint
from routecodex.protocols.messages.relay import Relay
from routecodex.protocols.messages.rewrite import rewrite
from routecodex.protocols.messages.validate import validate, validate_count
from routecodex.protocols.messages.whole import decode_response, encode_response, relay_response

__all__ = [
    "CODEC",
    "encode_count",
    "ends_with_message_stop",
    "knows_refusal",
    "rewrite_count",
    "validate_count",
]


def _path(_model: str, _stream: bool) -> str:
    return "/v1/messages"


CODEC: Codec = Codec(
    name=NAME,
    validate=validate,
    features=features,
    fingerprint=fingerprint,
    decode_request=decode_request,
    encode_request=encode_request,
    rewrite=rewrite,
    path=_path,
    decode_response=decode_response,
    encode_response=encode_response,
    relay_response=relay_response,
    stream_decoder=StreamDecoder,
    stream_encoder=StreamEncoder,
    relay=Relay,
    decode_error=decode_error,
    encode_error=encode_error,
)
