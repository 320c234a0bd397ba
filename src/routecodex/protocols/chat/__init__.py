"""OpenAI chat completions.

schema         the shape of a request;  reading  one read, into a `view`;  checking  what must be right in it
fast_validate  validates messages and tools without decoding them; only in C
look           what routing sees of a request
requests       a client's request as canon
outgoing       a canonical request for an upstream; `conversation` is its messages, `content` what they hold
passing        a chat request for a chat upstream, nearly verbatim
stream_schema  the shape of what upstreams send;  chunks  it read, tolerantly
decoder        chunks → events;  encoder  events → chunks;  answers  whole completions both ways
annotations    citations of whatever protocol, as chat says them
calls          which call a piece of a stream belongs to
relay          chat stream → chat stream, scanned and not rebuilt
ends, meter    what the relay makes of a finish, and of usage that nobody counted
errors         the error envelope, both ways
"""

from __future__ import annotations

from routecodex.protocols.chat import (
    decode_request,
    encode_request,
    errors,
    features,
    rewrite,
    validate,
    whole,
)
from routecodex.protocols.chat.decode_stream import StreamDecoder
from routecodex.protocols.chat.encode_stream import StreamEncoder
from routecodex.protocols.chat.relay import Relay
from routecodex.protocols.codec import Codec


def _path(_model: str, _stream: bool) -> str:
    return "/chat/completions"


CODEC: Codec = Codec(
    name="chat",
    validate=validate.validate,
    features=features.features,
    fingerprint=features.fingerprint,
    decode_request=decode_request.decode_request,
    encode_request=encode_request.encode_request,
    rewrite=rewrite.rewrite,
    path=_path,
    decode_response=whole.decode_response,
    encode_response=whole.encode_response,
    relay_response=whole.relay_response,
    stream_decoder=StreamDecoder,
    stream_encoder=StreamEncoder,
    relay=Relay,
    decode_error=errors.decode_error,
    encode_error=errors.encode_error,
    image_part=whole.image_part,
)
