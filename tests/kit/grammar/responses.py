"""The grammar of a Responses stream.

created, in_progress, items (see items.py), then once and last completed or incomplete with the whole output
and usage; `sequence_number` counts all events from 0.
"""

from __future__ import annotations

from typing import Any

from tests.kit.grammar.frames import Frame, need, need_count, need_error, need_one_of, need_text, read
from tests.kit.grammar.items import Item, check_item, check_unique

_OPENING = ("response.created", "response.in_progress")
_ENDS = {"response.completed": "completed", "response.incomplete": "incomplete"}
_REASONS = frozenset({"max_output_tokens", "content_filter", "max_messages", "steered"})


class _Stream:
    """Checks the events of one stream one by one."""

    def __init__(self) -> None:
        self.count = 0
        self.id: str | None = None
        self.items: list[Item] = []
        self.ended = False

    def take(self, frame: Frame) -> None:
        event = frame.json
        kind = need_text(event, "type", at=frame)
        assert frame.event == kind, f"{frame}: the event line is {frame.event!r}, the type {kind!r}"
        assert not self.ended, f"{frame}: comes after the terminal event"
        self.number(event, at=frame)
        if self.count <= len(_OPENING):
            assert kind == _OPENING[self.count - 1], f"{frame}: expected {_OPENING[self.count - 1]}"
            self._check_opening(event, at=frame)
        elif kind in _ENDS:
            self._end(event, _ENDS[kind], at=frame)
        elif kind == "response.output_item.added":
            self._added(event, at=frame)
        elif kind == "response.output_item.done":
            self._item(event, at=frame).finish(need(event, "item", dict, at=frame), frame)
        else:
            self._check_item_event(event, at=frame)

    def number(self, event: dict[str, Any], *, at: Frame) -> None:
        number = need(event, "sequence_number", int, at=at)
        assert number == self.count, f"{at}: sequence_number {number}, expected {self.count}"
        self.count += 1

    def response(self, event: dict[str, Any], status: str, *, at: Frame) -> dict[str, Any]:
        response = need(event, "response", dict, at=at)
        check_head(response, at=at)
        assert response.get("status") == status, f"{at}: status {response.get('status')!r}, not {status!r}"
        assert self.id in (None, response["id"]), f"{at}: the response's id changed from {self.id!r}"
        self.id = response["id"]
        return response

    def _check_opening(self, event: dict[str, Any], *, at: Frame) -> None:
        response = self.response(event, "in_progress", at=at)
        assert response["output"] == [], f"{at}: there is output already"

    def _added(self, event: dict[str, Any], *, at: Frame) -> None:
        index = need(event, "output_index", int, at=at)
        assert index == len(self.items), f"{at}: output_index {index} after {len(self.items)} items"
        item = Item(need(event, "item", dict, at=at), index, at=at)
        assert item.id not in {known.id for known in self.items}, f"{at}: item id {item.id!r} used twice"
        self.items.append(item)

    def _item(self, event: dict[str, Any], *, at: Frame) -> Item:
        index = need(event, "output_index", int, at=at)
        assert 0 <= index < len(self.items), f"{at}: item {index} was not added"
        return self.items[index]

    def _check_item_event(self, event: dict[str, Any], *, at: Frame) -> None:
        assert event["type"].startswith("response."), f"{at}: unknown event type {event['type']!r}"
        item = self._item(event, at=at)
        assert need(event, "item_id", str, at=at) == item.id, f"{at}: item_id is not {item.id!r}"
        item.take(event, at)

    def _end(self, event: dict[str, Any], status: str, *, at: Frame) -> None:
        response = self.response(event, status, at=at)
        for item in self.items:
            assert item.done is not None, f"{at}: item {item.id} is not done"
        done = [item.done for item in self.items]
        assert response["output"] == done, f"{at}: output is not the items that were done: {done}"
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
    check_unique(response["output"], at=at)
    for item in response["output"]:
        check_item(item, at=at)
    check_usage(need(response, "usage", dict, at=at), at=at)
    assert response.get("error") is None, f"{at}: an error in a response that ended well"
    if response["status"] == "incomplete":
        need_one_of(need(response, "incomplete_details", dict, at=at), "reason", _REASONS, at=at)
    else:
        assert response.get("incomplete_details") is None, f"{at}: incomplete_details though completed"


def check_usage(usage: dict[str, Any], *, at: object) -> None:
    """Check that the token counts are all there and add up."""
    prompt = need_count(usage, "input_tokens", at=at)
    completion = need_count(usage, "output_tokens", at=at)
    total = need_count(usage, "total_tokens", at=at)
    assert total == prompt + completion, f"{at}: total_tokens {total} is not {prompt} + {completion}"
    need_count(need(usage, "input_tokens_details", dict, at=at), "cached_tokens", at=at)
    need_count(need(usage, "output_tokens_details", dict, at=at), "reasoning_tokens", at=at)


def check_responses(body: bytes) -> None:
    """Check a complete stream."""
    stream = _Stream()
    for frame in read(body):
        stream.take(frame)
    assert stream.ended, f"no terminal event after {stream.count} events"


def check_broken_responses(body: bytes, *, aborted: bool = False) -> None:
    """Check a stream that broke off: events, then response.failed (none if `aborted`), nothing completed."""
    frames = read(body)
    last = None
    if not aborted:
        assert frames, "an empty stream"
        last = frames.pop()
    stream = _Stream()
    for frame in frames:
        stream.take(frame)
    assert not stream.ended, "a broken stream has a terminal event of success"
    if last is not None:
        _failed(stream, last)


def _failed(stream: _Stream, last: Frame) -> None:
    event = last.json
    assert last.event == event.get("type") == "response.failed", f"the last frame is not a failure: {last}"
    stream.number(event, at=last)
    response = stream.response(event, "failed", at=last)
    error = need(response, "error", dict, at=last)
    need_text(error, "code", at=last)
    need_error(error, at=last)
