from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols.chat import CODEC as CHAT
from routecodex.protocols.codec import Codec, EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.gemini import CODEC
from routecodex.protocols.messages import CODEC as MESSAGES
from routecodex.protocols.responses import CODEC as RESPONSES
from routecodex.providers.catalog import PRESETS

FLASH = EncodeOptions(model="gemini-2.5-flash", provider="google")
THREE = EncodeOptions(model="gemini-3-pro-preview", provider="google")
SKIP = "skip_thought_signature_validator"


def contents(*messages: Message, options: EncodeOptions = FLASH) -> list[Any]:
    found: list[Any] = encode(*messages, options=options)[0]["contents"]
    return found


def encode(*messages: Message, options: EncodeOptions = FLASH, **fields: Any) -> tuple[Any, tuple[str, ...]]:
    encoded = CODEC.encode_request(Request(model="m", messages=messages, source="chat", **fields), options)
    return json.loads(encoded.body), encoded.notices


def assistant(*parts: Part) -> Message:
    return Message("assistant", parts)


def user(*parts: Part) -> Message:
    return Message("user", parts)


def tool_result(id: str, text: str) -> Message:
    return Message("tool", (ToolResult(id, (Text(text),)),))


HI = user(Text("Hi"))


def test_messages_of_one_role_are_merged_and_empty_texts_left_out() -> None:
    assert contents(
        HI, user(Text(""), Text("there")), assistant(Text("A")), assistant(Text(""), Text("B"))
    ) == [
        {"role": "user", "parts": [{"text": "Hi"}, {"text": "there"}]},
        {"role": "model", "parts": [{"text": "A"}, {"text": "B"}]},
    ]


def test_contents_begin_with_the_user() -> None:
    assert [content["role"] for content in contents(assistant(Text("A")), HI)] == ["user", "model", "user"]


def test_a_request_of_system_text_alone_sends_it_as_the_user() -> None:
    body, _ = encode(system=(Text("Do it."),))
    assert body == {"contents": [{"role": "user", "parts": [{"text": "Do it."}]}]}


def test_a_model_without_system_instructions_gets_them_first() -> None:
    options = EncodeOptions(model="gemma-3", provider="google", dialect=Dialect(merge_system=True))
    body, _ = encode(HI, options=options, system=(Text("S"),))
    assert body == {"contents": [{"role": "user", "parts": [{"text": "S"}, {"text": "Hi"}]}]}


def test_system_text_in_the_middle_is_marked_as_such() -> None:
    assert contents(HI, Message("system", (Text("Now."),)))[0]["parts"][1] == {
        "text": "<system>Now.</system>"
    }


def test_all_results_follow_their_calls_in_order_whatever_the_source_looked_like() -> None:
    calls = assistant(ToolCall("a", "look", '{"q": 1}')), assistant(ToolCall("b", "see", ""))
    assert contents(
        HI, *calls, user(Text("wait")), tool_result("b", '{"x":1}'), tool_result("a", "text")
    ) == [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {
            "role": "model",
            "parts": [
                {"functionCall": {"id": "a", "name": "look", "args": {"q": 1}}},
                {"functionCall": {"id": "b", "name": "see", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "a", "name": "look", "response": {"result": "text"}}},
                {"functionResponse": {"id": "b", "name": "see", "response": {"x": 1}}},
                {"text": "wait"},
            ],
        },
    ]


