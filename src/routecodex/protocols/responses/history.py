"""Earlier turns of a conversation: what `previous_response_id` stands for, and submitted tool outputs.

A turn is kept as the client's request and the answer it got, both as the bytes they were. Everything here is
pure; where turns are kept is somebody else's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.protocols.responses.schema import CALLS, REFERENCE
from routecodex.wire import json
from routecodex.wire.json import ABSENT

_SETTINGS_NOT_KEPT = frozenset(
    {"input", "previous_response_id", "conversation", "stream", "stream_options", "background", "prompt"}
)
_PAGE, _LARGEST_PAGE = 20, 100

_MADE_HERE = re.compile(r"[a-z]+_(?:resp_)?([0-9a-f]+)_[0-9]+")
"""An item of an answer that the gateway wrote, or of what such an answer was given."""


class StoredTurn(Struct, frozen=True):
    """One turn: the request as the client sent it, and the final response object."""

    request: Raw = ABSENT
    response: Raw = ABSENT


class _ToolOutput(Struct):
    output: Raw
    tool_call_id: str | None = None
    call_id: str | None = None


class _Submission(Struct):
    tool_outputs: list[_ToolOutput]
    stream: bool | None = None


class _Call(Struct):
    type: str = ""
    call_id: str | None = None


class _Named(Struct):
    id: str | None = None


_submission = Decoder(_Submission)
_items = Decoder(list[Raw])
_call = Decoder(_Call)
_named = Decoder(_Named)


def expand(body: bytes, turns: Sequence[StoredTurn]) -> bytes:
    """The request with the items of earlier turns (oldest first) before its own, and no reference to them.

    Instructions are not inherited, as OpenAI does.
    """
    fields = json.read_fields(body)
    fields.pop("previous_response_id", None)
    earlier = [item for turn in turns for item in (*_asked(turn.request), *_answered(turn.response))]
    fields["input"] = Raw(json.encode([*earlier, *_given(fields.get("input"))]))
    return json.encode(fields)


def stored_ids(response_body: bytes) -> tuple[str, list[str]]:
    """The id of an answer, empty when it has none, and those of its items that do not tell it."""
    response_id = _id_of(Raw(response_body))
    named = map(_id_of, _answered(Raw(response_body))) if response_id else ()
    return response_id, [
        item_id for item_id in named if item_id and parent_response_id(item_id) != response_id
    ]


def parent_response_id(item_id: str) -> str | None:
    """The id of the answer that an item belongs to, where the item's own id tells it."""
    made = _MADE_HERE.fullmatch(item_id)
    return f"resp_{made[1]}" if made else None


def find_item(turn: StoredTurn, item_id: str) -> Raw | None:
    """The item of a turn with this id: of its answer, or of its input as it is listed."""
    for item in _answered(turn.response):
        if _id_of(item) == item_id:
            return item
    for listed in input_items(turn):
        if listed.get("id") == item_id and listed["type"] != REFERENCE:
            return Raw(json.encode(listed))
    return None


def resolve_references(body: bytes, items: Mapping[int, Raw]) -> bytes:
    """The request with these items in their places, where only references to them stood."""
    fields = json.read_fields(body)
    given = _given(fields.get("input"))
    fields["input"] = Raw(json.encode([items.get(at, item) for at, item in enumerate(given)]))
    return json.encode(fields)


def input_items(turn: StoredTurn) -> list[Any]:
    """The input of a turn as `GET …/input_items` lists it: every item with an id and its text in parts."""
    response_id = json.decode(bytes(turn.response)).get("id", "resp")
    asked = (json.decode(bytes(item)) for item in _asked(turn.request))
    return [_listed(item, f"{response_id}_{index}") for index, item in enumerate(asked)]


def page(items: Sequence[Any], asked: Mapping[str, str | None]) -> dict[str, Any]:
    """A page of a list of items, by the `order`, `limit` and `after` of a query; the newest come first."""
    order = asked.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise _bad_query("order", f"{order!r} is not one of 'asc', 'desc'")
    ordered = list(items if order == "asc" else reversed(items))
    first = _place_after(ordered, asked.get("after"))
    last = first + _limit(asked.get("limit"))
    shown = ordered[first:last]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0].get("id") if shown else None,
        "last_id": shown[-1].get("id") if shown else None,
        "has_more": last < len(ordered),
    }


