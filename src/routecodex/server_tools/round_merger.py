"""Merges the rounds of a turn into one answer for the client.

Server-tool calls are hidden, and so is the end of every round but the last. Texts of two rounds are joined by
exactly one blank line, in whatever parts they are: trailing white space of a text is held until the next
event, and a text part is started with its first content. So an answer never opens with an empty text, or with
the blank lines of a round that had no text.

Clients take input plus output of an answer for the size of the conversation. Over several rounds they get the
input of the first round that reported usage, which is the conversation as they sent it, and the output of the
rounds that they were shown: their next request will hold both, and nothing else. `usage` is the sum.
"""

from __future__ import annotations

import re
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
from routecodex.canon.parts import Json, Opaque, Text, ToolCall

VisibleRounds = Literal["all", "last"]
_BLANK = "\n\n"
_LINE_END = re.compile(r"[\r\n]")


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
        self._unstarted: dict[int, Text] = {}
        """Text parts without content, which the client has not seen."""
        self._held: dict[int, list[str]] = {}
        """Trailing white space by part; it is sent with the text behind it."""
        self._opening: list[str] = []
        """White space of earlier parts before the first text of the answer."""
        self._open_text: int | None = None
        self._has_text = False
        self._begins_text = False
        self._lead: list[str] = []
        self._can_extend = False
        self._calls = False
        self._rounds = 1
        self._shown = False
        """Whether the round under way has content for the client."""
        self._usage: Usage | None = None
        self._first_usage: Usage | None = None
        self._shown_usage = Usage()
        self._past_usage: Usage | None = None
        self.finish: Finish | None = None
        self._extras: dict[str, Json] | None = None

    def begin_round(self, *, seamless: bool = False) -> None:
        """Start the next round; `seamless` continues the last text without a blank line."""
        self._add_round_usage()
        self._rounds += 1
        self._indexes = {}
        self._lead, self._opening = [], []
        self._begins_text = not (seamless and self._has_text)
        if self._begins_text:
            self._drop_held_lines()
        self._can_extend = True
        self._calls = self._shown = False
        if self._visible == "last" and not seamless:
            self._discard_round()

    def feed(self, event: Event) -> list[Event]:
        """Return the events to send to the client now."""
        events = self._text(event) if type(event) is TextDelta else list(self._visible_events(event))
        if self._visible == "last":
            self._buffer.extend(events)
            events = []
        return events

    def end(self) -> list[Event]:
        """Return the last events of the whole answer."""
        self._add_round_usage()
        finish = self.finish or Finish("stop")
        if finish.reason == "tool_calls" and not self._calls:
            # The last round ended with server-tool calls only, which the client has not seen.
            finish = Finish("stop")
        usage = self._client_usage()
        counts = [UsageReported(usage)] if usage is not None else []
        return [*self._buffer, *self._close_open_text(), *counts, Finished(finish, self._extras)]

    def fail(self, failed: Failed) -> list[Event]:
        """Return the last events of an answer that broke off."""
        return [*self._buffer, *self._close_open_text(), failed]

    @property
    def has_text(self) -> bool:
        """Whether the answer has text for the client."""
        return self._has_text

    @property
    def usage(self) -> Usage | None:
        """The sum of all rounds so far: what they cost, not what the client is shown."""
        if self._past_usage is None or self._usage is None:
            return self._past_usage or self._usage
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
                    self._shown = True
                    yield from self._start_text(index)
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
            yield from self._close_open_text(more_text=not isinstance(part, ToolCall))
            for unstarted in list(self._unstarted):
                yield from self._start_text(unstarted)
            index = self._indexes[event.index] = self._next
            self._next += 1
            if not isinstance(part, Text):
                self._shown = self._shown or isinstance(part, ToolCall | Opaque) or bool(part.text)
                yield PartStarted(index, part)
                return
            self._texts.add(index)
            self._unstarted[index] = replace(part, text="")
        if part.text:
            yield from self._text(TextDelta(event.index, part.text))

    def _text(self, event: TextDelta) -> list[Event]:
        index = self._indexes[event.index]
        if index is None:
            return []
        if index not in self._texts:
            self._shown = True
            return [replace(event, index=index)]
        text, held = event.text, self._held.pop(index, [])
        if self._begins_text:
            text = self._without_blank_lines(text)
            self._begins_text = not text
            held += [_BLANK] if text and self._has_text else []
        if self._opening and not self._has_text:
            self._opening += held
            held, self._opening = self._opening, []
        kept = text.rstrip()
        sent = "".join(held) + kept if kept else ""
        if kept:
            held = []
        if held or len(kept) != len(text):
            held.append(text[len(kept) :])
            self._held[index] = held
        if not sent and not event.logprobs:
            return []
        self._has_text = self._has_text or bool(sent)
        self._shown = True
        return [*self._start_text(index), TextDelta(index, sent, event.logprobs)]

    def _start_text(self, index: int) -> Iterable[Event]:
        """Start a text part before its first content."""
        part = self._unstarted.pop(index, None)
        return () if part is None else (PartStarted(index, part),)

    def _without_blank_lines(self, text: str) -> str:
        """Return the text from its first line that is not blank; an empty text before that line."""
        content = text.lstrip()
        self._lead.append(text[: len(text) - len(content)])
        if not content:
            return ""
        blank = "".join(self._lead)
        self._lead = []
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

    def _close_open_text(self, *, more_text: bool = False) -> Iterable[Event]:
        """Close the text that the next part does not continue; `more_text`: a text may still follow."""
        if self._open_text is None:
            return
        index, self._open_text = self._open_text, None
        held = "".join(self._held.pop(index, ()))
        if more_text and not self._has_text:
            self._opening.append(held)
            held = ""
        if not held and index in self._unstarted and (more_text or self._rounds > 1):
            del self._unstarted[index]
            self._texts.remove(index)
            self._next = index
            return
        yield from self._start_text(index)
        if held:
            yield TextDelta(index, held)
        yield PartFinished(index)

    def _drop_held_lines(self) -> None:
        """Drop the line ends behind the last text: a blank line follows it. Without a text, drop all."""
        for index, held in self._held.items():
            self._held[index] = [_LINE_END.split("".join(held), maxsplit=1)[0]] if self._has_text else []

    def _add_round_usage(self) -> None:
        usage, self._usage = self._usage, None
        if usage is None:
            return
        self._past_usage = usage if self._past_usage is None else self._past_usage + usage
        self._first_usage = self._first_usage or usage
        if self._shown:
            self._shown_usage += usage

    def _client_usage(self) -> Usage | None:
        """Return the usage that the client is shown; that of a single round is the provider's.

        Claude Code reads the last of the `iterations` in place of the counts, so several rounds have none.
        """
        first = self._first_usage
        if first is None or self._rounds == 1:
            return first
        shown = self._shown_usage
        return replace(
            first,
            output=shown.output,
            reasoning=shown.reasoning,
            estimated=first.estimated or shown.estimated,
            iterations=(),
        )

    def _discard_round(self) -> None:
        self._buffer = [event for event in self._buffer if isinstance(event, Started)]
        self._next, self._open_text = 0, None
        self._texts.clear()
        self._unstarted.clear()
        self._held.clear()
        self._shown_usage = Usage()
        self._has_text = self._can_extend = False
