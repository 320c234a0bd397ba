"""Converts a stream between protocols: decoder, events, encoder.

Parts that only the provider's protocol has are replaced for clients of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import (
    AnnotationDelta,
    AnswerPart,
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartStarted,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json, Media, Opaque, Reasoning, Text, ToolCall
from routecodex.canon.response import Response
from routecodex.protocols.codec import AnswerOutcome, Codec, StreamDecoder, StreamEncoder
from routecodex.protocols.text_batches import StreamItem, TextBatch


def replace_foreign_part(event: PartStarted, client: Codec, outcome: AnswerOutcome) -> PartStarted:
    """Return the event with a part that the client's protocol has; note in the outcome if it is dropped."""
    before = event.part
    if not isinstance(before, Opaque):
        return event
    part = _replaced(before, client)
    if _is_lost(before, part, client):
        _note_loss(outcome, _name(before), f"answers of {client.name} cannot have it")
    return event if part is before else PartStarted(event.index, part)


def note_lost_citation(event: AnnotationDelta, client: Codec, outcome: AnswerOutcome) -> None:
    """Note in the outcome if the client's protocol cannot have a citation."""
    if not client.takes_citation(event.annotation):
        _note_loss(outcome, "citations", f"answers of {client.name} cannot have them")


def _note_loss(outcome: AnswerOutcome, part: str, reason: str) -> None:
    outcome.lost = outcome.lost or Notices()
    outcome.lost.dropped(part, reason)


def replace_foreign_parts(response: Response, client: Codec) -> tuple[Response, tuple[str, ...]]:
    """Return the answer in parts that the client's protocol has, and notices of the dropped ones."""
    notices = Notices()
    if _lost_citations(response.parts, client):
        notices.dropped("citations", f"answers of {client.name} cannot have them")
    if not any(_is_foreign(part, client) for part in response.parts):
        return response, notices.lines()
    parts = tuple(_replaced(part, client) for part in response.parts)
    for before, after in zip(response.parts, parts, strict=True):
        if isinstance(before, Opaque) and _is_lost(before, after, client):
            notices.dropped(_name(before), f"answers of {client.name} cannot have it")
    return replace(response, parts=parts), notices.lines()


def cited_page(annotation: Json) -> tuple[str, str] | None:
    """Return URL and title of the page that an annotation of any protocol cites; None if it names none.

    Chat nests them under `url_citation`; a search result of messages has its URL in `source`.
    """
    if not isinstance(annotation, dict):
        return None
    nested = annotation.get("url_citation")
    fields = nested if isinstance(nested, dict) else annotation
    url, title = fields.get("url"), fields.get("title")
    if url is None and str(fields.get("source")).startswith(("https://", "http://")):
        url = fields["source"]
    return (url, title if isinstance(title, str) else "") if isinstance(url, str) and url else None


def _lost_citations(parts: Iterable[AnswerPart], client: Codec) -> bool:
    texts = (part for part in parts if isinstance(part, Text))
    return any(not client.takes_citation(citation) for text in texts for citation in text.annotations)


def _is_foreign(part: AnswerPart, client: Codec) -> bool:
    return isinstance(part, Opaque) and part.protocol != client.name


def _replaced(part: AnswerPart, client: Codec) -> AnswerPart:
    if not isinstance(part, Opaque) or part.protocol == client.name or part.instead is None:
        return part
    if isinstance(part.instead, Text):
        return part.instead
    return client.image_part(part.instead) or Text(_placeholder(part.instead))


def _is_lost(before: Opaque, after: AnswerPart, client: Codec) -> bool:
    return _is_foreign(after, client) or (isinstance(after, Text) and isinstance(before.instead, Media))


def _placeholder(media: Media) -> str:
    size = f", {(len(media.data) * 3 // 4 + 1023) // 1024} KB" if media.data else ""
    return f"[{media.kind} omitted: {media.url or media.media_type or 'of no known type'}{size}]"


def _name(part: Opaque) -> str:
    """Return the name of the part in its own protocol."""
    if not isinstance(part.value, dict):
        return "part"
    kind = part.value.get("type")
    named = (name for name, value in part.value.items() if isinstance(value, dict))
    return kind if isinstance(kind, str) else next(named, "part")


_CONTENT = (TextDelta, ReasoningDelta, ArgumentsDelta, Finished)


