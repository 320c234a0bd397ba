"""Google Gemini: the codec of `generateContent`, `streamGenerateContent` and `countTokens`.

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
content          media, grounding, and text for parts that only Gemini has
thinking         thinking settings by model, and thought signatures
field_names      camelCase and snake_case field names, JSON schemas
framing          server-sent events or one JSON array
"""

from __future__ import annotations

from urllib.parse import quote

from routecodex.protocols.codec import Codec
from routecodex.protocols.gemini import (
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


def _path(model: str, stream: bool) -> str:
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/v1beta/models/{quote(model.removeprefix('models/'), safe='/:@')}:{method}"


CODEC: Codec = Codec(
    name="gemini",
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
    # The parsers of Google's SDKs fail on comments; `StreamEncoder.keep_alive` is a chunk without text.
    keep_alive=b"",
    # Gemini clients ignore an error frame inside a stream, not a dropped connection.
    abort_after_error=True,
    image_part=whole.image_part,
    takes_citation=encode_stream.takes_citation,
)
