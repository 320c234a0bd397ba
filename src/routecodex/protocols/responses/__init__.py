"""OpenAI Responses: the codec of `POST /v1/responses`.

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
content          content parts, citations and log probabilities
decode_items     output items of an upstream stream
codex_items      Codex's own tools and items, and their plain forms
encode_calls     items of tool calls for a client
encode_items     output items and the response object for a client
history          earlier turns, for `previous_response_id` and submitted tool outputs
"""

from __future__ import annotations

from routecodex.protocols.codec import Codec
from routecodex.protocols.responses import (
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
    return "/responses"


CODEC: Codec = Codec(
    name="responses",
    validate=validate.validate,
    features=features.features,
    openings=features.openings,
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
    image_part=whole.image_part,
    takes_citation=encode_stream.takes_citation,
)
