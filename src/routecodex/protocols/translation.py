"""Provider bytes in one protocol, client bytes in another: a decoder and an encoder joined by events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import (
    ArgumentsAdded,
    Event,
    Failed,
    Finished,
    PartStarted,
    ReasoningAdded,
    Started,
    TextAdded,
    UsageReported,
)
from routecodex.canon.parts import Reasoning, Text, ToolCall
from routecodex.canon.usage import Usage

from .codec import Outcome, StreamDecoder, StreamEncoder

_CONTENT = (TextAdded, ReasoningAdded, ArgumentsAdded, Finished)


class Translation:
    """A Pipe between two protocols; lifecycle events are held until there is content."""

    def __init__(
        self,
        decoder: StreamDecoder,
        encoder: StreamEncoder,
        *,
        watch: Callable[[Event], None] | None = None,
    ) -> None:
        self.started = False
        self.ended = False
        self.outcome = Outcome()
        self._decoder = decoder
        self._encoder = encoder
        self._watch = watch
        self._held: list[Event] = []
        self._add_texts: Callable[[int, Sequence[str]], bytes] | None = getattr(encoder, "add_texts", None)

    def feed(self, data: bytes) -> bytes:
        return self.tell(self._decoder.feed(data))

    def close(self) -> bytes:
        return self.tell(self._decoder.close())

    def fail(self, error: GatewayError) -> bytes:
        if self.ended:
            return b""
        self.ended = True
        self.outcome.error = error
        return self._encoder.encode(Failed(error))

    def tell(self, events: Sequence[Event]) -> bytes:
        """The client bytes for these events; for a source that speaks events by itself."""
        out: list[bytes] = []
        at, count = 0, len(events)
        while at < count and not self.ended:
            event = events[at]
            if type(event) is TextAdded and self.started and self._add_texts is not None:
                texts = _texts_from(events, at, event.index)
                if len(texts) > 1:
                    out.append(self._add_texts(event.index, texts))
                    at += len(texts)
                    continue
            at += 1
            self._note(event)
            if not self.started:
                self._held.append(event)
                if not is_content(event):
                    continue
                self.started = True
                out.extend(map(self._encode, self._held))
                self._held = []
                continue
            out.append(self._encode(event))
        return b"".join(out)

    def _encode(self, event: Event) -> bytes:
        out = self._encoder.encode(event)
        if type(event) is Finished:
            # Only an answer that can be fetched again later has a final object: Responses.
            self.outcome.body = getattr(self._encoder, "final", None)
        return out

    def _note(self, event: Event) -> None:
        """Keeps what logs and history need; an error before any content is raised, not encoded."""
        if self._watch is not None:
            self._watch(event)
        if type(event) is TextAdded:
            return
        match event:
            case Started():
                self.outcome.model = event.model
                self.outcome.response_id = event.id
            case UsageReported():
                self.outcome.usage = event.usage
            case Finished():
                self.ended = True
                self.outcome.finish = event.finish
                self.outcome.empty = not self.started and not any(map(_says_something, self._held))
            case Failed():
                if not self.started:
                    raise event.error
                self.ended = True
                self.outcome.error = event.error
            case _:
                pass


def _texts_from(events: Sequence[Event], at: int, index: int) -> list[str]:
    """The texts of the plain TextAdded events of one part that follow each other from here."""
    texts: list[str] = []
    for event in events[at:] if at else events:
        if type(event) is not TextAdded or event.index != index or event.logprobs:
            break
        texts.append(event.text)
    return texts


def is_content(event: Event) -> bool:
    """Whether the event tells something of the answer itself: from then on it is the client's."""
    if isinstance(event, PartStarted):
        return isinstance(event.part, ToolCall)
    return isinstance(event, _CONTENT)


def _says_something(event: Event) -> bool:
    """Whether a part that began is content by itself: a text with words in it, or a thing of its own."""
    if not isinstance(event, PartStarted):
        return False
    return bool(event.part.text) if isinstance(event.part, Text) else not isinstance(event.part, Reasoning)


def estimated_usage(input_tokens: int, written_chars: int) -> Usage:
    """Usage for an upstream that reported none; errs high."""
    return Usage(input=input_tokens, output=written_chars // 3 + 1, estimated=True)