def _place_after(items: Sequence[Any], after: str | None) -> int:
    if not after:
        return 0
    for at, item in enumerate(items, 1):
        if item.get("id") == after:
            return at
    raise _bad_query("after", f"the list has no item {after!r}")


def _limit(asked: str | None) -> int:
    if not asked:
        return _PAGE
    if not asked.isascii() or not asked.isdigit() or not 1 <= int(asked[:9]) <= _LARGEST_PAGE:
        raise _bad_query("limit", f"{asked!r} is not a number from 1 to {_LARGEST_PAGE}")
    return int(asked[:9])


def _bad_query(name: str, what: str) -> BadRequest:
    return BadRequest(f"{name}: {what}", param=name, code="invalid_value")


def submit(turn: StoredTurn, body: bytes) -> bytes:
    """A new request that goes on from the turn with the outputs of its calls.

    BadRequest names call ids that the turn did not make, and open calls that got no output.
    """
    given = json.read(body, _submission)
    calls = _open_calls(turn)
    outputs = {_call_id(output, index): output for index, output in enumerate(given.tool_outputs)}
    _check(set(calls), outputs)
    fields = {
        name: value
        for name, value in json.read_fields(bytes(turn.request)).items()
        if name not in _SETTINGS_NOT_KEPT
    }
    answers = [
        {"type": f"{calls[call_id]}_output", "call_id": call_id, "output": _plain(output.output)}
        for call_id, output in outputs.items()
    ]
    response_id = json.decode(bytes(turn.response)).get("id")
    new: dict[str, Any] = {**fields, "previous_response_id": response_id, "input": answers}
    if given.stream is not None:
        new["stream"] = given.stream
    return json.encode(new)


def _given(value: Raw | None) -> list[Raw]:
    """The items of an `input`; a plain text is a user's message."""
    if value is None or not json.is_present(value):
        return []
    if bytes(memoryview(value)[:1]) == b"[":
        return _items.decode(value)
    content = [{"type": "input_text", "text": json.decode_raw(value)}]
    return [Raw(json.encode({"type": "message", "role": "user", "content": content}))]


def _asked(request: Raw) -> list[Raw]:
    return _given(json.read_fields(bytes(request)).get("input"))


def _answered(response: Raw) -> list[Raw]:
    output = json.read_fields(bytes(response)).get("output")
    return [] if output is None else json.try_read(output, _items) or []


def _id_of(value: Raw) -> str:
    named = json.try_read(value, _named)
    return named.id or "" if named is not None else ""


def _listed(item: dict[str, Any], stem: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    listed = {"id": f"{'msg' if kind == 'message' else 'item'}_{stem}", **item, "type": kind}
    if kind == "message" and isinstance(item.get("content"), str):
        said = "output_text" if item.get("role") == "assistant" else "input_text"
        part: dict[str, Any] = {"type": said, "text": item["content"]}
        listed["content"] = [{**part, "annotations": []} if said == "output_text" else part]
    return listed


def _open_calls(turn: StoredTurn) -> dict[str, str]:
    """The calls of the turn's answer by id, each with its item type."""
    found = (_call.decode(item) for item in _answered(turn.response))
    return {call.call_id: call.type for call in found if call.call_id and call.type in CALLS}


def _call_id(output: _ToolOutput, index: int) -> str:
    call_id = output.tool_call_id or output.call_id
    if not call_id:
        path = f"tool_outputs[{index}].tool_call_id"
        raise BadRequest(f"{path}: this field is required", param=path, code="missing_field")
    return call_id


def _check(calls: set[str], outputs: dict[str, _ToolOutput]) -> None:
    unknown = [call_id for call_id in outputs if call_id not in calls]
    if unknown:
        named = ", ".join(map(repr, unknown))
        raise BadRequest(f"tool_outputs: the response made no call {named}", param="tool_outputs")
    missing = sorted(calls - set(outputs))
    if missing:
        named = ", ".join(map(repr, missing))
        raise BadRequest(f"tool_outputs: no output was given for {named}", param="tool_outputs")
    if not outputs:
        raise BadRequest("tool_outputs: the response has no open call", param="tool_outputs")


def _plain(output: Raw) -> Any:
    """A tool's output as an item takes it: a text or a list of parts; anything else as JSON text."""
    value = json.decode_raw(output)
    if isinstance(value, str) or (isinstance(value, list) and all(_is_part(part) for part in value)):
        return value
    return "" if value is None else bytes(output).decode()


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)
