"""The contract of a codec: four protocols cost four of these, not sixteen.

Client side (we are the server):      read, look, opening, decode_request, encode_response, stream_encoder,
                                      encode_error
Provider side (we are the client):    encode_request, decode_response, stream_decoder, decode_error
Same protocol on both sides:          rewrite (request), relay (stream), pass_response

Events are primary: `decode_response` gives what `stream_decoder` would have told, `encode_response` what
`stream_encoder` would have written; both directions share one mapping. Nothing here does IO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from routecodex.canon.errors import GatewayError, UpstreamError
from routecodex.canon.events import Event, TextDelta, Usage
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Media, Opaque
from routecodex.canon.request import ProtocolName, Request, RequestFeatures
from routecodex.canon.response import Response
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.text_batches import StreamItem, batched


class WireRequest:
    """A client's request as it came: the bytes, the codec's typed view of them, and what the path said.

    Where the view is one without its long texts (cuts.py), it was read from `outline`, made of `uncut`. It is
    `untagged` where it is known that nothing in it is said to the gateway.
    """

    __slots__ = (
        "body",
        "include_usage",
        "model",
        "outline",
        "protocol",
        "stream",
        "uncut",
        "untagged",
        "view",
    )

    def __init__(
        self,
        protocol: ProtocolName,
        body: bytes,
        *,
        view: Any,
        model: str,
        stream: bool,
        include_usage: bool = True,
        uncut: bytes = b"",
        outline: bytes = b"",
        untagged: bool = False,
    ) -> None:
        self.protocol: Final = protocol
        self.body: Final = body
        self.view: Final = view
        self.model: Final = model
        self.stream: Final = stream
        self.include_usage: Final = include_usage
        self.uncut: Final = uncut
        self.outline: Final = outline
        self.untagged: Final = untagged

    def with_body(self, body: bytes) -> WireRequest:
        """The same request in other bytes: its view and its outline stay those of what came."""
        return WireRequest(
            self.protocol,
            body,
            view=self.view,
            model=self.model,
            stream=self.stream,
            include_usage=self.include_usage,
            uncut=self.uncut,
            outline=self.outline,
            untagged=self.untagged,
        )

    def keys(self) -> bytes:
        """An outline of the body; empty where there is none of it as it is now."""
        return self.outline if self.uncut is self.body else b""


def _always(_signature: str) -> bool:
    return True


def _never(_signature: str) -> bool:
    return False


def _in_words(_media: Media) -> Opaque | None:
    return None


_PLAIN: Final = Dialect()


@dataclass(frozen=True, kw_only=True)
class EncodeOptions:
    """What an encoder must know of the upstream a request is bound for."""

    model: str
    provider: str
    dialect: Dialect = _PLAIN
    max_output_tokens: int | None = None
    vision: bool = True
    is_ours: Callable[[str], bool] = _always
    """Whether an unsealed signature may go there: False when another provider is known to have made it."""
    made_here: Callable[[str], bool] = _never
    """Whether this very value came from there, seal and all: another gateway of ours may stand there."""


class EncodedRequest:
    """A request body for an upstream; `notices` name what could not be said there (`dropped top_k`)."""

    __slots__ = ("body", "notices")

    def __init__(self, body: bytes, notices: tuple[str, ...] = ()) -> None:
        self.body: Final = body
        self.notices: Final = notices

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncodedRequest) and (self.body, self.notices) == (other.body, other.notices)

    def __repr__(self) -> str:
        return f"Encoded({self.body!r}, {self.notices!r})"


class ReplyContext:
    """What an encoder must know of the client it answers.

    `id` is a fresh hex id from which each codec makes its own ids. `request` is the canonical request.
    `view` is the codec's typed view of the request (Responses echoes parts of it). `end_tool_turn` says
    whether a tool turn on messages ends with `message_stop`. `provider` seals signatures (see seals.py).
    `input_tokens` estimates the prompt, for upstreams that report no usage.
    """

    __slots__ = (
        "created",
        "end_tool_turn",
        "id",
        "include_usage",
        "input_tokens",
        "knows_refusal",
        "model",
        "provider",
        "request",
        "view",
    )

    def __init__(
        self,
        *,
        id: str,
        created: int,
        model: str,
        provider: str = "",
        request: Request | None = None,
        view: Any = None,
        include_usage: bool = True,
        end_tool_turn: bool = True,
        knows_refusal: bool = True,
        input_tokens: int = 0,
    ) -> None:
        self.id = id
        self.created = created
        self.model = model
        self.provider = provider
        self.request = request
        self.view = view
        self.include_usage = include_usage
        self.end_tool_turn = end_tool_turn
        self.knows_refusal = knows_refusal
        self.input_tokens = input_tokens


class AnswerOutcome:
    """What an answer came to, for logs and metrics; filled while it passes."""

    __slots__ = (
        "body",
        "empty",
        "error",
        "finish",
        "model",
        "response_id",
        "sent_finish",
        "signatures",
        "usage",
    )

    def __init__(
        self,
        *,
        model: str = "",
        response_id: str = "",
        finish: Finish | None = None,
        sent_finish: str = "",
        usage: Usage | None = None,
        signatures: list[str] | None = None,
        body: bytes | None = None,
        empty: bool = False,
    ) -> None:
        self.model = model
        self.response_id = response_id
        self.finish = finish
        self.sent_finish = sent_finish
        self.usage = usage
        self.error: GatewayError | None = None
        self.signatures: list[str] = [] if signatures is None else signatures
        self.body = body
        """Responses only: the final response object as JSON, for the history."""
        self.empty = empty
        """The answer has neither a word nor a call; of a stream, that nothing at all came before its end."""


KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment of server-sent events: clients skip it, proxies see a live connection."""


