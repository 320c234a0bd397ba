"""The contract of a codec: four protocols need four codecs, not sixteen conversions.

Client side:                  validate, features, fingerprint, decode_request, encode_response,
                              stream_encoder, encode_error
Provider side:                encode_request, path, decode_response, stream_decoder, decode_error
Same protocol on both sides:  rewrite (request), relay (stream), relay_response

`decode_response` returns the events that `stream_decoder` would return for the same answer, so streams and
whole answers share one mapping. Codecs do no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from routecodex.canon.errors import GatewayError, UpstreamError
from routecodex.canon.events import Event, Failed, TextDelta, Usage
from routecodex.canon.finish import Finish
from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json, Media, Opaque
from routecodex.canon.request import ProtocolName, Request, RequestFeatures, RequestOpenings
from routecodex.canon.response import Response
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.text_batches import StreamItem, batched
from routecodex.wire.sse import KEEP_ALIVE


class WireRequest:
    """A client's request: its bytes, the codec's typed view of them, and model and stream from body or path.

    The view of a large body lacks its long texts (large_body.py): it was read from `outline`, which was made
    of `original`. `lacks_tags`: the body is known to have no instruction tags. `messages` is the list of its
    messages as `user_text` has read it.
    """

    __slots__ = (
        "body",
        "include_usage",
        "lacks_tags",
        "messages",
        "model",
        "original",
        "outline",
        "protocol",
        "stream",
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
        original: bytes = b"",
        outline: bytes = b"",
        lacks_tags: bool = False,
    ) -> None:
        self.protocol: Final = protocol
        self.body: Final = body
        self.view: Final = view
        self.model: Final = model
        self.stream: Final = stream
        self.include_usage: Final = include_usage
        self.original: Final = original
        self.outline: Final = outline
        self.lacks_tags: Final = lacks_tags
        self.messages: Any = None

    def with_body(self, body: bytes) -> WireRequest:
        """Return the request with another body; its view and outline stay those of the original."""
        return self._changed(body, self.view)

    def with_view(self, view: Any) -> WireRequest:
        """Return the request with another view of the same body."""
        return self._changed(self.body, view)

    def _changed(self, body: bytes, view: Any) -> WireRequest:
        return WireRequest(
            self.protocol,
            body,
            view=view,
            model=self.model,
            stream=self.stream,
            include_usage=self.include_usage,
            original=self.original,
            outline=self.outline,
            lacks_tags=self.lacks_tags,
        )

    def current_outline(self) -> bytes:
        """Return the outline if it is that of the body, else empty bytes."""
        return self.outline if self.original is self.body else b""


class OpeningHeads:
    """First characters of the openings that show a role: most texts are known by theirs not to be one.

    Openings are compared without letter case and without white space before them, so a text that begins with
    white space, an invisible character, or in JSON an escape, may be any of them. `exact` are whole texts.
    """

    __slots__ = ("_longer", "_rejected", "_size", "_verdicts")

    def __init__(self, openings: Sequence[str], exact: Sequence[str] = ()) -> None:
        known = [opening.lower().encode() for opening in openings] + [f'{text}"'.encode() for text in exact]
        size = min([_LONGEST_HEAD, *map(len, known)])
        longer: dict[bytes, tuple[bytes, ...]] = {}
        for opening in known:
            head = opening[:size]
            longer[head] = (*longer.get(head, ()), opening[:_COMPARED])
        self._size: Final = size
        self._longer: Final = longer
        self._verdicts: Final = _verdicts(known)
        """A verdict for each pair of first characters, at the offset that they make."""
        self._rejected = b""
        """The text rejected last: the requests of an agent have the same system text."""

    def admit(self, text: str) -> bool:
        """Return whether the text may begin with an opening."""
        return self.admit_raw(b'"%b"' % text[:_COMPARED].encode("utf-8", "replace"))

    def admit_raw(self, text: bytes) -> bool:
        """Return whether a text may begin with an opening, by the first bytes of its JSON string."""
        if len(text) < _SHORTEST_TEXT:
            return False
        verdict = self._verdicts[text[1] << 8 | text[2]]
        if verdict != _COMPARE:
            return verdict == _ADMIT
        if text == self._rejected:
            return False
        start = text[1 : _COMPARED + 1].lower()
        longer = self._longer.get(start[: self._size])
        if longer is not None and start.startswith(longer):
            return True
        self._rejected = text
        return False


def _verdicts(openings: Sequence[bytes]) -> bytes:
    """Return the verdicts on texts by their first two characters, without letter case."""
    verdicts = bytearray(1 << 16)
    for first in range(256):
        if first <= _SPACE or first > _ASCII or first == _BACKSLASH:
            verdicts[first << 8 : (first + 1) << 8] = bytes([_ADMIT]) * 256
    for opening, verdict in [*((opening, _COMPARE) for opening in openings), (_CLIENT_HEADER, _ADMIT)]:
        for first in opening[:1].lower() + opening[:1].upper():
            for second in opening[1:2].lower() + opening[1:2].upper() or range(256):
                verdicts[first << 8 | second] = verdict
    return bytes(verdicts)


_ADMIT: Final = 1
_COMPARE: Final = 2
_LONGEST_HEAD: Final = 12
_COMPARED: Final = 48
_SHORTEST_TEXT: Final = 4
_SPACE: Final = 0x20
_BACKSLASH: Final = 0x5C
_ASCII: Final = 0x7F
_CLIENT_HEADER: Final = b"x-"
"""Claude Code puts a header line before a system text."""


def _always(_signature: str) -> bool:
    return True


def _never(_signature: str) -> bool:
    return False


def _no_image(_media: Media) -> Opaque | None:
    return None


def _any_citation(_annotation: Json) -> bool:
    return True


_PLAIN: Final = Dialect()

CodexItems: TypeAlias = Literal["native", "kept", "plain"]
"""`native`: as they came; `kept`: without the internals; `plain`: as functions and messages."""


@dataclass(frozen=True, kw_only=True)
class EncodeOptions:
    """Facts of the upstream that an encoder needs."""

    model: str
    provider: str
    dialect: Dialect = _PLAIN
    max_output_tokens: int | None = None
    vision: bool = True
    billing_header: bool = True
    """Whether Claude Code's billing header may be sent: only Anthropic knows it."""
    codex_items: CodexItems = "native"
    """The form in which a Responses upstream gets Codex's own tools and items."""
    accepts_signature: Callable[[str], bool] = _always
    """Whether an unsealed signature may be sent: False if another provider is known to have made it."""
    issued_signature: Callable[[str], bool] = _never
    """Whether this value, with its seal, came from the upstream: that may be another RouteCodex."""


