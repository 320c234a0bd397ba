from __future__ import annotations

import json
from typing import Any

from routecodex.protocols.codec import EncodedRequest, EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.gemini import CODEC
from routecodex.protocols.gemini.thinking import SKIP_SIGNATURE, seal_signature

OPTIONS = EncodeOptions(model="gemini-2.5-flash", provider="google")
THREE = EncodeOptions(model="gemini-3-flash", provider="google")


def rewrite(body: bytes, options: EncodeOptions = OPTIONS) -> EncodedRequest:
    return CODEC.rewrite(CODEC.validate(body, model="whatever", stream=True), options)


def history(*parts: Any) -> bytes:
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": list(parts)}]
    return json.dumps({"contents": contents}, indent=1).encode()


def test_the_body_passes_byte_for_byte() -> None:
    body = (
        b'{ "contents" : [{"role":"user", "parts":[{"text":"\\u00e9","odd":1e5}]}],\n "wormhole":{"a":[ ]} }'
    )
    assert rewrite(body) == EncodedRequest(body)


def test_signatures_of_this_provider_pass_byte_for_byte() -> None:
    body = history({"text": "A", "thoughtSignature": "AA-_"})
    assert rewrite(body) == EncodedRequest(body)


def test_signatures_of_another_provider_are_removed() -> None:
    checked: list[str] = []

    def is_ours(signature: str) -> bool:
        checked.append(signature)
        return False

    options = EncodeOptions(model="gemini-3-flash", provider="google", accepts_signature=is_ours)
    call = {"functionCall": {"name": "look", "args": {"x": 1}}}
    body = history(
        {"text": "Hm", "thought": True, "thoughtSignature": "AA-_"},
        {**call, "thoughtSignature": "BBBB"},
        {"text": "", "thoughtSignature": "CCCC"},
    )
    rewritten = rewrite(body, options)
    assert json.loads(rewritten.body)["contents"][1]["parts"] == [
        {**call, "thoughtSignature": SKIP_SIGNATURE}
    ]
    assert rewritten.notices == ("dropped reasoning: made by another provider",)
    assert checked[0] == "AA+/"


def test_sealed_signatures_are_unsealed_for_their_owner_only() -> None:
    body = history({"text": "A", "thoughtSignature": seal_signature("google", "S")})
    assert json.loads(rewrite(body).body)["contents"][1]["parts"] == [{"text": "A", "thoughtSignature": "S"}]
    other = rewrite(body, EncodeOptions(model="m", provider="other"))
    assert json.loads(other.body)["contents"][1]["parts"] == [{"text": "A"}]


def test_snake_case_signatures_are_found_too() -> None:
    body = history({"text": "A", "thought_signature": seal_signature("google", "S").replace("+", "-")})
    assert json.loads(rewrite(body).body)["contents"][1]["parts"] == [{"text": "A", "thought_signature": "S"}]


def test_an_unsigned_call_gets_the_placeholder_on_gemini_3() -> None:
    call = {"functionCall": {"name": "look", "args": {}}}
    sent = json.loads(rewrite(history(call, call), THREE).body)["contents"][1]["parts"]
    assert sent == [{**call, "thoughtSignature": SKIP_SIGNATURE}, call]
    assert rewrite(history(call)) == EncodedRequest(history(call))


def test_unsupported_fields_are_left_out() -> None:
    options = EncodeOptions(
        model="m", provider="p", dialect=Dialect(unsupported=("safetySettings", "topK", "labels"))
    )
    config = b'"safety_settings":[],"generationConfig":{"topK":1,"topP":1e0}}'
    body = b'{"contents":[{"parts":[{"text":"Hi"}]}],' + config
    rewritten = rewrite(body, options)
    assert rewritten.body == b'{"contents":[{"parts":[{"text":"Hi"}]}],"generationConfig":{"topP":1e0}}'
    assert rewritten.notices == (
        "dropped safetySettings: this provider does not take it",
        "dropped topK: this provider does not take it",
    )


def test_a_model_in_the_body_is_left_out() -> None:
    body = b'{"model":"models/x","contents":[{"role":"model","parts":[{"text":"Hi"}]}]}'
    assert rewrite(body).body == b'{"contents":[{"role":"model","parts":[{"text":"Hi"}]}]}'
