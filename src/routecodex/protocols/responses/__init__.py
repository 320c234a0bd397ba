"""OpenAI's Responses protocol.

schema            the typed view of a request, and `read`
look              what routing sees of a request
request_decoder   a request in canon; request_encoder and request_items: canon as a request
rewrite           the same-protocol request, nearly verbatim
decoder           the stream as events (heard: items while they are heard; roster: which one is meant)
encoder           events as the stream (items: items while they are written; answer_object: the final object)
answers           whole answers, both ways; relay: the same-protocol stream
errors            the error envelope, both ways
history           earlier turns of a conversation, for `previous_response_id` and submitted tool outputs
"""

from __future__ import annotations

from routecodex.protocols.codec import Codec
from routecodex.protocols.responses.decode_request import decode_request
from routecodex.protocols.responses.decode_stream import StreamDecoder
from routecodex.protocols.responses.encode_request import encode_request
from routecodex.protocols.responses.encode_stream import StreamEncoder
from routecodex.protocols.responses.errors import decode_error, encode_error
from routecodex.protocols.responses.features import features, fingerprint
from routecodex.protocols.responses.relay import Relay
from routecodex.protocols.responses.rewrite import rewrite
from routecodex.protocols.responses.schema import NAME
from routecodex.protocols.responses.validate import validate
from routecodex.protocols.responses.whole import decode_response, encode_response, image_part, relay_response


def path(model: str, stream: bool) -> str:
    """Where a request goes, below the provider's base URL."""
    return "/responses"


CODEC: Codec = Codec(
    name=NAME,
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
    relay=Relay,
    decode_error=decode_error,
    encode_error=encode_error,
    image_part=image_part,
)
