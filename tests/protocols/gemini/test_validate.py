from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.protocols.gemini import CODEC
from routecodex.protocols.gemini.validate import validate_count

HELLO = {"role": "user", "parts": [{"text": "Hi"}]}
CALL = {"role": "model", "parts": [{"functionCall": {"id": "a", "name": "look", "args": {}}}]}


def with_config(**fields: Any) -> dict[str, Any]:
    return {"contents": [HELLO], "generationConfig": fields}


def with_parts(*parts: Any) -> dict[str, Any]:
    return {"contents": [{"parts": list(parts)}]}


def with_result_parts(*parts: Any) -> dict[str, Any]:
    result = {"id": "a", "name": "look", "response": {}, "parts": list(parts)}
    return {"contents": [HELLO, CALL, {"parts": [{"functionResponse": result}]}]}


RESULT_PARTS = "contents[2].parts[0].functionResponse.parts[0]"

WRONG = [
    (with_result_parts({"inlineData": "b"}), f"{RESULT_PARTS}.inlineData"),
    (with_result_parts({"inlineData": {"mimeType": 1.5}}), f"{RESULT_PARTS}.inlineData.mimeType"),
    (with_result_parts({"inlineData": {"data": {}}}), f"{RESULT_PARTS}.inlineData.data"),
    (with_result_parts({"fileData": {"displayName": []}}), f"{RESULT_PARTS}.fileData.displayName"),
    ({}, "contents"),
    ({"contents": []}, "contents"),
    ({"contents": "Hi"}, "contents"),
    ({"contents": [{"role": "user"}]}, "contents[0].parts"),
    ({"contents": [HELLO, {"role": "assistant", "parts": [{"text": "x"}]}]}, "contents[1].role"),
    (with_parts({"text": 1}), "contents[0].parts[0].text"),
    (with_parts({"thought": "yes"}), "contents[0].parts[0].thought"),
    (with_parts({"inlineData": {"mimeType": 3}}), "contents[0].parts[0].inlineData.mimeType"),
    (with_parts({"functionCall": {"args": {}}}), "contents[0].parts[0].functionCall.name"),
    (with_parts({"functionCall": {"name": "a\0b"}}), "contents[0].parts[0].functionCall.name"),
    (with_parts({"functionCall": {"name": "f", "args": []}}), "contents[0].parts[0].functionCall.args"),
    (
        {"contents": [CALL, {"parts": [{"functionResponse": {"id": "b", "name": "see", "response": {}}}]}]},
        "contents[1].parts[0].functionResponse",
    ),
    (with_parts({"functionResponse": {"response": {}}}), "contents[0].parts[0].functionResponse.name"),
    (
        {"contents": [HELLO, {"role": "model", "parts": [CALL["parts"][0], CALL["parts"][0]]}]},
        "contents[1].parts[1].functionCall.id",
    ),
    (with_config(maxOutputTokens="10"), "generationConfig.maxOutputTokens"),
    (with_config(temperature="hot"), "generationConfig.temperature"),
    (with_config(stopSequences=[1]), "generationConfig.stopSequences[0]"),
    (with_config(thinkingConfig={"thinkingBudget": 1.5}), "generationConfig.thinkingConfig.thinkingBudget"),
    (
        {"contents": [HELLO], "tools": [{"functionDeclarations": [{}]}]},
        "tools[0].functionDeclarations[0].name",
    ),
    (
        {"contents": [HELLO], "tools": [{"functionDeclarations": [{"name": ""}]}]},
        "tools[0].functionDeclarations[0].name",
    ),
    (
        {"contents": [HELLO], "toolConfig": {"functionCallingConfig": {"mode": "MAYBE"}}},
        "toolConfig.functionCallingConfig.mode",
    ),
    ({"contents": [HELLO], "system_instruction": 5}, "systemInstruction"),
    (
        {"contents": [HELLO], "generation_config": {"max_output_tokens": []}},
        "generationConfig.maxOutputTokens",
    ),
]


@pytest.mark.parametrize(("body", "field"), WRONG, ids=[field for _, field in WRONG])
def test_a_wrong_field_is_named(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        CODEC.validate(json.dumps(body).encode(), model="gemini-2.5-pro", stream=False)
    assert caught.value.param == field
    assert field in caught.value.message


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"contents":[{"parts":[{"text":"\xff"}]}]}'])
def test_a_body_that_is_not_a_request_is_rejected(body: bytes) -> None:
    with pytest.raises(BadRequest):
        CODEC.validate(body, model="m", stream=False)


@pytest.mark.parametrize("model", ["", None, "a\0b", "models/"])
def test_a_model_must_be_named(model: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        CODEC.validate(json.dumps({"contents": [HELLO]}).encode(), model=model, stream=False)
    assert caught.value.param == "model"


def test_model_and_stream_come_from_the_path() -> None:
    request = CODEC.validate(json.dumps({"contents": HELLO}).encode(), model="models/gemini-x", stream=True)
    assert (request.model, request.stream, request.protocol) == ("gemini-x", True, "gemini")


def test_unknown_fields_and_parts_are_accepted() -> None:
    body = {
        "contents": [{"role": "", "parts": [{"hologram": {"x": 1}}, {"text": "a\0b"}]}],
        "tools": [{"timeTravel": {}}],
        "wormhole": True,
    }
    assert CODEC.validate(json.dumps(body).encode(), model="m").model == "m"


def test_an_orphan_result_is_accepted_when_contents_are_cached() -> None:
    body = {
        "contents": [{"parts": [{"functionResponse": {"name": "look", "response": {}}}]}],
        "cachedContent": "cachedContents/1",
    }
    request = CODEC.decode_request(CODEC.validate(json.dumps(body).encode(), model="m"))
    assert request.extras == {"cachedContent": "cachedContents/1"}


@pytest.mark.parametrize("name", ["generateContentRequest", "generate_content_request"])
def test_a_count_request_contains_a_whole_request(name: str) -> None:
    inner = {"model": "models/other", "contents": [HELLO], "systemInstruction": {"parts": [{"text": "S"}]}}
    request = CODEC.decode_request(validate_count(json.dumps({name: inner}).encode(), model="m"))
    assert (request.model, request.system[0].text) == ("m", "S")


def test_a_count_request_without_contents_is_rejected() -> None:
    with pytest.raises(BadRequest) as caught:
        validate_count(b"{}", model="m")
    assert caught.value.param == "contents"
