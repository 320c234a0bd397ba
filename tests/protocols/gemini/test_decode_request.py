from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.canon.parts import Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.gemini import CODEC
from routecodex.protocols.gemini.thinking import seal_signature

MODEL = "gemini-2.5-flash"
OPTIONS = EncodeOptions(model=MODEL, provider="google")
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


def decode(body: dict[str, Any], *, model: str = MODEL) -> Request:
    return CODEC.decode_request(CODEC.validate(json.dumps(body).encode(), model=model, stream=False))


def encode(request: Request, options: EncodeOptions = OPTIONS) -> Any:
    return json.loads(CODEC.encode_request(request, options).body)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


HI = user({"text": "Hi"})
HI_MESSAGE = Message("user", (Text("Hi"),))


def request(*messages: Message, **fields: Any) -> Request:
    return Request(
        model=MODEL, messages=messages or (HI_MESSAGE,), source="gemini", include_usage=True, **fields
    )


BOTH_WAYS: list[tuple[str, dict[str, Any], Request]] = [
    ("text", {"contents": [HI]}, request()),
    (
        "system",
        {"contents": [HI], "systemInstruction": {"parts": [{"text": "Be brief."}]}},
        request(system=(Text("Be brief."),)),
    ),
    (
        "inline image",
        {"contents": [user({"inlineData": {"mimeType": "image/png", "data": "AAAA"}})]},
        request(Message("user", (Media("image", media_type="image/png", data="AAAA"),))),
    ),
    (
        "file by URL",
        {
            "contents": [
                user({"fileData": {"mimeType": "application/pdf", "fileUri": "https://a.example/b.pdf"}})
            ]
        },
        request(
            Message("user", (Media("file", media_type="application/pdf", url="https://a.example/b.pdf"),))
        ),
    ),
    (
        "uploaded video with its metadata",
        {
            "contents": [
                user(
                    {
                        "fileData": {"mimeType": "video/mp4", "fileUri": "gs://a/b"},
                        "videoMetadata": {"fps": 2},
                    },
                    {"text": "What is it?"},
                )
            ]
        },
        request(
            Message(
                "user",
                (
                    Media(
                        "video",
                        media_type="video/mp4",
                        file_id="gs://a/b",
                        extras={"videoMetadata": {"fps": 2}},
                    ),
                    Text("What is it?"),
                ),
            )
        ),
    ),
    (
        "a tool turn",
        {
            "contents": [
                HI,
                model(
                    {"text": "Hm", "thought": True, "thoughtSignature": "AAAA"},
                    {
                        "functionCall": {"id": "a", "name": "look", "args": {"q": "x"}},
                        "thoughtSignature": "BBBB",
                    },
                    {"functionCall": {"id": "b", "name": "look", "args": {}}},
                ),
                user(
                    {"functionResponse": {"id": "a", "name": "look", "response": {"found": 1}}},
                    {"functionResponse": {"id": "b", "name": "look", "response": {"error": "no such thing"}}},
                ),
                model({"text": "Done", "thoughtSignature": "CCCC"}),
                user({"text": "Thanks"}),
            ],
            "tools": [
                {
                    "functionDeclarations": [
                        {"name": "look", "description": "Looks.", "parametersJsonSchema": SCHEMA}
                    ]
                }
            ],
        },
        request(
            HI_MESSAGE,
            Message(
                "assistant",
                (
                    Reasoning("Hm", signature="AAAA"),
                    ToolCall("a", "look", '{"q":"x"}', signature="BBBB"),
                    ToolCall("b", "look", "{}"),
                ),
            ),
            Message(
                "tool",
                (
                    ToolResult("a", (Text('{"found":1}'),), name="look"),
                    ToolResult("b", (Text("no such thing"),), is_error=True, name="look"),
                ),
            ),
            Message("assistant", (Text("Done", signature="CCCC"),)),
            Message("user", (Text("Thanks"),)),
            tools=(Tool("look", description="Looks.", parameters=SCHEMA),),
        ),
    ),
    (
        "code that ran at the provider",
        {"contents": [HI, model({"executableCode": {"code": "1", "language": "PYTHON"}}), HI]},
        request(
            HI_MESSAGE,
            Message(
                "assistant", (Opaque("gemini", {"executableCode": {"code": "1", "language": "PYTHON"}}),)
            ),
            HI_MESSAGE,
        ),
    ),
    (
        "hosted tools",
        {"contents": [HI], "tools": [{"googleSearch": {}}, {"codeExecution": {}}]},
        request(
            tools=(
                Tool("google_search", "hosted", hosted={"googleSearch": {}}),
                Tool("code_execution", "hosted", hosted={"codeExecution": {}}),
            )
        ),
    ),
    (
        "settings",
        {
            "contents": [HI],
            "generationConfig": {
                "maxOutputTokens": 10,
                "temperature": 0.5,
                "topP": 0.9,
                "topK": 3,
                "stopSequences": ["END"],
                "seed": 7,
                "presencePenalty": 0.1,
                "frequencyPenalty": 0.2,
                "candidateCount": 2,
                "responseLogprobs": True,
                "logprobs": 2,
                "responseModalities": ["TEXT"],
                "thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": True},
            },
            "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
            "labels": {"team_name": "x"},
            "serviceTier": "flex",
        },
        request(
            max_tokens=10,
            temperature=0.5,
            top_p=0.9,
            top_k=3,
            stop=("END",),
            seed=7,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            n=2,
            logprobs=True,
            top_logprobs=2,
            thinking=Thinking(budget=1024),
            service_tier="flex",
            extras={
                "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
                "labels": {"team_name": "x"},
                "generationConfig.responseModalities": ["TEXT"],
            },
        ),
    ),
    (
        "structured output",
        {
            "contents": [HI],
            "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA},
        },
        request(output=Output("json_schema", schema=SCHEMA)),
    ),
    (
        "any JSON",
        {"contents": [HI], "generationConfig": {"responseMimeType": "application/json"}},
        request(output=Output("json_object")),
    ),
    (
        "an enum as output",
        {
            "contents": [HI],
            "generationConfig": {"responseMimeType": "text/x.enum", "responseSchema": {"enum": ["a"]}},
        },
        request(
            extras={
                "generationConfig.responseMimeType": "text/x.enum",
                "generationConfig.responseSchema": {"enum": ["a"]},
            }
        ),
    ),
]


