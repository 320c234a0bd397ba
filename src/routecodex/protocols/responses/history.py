"""Earlier turns of a conversation: what `previous_response_id` stands for, and submitted tool outputs.

A turn is kept as the client's request and the answer it got, both as the bytes they were. Everything here is
pure; where turns are kept is somebody else's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.wire import json
from routecodex.wire.json import ABSENT

from .schema import CALLS

_SETTINGS_NOT_KEPT = frozenset(
    {"input", "previous_response_id", "conversation", "stream", "stream_options", "background", "prompt"}
)


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


_turn = Decoder(StoredTurn)
_submission = Decoder(_Submission)
_items = Decoder(list[Raw])
_call = Decoder(_Call)


def stored_turn(request_body: bytes, response_body: bytes) -> StoredTurn:
    """The turn that a request and its answer make."""
    return StoredTurn(Raw(request_body), Raw(response_body))


def encode_turn(turn: StoredTurn) -> bytes:
    """A turn as bytes for a store."""
    return json.encode(turn)


def decode_turn(data: bytes) -> StoredTurn:
    """A turn from a store; ValueError when the bytes are none."""
    return _turn.decode(data)


def expand(body: bytes, turns: Sequence[StoredTurn]) -> bytes:
    """The request with the items of earlier turns (oldest first) before its own, and no reference to them.

    Instructions are not inherited, as OpenAI does.
    """
    fields = json.read_fields(body)
    fields.pop("previous_response_id", None)
    earlier = [item for turn in turns for item in (*_asked(turn.request), *_answered(turn.response))]
    fields["input"] = Raw(json.encode([*earlier, *_given(fields.get("input"))]))
    return json.encode(fields)


def input_items(turn: StoredTurn) -> list[Any]:
    """The input of a turn as `GET …/input_items` lists it: every item with an id and its text in parts."""
    response_id = json.decode(bytes(turn.response)).get("id", "resp")
    asked = (json.decode(bytes(item)) for item in _asked(turn.request))
    return [_listed(item, f"{response_id}_{index}") for index, item in enumerate(asked)]


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
    if value is None or not json.present(value):
        return []
    if bytes(memoryview(value)[:1]) == b"[":
        return _items.decode(value)
    content = [{"type": "input_text", "text": json.thaw(value)}]
    return [Raw(json.encode({"type": "message", "role": "user", "content": content}))]


def _asked(request: Raw) -> list[Raw]:
    return _given(json.read_fields(bytes(request)).get("input"))


def _answered(response: Raw) -> list[Raw]:
    output = json.read_fields(bytes(response)).get("output")
    return [] if output is None or not json.present(output) else _items.decode(output)


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
    value = json.thaw(output)
    if isinstance(value, str) or (isinstance(value, list) and all(_is_part(part) for part in value)):
        return value
    return "" if value is None else bytes(output).decode()


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)
