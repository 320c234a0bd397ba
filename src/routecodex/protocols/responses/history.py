"""Expands requests that continue a stored answer: `previous_response_id`, references and tool outputs.

A turn is the client's request and the answer to it, both as bytes. The functions here are pure; the gateway's
ResponseHistory stores the turns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from routecodex.canon.errors import BadRequest
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.responses.schema import CALLS, REFERENCE
from routecodex.wire import json
from routecodex.wire.json import ABSENT
from routecodex.wire.json_edit import JsonObject

_TURN_FIELDS = frozenset(
    {"input", "previous_response_id", "conversation", "stream", "stream_options", "background", "prompt"}
)
"""Fields that belong to one turn; `submit` takes all others over from the turn before."""

_PAGE, _LARGEST_PAGE = 20, 100
"""Default and largest `limit` of a list (OpenAI API reference, input items)."""

_GATEWAY_ID = re.compile(r"[a-z]+_(?:resp_)?([0-9a-f]+)_[0-9]+")
"""An item id that the gateway made: of an output item, or of an input item as `input_items` lists it."""


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


class _Identified(Struct):
    id: str | None = None


_submission = Decoder(_Submission)
_items = Decoder(list[Raw])
_call = Decoder(_Call)
_identified = Decoder(_Identified)


def expand(body: bytes, turns: Sequence[StoredTurn]) -> bytes:
    """Return the request with the items of earlier turns (oldest first) before its own input.

    Instructions are not inherited (OpenAI API reference, `previous_response_id`).
    """
    fields = json.read_fields(body)
    fields.pop("previous_response_id", None)
    earlier = [
        item for turn in turns for item in (*_input_items(turn.request), *_output_items(turn.response))
    ]
    fields["input"] = Raw(json.encode([*earlier, *_items_of(fields.get("input"))]))
    return json.encode(fields)


def marked_unstorable(request: WireRequest) -> WireRequest:
    """Return the request with the mark that its answer cannot be stored."""
    return request.with_view(replace(request.view, unstorable=True))


def unstored(out: bytes, response_body: bytes) -> bytes:
    """Return the last bytes of an answer, in which its response object says that it is not stored."""
    return out.replace(response_body, JsonObject(response_body).changed({"store": b"false"}))


def stored_ids(response_body: bytes) -> tuple[str, list[str]]:
    """Return the id of an answer ("" if it has none), and the ids of items that do not contain it."""
    response_id = _id_of(Raw(response_body))
    item_ids = map(_id_of, _output_items(Raw(response_body))) if response_id else ()
    return response_id, [
        item_id for item_id in item_ids if item_id and parent_response_id(item_id) != response_id
    ]


def parent_response_id(item_id: str) -> str | None:
    """Return the id of the answer that an item belongs to, or None if the item's id does not contain it."""
    match = _GATEWAY_ID.fullmatch(item_id)
    return f"resp_{match[1]}" if match else None


def find_item(turn: StoredTurn, item_id: str) -> Raw | None:
    """Return the item of a turn with this id, from its output or from its listed input."""
    for item in _output_items(turn.response):
        if _id_of(item) == item_id:
            return item
    for listed in input_items(turn):
        if listed.get("id") == item_id and listed["type"] != REFERENCE:
            return Raw(json.encode(listed))
    return None


def resolve_references(body: bytes, items: Mapping[int, Raw]) -> bytes:
    """Return the request with references replaced by items; `items` maps positions in the input to items."""
    fields = json.read_fields(body)
    listed = enumerate(_items_of(fields.get("input")))
    fields["input"] = Raw(json.encode([items.get(at, item) for at, item in listed]))
    return json.encode(fields)


def input_items(turn: StoredTurn) -> list[Any]:
    """Return the input of a turn as `GET …/input_items` lists it: items with ids, texts as parts."""
    response_id = json.decode(bytes(turn.response)).get("id", "resp")
    items = (json.decode(bytes(item)) for item in _input_items(turn.request))
    return [_listed(item, f"{response_id}_{index}") for index, item in enumerate(items)]


def page(items: Sequence[Any], query: Mapping[str, str | None]) -> dict[str, Any]:
    """Return one page of a list by `order`, `limit` and `after` of the query; the default order is desc."""
    order = query.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise _bad_query("order", f"{order!r} is not one of 'asc', 'desc'")
    ordered = list(items if order == "asc" else reversed(items))
    first = _index_after(ordered, query.get("after"))
    last = first + _limit(query.get("limit"))
    data = ordered[first:last]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0].get("id") if data else None,
        "last_id": data[-1].get("id") if data else None,
        "has_more": last < len(ordered),
    }


