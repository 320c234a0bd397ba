"""Merges the rounds of a turn into one answer for the client.

Server-tool calls are hidden, and so is the end of every round but the last. Texts of two rounds are joined by
exactly one blank line, in whatever parts they are: trailing line breaks of a text are held until the next
event. Usage is summed over the rounds.
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
    """One answer from many rounds; `feed` returns the events to send now, `end` the rest."""

    def __init__(self, is_server_tool: Callable[[str], bool], *, visible: VisibleRounds = "all") -> None:
        self._is_server_tool = is_server_tool
        self._visible = visible
        self._buffer: list[Event] = []
        self._started: Started | None = None
        self._next = 0
        self._indexes: dict[int, int | None] = {}
        self._texts: set[int] = set()
        self._breaks: dict[int, str] = {}
        self._open_text: int | None = None
        self._has_text = False
        self._needs_blank_line = False
        self._lead = ""
        self._can_extend = False
        self._calls = False
        self._past_usage = Usage()
        self._counted = False
        self._usage: Usage | None = None
        self.finish: Finish | None = None
        self._extras: dict[str, Json] | None = None
        self.shown = False
        """Whether this round has sent the client any content."""

    def begin_round(self, *, seamless: bool = False) -> None:
        """Start the next round; `seamless` continues the last text without a blank line."""
        self._add_round_usage()
        self._indexes = {}
        self._needs_blank_line = self._has_text and not seamless
        self._lead = ""
        self._can_extend = True
        self._calls = False
        self.shown = False
        if self._visible == "last" and not seamless:
            self._discard_round()

    def feed(self, event: Event) -> list[Event]:
        """Return the events to send to the client now."""
        events = self._text(event) if type(event) is TextDelta else list(self._visible_events(event))
        if self._visible == "last":
            self._buffer.extend(events)
            events = []
        self.shown = self.shown or any(not isinstance(sent, Started) for sent in events)
        return events

    def end(self) -> list[Event]:
        """Return the last events of the whole answer."""
        self._add_round_usage()
        finish = self.finish or Finish("stop")
        if finish.reason == "tool_calls" and not self._calls:
            # The last round ended with server-tool calls only, which the client has not seen.
            finish = Finish("stop")
        usage = [UsageReported(self._past_usage)] if self._counted else []
        return [*self._buffer, *self._close(), *usage, Finished(finish, self._extras)]

    def fail(self, failed: Failed) -> list[Event]:
        """Return the last events of an answer that broke off."""
        return [*self._buffer, *self._close(), failed]

    @property
    def usage(self) -> Usage | None:
        """The usage of all rounds so far."""
        if self._usage is None:
            return self._past_usage if self._counted else None
        return self._past_usage + self._usage

    def _visible_events(self, event: Event) -> Iterable[Event]:
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
                raise TypeError("RoundMerger.feed does not accept Failed; call `fail`")
            case PartStarted():
                yield from self._part(event)
            case TextDelta():
                yield from self._text(event)
            case PartFinished():
                yield from self._finished(event)
            case ReasoningDelta() | SignatureDelta() | ArgumentsDelta() | AnnotationDelta():
                index = self._indexes[event.index]
                if index is not None:
                    yield replace(event, index=index)

    def _part(self, event: PartStarted) -> Iterable[Event]:
        part = event.part
        if isinstance(part, ToolCall) and self._is_server_tool(part.name):
            self._indexes[event.index] = None
            return
        self._calls = self._calls or isinstance(part, ToolCall)
        can_extend, self._can_extend = self._can_extend, False
        if isinstance(part, Text) and can_extend and self._open_text is not None:
            self._indexes[event.index], self._open_text = self._open_text, None
        else:
            yield from self._close_open_text()
            index = self._indexes[event.index] = self._next
            self._next += 1
            if not isinstance(part, Text):
                yield PartStarted(index, part)
                return
            self._texts.add(index)
            yield PartStarted(index, replace(part, text=""))
        if part.text:
            yield from self._text(TextDelta(event.index, part.text))

    def _text(self, event: TextDelta) -> list[Event]:
        index = self._indexes[event.index]
        if index is None:
            return []
        if index not in self._texts:
            return [replace(event, index=index)]
        text, breaks = event.text, self._breaks.pop(index, "")
        if self._needs_blank_line:
            text, breaks = self._without_blank_lines(text), _BLANK
            self._needs_blank_line = not text
        if not text and not event.logprobs:
            self._breaks[index] = "" if self._needs_blank_line else breaks
            return []
        whole = breaks + text
        sent = whole.rstrip(_BREAKS)
        if len(sent) != len(whole):
            self._breaks[index] = whole[len(sent) :]
        if not sent and not event.logprobs:
            return []
        self._has_text = self._has_text or bool(sent)
        return [TextDelta(index, sent, event.logprobs)]

    def _without_blank_lines(self, text: str) -> str:
        """Return the text from its first line that is not blank; an empty text before that line."""
        self._lead += text
        content = self._lead.lstrip()
        if not content:
            return ""
        blank = self._lead[: len(self._lead) - len(content)]
        self._lead = ""
        return blank[max(blank.rfind("\n"), blank.rfind("\r")) + 1 :] + content

    def _finished(self, event: PartFinished) -> Iterable[Event]:
        index = self._indexes[event.index]
        if index is None:
            return
        if index not in self._texts:
            yield PartFinished(index)
            return
        # A text stays open: the next round may continue it.
        yield from self._close_open_text()
        self._open_text = index

    def _close_open_text(self) -> Iterable[Event]:
        if self._open_text is None:
            return
        index, self._open_text = self._open_text, None
        breaks = self._breaks.pop(index, "")
        if breaks and not self._needs_blank_line:
            yield TextDelta(index, breaks)
        yield PartFinished(index)

    def _close(self) -> Iterable[Event]:
        """Close the open text, with its held line breaks."""
        self._needs_blank_line = False
        return self._close_open_text()

    def _add_round_usage(self) -> None:
        if self._usage is not None:
            self._past_usage, self._usage, self._counted = self._past_usage + self._usage, None, True

    def _discard_round(self) -> None:
        self._buffer = [event for event in self._buffer if isinstance(event, Started)]
        self._next, self._open_text = 0, None
        self._texts.clear()
        self._breaks.clear()
        self._has_text = self._needs_blank_line = self._can_extend = False