class Translation:
    """A Pipe between two protocols; lifecycle events are held until there is content.

    `watch` is called with every event, but of a batch of texts only with the first. With `client`, the codec
    of the encoder, parts that only the provider's protocol has are replaced. `input_tokens` estimates the
    input.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        encoder: StreamEncoder,
        *,
        watch: Callable[[Event], None] | None = None,
        client: Codec | None = None,
        input_tokens: int = 0,
    ) -> None:
        self.started = False
        self.ended = False
        self.outcome = AnswerOutcome()
        self._decoder = decoder
        self._encoder = encoder
        self._watch = watch
        self._client = client
        self._input_tokens = input_tokens
        self._held: list[Event] = []

    def feed(self, data: bytes) -> bytes:
        return self.encode(self._decoder.decode_batches(data))

    def close(self) -> bytes:
        return self.encode(self._decoder.close())

    def fail(self, error: GatewayError) -> bytes:
        if self.ended:
            return b""
        last = self._decoder.fail(error)
        if last and isinstance(last[-1], Finished):
            return self.encode(last)
        self.ended = True
        self.outcome.error = error
        return self._encoder.encode(Failed(error))

    def observed(self) -> Usage:
        reported = self._decoder.reported() or self.outcome.usage
        output = output_estimate(self._encoder.written)
        return observed_usage(reported, input_tokens=self._input_tokens, output_tokens=output)

    def encode(self, items: Sequence[StreamItem]) -> bytes:
        """Return the client bytes of these events; for providers that yield events without a stream."""
        out: list[bytes] = []
        for item in items:
            if self.ended:
                break
            out.append(self._texts(item) if isinstance(item, TextBatch) else self._event(item))
        return b"".join(out)

    def _texts(self, batch: TextBatch) -> bytes:
        if self.started:
            return self._encoder.add_texts(batch.index, batch.texts)
        first = self._event(TextDelta(batch.index, batch.texts[0]))
        others = batch.texts[1:]
        return first + self._encoder.add_texts(batch.index, others) if others else first

    def _event(self, event: Event) -> bytes:
        if self._watch is not None:
            self._watch(event)
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            event = handler(self, event)
        if self.started:
            return self._encode(event)
        self._held.append(event)
        if not is_content(event):
            return b""
        self.started = True
        held, self._held = self._held, []
        return b"".join([self._encode(event) for event in held])

    def _encode(self, event: Event) -> bytes:
        out = self._encoder.encode(event)
        if type(event) is Finished:
            self.outcome.body = self._encoder.final_body
        return out

    def _note_start(self, event: Started) -> Event:
        self.outcome.model = event.model
        self.outcome.response_id = event.id
        return event

    def _note_part(self, event: PartStarted) -> Event:
        return event if self._client is None else replace_foreign_part(event, self._client, self.outcome)

    def _note_annotation(self, event: AnnotationDelta) -> Event:
        if self._client is not None:
            note_lost_citation(event, self._client, self.outcome)
        return event

    def _note_usage(self, event: UsageReported) -> Event:
        self.outcome.usage = event.usage
        return event

    def _note_finish(self, event: Finished) -> Event:
        self.ended = True
        self.outcome.finish = event.finish
        self.outcome.empty = not self.started and not any(map(_has_content, self._held))
        return event

    def _note_failure(self, event: Failed) -> Event:
        """Raise an error before content, so that the next target is tried."""
        if not self.started:
            raise event.error
        self.ended = True
        self.outcome.error = event.error
        return event


_HANDLERS: dict[type[Event], Callable[[Translation, Any], Event]] = {
    Started: Translation._note_start,
    PartStarted: Translation._note_part,
    AnnotationDelta: Translation._note_annotation,
    UsageReported: Translation._note_usage,
    Finished: Translation._note_finish,
    Failed: Translation._note_failure,
}
"""Handlers that fill the outcome; each returns the event to encode."""


def is_content(event: Event) -> bool:
    """Whether the event has content of the answer: from then on no other target is tried."""
    if isinstance(event, PartStarted):
        return isinstance(event.part, ToolCall)
    return isinstance(event, _CONTENT)


def _has_content(event: Event) -> bool:
    """Whether a part has content from its start: a text that is not empty, a call or an opaque part."""
    if not isinstance(event, PartStarted):
        return False
    return bool(event.part.text) if isinstance(event.part, Text) else not isinstance(event.part, Reasoning)


def estimated_usage(input_tokens: int, written_chars: int) -> Usage:
    """Return an estimate that errs high, for an upstream that reported no usage."""
    return Usage(input=input_tokens, output=written_chars // 3 + 1, estimated=True)


def output_estimate(written_chars: int) -> int:
    """Return the tokens of an unfinished answer, an estimate that errs high; 0 without content."""
    return written_chars // 3 + 1 if written_chars > 0 else 0


def observed_usage(reported: Usage | None, *, input_tokens: int, output_tokens: int) -> Usage:
    """Return the usage of an unfinished answer from the counts reported so far and from estimates.

    Output counts reported early are placeholders: Anthropic's `message_start` has 1.
    """
    if reported is None:
        return Usage(input=input_tokens, output=output_tokens, estimated=True)
    if reported.input > 0 and reported.output >= output_tokens:
        return reported
    return replace(
        reported,
        input=reported.input or input_tokens,
        output=max(reported.output, output_tokens),
        cost=None,
    )


SERVICE_TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast", "ultrafast"})
"""Service tiers that OpenAI's SDKs know."""


def used_tier(extras: dict[str, Json] | None) -> str | None:
    """Return the service tier that the provider reports, or None.

    A provider's own name for a tier (`on_demand` of Groq) is `default`; Snowflake sends an empty text.
    """
    tier = (extras or {}).get("service_tier")
    if not isinstance(tier, str) or not tier:
        return None
    return tier if tier in SERVICE_TIERS else "default"
