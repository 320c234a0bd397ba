"""`output_type`: the schema that is sent, the check of the answer, and its correction."""

from __future__ import annotations

import asyncio
import datetime
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, assert_type

import msgspec
import pydantic
import pytest

from routecodex.turns import (
    Call,
    Conversation,
    LengthContinuation,
    Message,
    OutputInvalid,
    ScriptedSender,
    ToolPlugin,
    TurnEnded,
)
from routecodex.turns.structured_output import OutputSchema, strict_schema
from tests.kit import answers
from tests.turns.recording import conversation_with, nothing_left, once, recording, texts
from tests.turns.test_http_sender import start_conversation


@dataclass
class City:
    """A city."""

    name: str
    people: int


class CityStruct(msgspec.Struct):
    name: str
    people: int


class CityDict(TypedDict):
    name: str
    people: int


class CityModel(pydantic.BaseModel):
    name: str
    people: int


@pydantic.dataclasses.dataclass
class CityPydanticDataclass:
    name: str
    people: int = pydantic.Field(gt=0)


PARIS = '{"name": "Paris", "people": 2100000}'
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}
CUT = {"choices": [{"delta": {}, "finish_reason": "length"}]}


def untitled(node: Any) -> Any:
    """The schema without titles and descriptions, which the libraries write differently."""
    if not isinstance(node, dict):
        return node
    return {key: untitled(value) for key, value in node.items() if key not in ("title", "description")}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (City, City("Paris", 2100000)),
        (CityStruct, CityStruct("Paris", 2100000)),
        (CityDict, {"name": "Paris", "people": 2100000}),
        (CityModel, CityModel(name="Paris", people=2100000)),
    ],
)
async def test_the_schema_is_sent_and_the_answer_is_a_value_of_the_type(kind: Any, value: Any) -> None:
    conversation, sender = conversation_with(answers=[PARIS])
    assert await conversation.send("Where?", output_type=kind) == value
    sent = sender.bodies[0]["response_format"]
    assert (sent["type"], sent["json_schema"]["name"]) == ("json_schema", kind.__name__)
    assert (untitled(sent["json_schema"]["schema"]), sent["json_schema"]["strict"]) == (SCHEMA, True)
    assert texts(conversation) == [("user", "Where?"), ("assistant", PARIS)]


async def test_a_pydantic_dataclass_is_validated_by_pydantic() -> None:
    conversation, sender = conversation_with(answers=['{"name": "Nowhere", "people": 0}', PARIS])
    city = await conversation.send("Where?", output_type=CityPydanticDataclass)
    assert city == CityPydanticDataclass("Paris", 2100000)
    assert "greater than 0 - at `$.people`" in sender.bodies[1]["messages"][-1]["content"]


SENT_AS = {
    "chat": lambda body: body["response_format"]["json_schema"]["schema"],
    "responses": lambda body: body["text"]["format"]["schema"],
    "messages": lambda body: body["output_config"]["format"]["schema"],
    "gemini": lambda body: body["generationConfig"]["responseJsonSchema"],
}


@pytest.mark.parametrize("protocol", SENT_AS)
async def test_every_protocol_gets_the_schema_in_its_own_way(protocol: str) -> None:
    async with start_conversation(protocol) as (conversation, up):
        up.queue(answers.text(protocol, PARIS, True))
        assert await conversation.send("Where?", output_type=City) == City("Paris", 2100000)
    sent = untitled(SENT_AS[protocol](up.requests[0].json))
    assert {"type": sent["type"], "properties": sent["properties"], "required": sent["required"]} == {
        key: SCHEMA[key] for key in ("type", "properties", "required")
    }


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("Paris, of course.", "it is not JSON"),
        ('{"name": "Paris"}', "Object missing required field `people`"),
        ('{"name": "Paris", "people": "many"}', "Expected `int`, got `str` - at `$.people`"),
        ("[]", "Expected `object`, got `array`"),
        ([{"choices": [{"delta": {"role": "assistant", "content": " "}}]}], "it is empty"),
    ],
)
async def test_a_wrong_answer_is_returned_with_the_reason_and_the_schema(answer: Any, reason: str) -> None:
    conversation, sender = conversation_with(answers=[answer, PARIS])
    assert await conversation.send("Where?", output_type=City) == City("Paris", 2100000)
    correction = sender.bodies[1]["messages"][-1]
    assert correction["role"] == "user"
    assert reason in correction["content"]
    assert '"people":{"type":"integer"}' in correction["content"]
    assert sender.bodies[1]["response_format"] == sender.bodies[0]["response_format"]


