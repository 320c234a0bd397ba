"""Numbers that cannot be held: carried where nothing is rebuilt, refused where it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.canon.request import ProtocolName
from routecodex.canon.response import fold
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.codecs import CODECS

PLACES: list[tuple[ProtocolName, bytes]] = [
    ("chat", b'{"model":"m","messages":[{"role":"user","content":"x"}],"odd":@}'),
    ("chat", b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x","odd":@}]}]}'),
    (
        "chat",
        b'{"model":"m","messages":[{"role":"user","content":"x"}],'
        b'"tools":[{"type":"function","function":{"name":"f","parameters":{"a":@}}}]}',
    ),
    ("messages", b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}],"odd":@}'),
    ("responses", b'{"model":"m","input":"x","odd":@}'),
    ("gemini", b'{"contents":[{"parts":[{"text":"x"}]}],"odd":@}'),
    ("gemini", b'{"contents":[{"parts":[{"functionCall":{"name":"f","args":{"a":@}}}]}]}'),
]


@pytest.mark.parametrize("number", [b"1e999", b"-1e400", b"1" * 5000])
@pytest.mark.parametrize(("protocol", "body"), PLACES)
def test_a_number_out_of_range_is_the_clients_fault_where_it_must_be_read(
    protocol: ProtocolName, body: bytes, number: bytes
) -> None:
    codec = CODECS[protocol]
    inbound = codec.validate(body.replace(b"@", number), model="m", stream=False)
    assert number in codec.rewrite(inbound, EncodeOptions(model="m", provider="p")).body
    with pytest.raises(BadRequest, match=r"^the request body: .*out of range$"):
        codec.decode_request(inbound)


NEGATIVE: dict[str, dict[str, Any]] = {
    "chat": {
        "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": -1, "completion_tokens": -2, "total_tokens": -3},
    },
    "messages": {
        "type": "message",
        "content": [{"type": "text", "text": "a"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": -1, "output_tokens": -2},
    },
    "responses": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}],
        "usage": {"input_tokens": -1, "output_tokens": -2, "total_tokens": -3},
    },
    "gemini": {
        "candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": -1, "candidatesTokenCount": -2, "totalTokenCount": -3},
    },
}


@pytest.mark.parametrize("protocol", NEGATIVE)
def test_negative_token_counts_of_a_provider_are_no_usage(protocol: str) -> None:
    """The gateway estimates the usage instead, so that the answer is not free."""
    answer = fold(CODECS[protocol].decode_response(json.dumps(NEGATIVE[protocol]).encode()))
    assert answer.usage is None
