from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.parts import Media, Opaque, Text
from routecodex.canon.response import fold
from routecodex.protocols.gemini import CODEC

PNG = {"mimeType": "image/png", "data": "QUJD"}
SUBSTITUTES: list[tuple[dict[str, Any], Any]] = [
    ({"inlineData": PNG}, Media("image", media_type="image/png", data="QUJD")),
    ({"inlineData": PNG, "thoughtSignature": "AAAA"}, Media("image", media_type="image/png", data="QUJD")),
    ({"inlineData": PNG, "thought": True}, None),
    (
        {"inlineData": {"mimeType": "audio/L16", "data": "_-"}},
        Media("audio", media_type="audio/L16", data="/+=="),
    ),
    (
        {"fileData": {"fileUri": "https://a.example/b.png"}},
        Media("image", media_type="image/png", url="https://a.example/b.png"),
    ),
    ({"executableCode": {"language": "PYTHON", "code": "print(1)\n"}}, Text("\n```python\nprint(1)\n```\n")),
    ({"executableCode": {"code": "a = '```'"}}, Text("\n````\na = '```'\n````\n")),
    ({"executableCode": {}}, None),
    ({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}, Text("\n```\n1\n```\n")),
    (
        {"codeExecutionResult": {"outcome": "OUTCOME_DEADLINE_EXCEEDED"}},
        Text("\n```\nOUTCOME_DEADLINE_EXCEEDED\n```\n"),
    ),
    ({"toolCall": {"id": "1"}, "thoughtSignature": "AAAA"}, None),
]


@pytest.mark.parametrize(("part", "substitute"), SUBSTITUTES, ids=range(len(SUBSTITUTES)))
def test_parts_of_gemini_alone_have_a_substitute(part: dict[str, Any], substitute: Any) -> None:
    candidate = {"content": {"parts": [{"text": "Hi"}, part]}, "finishReason": "STOP"}
    response = fold(CODEC.decode_response(json.dumps({"candidates": [candidate]}).encode()))
    assert response.parts == (Text("Hi"), Opaque("gemini", part, substitute))