async def test_a_wrong_answer_is_corrected_a_bounded_number_of_times() -> None:
    log: list[str] = []
    conversation, sender = conversation_with(
        recording(log, "a"), answers=["one", "two", "three", "never"], output_retries=2
    )
    with pytest.raises(OutputInvalid, match="not a valid City after 2 corrections: it is not JSON") as raised:
        await conversation.send("Where?", output_type=City)
    assert raised.value.answer == "three"
    assert (len(sender.bodies), conversation.request_state, log[-1]) == (3, "error", "a.cleanup")


async def test_without_corrections_the_first_wrong_answer_is_the_error() -> None:
    conversation, sender = conversation_with(answers=["one", "never"], output_retries=0)
    with pytest.raises(OutputInvalid, match="the answer is not a valid City: it is not JSON"):
        await conversation.send("Where?", output_type=City)
    assert len(sender.bodies) == 1


async def test_the_next_turn_has_no_format_and_its_own_corrections() -> None:
    conversation, sender = conversation_with(answers=["x", PARIS, "as you like", "y", PARIS])
    conversation_options: dict[str, Any] = {"output_type": City}
    await conversation.send("Where?", **conversation_options)
    assert await conversation.send("Why?") == Message("assistant", "as you like")
    assert "response_format" not in sender.bodies[2]
    assert await conversation.send("Where?", **conversation_options) == City("Paris", 2100000)


@pytest.mark.parametrize("text", [f"```json\n{PARIS}\n```", f"\n```\n{PARIS}```\n", f"  {PARIS}\n"])
async def test_a_code_block_as_the_whole_answer_is_read(text: str) -> None:
    conversation, sender = conversation_with(answers=[text])
    assert await conversation.send("Where?", output_type=City) == City("Paris", 2100000)
    assert len(sender.bodies) == 1


async def test_numbers_in_strings_are_accepted() -> None:
    conversation, _ = conversation_with(answers=['{"name": "Paris", "people": "21"}'])
    assert await conversation.send("Where?", output_type=City) == City("Paris", 21)


async def test_tools_run_before_the_answer_is_checked() -> None:
    def people_of(name: str) -> int:
        return 2100000

    answers = [[Call("people_of", {"name": "Paris"})], "Wait.", PARIS]
    conversation, sender = conversation_with(ToolPlugin(tools=[people_of]), answers=answers)
    assert await conversation.send("Where?", output_type=City) == City("Paris", 2100000)
    assert [message.role for message in conversation.messages] == [
        *("user", "assistant", "tool", "assistant", "user", "assistant")
    ]
    assert all("response_format" in body for body in sender.bodies)


async def test_calls_that_no_plugin_runs_are_an_error() -> None:
    conversation, _ = conversation_with(answers=[[Call("people_of")]])
    with pytest.raises(OutputInvalid, match="it calls tools that no plugin runs; add a ToolPlugin"):
        await conversation.send("Where?", output_type=City)


@pytest.mark.parametrize(
    "plugins", [(), (ToolPlugin(call_tool=lambda call, turn: "done"),)], ids=["alone", "beside tools"]
)
async def test_a_continued_answer_is_checked_when_it_is_complete(plugins: Any) -> None:
    conversation, sender = conversation_with(
        *plugins, LengthContinuation(), answers=[['{"name": "Par', CUT], 'is", "people": 2100000}']
    )
    assert await conversation.send("Where?", output_type=City) == City("Paris", 2100000)
    assert len(sender.bodies) == 2


async def test_an_answer_that_another_plugin_has_returned_is_checked_again() -> None:
    plugin = recording([], "a", on_after_request=once("Sure?"))
    conversation, _ = conversation_with(plugin, answers=[PARIS, '{"name": "Lyon", "people": 5}'])
    assert await conversation.send("Where?", output_type=City) == City("Lyon", 5)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (['{"name": "Par', CUT], "the token limit cut it off; raise max_tokens"),
        ([{"choices": [{"delta": {"refusal": "No."}}]}], "the model refused to answer"),
        (["{", {"choices": [{"delta": {}, "finish_reason": "content_filter"}]}], "the content filter"),
    ],
)
async def test_an_answer_that_would_come_again_is_not_asked_for_again(steps: Any, reason: str) -> None:
    conversation, sender = conversation_with(answers=[steps, "never"])
    with pytest.raises(OutputInvalid, match=reason):
        await conversation.send("Where?", output_type=City)
    assert len(sender.bodies) == 1


