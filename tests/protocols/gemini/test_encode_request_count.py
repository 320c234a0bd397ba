from __future__ import annotations

import json

import pytest

from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Request
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.gemini.encode_request import count_path, encode_count, rewrite_count
from routecodex.protocols.gemini.validate import validate_count
from routecodex.protocols.gemini.whole import decode_total, encode_total

OPTIONS = EncodeOptions(model="gemini-2.5-flash", provider="google")
PLAIN = b'{"contents": [{"parts": [{"text": "Hi"}]}]}'


def test_a_request_of_any_protocol_can_be_counted() -> None:
    request = Request(
        model="m", messages=(Message("user", (Text("Hi"),)),), source="chat", system=(Text("S"),)
    )
    assert json.loads(encode_count(request, OPTIONS)) == {
        "generateContentRequest": {
            "model": "models/gemini-2.5-flash",
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            "systemInstruction": {"parts": [{"text": "S"}]},
        }
    }


def test_plain_contents_pass_byte_for_byte() -> None:
    assert rewrite_count(validate_count(PLAIN, model="m"), OPTIONS).body == PLAIN


@pytest.mark.parametrize(
    "body",
    [
        b'{"generateContentRequest":{"model":"models/x","contents":[{"parts":[{"text":"Hi"}]}],"tools":[]}}',
        b'{"contents":[{"parts":[{"text":"Hi"}]}],"tools":[]}',
    ],
)
def test_a_whole_request_is_counted_for_the_model_of_the_target(body: bytes) -> None:
    rewritten = rewrite_count(validate_count(body, model="x"), OPTIONS)
    assert json.loads(rewritten.body) == {
        "generateContentRequest": {
            "model": "models/gemini-2.5-flash",
            "contents": [{"parts": [{"text": "Hi"}]}],
            "tools": [],
        }
    }


def test_totals_and_the_path() -> None:
    assert decode_total(encode_total(7)) == 7
    assert decode_total(b"<html>") is None
    assert count_path("gemini-x") == "/v1beta/models/gemini-x:countTokens"
