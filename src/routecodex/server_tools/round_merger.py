"""What the client sees of a turn: the events of all rounds told as one answer.

Calls to server tools are kept back, and so is every end but the last. Texts of two rounds are joined by
exactly one blank line, whatever blocks they stand in: the line breaks that end a text wait until it is known
what follows. Usage is summed over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec.structs import replace

from routecodex.canon.events import (
    AnnotationDelta,
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    SignatureDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Json, Text, ToolCall

VisibleRounds = Literal["all", "last"]
_BLANK = "\n\n"
_BREAKS = "\r\n"


class RoundMerger:
    """One answer out of many rounds; `feed` gives what may be told now, `end` the rest."""

    def __init__(self, is_ours: Callable[[str], bool], *, visible: VisibleRounds = "all") -> None:
        self._is_ours = is_ours
        self._visible = visible
        self._buffer: list[Event] = []
        self._started: Started | None = None
        self._next = 0
        self._places: dict[int, int | None] = {}
        self._texts: set[int] = set()
        self._breaks: dict[int, str] = {}
        self._held: int | None = None
        self._has_text = False
        self._must_join = False
        self._lead = ""
        self._may_go_on = False
        self._calls = False
        self._past = Usage()
        self._counted = False
        self._usage: Usage | None = None
        self.finish: Finish | None = None
        self._extras: dict[str, Json] | None = None
        self.shown = False
        """Whether this round has told the client anything."""

    def begin_round(self, *, seamless: bool = False) -> None:
        """What comes now is another answer of the model; `seamless` goes on in the middle of the last."""
        self._settle_usage()
        self._places = {}
        self._must_join = self._has_text and not seamless
        self._lead = ""
        self._may_go_on = True
        self._calls = False
        self.shown = False
        if self._visible == "last" and not seamless:
            self._forget_round()

    def feed(self, event: Event) -> list[Event]:
        """The events to tell the client now."""
        told = self._text(event) if type(event) is TextDelta else list(self._told(event))
        if self._visible == "last":
            self._buffer.extend(told)
            told = []
        self.shown = self.shown or any(not isinstance(one, Started) for one in told)
        return told

    def end(self) -> list[Event]:
        """The end of the whole answer."""
        self._settle_usage()
        finish = self.finish or Finish("stop")
        if finish.reason == "tool_calls" and not self._calls:
            # It ends after calls of ours alone, which the client has not seen.
            finish = Finish("stop")
        usage = [UsageReported(self._past)] if self._counted else []
        return [*self._buffer, *self._close_all(), *usage, Finished(finish, self._extras)]

    def fail(self, failed: Failed) -> list[Event]:
        """The end of an answer that broke off."""
        return [*self._buffer, *self._close_all(), failed]

    @property
    def usage(self) -> Usage | None:
        """What all rounds so far have cost."""
        if self._usage is None:
            return self._past if self._counted else None
        return self._past + self._usage

    def _told(self, event: Event) -> Iterable[Event]:
        match event:
            case Started():
                if self._started is None:
                    self._started = event
                    yield event
            case UsageReported():
                self._usage = event.usage
            case Finished():
                self.finish, self._extras = event.finish, event.extras
            case Failed():
                raise TypeError("a failure is no part of an answer: see `fail`")
            case PartStarted():
                yield from self._part(event)
            case TextDelta():
                yield from self._text(event)
            case PartFinished():
                yield from self._finished(event)
            case ReasoningDelta() | SignatureDelta() | ArgumentsDelta() | AnnotationDelta():
                place = self._places[event.index]
                if place is not None:
                    yield replace(event, index=place)

    def _part(self, event: PartStarted) -> Iterable[Event]:
        part = event.part
        if isinstance(part, ToolCall) and self._is_ours(part.name):
            self._places[event.index] = None
            return
        self._calls = self._calls or isinstance(part, ToolCall)
        goes_on, self._may_go_on = self._may_go_on, False
        if isinstance(part, Text) and goes_on and self._held is not None:
            self._places[event.index], self._held = self._held, None
        else:
            yield from self._close_held()
            place = self._places[event.index] = self._next
            self._next += 1
            if not isinstance(part, Text):
                yield PartStarted(place, part)
                return
            self._texts.add(place)
            yield PartStarted(place, replace(part, text=""))
        if part.text:
            yield from self._text(TextDelta(event.index, part.text))

    def _text(self, event: TextDelta) -> list[Event]:
        place = self._places[event.index]
        if place is None:
            return []
        if place not in self._texts:
            return [replace(event, index=place)]
        text, breaks = event.text, self._breaks.pop(place, "")
        if self._must_join:
            text, breaks = self._joined(text), _BLANK
            self._must_join = not text
        if not text and not event.logprobs:
            self._breaks[place] = "" if self._must_join else breaks
            return []
        whole = breaks + text
        kept = whole.rstrip(_BREAKS)
        if len(kept) != len(whole):
            self._breaks[place] = whole[len(kept) :]
        if not kept and not event.logprobs:
            return []
        self._has_text = self._has_text or bool(kept)
        return [TextDelta(place, kept, event.logprobs)]

    def _joined(self, text: str) -> str:
        """The text from its first line that is not blank; nothing while there is none yet."""
        self._lead += text
        words = self._lead.lstrip()
        if not words:
            return ""
        blank = self._lead[: len(self._lead) - len(words)]
        self._lead = ""
        return blank[max(blank.rfind("\n"), blank.rfind("\r")) + 1 :] + words

    def _finished(self, event: PartFinished) -> Iterable[Event]:
        place = self._places[event.index]
        if place is None:
            return
        if place not in self._texts:
            yield PartFinished(place)
            return
        # A text is not closed yet: the next round may go on in it.
        yield from self._close_held()
        self._held = place

    def _close_held(self) -> Iterable[Event]:
        if self._held is None:
            return
        place, self._held = self._held, None
        breaks = self._breaks.pop(place, "")
        if breaks and not self._must_join:
            yield TextDelta(place, breaks)
        yield PartFinished(place)

    def _close_all(self) -> Iterable[Event]:
        """What an end may leave open: the text held back, and its line breaks."""
        self._must_join = False
        return self._close_held()

    def _settle_usage(self) -> None:
        if self._usage is not None:
            self._past, self._usage, self._counted = self._past + self._usage, None, True

    def _forget_round(self) -> None:
        self._buffer = [event for event in self._buffer if isinstance(event, Started)]
        self._next, self._held = 0, None
        self._texts.clear()
        self._breaks.clear()
        self._has_text = self._must_join = self._may_go_on = False