def test_ids_that_are_reused_in_a_later_turn_keep_their_own_names_and_results() -> None:
    """Kimi and vLLM number the calls of every turn from 0."""
    turns = (
        assistant(ToolCall("call_0", "look", "{}"), ToolCall("call_1", "see", "{}")),
        tool_result("call_0", "first"),
        assistant(ToolCall("call_0", "hear", "{}")),
        tool_result("call_0", "second"),
        assistant(ToolCall("call_0", "smell", "{}")),
    )
    parts = [part for content in contents(HI, *turns, HI)[1:] for part in content["parts"]]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
    missing = {"error": "there is no result for this call"}
    assert [(call["id"], call["name"]) for call in calls] == [
        ("call_0", "look"),
        ("call_1", "see"),
        ("call_0_2", "hear"),
        ("call_0_3", "smell"),
    ]
    assert responses == [
        {"id": "call_0", "name": "look", "response": {"result": "first"}},
        {"id": "call_1", "name": "see", "response": missing},
        {"id": "call_0_2", "name": "hear", "response": {"result": "second"}},
        {"id": "call_0_3", "name": "smell", "response": missing},
    ]


def test_calls_of_one_turn_with_the_same_id_take_their_results_in_order() -> None:
    calls = assistant(ToolCall("", "look", "{}"), ToolCall("", "see", "{}"))
    turn = contents(HI, calls, tool_result("", "first"), tool_result("", "second"))
    assert [part["functionResponse"] for part in turn[2]["parts"]] == [
        {"id": "", "name": "look", "response": {"result": "first"}},
        {"id": "_2", "name": "see", "response": {"result": "second"}},
    ]


def test_a_call_without_a_result_gets_one() -> None:
    answer = contents(HI, assistant(ToolCall("a", "look", "{}")), user(Text("never mind")))[2]["parts"][0]
    assert answer["functionResponse"]["response"] == {"error": "there is no result for this call"}


def test_a_result_without_a_call_is_sent_as_text() -> None:
    result = Message("tool", (ToolResult("z", (Text("42"),), name="look"),))
    assert contents(HI, result)[0]["parts"][1] == {"text": "[result of look] 42"}


@pytest.mark.parametrize(
    ("arguments", "custom", "sent"),
    [
        ("*** patch", True, {"input": "*** patch"}),
        ("[1]", False, {"input": "[1]"}),
        ("{cut", False, {"input": "{cut"}),
    ],
)
def test_arguments_are_always_an_object(arguments: str, custom: bool, sent: dict[str, Any]) -> None:
    call = ToolCall("a", "apply", arguments, custom=custom)
    assert contents(HI, assistant(call))[1]["parts"][0]["functionCall"]["args"] == sent


def test_an_image_in_a_result_is_inside_or_after_it() -> None:
    image = Media("image", media_type="image/png", data="AAAA")
    result = Message("tool", (ToolResult("a", (Text("seen"), image)),))
    blob = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    turn = (HI, assistant(ToolCall("a", "look", "{}")), result)
    old = contents(*turn)[2]["parts"]
    assert old == [
        {"functionResponse": {"id": "a", "name": "look", "response": {"result": "seen"}}},
        blob,
    ]
    new = contents(*turn, options=THREE)[2]["parts"]
    assert [part["functionResponse"]["parts"] for part in new] == [[blob]]


