"""pydantic models as arguments and results of tools."""

from __future__ import annotations

import datetime
import subprocess
import sys
from typing import Annotated, Any

import pydantic
import pytest

from routecodex.turns import BadArguments, Call, ToolPlugin, tool
from tests.turns.recording import conversation_with


class Stop(pydantic.BaseModel):
    """A stop of a tour."""

    city: str
    nights: int = pydantic.Field(default=1, ge=1, description="How many nights.")


class Tour(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    start: datetime.date
    stops: list[Stop]


class Folder(pydantic.BaseModel):
    name: str
    folders: list[Folder] = []


def book(tour: Tour, home: Stop | None = None, extra: Annotated[list[Stop], "More stops."] = []) -> Any:  # noqa: B006  # never changed
    """Books a tour."""
    return tour, home, extra


TOUR = {"start": "2026-05-01", "stops": [{"city": "Paris"}]}


def test_the_schema_of_a_model_is_part_of_the_parameters_without_references() -> None:
    parameters: Any = tool(book).schema["function"]["parameters"]
    stops = parameters["properties"]["tour"]["properties"]["stops"]["items"]
    assert stops == {
        "title": "Stop",
        "description": "A stop of a tour.",
        "type": "object",
        "properties": {
            "city": {"title": "City", "type": "string"},
            "nights": {
                "title": "Nights",
                "type": "integer",
                "minimum": 1,
                "default": 1,
                "description": "How many nights.",
            },
        },
        "required": ["city"],
    }
    assert parameters["properties"]["home"]["anyOf"] == [stops, {"type": "null"}]
    assert parameters["properties"]["extra"] == {
        "type": "array",
        "items": stops,
        "description": "More stops.",
    }
    assert parameters["required"] == ["tour"]
    assert "$defs" not in parameters


def test_the_function_gets_models() -> None:
    prepared = tool(book).prepare({"tour": TOUR, "home": {"city": "Lyon"}, "extra": [{"city": "Nice"}]})
    assert prepared == {
        "tour": Tour(start=datetime.date(2026, 5, 1), stops=[Stop(city="Paris")]),
        "home": Stop(city="Lyon"),
        "extra": [Stop(city="Nice")],
    }


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tour": {"start": "soon", "stops": []}}, "valid date.* - at `.start` - at `.tour`"),
        ({"tour": TOUR, "home": {"nights": 0}}, "Field required - at `.city`; .*equal to 1 - at `.nights`"),
        ({}, "Object missing required field `tour`"),
    ],
)
def test_arguments_that_do_not_fit_a_model_are_named(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadArguments, match=reason.replace("`.", r"`\$\.")):
        tool(book).prepare(values)


def test_a_recursive_model_keeps_its_definition_at_the_root() -> None:
    def tidy(folder: Folder, other: Folder | None = None) -> str:
        return folder.name

    parameters: Any = tool(tidy).schema["function"]["parameters"]
    inner = parameters["properties"]["folder"]["properties"]["folders"]["items"]
    assert inner == {"$ref": "#/$defs/Folder"}
    assert parameters["$defs"].keys() >= {"Folder"}
    assert "$defs" not in parameters["properties"]["folder"]
    prepared = tool(tidy).prepare({"folder": {"name": "a", "folders": [{"name": "b"}]}})
    assert prepared == {"folder": Folder(name="a", folders=[Folder(name="b")])}


def test_two_models_of_one_name_are_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("from pydantic import BaseModel\nclass Folder(BaseModel):\n    own: 'list[Folder]'", namespace)
    twin = namespace["Folder"]

    def tidy(folder, other):  # type: ignore[no-untyped-def]  # annotated below
        return folder

    tidy.__annotations__ = {"folder": Folder, "other": twin}
    with pytest.raises(TypeError, match="of the tool 'tidy' has a type without a JSON schema") as raised:
        tool(tidy)
    assert "two types are named 'Folder'" in str(raised.value.__cause__)


async def test_a_model_is_a_result_as_json() -> None:
    def next_stops() -> list[Stop]:
        return [Stop(city="Paris")]

    def home() -> Stop:
        return Stop(city="Lyon", nights=3)

    conversation, _ = conversation_with(
        ToolPlugin(tools=[next_stops, home]), answers=[[Call("next_stops"), Call("home")], "Good."]
    )
    await conversation.send("Where to?")
    assert [message.content for message in conversation.messages if message.role == "tool"] == [
        '[{"city":"Paris","nights":1}]',
        '{"city":"Lyon","nights":3}',
    ]


def test_the_library_works_without_pydantic_and_does_not_import_it() -> None:
    program = """
import sys
from dataclasses import dataclass
sys.modules["pydantic"] = None  # importing it fails
from routecodex.turns import Conversation, ScriptedSender, ToolPlugin

@dataclass
class City:
    name: str

def look(city: City) -> City:
    return city

sender = ScriptedSender(['{"name": "Paris"}'])
with Conversation(model="m", sender=sender, plugins=[ToolPlugin(tools=[look])]) as conversation:
    print(conversation.send_sync("Where?", output_type=City))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("City(name='Paris')\n", "")
