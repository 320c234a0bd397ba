"""Puts wrong values into every field: clients get BadRequest, upstreams a typed failure."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import Raw

from routecodex.canon.errors import BadRequest, UpstreamError
from routecodex.canon.events import Failed, Finished
from routecodex.canon.parts import ToolCall
from routecodex.canon.response import fold
from routecodex.protocols.codec import EncodeOptions, ReplyContext, WireRequest
from routecodex.protocols.responses import CODEC
from routecodex.protocols.responses.history import StoredTurn, expand, input_items, submit
from tests.protocols.responses.streams import FULL, MESSAGE, OUTPUT, USAGE, response

REQUEST: dict[str, Any] = {
    "model": "m",
    "instructions": "be",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "hi"},
                {"type": "input_image", "image_url": "data:image/png;base64,QQ==", "detail": "auto"},
                {"type": "input_file", "filename": "a", "file_data": "data:application/pdf;base64,QQ=="},
                {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "t"}],
            "encrypted_content": "rcx1.p.sig",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "p", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "t"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "x"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
        {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "custom", "name": "g"}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "reasoning": {"effort": "low", "summary": "auto", "generate_summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "stream": True,
}
RICH_TEXT = {
    "type": "output_text",
    "text": "a",
    "annotations": [{"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}],
    "logprobs": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": [{"token": "b"}]}],
}
CUSTOM = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "p", "input": "x"}
ANSWER = response(output=[*OUTPUT, {**MESSAGE, "id": "msg_2", "content": [RICH_TEXT]}, CUSTOM], usage=USAGE)
FRAMES = [json.loads(piece.split(b"data: ", 1)[1]) for piece in FULL]
VALUES: list[Any] = [
    None,
    True,
    0,
    -1.5,
    "",
    "x",
    "\0",
    [],
    ["x"],
    [None],
    [{}],
    {},
    {"type": "x"},
    {"type": "x", "text": 5, "content": [{"type": "input_file", "file_data": 3}]},
]
REPLY = ReplyContext(id="a", created=1, model="m")


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from paths(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return value


@pytest.mark.parametrize("path", list(paths(REQUEST)), ids=str)
def test_a_request_is_rejected_by_field_or_usable(path: tuple[Any, ...]) -> None:
    for new in VALUES:
        body = json.dumps(changed(REQUEST, path, new)).encode()
        try:
            request = CODEC.validate(body)
        except BadRequest as exc:
            named = exc.param
        else:
            named = "none"
            use(request)
        assert named


def use(request: WireRequest) -> None:
    """Run everything that the gateway does with a valid request."""
    canonical = CODEC.decode_request(request)
    for provider in ("p", "other"):
        options = EncodeOptions(model="up", provider=provider)
        CODEC.validate(CODEC.encode_request(canonical, options).body)
        CODEC.rewrite(request, options)
    turn = StoredTurn(Raw(request.body), Raw(json.dumps(response(output=OUTPUT)).encode()))
    expand(request.body, [turn])
    input_items(turn)
    submit(turn, b'{"tool_outputs":[{"call_id":"c1","output":"x"}]}')


@pytest.mark.parametrize("path", list(paths(FRAMES)), ids=str)
def test_a_stream_ends_once_whatever_the_upstream_sends(path: tuple[Any, ...]) -> None:
    for new in VALUES:
        frames = (json.dumps(value).encode() for value in changed(FRAMES, path, new))
        stream = b"".join(b"data: %b\n\n" % data for data in frames)
        decoder = CODEC.stream_decoder()
        events = [*decoder.feed(stream), *decoder.close()]
        assert [isinstance(event, Finished | Failed) for event in events].count(True) == 1
        encoder = CODEC.stream_encoder(REPLY)
        for event in events:
            encoder.encode(event)
        relay_to_the_end(stream)


def relay_to_the_end(stream: bytes) -> None:
    pipe = CODEC.relay(REPLY)
    try:
        pipe.feed(stream)
        pipe.close()
    except UpstreamError:
        raised = True
    else:
        raised = False
    assert raised != pipe.started


def is_translated(body: bytes) -> bool:
    """Return whether the answer can be re-encoded for the client."""
    answer = json.loads(CODEC.encode_response(fold(CODEC.decode_response(body)), REPLY))
    return (answer["object"], answer["model"]) == ("response", REPLY.model)


def is_relayed(body: bytes) -> bool:
    """Return whether the answer can be relayed, with its outcome; missing and null fields may be filled."""
    sent, outcome = CODEC.relay_response(body, REPLY)
    received, answer = json.loads(body), json.loads(sent)
    same = {name for name in received if received[name] is not None and name != "usage"}
    return outcome.finish is not None and all(answer[name] == received[name] for name in same)


@pytest.mark.parametrize("path", list(paths(ANSWER)), ids=str)
@pytest.mark.parametrize("is_read", [is_translated, is_relayed])
def test_an_answer_is_decoded_or_a_typed_failure(
    is_read: Callable[[bytes], bool], path: tuple[Any, ...]
) -> None:
    for new in VALUES:
        body = json.dumps(changed(ANSWER, path, new)).encode()
        try:
            status = 200 if is_read(body) else 0
        except UpstreamError as error:
            status = error.status
        assert status in (200, 502)


def test_an_item_that_lost_its_type_at_the_end_completes_its_call() -> None:
    item = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": ""}
    last = {"id": "fc_1", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [last]}},
    ]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    decoder = CODEC.stream_decoder()
    assert fold([*decoder.feed(stream), *decoder.close()]).parts == (ToolCall("c", "f", '{"a":1}'),)


def test_a_number_that_cannot_be_held_does_not_break_a_stream() -> None:
    item = b'{"type":"message","id":"m","content":[],"x":1e999}'
    stream = b'data: {"type":"response.output_item.added","output_index":0,"item":%b}\n\n' % item
    stream += b'data: {"type":"response.completed","response":{"id":"r","output":[],"x":1e999}}\n\n'
    decoder = CODEC.stream_decoder()
    assert isinstance([*decoder.feed(stream), *decoder.close()][-1], Finished | Failed)
    relay_to_the_end(stream)
