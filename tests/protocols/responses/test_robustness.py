"""Whatever value stands where another was expected: clients get BadRequest, upstreams a typed failure."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.responses.streams import FULL, OUTPUT, USAGE, response

from routecodex.canon.errors import BadRequest, UpstreamError
from routecodex.canon.events import Failed, Finished
from routecodex.protocols.codec import Aim, ReplyTo
from routecodex.protocols.responses import CODEC
from routecodex.protocols.responses.history import expand, input_items, stored_turn, submit

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
values = st.sampled_from(
    [None, True, 0, -1.5, "", "x", "\0", [], ["x"], [None], [{}], {}, {"type": "x"}, {"a": 1}]
)


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    if not path:
        return new
    place[path[-1]] = new
    return value


def every_path(value: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    stack: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        found.append(path)
        inner = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        stack.extend(((*path, key), child) for key, child in inner)
    return st.sampled_from(found)


@settings(max_examples=600)
@given(every_path(REQUEST), values, st.sampled_from(["p", "other"]))
def test_a_request_is_refused_with_its_field_or_understood(path: Any, new: Any, provider: str) -> None:
    body = json.dumps(changed(REQUEST, path, new)).encode()
    try:
        inbound = CODEC.read(body)
    except BadRequest as exc:
        assert exc.param or not path
        return
    aim = Aim(model="up", provider=provider)
    request = CODEC.decode_request(inbound)
    CODEC.read(CODEC.encode_request(request, aim).body)
    CODEC.rewrite(inbound, aim)
    turn = stored_turn(body, json.dumps(response(output=OUTPUT)).encode())
    expand(body, [turn])
    input_items(turn)
    submit(turn, b'{"tool_outputs":[{"call_id":"c1","output":"x"}]}')


FRAMES = [json.loads(piece.split(b"data: ", 1)[1]) for piece in FULL]


@settings(max_examples=600)
@given(every_path(FRAMES), values)
def test_a_stream_ends_once_whatever_the_upstream_writes(path: Any, new: Any) -> None:
    stream = b"".join(
        b"data: %b\n\n" % json.dumps(value).encode() for value in changed(FRAMES, path, new) or ()
    )
    decoder = CODEC.stream_decoder()
    events = [*decoder.feed(stream), *decoder.close()]
    assert [isinstance(event, Finished | Failed) for event in events].count(True) == 1
    encoder = CODEC.stream_encoder(ReplyTo(id="a", created=1, model="m"))
    for event in events:
        encoder.encode(event)
    pipe = CODEC.relay(ReplyTo(id="a", created=1, model="m"))
    try:
        pipe.feed(stream)
        pipe.close()
    except UpstreamError:
        assert not pipe.started


ANSWER = response(output=OUTPUT, usage=USAGE)


@settings(max_examples=300)
@given(every_path(ANSWER), values)
def test_an_answer_is_read_or_a_typed_failure(path: Any, new: Any) -> None:
    body = json.dumps(changed(ANSWER, path, new)).encode()
    for reader in (
        CODEC.decode_response,
        lambda data: CODEC.pass_response(data, ReplyTo(id="a", created=1, model="m")),
    ):
        try:
            reader(body)
        except UpstreamError as exc:
            assert exc.status >= 400