def test_the_first_unsigned_call_of_a_turn_gets_the_placeholder_on_gemini_3() -> None:
    turn = (HI, assistant(ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}")))
    parts = contents(*turn, options=THREE)[1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [SKIP, None]
    assert [part.get("thoughtSignature") for part in contents(*turn)[1]["parts"]] == [None, None]


def test_a_signed_call_of_this_provider_keeps_its_signature() -> None:
    call = ToolCall("a", "look", "{}", signature="S", origin="google")
    assert contents(HI, assistant(call), options=THREE)[1]["parts"][0]["thoughtSignature"] == "S"
    elsewhere = EncodeOptions(model="gemini-3-flash", provider="other")
    assert contents(HI, assistant(call), options=elsewhere)[1]["parts"][0]["thoughtSignature"] == SKIP


def test_unsigned_reasoning_of_the_provider_is_left_out_without_a_notice() -> None:
    body, notices = encode(HI, assistant(Reasoning("Hm", origin="google"), Text("A")))
    assert body["contents"][1]["parts"] == [{"text": "A"}]
    assert notices == ()


def test_reasoning_goes_to_its_owner_only() -> None:
    own = Reasoning("Hm", signature="S", origin="google")
    foreign = Reasoning("Ah", signature="T", origin="anthropic")
    body, notices = encode(HI, assistant(own, foreign, Text("A")))
    assert body["contents"][1]["parts"] == [
        {"text": "Hm", "thought": True, "thoughtSignature": "S"},
        {"text": "A"},
    ]
    assert notices == ("dropped reasoning: made by another provider",)


MEDIA: list[tuple[Media, dict[str, Any]]] = [
    (
        Media("image", url="data:image/webp;base64,AAAA"),
        {"inlineData": {"mimeType": "image/webp", "data": "AAAA"}},
    ),
    (
        Media("image", url="https://a.example/cat.png?x=1"),
        {"fileData": {"mimeType": "image/png", "fileUri": "https://a.example/cat.png?x=1"}},
    ),
    (
        Media("image", url="https://a.example/cat"),
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://a.example/cat"}},
    ),
    (
        Media("file", data="AAAA", name="a.pdf"),
        {"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}},
    ),
    (Media("file", text="plain words"), {"text": "plain words"}),
    (Media("file", file_id="file-1"), {"text": "[file omitted: only its own provider can read it]"}),
]


@pytest.mark.parametrize(("media", "part"), MEDIA)
def test_media_of_other_protocols(media: Media, part: dict[str, Any]) -> None:
    assert contents(user(media)) == [{"role": "user", "parts": [part]}]


def test_images_are_left_out_for_a_model_without_vision() -> None:
    options = EncodeOptions(model="gemma-3", provider="google", vision=False)
    body, notices = encode(user(Media("image", data="AAAA", media_type="image/png")), options=options)
    assert body["contents"][0]["parts"] == [{"text": "[image omitted: this model takes no images]"}]
    assert notices == ("dropped image: this model takes no images",)


def test_refusals_are_text_and_foreign_parts_are_reported() -> None:
    body, notices = encode(HI, assistant(Refusal("No."), Opaque("responses", {"type": "computer_call"})))
    assert body["contents"][1]["parts"] == [{"text": "No."}]
    assert notices == ("dropped computer_call: only responses has it",)


PDF = "https://a.example/a.pdf"


@pytest.mark.parametrize(
    ("codec", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": PDF}}]}]}),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": PDF}]}]},
        ),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": PDF}]}]}),
        (
            MESSAGES,
            {
                "max_tokens": 9,
                "messages": [
                    {"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": PDF}}]}
                ],
            },
        ),
    ],
    ids=["OpenRouter's file_data", "file_data", "file_url", "document"],
)
def test_files_by_url_are_file_data(codec: Codec, body: dict[str, Any]) -> None:
    """Google's docs, file input methods: the Gemini API fetches public and signed URLs."""
    request = codec.decode_request(codec.validate(json.dumps({"model": "m", **body}).encode()))
    options = EncodeOptions(
        model="gemini-2.5-flash", provider="gemini", dialect=Dialect(**PRESETS["gemini"].dialect)
    )
    encoded = CODEC.encode_request(request, options)
    assert json.loads(encoded.body)["contents"] == [
        {"role": "user", "parts": [{"fileData": {"mimeType": "application/pdf", "fileUri": PDF}}]}
    ]
    assert encoded.notices == ()


@pytest.mark.parametrize("model", ["gemini-2.0-flash", "gemma-3-27b-it"])
def test_old_models_fetch_no_urls(model: str) -> None:
    body, notices = encode(
        user(Media("image", url="https://a.example/a.png")),
        options=EncodeOptions(model=model, provider="gemini"),
    )
    assert body["contents"][0]["parts"] == [{"text": "[image omitted: this provider fetches no URLs]"}]
    assert notices == ("dropped image: this provider fetches no URLs",)