async def test_an_aborted_turn_has_no_output() -> None:
    here = asyncio.Event()
    conversation, sender = conversation_with(answers=[['{"name": ', here.set, asyncio.Event()]])
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("Where?", output_type=City))
        await here.wait()
        conversation.abort()
        assert await task is None
    assert conversation.request_state == "aborted"


async def test_the_last_event_of_a_stream_has_the_output() -> None:
    conversation, _ = conversation_with(answers=["x", PARIS])
    events = [event async for event in conversation.stream("Where?", output_type=City)]
    last = events[-1]
    assert isinstance(last, TurnEnded)
    assert last.output == City("Paris", 2100000)


async def test_a_response_format_of_your_own_and_an_output_type_exclude_each_other() -> None:
    conversation, _ = conversation_with(parameters={"response_format": {"type": "json_object"}})
    with pytest.raises(TypeError, match="output_type sets response_format"):
        await conversation.send("Where?", output_type=City)
    assert conversation.messages == []


@pytest.mark.parametrize("kind", [int, list[City], dict[str, int], City | CityModel, str, object()])
async def test_a_type_without_fields_is_refused_before_anything_is_sent(kind: Any) -> None:
    conversation, sender = conversation_with(answers=[])
    with pytest.raises(TypeError, match=r"output_type .* (is not an object with fields|has no JSON schema)"):
        await conversation.send("Where?", output_type=kind)
    assert (conversation.messages, sender.bodies) == ([], [])


@dataclass
class Trip:
    day: datetime.date
    kind: Literal["work", "fun"] = "fun"
    cities: list[CityModel] = field(default_factory=list)
    note: str | None = None


def test_optional_fields_are_required_of_the_model_in_strict_mode() -> None:
    body = OutputSchema(Trip).response_format()["json_schema"]
    assert body["strict"] is True
    assert untitled(body["schema"]) == {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "kind": {"type": "string", "enum": ["fun", "work"]},
            "cities": {"type": "array", "items": SCHEMA},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["day", "kind", "cities", "note"],
        "additionalProperties": False,
    }
    read = OutputSchema(Trip).read('{"day": "2026-01-02", "cities": [{"name": "Paris", "people": 1}]}')
    assert read == Trip(datetime.date(2026, 1, 2), cities=[CityModel(name="Paris", people=1)])


@pytest.mark.parametrize(
    "hint", [dict[str, int], Any, bytes, msgspec.Raw, list, tuple[int, str], "pydantic.HttpUrl"]
)
def test_a_schema_that_strict_mode_rejects_is_sent_as_it_is(hint: Any) -> None:
    kind = (
        pydantic.create_model("Loose", x=(pydantic.HttpUrl, ...))
        if isinstance(hint, str)
        else msgspec.defstruct("Loose", [("x", hint)])
    )
    schema: OutputSchema[Any] = OutputSchema(kind)
    sent = schema.response_format()["json_schema"]
    assert (sent["strict"], sent["schema"]) == (False, schema.schema)
    assert strict_schema(schema.schema) is None


class Node(pydantic.BaseModel):
    name: str
    children: list[Node] = []


def test_a_recursive_model_keeps_its_definition() -> None:
    schema = OutputSchema(Node)
    body = schema.response_format()["json_schema"]
    assert body["strict"] is True
    assert body["schema"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert body["schema"]["$defs"]["Node"]["required"] == ["name", "children"]
    assert schema.read('{"name": "a", "children": [{"name": "b"}]}') == Node(
        name="a", children=[Node(name="b")]
    )


async def test_the_answers_are_saved_as_text() -> None:
    conversation = Conversation(model="m", sender=ScriptedSender([PARIS]))
    await conversation.send("Where?", output_type=CityModel)
    assert conversation.messages[-1].as_dict() == {"role": "assistant", "content": PARIS}


async def test_a_type_checker_knows_the_type_of_the_answer() -> None:
    conversation, _ = conversation_with(answers=[PARIS, "hello"])
    assert_type(await conversation.send("Where?", output_type=City), City | None)
    assert assert_type(await conversation.send("Hi."), Message | None) == Message("assistant", "hello")