class EncodedRequest:
    """Body and notices for an upstream; the notices name dropped fields."""

    __slots__ = ("body", "notices")

    def __init__(self, body: bytes, notices: tuple[str, ...] = ()) -> None:
        self.body: Final = body
        self.notices: Final = notices

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncodedRequest) and (self.body, self.notices) == (other.body, other.notices)

    def __repr__(self) -> str:
        return f"EncodedRequest({self.body!r}, {self.notices!r})"


class ReplyContext:
    """Facts of the client that an encoder needs.

    `id` is a fresh hex id from which each codec derives its ids. `request` is the canonical request, `view`
    the codec's typed view of it (Responses echoes some fields). `provider` seals signatures.
    `message_stop_after_calls`: a tool turn on messages ends with `message_stop`. `knows_refusal`: the client
    knows the stop reason `refusal`. `input_tokens` estimates the prompt for upstreams that report no usage.
    `clock` returns the time in seconds (Responses reports when an answer was completed).
    """

    __slots__ = (
        "clock",
        "created",
        "id",
        "include_usage",
        "input_tokens",
        "knows_refusal",
        "message_stop_after_calls",
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
        message_stop_after_calls: bool = True,
        knows_refusal: bool = True,
        input_tokens: int = 0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.id = id
        self.created = created
        self.clock = clock
        self.model = model
        self.provider = provider
        self.request = request
        self.view = view
        self.include_usage = include_usage
        self.message_stop_after_calls = message_stop_after_calls
        self.knows_refusal = knows_refusal
        self.input_tokens = input_tokens

    def now(self) -> int:
        """Return the time in seconds; without a clock, that of the request."""
        return self.created if self.clock is None else int(self.clock())


class AnswerOutcome:
    """Finish, usage and errors of one answer, for logs and metrics; filled while it passes."""

    __slots__ = (
        "body",
        "empty",
        "error",
        "finish",
        "lost",
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
        """The answer has neither text nor a call; of a stream: its end came first."""
        self.lost: Notices | None = None
        """Parts of a stream that were dropped after its headers had been sent."""


class StreamDecoder(Protocol):
    """Turns provider bytes into events; one Finished or Failed ends them, at `close` at the latest."""

    def feed(self, data: bytes) -> Sequence[Event]:
        """Return the events of the frames that these bytes complete."""
        ...

    def close(self) -> Sequence[Event]:
        """Return the last events; a stream that ended too early gives Failed."""
        ...

    def fail(self, error: GatewayError) -> Sequence[Event]:
        """Return the last events of a stream that broke: Finished if the finish had arrived, else Failed."""
        return (Failed(error),)

    def reported(self) -> Usage | None:
        """Return the counts that the provider has reported and that no event has had yet."""
        return None

    def decode_batches(self, data: bytes) -> Sequence[StreamItem]:
        """Return the events of `feed` with consecutive texts as batches; override where that is cheaper."""
        return batched(self.feed(data))


class StreamEncoder(Protocol):
    """Turns events into client bytes; after Finished or Failed the bytes are complete."""

    written: int = 0
    """Characters of content so far, for estimates."""

    final_body: bytes | None = None
    """The whole answer as JSON after Finished, where clients can fetch it later (Responses)."""

    # A property: mypyc does not set a default that is not a literal.
    @property
    def keep_alive(self) -> bytes:
        """Bytes for a silent stream: a comment, or a frame without content if clients fail on comments."""
        return KEEP_ALIVE

    def encode(self, event: Event) -> bytes:
        """Return the frames of one event."""
        ...

    def add_texts(self, index: int, texts: Sequence[str]) -> bytes:
        """Return the frames of one TextDelta per text; override where writing many at once is cheaper."""
        return b"".join([self.encode(TextDelta(index, text)) for text in texts])


class Pipe(Protocol):
    """Turns provider bytes into client bytes: a relay (same protocol) or a `Translation`.

    `started` becomes True with the first content, which releases the held frames. Until then `feed` and
    `close` raise a failure of the upstream as UpstreamError, so that the next target can be tried. Afterwards
    they return the protocol's error event and set `outcome.error`. `ended`: the client bytes are complete.
    """

    @property
    def started(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def outcome(self) -> AnswerOutcome: ...
    def feed(self, data: bytes) -> bytes: ...
    def close(self) -> bytes: ...
    def fail(self, error: GatewayError) -> bytes:
        """Return the last bytes of a stream that has started and cannot continue.

        They are the protocol's error event, unless the finish had arrived: then the answer is complete.
        """
        ...

    def observed(self) -> Usage:
        """Return the usage so far, of a stream that was cut off or reported none.

        Input is what the provider has reported, else an estimate. Output is the larger of what it has
        reported and an estimate of the content so far.
        """
        ...


@dataclass(frozen=True)
class Codec:
    """One protocol, as functions."""

    name: ProtocolName
    validate: Callable[..., WireRequest]
    """validate(body, *, model=None, stream=None): checks types; BadRequest names the wrong field."""
    features: Callable[[WireRequest], RequestFeatures]
    """Features that routing reads; cheap for requests of any size."""
    openings: Callable[[WireRequest, OpeningHeads], RequestOpenings]
    """Texts that may show the role of a request, by their first characters; called for every request."""
    fingerprint: Callable[[WireRequest], bytes]
    """Bytes that stay the same for a whole conversation: its system text and first user texts."""
    decode_request: Callable[[WireRequest], Request]
    encode_request: Callable[[Request, EncodeOptions], EncodedRequest]
    rewrite: Callable[[WireRequest, EncodeOptions], EncodedRequest]
    """The request for an upstream of the same protocol; all bytes that need no change stay."""
    path: Callable[[str, bool], str]
    """path(model, stream): the path below the provider's base URL."""
    decode_response: Callable[[bytes], Sequence[Event]]
    encode_response: Callable[[Response, ReplyContext], bytes]
    relay_response: Callable[[bytes, ReplyContext], tuple[bytes, AnswerOutcome]]
    """The answer of an upstream of the same protocol, with a wrong finish corrected; raises UpstreamError."""
    stream_decoder: Callable[[], StreamDecoder]
    stream_encoder: Callable[[ReplyContext], StreamEncoder]
    relay: Callable[[ReplyContext], Pipe]
    decode_error: Callable[[int, Mapping[str, str], bytes, str], UpstreamError]
    """decode_error(status, headers, body, provider): the error response of a provider as a typed error."""
    encode_error: Callable[[GatewayError], tuple[int, dict[str, Any]]]
    """HTTP status and error envelope of the protocol, with `code` and `details` at the top level."""
    image_part: Callable[[Media], Opaque | None] = _no_image
    """A part of an answer with this image; None if answers of the protocol cannot have images."""
    takes_citation: Callable[[Json], bool] = _any_citation
    """Whether answers of the protocol can have this citation, which may come from another protocol."""
    keep_alive: bytes = KEEP_ALIVE
    """Sent on a relayed stream without data; empty if clients fail on comments."""
    abort_after_error: bool = False
    """Whether a broken stream must also drop its connection, because clients ignore error events."""
