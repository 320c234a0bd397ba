"""Checks a served Responses stream against the grammar of the OpenAI API reference."""

from __future__ import annotations

import json
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_DELTAS = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream; each frame must have the event name of its data's type."""
    events = []
    assert stream.endswith(b"\n\n")
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        events.append(value)
    return events


def check(stream: bytes) -> list[dict[str, Any]]:
    """Assert the whole grammar and return the events."""
    events = events_of(stream)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    for event in events:
        _EVENT.validate_python(event)
    final = events[-1]
    assert final["type"] in ("response.completed", "response.incomplete", "response.failed")
    Response.model_validate(final["response"])
    assert final["response"]["usage"] is not None
    assert final["response"]["id"] == events[0]["response"]["id"]
    done = _check_items(events[2:-1])
    assert final["response"]["output"] == done
    return events


def _check_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check one item at a time: added, its deltas, done; the deltas add up to the text in `done`."""
    done: list[dict[str, Any]] = []
    current: dict[str, Any] | None = None
    pieces: list[str] = []
    for event in events:
        kind = event["type"]
        assert event["output_index"] == len(done)
        if kind == "response.output_item.added":
            assert current is None
            current = event["item"]
        elif kind == "response.output_item.done":
            assert current is not None
            assert event["item"]["id"] == current["id"]
            assert event["item"]["type"] == current["type"]
            done.append(event["item"])
            current = None
        else:
            assert current is not None
            assert event["item_id"] == current["id"]
            stem, _, verb = kind.rpartition(".")
            if verb == "delta":
                pieces.append(event["delta"])
            elif verb == "done" and stem in _DELTAS:
                assert event[_DELTAS[stem]] == "".join(pieces)
                pieces = []
    return done
