from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.gemini import CODEC

FLASH = EncodeOptions(model="gemini-2.5-flash", provider="google")
THREE = EncodeOptions(model="gemini-3-pro-preview", provider="google")
SKIP = "skip_thought_signature_validator"


def contents(*messages: Message, aim: EncodeOptions = FLASH) -> list[Any]:
    found: list[Any] = encode(*messages, aim=aim)[0]["contents"]
    return found


def encode(*messages: Message, aim: EncodeOptions = FLASH, **fields: Any) -> tuple[Any, tuple[str, ...]]:
    encoded = CODEC.encode_request(Request(model="m", messages=messages, source="chat", **fields), aim)
    return json.loads(encoded.body), encoded.notices


def says(*parts: Part) -> Message:
    return Message("assistant", parts)


def asks(*parts: Part) -> Message:
    return Message("user", parts)


def gives(id: str, text: str) -> Message:
    return Message("tool", (ToolResult(id, (Text(text),)),))


HI = asks(Text("Hi"))


def test_messages_of_one_role_are_merged_and_empty_texts_left_out() -> None:
    assert contents(HI, asks(Text(""), Text("there")), says(Text("A")), says(Text(""), Text("B"))) == [
        {"role": "user", "parts": [{"text": "Hi"}, {"text": "there"}]},
        {"role": "model", "parts": [{"text": "A"}, {"text": "B"}]},
    ]


def test_contents_begin_with_the_user() -> None:
    assert [content["role"] for content in contents(says(Text("A")), HI)] == ["user", "model", "user"]


def test_a_request_of_system_text_alone_still_asks_something() -> None:
    body, _ = encode(system=(Text("Do it."),))
    assert body == {"contents": [{"role": "user", "parts": [{"text": "Do it."}]}]}


def test_a_model_without_system_instruction_reads_it_first() -> None:
    aim = EncodeOptions(model="gemma-3", provider="google", dialect=Dialect(merge_system=True))
    body, _ = encode(HI, aim=aim, system=(Text("S"),))
    assert body == {"contents": [{"role": "user", "parts": [{"text": "S"}, {"text": "Hi"}]}]}


def test_system_text_in_the_middle_is_marked_as_such() -> None:
    assert contents(HI, Message("system", (Text("Now."),)))[0]["parts"][1] == {
        "text": "<system>Now.</system>"
    }


def test_all_results_follow_their_calls_in_order_whatever_the_source_looked_like() -> None:
    calls = says(ToolCall("a", "look", '{"q": 1}')), says(ToolCall("b", "see", ""))
    assert contents(HI, *calls, asks(Text("wait")), gives("b", '{"x":1}'), gives("a", "text")) == [
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


def test_a_call_nobody_answered_gets_an_answer() -> None:
    answer = contents(HI, says(ToolCall("a", "look", "{}")), asks(Text("never mind")))[2]["parts"][0]
    assert answer["functionResponse"]["response"] == {"error": "there is no result for this call"}


def test_a_result_nobody_asked_for_is_told_as_text() -> None:
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
    assert contents(HI, says(call))[1]["parts"][0]["functionCall"]["args"] == sent


def test_an_image_in_a_result_stands_inside_it_or_behind_it() -> None:
    image = Media("image", media_type="image/png", data="AAAA")
    result = Message("tool", (ToolResult("a", (Text("seen"), image)),))
    blob = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    turn = (HI, says(ToolCall("a", "look", "{}")), result)
    old = contents(*turn)[2]["parts"]
    assert old == [
        {"functionResponse": {"id": "a", "name": "look", "response": {"result": "seen"}}},
        blob,
    ]
    new = contents(*turn, aim=THREE)[2]["parts"]
    assert [part["functionResponse"]["parts"] for part in new] == [[blob]]


def test_the_first_unsigned_call_of_a_turn_is_excused_for_gemini_3() -> None:
    turn = (HI, says(ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}")))
    parts = contents(*turn, aim=THREE)[1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [SKIP, None]
    assert [part.get("thoughtSignature") for part in contents(*turn)[1]["parts"]] == [None, None]


def test_a_signed_call_of_this_provider_keeps_its_signature() -> None:
    call = ToolCall("a", "look", "{}", signature="S", origin="google")
    assert contents(HI, says(call), aim=THREE)[1]["parts"][0]["thoughtSignature"] == "S"
    elsewhere = EncodeOptions(model="gemini-3-flash", provider="other")
    assert contents(HI, says(call), aim=elsewhere)[1]["parts"][0]["thoughtSignature"] == SKIP


def test_an_unsigned_thought_of_its_own_is_left_out_without_a_word() -> None:
    body, notices = encode(HI, says(Reasoning("Hm", origin="google"), Text("A")))
    assert body["contents"][1]["parts"] == [{"text": "A"}]
    assert notices == ()


def test_reasoning_goes_to_its_maker_only() -> None:
    own = Reasoning("Hm", signature="S", origin="google")
    foreign = Reasoning("Ah", signature="T", origin="anthropic")
    body, notices = encode(HI, says(own, foreign, Text("A")))
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
    assert contents(asks(media)) == [{"role": "user", "parts": [part]}]


def test_images_are_left_out_for_a_model_that_cannot_see() -> None:
    aim = EncodeOptions(model="gemma-3", provider="google", vision=False)
    body, notices = encode(asks(Media("image", data="AAAA", media_type="image/png")), aim=aim)
    assert body["contents"][0]["parts"] == [{"text": "[image omitted: this model takes no images]"}]
    assert notices == ("dropped image: this model takes no images",)


def test_refusals_are_text_and_foreign_parts_are_reported() -> None:
    body, notices = encode(HI, says(Refusal("No."), Opaque("responses", {"type": "computer_call"})))
    assert body["contents"][1]["parts"] == [{"text": "No."}]
    assert notices == ("dropped computer_call: only responses has it",)
