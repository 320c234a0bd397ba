from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.protocols import sealed_signatures
from routecodex.protocols.codec import EncodedRequest, EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.large_body import replace_model
from routecodex.protocols.responses.content import seal_call_signature, seal_reasoning
from routecodex.protocols.responses.rewrite import rewrite
from routecodex.protocols.responses.validate import validate

DROPPED = "dropped reasoning: made by another provider"


def rewritten(body: bytes, **options: Any) -> EncodedRequest:
    return rewrite(validate(body), EncodeOptions(**{"model": "up", "provider": "p", **options}))


@pytest.mark.parametrize(
    ("body", "out"),
    [
        (
            b'{ "model" : "m",\n "input":"hi", "odd": [1 ,2] }',
            b'{ "model" : "up",\n "input":"hi", "odd": [1 ,2] }',
        ),
        (
            b'{"model":"m","input":"say \\"model\\": \\"x\\""}',
            b'{"model":"up","input":"say \\"model\\": \\"x\\""}',
        ),
        (b'{"model":"m","input":"model"}', b'{"model":"up","input":"model"}'),
        (
            b'{"metadata":{"model":"x"},"model":"m","input":"h"}',
            b'{"metadata":{"model":"x"},"model":"up","input":"h"}',
        ),
        (b'{"model":"up","input":"hi"}', b'{"model":"up","input":"hi"}'),
    ],
)
def test_only_the_model_changes(body: bytes, out: bytes) -> None:
    assert rewritten(body) == EncodedRequest(out)


def test_model_name_is_written_as_json() -> None:
    assert replace_model(b'{"model":"m"}', 'a"\\b') == b'{"model":"a\\"\\\\b"}'


def test_unsupported_fields_are_left_out() -> None:
    out = rewritten(
        b'{"model":"m","input":"hi","temperature":1,"keep":1.0}',
        dialect=Dialect(unsupported=("temperature", "top_p")),
    )
    assert out == EncodedRequest(
        b'{"model":"up","input":"hi","keep":1.0}', ("dropped temperature: the upstream does not take it",)
    )


def with_reasoning(encrypted: str | None) -> bytes:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted},
        {"type": "message", "role": "user", "content": "hi"},
    ]
    return json.dumps({"model": "m", "input": items, "include": ["reasoning.encrypted_content"]}).encode()


def reasoning_items(out: EncodedRequest) -> list[Any]:
    return [
        item["encrypted_content"] for item in json.loads(out.body)["input"] if item["type"] == "reasoning"
    ]


def test_own_signature_passes_byte_for_byte() -> None:
    body = with_reasoning("gAAA")
    assert rewritten(body).body == body.replace(b'"model": "m"', b'"model": "up"')


def test_sealed_reasoning_of_the_provider_is_unsealed() -> None:
    out = rewritten(with_reasoning(sealed_signatures.seal("p", "gAAA")))
    assert reasoning_items(out) == ["gAAA"]
    assert out.notices == ()


@pytest.mark.parametrize(
    "encrypted",
    [
        sealed_signatures.seal("other", "gAAA"),
        seal_reasoning("p", "", redacted=False),
        seal_reasoning("p", "x", redacted=True),
        seal_call_signature("p", "c1", "x"),
    ],
)
def test_reasoning_of_other_providers_is_left_out(encrypted: str) -> None:
    out = rewritten(with_reasoning(encrypted))
    assert reasoning_items(out) == []
    assert out.notices == (DROPPED,)


def test_signature_known_to_be_of_another_provider_is_left_out() -> None:
    assert rewritten(with_reasoning("gAAA"), accepts_signature=lambda signature: False).notices == (DROPPED,)


def test_unsigned_reasoning_stays() -> None:
    assert reasoning_items(rewritten(with_reasoning(None))) == [None]
