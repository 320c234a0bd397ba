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

from .answers import decode_response, encode_response, pass_response, show
from .decoder import Decoder
from .encoder import Encoder
from .errors import decode_error, encode_error
from .look import look, opening
from .relay import Relay
from .request_decoder import decode_request
from .request_encoder import encode_request
from .rewrite import rewrite
from .schema import NAME, read


def path(model: str, stream: bool) -> str:
    """Where a request goes, below the provider's base URL."""
    return "/responses"


CODEC: Codec = Codec(
    name=NAME,
    read=read,
    look=look,
    opening=opening,
    decode_request=decode_request,
    encode_request=encode_request,
    rewrite=rewrite,
    path=path,
    decode_response=decode_response,
    encode_response=encode_response,
    pass_response=pass_response,
    stream_decoder=Decoder,
    stream_encoder=Encoder,
    relay=Relay,
    decode_error=decode_error,
    encode_error=encode_error,
    show=show,
)
