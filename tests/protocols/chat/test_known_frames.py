"""Frames recognised by their bytes are relayed and decoded exactly like decoded ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import GatewayError
from routecodex.protocols.chat.known_frames import KnownFrames
from routecodex.protocols.chat.relay import Relay
from routecodex.protocols.chat.validate import validate
from routecodex.protocols.codec import AnswerOutcome
from routecodex.wire import json, sse
from tests.protocols.chat.samples import COUNTS, DONE, HEAD, body, call, choice, frame, reply, role, usage

START = sse.frame(json.encode(HEAD))[:-3] + b',"choices":[{"index":0,"delta":{'
TAIL = b'},"logprobs":null,"finish_reason":null}]}\n\n'

OPENINGS: list[tuple[str, bytes]] = [
    ("a role", b'"role":"assistant"' + TAIL),
    ("an empty content", b'"role":"assistant","content":""' + TAIL),
    ("no content", b'"role":"assistant","content":null' + TAIL),
    ("no refusal", b'"role":"assistant","content":"","refusal":null' + TAIL),
    ("no logprobs", b'"role":"assistant"},"finish_reason":null}]}\n\n'),
    ("no usage", b'"role":"assistant"},"finish_reason":null}],"usage":null}\n\n'),
]


@pytest.mark.parametrize("rest", [row[1] for row in OPENINGS], ids=[row[0] for row in OPENINGS])
def test_a_first_frame_is_known_by_its_head(rest: bytes) -> None:
    head, end = KnownFrames().opening_at(b"..." + START + rest + DONE, 3)
    assert head is not None
    assert (head.id, head.created, head.model) == ("chatcmpl-1", 5, "gpt")
    assert end == 3 + len(START + rest)


ROLE = b'"role":"assistant"' + TAIL
UNUSUAL: list[tuple[str, bytes]] = [
    ("text", START + b'"role":"assistant","content":"Hi"' + TAIL),
    ("another object", START.replace(b".chunk", b"") + ROLE),
    ("no id", START.replace(b"chatcmpl-1", b"") + ROLE),
    ("no model", START.replace(b"gpt", b"") + ROLE),
    ("a model that is null", START.replace(b'"gpt"', b"null") + ROLE),
    ("no time", START.replace(b'"created":5,', b"") + ROLE),
    ("a time as a string", START.replace(b":5,", b':"5",') + ROLE),
    ("a member more", START.replace(b',"choices"', b',"error":null,"choices"') + ROLE),
    ("another choice", START.replace(b'"index":0', b'"index":1') + ROLE),
    ("blanks", START.replace(b'","', b'", "') + ROLE),
    ("an event", b"event: x\n" + START + ROLE),
    ("no blank before the data", START.replace(b"data: ", b"data:") + ROLE),
    ("something behind", START + ROLE[:-3] + b',"x":1}\n\n'),
    ("another line", START + ROLE[:-1] + b": x\n\n"),
    ("an end", DONE),
]


@pytest.mark.parametrize("first", [row[1] for row in UNUSUAL], ids=[row[0] for row in UNUSUAL])
def test_another_first_frame_has_to_be_read(first: bytes) -> None:
    assert KnownFrames().opening_at(first, 0) == (None, 0)


def opened() -> KnownFrames:
    usual = KnownFrames()
    usual.opening_at(START + ROLE, 0)
    return usual


TEXT = START + b'"content":"'


@pytest.mark.parametrize("text", [b"a", rb"\"", rb"\\", rb"\u00e9", "é".encode(), b" "])
def test_a_text_is_recognised_by_the_bytes_around_it(text: bytes) -> None:
    assert opened().text_at(b"..." + TEXT + text + b'"' + TAIL, 3) == (TEXT, b'"' + TAIL)


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"\n\n", rb"\x", rb"\u00", rb"\ud800x", b"\xff", b"\\", b'"', b'","x":"']
)
def test_a_text_that_is_none_has_to_be_read(text: bytes) -> None:
    assert opened().text_at(TEXT + text + b'"' + TAIL, 0) == (b"", b"")


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
@pytest.mark.parametrize("delta", [b"", b'"content":""'])
def test_a_finish_is_known(reason: str, delta: bytes) -> None:
    end = START + delta + TAIL.replace(b'reason":null', b'reason":"%b"' % reason.encode())
    assert opened().finish_at(b"..." + end + DONE, 3) == (reason, 3 + len(end))


@pytest.mark.parametrize("reason", [b"null", b'""', b'"tool_calls"', b'"eos"', b'"st\\u006fp"', b"1"])
def test_another_finish_has_to_be_read(reason: bytes) -> None:
    end = START + TAIL.replace(b'reason":null', b'reason":' + reason)
    assert opened().finish_at(end, 0)[0] == ""
    assert KnownFrames().finish_at(START + TAIL.replace(b"null}", b'"stop"}'), 0) == ("", 0)


COUNTED = START.removesuffix(b'{"index":0,"delta":{') + b'],"usage":'


def test_usage_that_comes_alone_is_known() -> None:
    found = COUNTED + json.encode(COUNTS) + b"}\n\n"
    counts, end = opened().usage_at(b"..." + found + DONE, 3)
    assert counts is not None
    assert (counts.prompt_tokens, counts.completion_tokens) == (3, 2)
    assert end == 3 + len(found)
    assert KnownFrames().usage_at(found, 0) == (None, 0)


@pytest.mark.parametrize(
    "frame",
    [
        b"null}",
        b"{}",
        b"[]}",
        b'{},"x":1}',
        b'{"prompt_tokens":"3"}}',
        b"{\n}}",
        b"{}}\n: x",
        b"{}} ",
        b"{}}}",
        b"",
    ],
)
def test_other_usage_has_to_be_read(frame: bytes) -> None:
    assert opened().usage_at(COUNTED + frame + b"\n\n", 0)[0] is None


def rest(text: bytes) -> bytes:
    """A frame with the usual head, and this behind it."""
    return START + text


FRAMES = [
    role(),
    choice(role="assistant", content="", refusal=None),
    choice(role="assistant"),
    choice(role="assistant", content="Hi"),
    choice(role="assistant", tool_calls=[]),
    choice(),
    choice(content=""),
    choice(content=" there"),
    choice(content='"quoted" \\ é\n [DONE] _call'),
    choice(content="other", index=1),
    choice(reasoning_content="hm"),
    choice("stop"),
    choice("stop", index=1),
    choice("stop", content=""),
    choice("stop", content="!"),
    choice("length"),
    choice("content_filter"),
    choice("tool_calls"),
    choice("eos"),
    choice(""),
    choice(function_call={"name": "f", "arguments": "{}"}),
    call(0, "a", "f", "{}"),
    call(None, "a", "f", "{}"),
    usage(),
    usage().replace(b"chatcmpl-1", b"chatcmpl-2"),
    COUNTED + b"null}\n\n",
    COUNTED + b'{"prompt_tokens":"3"}}\n\n',
    COUNTED + b'{"prompt_tokens":3},"error":{"message":"no","type":"limit"}}\n\n',
    COUNTED + b"{}\n\n",
    frame(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=COUNTS),
    frame(choices=[{"index": 0, "delta": {"content": "x"}, "finish_reason": None}], usage=None),
    frame(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=None),
    frame(choices=[], prompt_filter_results=[]),
    frame(error={"message": "no", "type": "limit", "code": 429}),
    frame(error=None, choices=[]),
    choice(content="x").replace(b"chatcmpl-1", b"chatcmpl-2"),
    choice("stop").replace(b"chatcmpl-1", b""),
    role().replace(b"chatcmpl-1", b""),
    role().replace(b'"logprobs":null,', b""),
    rest(b'"content":"\\x"' + TAIL),
    rest(b'"content":"\xff"' + TAIL),
    rest(b'"content":"a' + TAIL),
    rest(b'"role":"assistant"' + TAIL.replace(b"}]}", b'}],"id":"","usage":{"prompt_tokens":1}}')),
    rest(TAIL.replace(b"null}", b'"stop","finish_reason":"length"}')),
    DONE,
]
STREAMS = st.lists(st.sampled_from(FRAMES), max_size=8) | st.lists(st.sampled_from(FRAMES), max_size=6).map(
    lambda frames: [role(), choice(content="Hi"), *frames, choice("stop"), DONE]
)


def spaced(frames: bytes) -> bytes:
    """The same frames with a blank that makes none of them usual."""
    return frames.replace(b'data: {"', b'data: { "')


OUTCOME_FIELDS = [name for name in dir(AnswerOutcome) if not name.startswith("_") and name != "error"]


def relayed(stream: list[bytes], together: int, **settings: Any) -> tuple[bytes, Any, Any]:
    """Relay the frames, `together` at a time; return the bytes, the outcome and the error."""
    relay = Relay(reply(**settings))
    out, raised = b"", None
    try:
        for at in range(0, len(stream), together):
            out += relay.feed(b"".join(stream[at : at + together]))
        out += relay.close()
    except GatewayError as error:
        raised = error
    wrong = (repr(relay.outcome.error), repr(raised), relay.started, relay.ended)
    reason = {name: getattr(relay.outcome, name) for name in OUTCOME_FIELDS}
    return out, reason, wrong


@given(STREAMS, st.sampled_from([1, 2, 3, 99]), st.booleans(), st.sampled_from([1, 2]))
def test_known_frames_are_relayed_like_decoded_ones(
    stream: list[bytes], together: int, include_usage: bool, choices: int
) -> None:
    to = {"include_usage": include_usage, "view": validate(body(n=choices)).view}
    quick, *outcome = relayed(stream, together, **to)
    slow, *expected = relayed([spaced(each) for each in stream], together, **to)
    assert (spaced(quick), outcome) == (spaced(slow), expected)