def _index_after(items: Sequence[Any], after: str | None) -> int:
    if not after:
        return 0
    for at, item in enumerate(items, 1):
        if item.get("id") == after:
            return at
    raise _bad_query("after", f"the list has no item {after!r}")


def _limit(limit: str | None) -> int:
    if not limit:
        return _PAGE
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= _LARGEST_PAGE:
        raise _bad_query("limit", f"{limit!r} is not a number from 1 to {_LARGEST_PAGE}")
    return int(limit[:9])


def _bad_query(name: str, problem: str) -> BadRequest:
    return BadRequest(f"{name}: {problem}", param=name, code="invalid_value")


def submit(turn: StoredTurn, body: bytes) -> bytes:
    """Return a new request that continues the turn with the outputs of its calls.

    BadRequest names call ids that the turn does not have, and open calls without an output.
    """
    submission = json.read(body, _submission)
    calls = _open_calls(turn)
    outputs = {_call_id(output, index): output for index, output in enumerate(submission.tool_outputs)}
    _check_outputs(set(calls), outputs)
    fields = {
        name: value
        for name, value in json.read_fields(bytes(turn.request)).items()
        if name not in _TURN_FIELDS
    }
    items = [
        {"type": f"{calls[call_id]}_output", "call_id": call_id, "output": _output_value(output.output)}
        for call_id, output in outputs.items()
    ]
    response_id = json.decode(bytes(turn.response)).get("id")
    request: dict[str, Any] = {**fields, "previous_response_id": response_id, "input": items}
    if submission.stream is not None:
        request["stream"] = submission.stream
    return json.encode(request)


def _items_of(value: Raw | None) -> list[Raw]:
    """Return the items of an `input`; a plain text is a message of the user."""
    if value is None or not json.is_present(value):
        return []
    if bytes(memoryview(value)[:1]) == b"[":
        return _items.decode(value)
    content = [{"type": "input_text", "text": json.decode_raw(value)}]
    return [Raw(json.encode({"type": "message", "role": "user", "content": content}))]


def _input_items(request: Raw) -> list[Raw]:
    return _items_of(json.read_fields(bytes(request)).get("input"))


def _output_items(response: Raw) -> list[Raw]:
    output = json.read_fields(bytes(response)).get("output")
    return [] if output is None else json.try_read(output, _items) or []


def _id_of(value: Raw) -> str:
    named = json.try_read(value, _identified)
    return named.id or "" if named is not None else ""


def _listed(item: dict[str, Any], stem: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    listed = {"id": f"{'msg' if kind == 'message' else 'item'}_{stem}", **item, "type": kind}
    if kind == "message" and isinstance(item.get("content"), str):
        if item.get("role") == "assistant":
            part: dict[str, Any] = {"type": "output_text", "text": item["content"], "annotations": []}
        else:
            part = {"type": "input_text", "text": item["content"]}
        listed["content"] = [part]
    return listed


def _open_calls(turn: StoredTurn) -> dict[str, str]:
    """Return the item type of each call of the turn's answer, by call id."""
    calls = (_call.decode(item) for item in _output_items(turn.response))
    return {call.call_id: call.type for call in calls if call.call_id and call.type in CALLS}


def _call_id(output: _ToolOutput, index: int) -> str:
    call_id = output.tool_call_id or output.call_id
    if not call_id:
        path = f"tool_outputs[{index}].tool_call_id"
        raise BadRequest(f"{path}: this field is required", param=path, code="missing_field")
    return call_id


def _check_outputs(calls: set[str], outputs: dict[str, _ToolOutput]) -> None:
    unknown = [call_id for call_id in outputs if call_id not in calls]
    if unknown:
        ids = ", ".join(map(repr, unknown))
        raise BadRequest(f"tool_outputs: the response does not have the call {ids}", param="tool_outputs")
    missing = sorted(calls - set(outputs))
    if missing:
        ids = ", ".join(map(repr, missing))
        raise BadRequest(f"tool_outputs: the output of {ids} is missing; submit all", param="tool_outputs")
    if not outputs:
        raise BadRequest("tool_outputs: the response has no open call", param="tool_outputs")


def _output_value(output: Raw) -> Any:
    """Return a tool's output as an item takes it: a text or a list of parts; other values as JSON text."""
    value = json.decode_raw(output)
    if isinstance(value, str) or (isinstance(value, list) and all(_is_part(part) for part in value)):
        return value
    return "" if value is None else bytes(output).decode()


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)