@pytest.mark.parametrize(
    ("body", "expected"), [case[1:] for case in BOTH_WAYS], ids=[case[0] for case in BOTH_WAYS]
)
def test_a_request_decodes_and_encodes_to_itself(body: dict[str, Any], expected: Request) -> None:
    assert decode(body) == expected
    assert encode(expected) == body


TOOL = [{"functionDeclarations": [{"name": "look"}, {"name": "see"}]}]
CHOICES: list[tuple[dict[str, Any], ToolChoice]] = [
    ({"mode": "AUTO"}, ToolChoice("auto")),
    ({"mode": "NONE"}, ToolChoice("none")),
    ({"mode": "ANY"}, ToolChoice("required")),
    ({"mode": "ANY", "allowedFunctionNames": ["see"]}, ToolChoice("tool", ("see",))),
    ({"mode": "ANY", "allowedFunctionNames": ["see", "look"]}, ToolChoice("required", ("see", "look"))),
]


@pytest.mark.parametrize(("calling", "choice"), CHOICES)
def test_tool_choices_go_both_ways(calling: dict[str, Any], choice: ToolChoice) -> None:
    body = {"contents": [HI], "tools": TOOL, "toolConfig": {"functionCallingConfig": calling}}
    decoded = decode(body)
    assert decoded.tool_choice == choice
    assert encode(decoded) == body


def test_validated_calls_and_other_tool_settings_survive() -> None:
    config = {"functionCallingConfig": {"mode": "VALIDATED"}, "retrievalConfig": {"languageCode": "de"}}
    body = {"contents": [HI], "tools": TOOL, "toolConfig": config}
    decoded = decode(body)
    assert decoded.tool_choice == ToolChoice("auto")
    assert encode(decoded) == body


