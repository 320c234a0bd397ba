"""Anthropic Messages: the codec of `POST /v1/messages` and `/v1/messages/count_tokens`.

schema           types of requests and stream chunks
validate         reads and checks the request of a client
features         features of a request that routing reads
decode_request   wire request to canonical request
encode_request   canonical request to upstream request
encode_messages  the conversation of an upstream request
rewrite          request from a client of this protocol to an upstream of this protocol
decode_stream    upstream stream to events
encode_stream    events to client stream
relay            stream from an upstream of this protocol to a client of this protocol
whole            answers that are not streamed, both ways and relayed
errors           error envelope, both ways
content          content blocks, names and ids
thinking         thinking settings by model, and signatures
client_quirks    deviations of known clients, by their headers
"""

from __future__ import annotations

from routecodex.protocols.codec import Codec
from routecodex.protocols.messages import (
    decode_request,
    decode_stream,
    encode_request,
    encode_stream,
    errors,
    features,
    relay,
    rewrite,
    validate,
    whole,
)


def _path(_model: str, _stream: bool) -> str:
    return "/v1/messages"


CODEC: Codec = Codec(
    name="messages",
    validate=validate.validate,
    features=features.features,
    openings=validate.openings,
    fingerprint=features.fingerprint,
    decode_request=decode_request.decode_request,
    encode_request=encode_request.encode_request,
    rewrite=rewrite.rewrite,
    path=_path,
    decode_response=whole.decode_response,
    encode_response=whole.encode_response,
    relay_response=whole.relay_response,
    stream_decoder=decode_stream.StreamDecoder,
    stream_encoder=encode_stream.StreamEncoder,
    relay=relay.Relay,
    decode_error=errors.decode_error,
    encode_error=errors.encode_error,
    takes_citation=encode_stream.takes_citation,
)