class StreamDecoder(Protocol):
    """Turns provider bytes into events; one Finished or Failed ends them, at `close` at the latest."""

    def feed(self, data: bytes) -> Sequence[Event]:
        """Return the events of the frames that these bytes complete."""
        ...

    def close(self) -> Sequence[Event]:
        """Return the last events; a stream that ended too early gives Failed."""
        ...

    def decode_batches(self, data: bytes) -> Sequence[StreamItem]:
        """Return the events of `feed` with consecutive texts as batches; override where that is cheaper."""
        return batched(self.feed(data))


class StreamEncoder(Protocol):
    """Turns events into client bytes; after Finished or Failed the bytes are complete."""

    keep_alive: bytes = KEEP_ALIVE
    """Sent while nothing happens: a frame without content where the protocol's clients reject comments."""
    final_body: bytes | None = None
    """The whole answer as JSON after Finished, where clients can fetch it later (Responses)."""

    def encode(self, event: Event) -> bytes:
        """Return the frames of one event."""
        ...

    def add_texts(self, index: int, texts: Sequence[str]) -> bytes:
        """Return the frames of one TextDelta per text; override where writing many at once is cheaper."""
        return b"".join([self.encode(TextDelta(index, text)) for text in texts])


class Pipe(Protocol):
    """Provider bytes in, client bytes out: a `relay` (same protocol) or a `Translation`.

    `started` turns True when there is content (then what was held comes out); until then an upstream failure
    is raised by `feed`/`close` as UpstreamError, so that the next target can be tried. Afterwards failures
    come out as the protocol's own error event and stand in `outcome.error`. `ended`: nothing more will come.
    """

    started: bool
    ended: bool
    outcome: AnswerOutcome

    def feed(self, data: bytes) -> bytes: ...
    def close(self) -> bytes: ...
    def fail(self, error: GatewayError) -> bytes:
        """The protocol's own error event, for a stream that has begun and cannot go on."""
        ...


@dataclass(frozen=True)
class Codec:
    """One protocol, as functions."""

    name: ProtocolName
    validate: Callable[..., WireRequest]
    """validate(body, *, model=None, stream=None): validates types and names the wrong field (BadRequest)."""
    features: Callable[[WireRequest], RequestFeatures]
    """What routing goes by; cheap enough for every request, however large."""
    fingerprint: Callable[[WireRequest], bytes]
    """Bytes that stay the same for a whole conversation: its system text and its first words."""
    decode_request: Callable[[WireRequest], Request]
    encode_request: Callable[[Request, EncodeOptions], EncodedRequest]
    rewrite: Callable[[WireRequest, EncodeOptions], EncodedRequest]
    """The same-protocol request: only what must change is changed, the rest is byte for byte as it came."""
    path: Callable[[str, bool], str]
    """path(model, stream): where the request goes, below the provider's base URL."""
    decode_response: Callable[[bytes], Sequence[Event]]
    encode_response: Callable[[Response, ReplyContext], bytes]
    relay_response: Callable[[bytes, ReplyContext], tuple[bytes, AnswerOutcome]]
    """The same-protocol answer: as it came, its finish put right if it lied; UpstreamFailed if it is none."""
    stream_decoder: Callable[[], StreamDecoder]
    stream_encoder: Callable[[ReplyContext], StreamEncoder]
    relay: Callable[[ReplyContext], Pipe]
    decode_error: Callable[[int, Mapping[str, str], bytes, str], UpstreamError]
    """decode_error(status, headers, body, provider): a provider's refusal as a typed error."""
    encode_error: Callable[[GatewayError], tuple[int, dict[str, Any]]]
    """The HTTP status and the protocol's own envelope, with `code` and `details` at the top level."""
    image_part: Callable[[Media], Opaque | None] = _in_words
    """A part of an answer that holds this image; None where answers have no place for it."""
    keep_alive: bytes = KEEP_ALIVE
    """What may be sent while nothing happens; empty where the protocol has nothing for it."""
    abort_after_error: bool = False
    """Whether a broken stream must also drop its connection, because clients ignore the error event."""
