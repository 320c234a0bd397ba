"""The grammar of a Responses stream.

created, in_progress, items (see items.py), then once and last completed or incomplete with the whole output
and usage; `sequence_number` counts all events from 0.
"""

from __future__ import annotations

from typing import Any

from routecodex.protocols.grammar.frames import (
    GrammarViolation,
    ServedFrame,
    need,
    need_count,
    need_error,
    need_objects,
    need_one_of,
    need_text,
    read,
)
from routecodex.protocols.grammar.items import ServedItem, check_item, check_unique

_OPENING = ("response.created", "response.in_progress")
_ENDS = {"response.completed": "completed", "response.incomplete": "incomplete"}
_REASONS = frozenset({"max_output_tokens", "content_filter", "max_messages", "steered"})


class _Stream:
    """Checks the events of one stream one by one."""

    def __init__(self) -> None:
        self.count = 0
        self.id: str | None = None
        self.items: list[ServedItem] = []
        self.ended = False

    def take(self, frame: ServedFrame) -> None:
        event = frame.json
        kind = need_text(event, "type", at=frame)
        if frame.event != kind:
            raise GrammarViolation(f"{frame}: the event line is {frame.event!r}, the type {kind!r}")
        if self.ended:
            raise GrammarViolation(f"{frame}: comes after the terminal event")
        self.number(event, at=frame)
        if self.count <= len(_OPENING):
            if kind != _OPENING[self.count - 1]:
                raise GrammarViolation(f"{frame}: expected {_OPENING[self.count - 1]}")
            self._check_opening(event, at=frame)
        elif kind in _ENDS:
            self._end(event, _ENDS[kind], at=frame)
        elif kind == "response.output_item.added":
            self._added(event, at=frame)
        elif kind == "response.output_item.done":
            self._item(event, at=frame).finish(need(event, "item", dict, at=frame), frame)
        else:
            self._check_item_event(event, at=frame)

    def number(self, event: dict[str, Any], *, at: ServedFrame) -> None:
        number = need(event, "sequence_number", int, at=at)
        if number != self.count:
            raise GrammarViolation(f"{at}: sequence_number {number}, expected {self.count}")
        self.count += 1

    def response(self, event: dict[str, Any], status: str, *, at: ServedFrame) -> dict[str, Any]:
        response = need(event, "response", dict, at=at)
        check_head(response, at=at)
        if response.get("status") != status:
            raise GrammarViolation(f"{at}: status {response.get('status')!r}, not {status!r}")
        if self.id not in (None, response["id"]):
            raise GrammarViolation(f"{at}: the response's id changed from {self.id!r}")
        self.id = response["id"]
        return response

    def _check_opening(self, event: dict[str, Any], *, at: ServedFrame) -> None:
        response = self.response(event, "in_progress", at=at)
        if response["output"] != []:
            raise GrammarViolation(f"{at}: there is output already")

    def _added(self, event: dict[str, Any], *, at: ServedFrame) -> None:
        index = need(event, "output_index", int, at=at)
        if index != len(self.items):
            raise GrammarViolation(f"{at}: output_index {index} after {len(self.items)} items")
        item = ServedItem(need(event, "item", dict, at=at), index, at=at)
        if item.id in {known.id for known in self.items}:
            raise GrammarViolation(f"{at}: item id {item.id!r} used twice")
        self.items.append(item)

    def _item(self, event: dict[str, Any], *, at: ServedFrame) -> ServedItem:
        index = need(event, "output_index", int, at=at)
        if not 0 <= index < len(self.items):
            raise GrammarViolation(f"{at}: item {index} was not added")
        return self.items[index]

    def _check_item_event(self, event: dict[str, Any], *, at: ServedFrame) -> None:
        if not event["type"].startswith("response."):
            raise GrammarViolation(f"{at}: unknown event type {event['type']!r}")
        item = self._item(event, at=at)
        if need(event, "item_id", str, at=at) != item.id:
            raise GrammarViolation(f"{at}: item_id is not {item.id!r}")
        item.take(event, at)

    def _end(self, event: dict[str, Any], status: str, *, at: ServedFrame) -> None:
        response = self.response(event, status, at=at)
        for item in self.items:
            if item.done is None:
                raise GrammarViolation(f"{at}: item {item.id} is not done")
        done = [item.done for item in self.items]
        if response["output"] != done:
            raise GrammarViolation(f"{at}: output is not the items that were done: {done}")
        check_end(response, at=at)
        self.ended = True


def check_head(response: dict[str, Any], *, at: object) -> None:
    """Check the fields that every response object has."""
    need_text(response, "id", at=at)
    need_text(response, "model", at=at)
    need_one_of(response, "object", frozenset({"response"}), at=at)
    need(response, "created_at", (int, float), at=at)
    need(response, "output", list, at=at)
    need(response, "parallel_tool_calls", bool, at=at)
    need(response, "tool_choice", (str, dict), at=at)
    need(response, "tools", list, at=at)


def check_end(response: dict[str, Any], *, at: object) -> None:
    """Check an ended response: whole items, unique ids, usage, and a reason if it is incomplete."""
    items = need_objects(response, "output", at=at)
    check_unique(items, at=at)
    for item in items:
        check_item(item, at=at)
    check_usage(need(response, "usage", dict, at=at), at=at)
    if response.get("error") is not None:
        raise GrammarViolation(f"{at}: an error in a response that ended well")
    if response["status"] == "incomplete":
        need_one_of(need(response, "incomplete_details", dict, at=at), "reason", _REASONS, at=at)
    else:
        if response.get("incomplete_details") is not None:
            raise GrammarViolation(f"{at}: incomplete_details though completed")


def check_usage(usage: dict[str, Any], *, at: object) -> None:
    """Check that the token counts are all there and add up."""
    prompt = need_count(usage, "input_tokens", at=at)
    completion = need_count(usage, "output_tokens", at=at)
    total = need_count(usage, "total_tokens", at=at)
    if total != prompt + completion:
        raise GrammarViolation(f"{at}: total_tokens {total} is not {prompt} + {completion}")
    need_count(need(usage, "input_tokens_details", dict, at=at), "cached_tokens", at=at)
    need_count(need(usage, "output_tokens_details", dict, at=at), "reasoning_tokens", at=at)


def check_responses(body: bytes) -> None:
    """Check a complete stream."""
    stream = _Stream()
    for frame in read(body):
        stream.take(frame)
    if not stream.ended:
        raise GrammarViolation(f"no terminal event after {stream.count} events")


def check_broken_responses(body: bytes, *, aborted: bool = False) -> None:
    """Check a stream that broke off: events, then response.failed (none if `aborted`), nothing completed."""
    frames = read(body)
    last = None
    if not aborted:
        if not frames:
            raise GrammarViolation("an empty stream")
        last = frames.pop()
    stream = _Stream()
    for frame in frames:
        stream.take(frame)
    if stream.ended:
        raise GrammarViolation("a broken stream has a terminal event of success")
    if last is not None:
        _failed(stream, last)


def _failed(stream: _Stream, last: ServedFrame) -> None:
    event = last.json
    if not last.event == event.get("type") == "response.failed":
        raise GrammarViolation(f"the last frame is not a failure: {last}")
    stream.number(event, at=last)
    response = stream.response(event, "failed", at=last)
    error = need(response, "error", dict, at=last)
    need_text(error, "code", at=last)
    need_error(error, at=last)