def test_snake_case_is_converted_but_keys_of_the_client_stay() -> None:
    body = {
        "contents": [
            {"parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [{"function_call": {"name": "look", "args": {"my_arg": 1}}}]},
            {
                "role": "function",
                "parts": [{"function_response": {"name": "look", "response": {"the_result": 2}}}],
            },
        ],
        "system_instruction": {"parts": {"text": "S"}},
        "generation_config": {"max_output_tokens": 5, "thinking_config": {"thinking_budget": 0}},
        "tools": {"function_declarations": [{"name": "look", "parameters_json_schema": SCHEMA}]},
    }
    decoded = decode(body)
    assert decoded.system == (Text("S"),)
    assert decoded.max_tokens == 5
    assert decoded.thinking == Thinking(enabled=False, visible=False)
    assert decoded.tools == (Tool("look", parameters=SCHEMA),)
    assert decoded.messages[1].parts == (ToolCall("call_1_0", "look", '{"my_arg":1}'),)
    assert decoded.messages[2].parts == (ToolResult("call_1_0", (Text('{"the_result":2}'),), name="look"),)


@pytest.mark.parametrize(
    "instruction", ["S", {"parts": [{"text": "S"}]}, [{"text": "S"}], {"parts": {"text": "S"}}]
)
def test_a_system_instruction_has_several_shapes(instruction: Any) -> None:
    assert decode({"contents": HI, "systemInstruction": instruction}).system == (Text("S"),)


def test_results_without_ids_pair_by_name_in_order_with_the_calls_just_before() -> None:
    call = {"functionCall": {"name": "look", "args": {}}}
    other = {"functionCall": {"name": "see"}}
    result = {"functionResponse": {"name": "look", "response": {"output": "x"}}}
    other_result = {"functionResponse": {"name": "see", "response": {"result": "y"}}}
    body = {"contents": [HI, model(call), HI, model(call, other, call), user(other_result, result, result)]}
    answers = decode(body).messages[4].parts
    assert [part.call_id for part in answers if isinstance(part, ToolResult)] == [
        "call_3_1",
        "call_3_0",
        "call_3_2",
    ]


def test_a_text_result_keeps_its_key() -> None:
    call = {"functionCall": {"id": "a", "name": "look", "args": {}}}
    result = {"functionResponse": {"id": "a", "name": "look", "response": {"output": "found"}}}
    body = {"contents": [HI, model(call), user(result)]}
    decoded = decode(body)
    answer = decoded.messages[2].parts[0]
    assert isinstance(answer, ToolResult)
    assert answer.parts == (Text("found"),)
    assert encode(decoded) == body


def test_openapi_schemas_become_json_schemas() -> None:
    parameters = {
        "type": "OBJECT",
        "properties": {
            "when": {"type": "STRING", "nullable": True, "format": "enum", "enum": ["now"]},
            "tags": {"type": "ARRAY", "items": {"type": "STRING"}, "min_items": "1"},
            "any": {"any_of": [{"type": "NUMBER"}, {"type": "BOOLEAN"}], "nullable": True},
        },
        "propertyOrdering": ["when", "tags"],
    }
    body = {"contents": [HI], "tools": [{"functionDeclarations": [{"name": "f", "parameters": parameters}]}]}
    assert decode(body).tools[0].parameters == {
        "type": "object",
        "properties": {
            "when": {"type": ["string", "null"], "enum": ["now", None]},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "any": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "null"}]},
        },
    }


def test_a_sealed_signature_is_unsealed_and_returns_to_its_owner_only() -> None:
    call = {
        "functionCall": {"id": "a", "name": "look", "args": {}},
        "thoughtSignature": seal_signature("google", "S1"),
    }
    text = {"text": "Hello", "thoughtSignature": seal_signature("google", "S2")}
    decoded = decode({"contents": [HI, model(text, call), HI]})
    assert decoded.messages[1].parts[1] == ToolCall("a", "look", "{}", signature="S1", origin="google")
    sent = encode(decoded)["contents"][1]["parts"]
    assert [part["thoughtSignature"] for part in sent] == ["S2", "S1"]
    elsewhere = encode(decoded, EncodeOptions(model=MODEL, provider="other"))["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in elsewhere] == [None, None]


def test_several_answers_are_rejected_for_other_clients() -> None:
    with pytest.raises(BadRequest) as caught:
        CODEC.encode_request(Request(model="m", messages=(HI_MESSAGE,), source="chat", n=2), OPTIONS)
    assert caught.value.param == "n"


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000, "-1", ""])
def test_a_schema_number_that_is_not_an_int64_stays_a_text(number: str) -> None:
    schema = {"type": "STRING", "minLength": number}
    declared = {"functionDeclarations": [{"name": "f", "parameters": schema}]}
    body = json.dumps({"contents": [{"parts": [{"text": "Hi"}]}], "tools": [declared]}).encode()
    (tool,) = CODEC.decode_request(CODEC.validate(body, model="m", stream=False)).tools
    assert tool.parameters == {"type": "string", "minLength": number}
