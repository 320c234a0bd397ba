"""Tool schemas with anyOf, oneOf or allOf at their root, as MCP servers declare them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Request, Tool
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.tool_schemas import plain_parameters
from routecodex.wire import json

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
OPTIONS = EncodeOptions(model="m", provider="p")
STRICT = replace(OPTIONS, dialect=Dialect(composed_schemas=False))


def plain(schema: Any) -> tuple[Any, tuple[str, ...]]:
    notices = Notices()
    return plain_parameters(schema, tool="t", protocol="messages", notices=notices), notices.lines()


def lost(*keywords: str) -> tuple[str, ...]:
    return tuple(
        f"dropped {keyword} of tool t: messages does not accept it at the root of a schema"
        for keyword in keywords
    )


def an_object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, **more}
    return {**schema, "required": list(required)} if required else schema


WITHOUT_LOSS: dict[str, tuple[Any, Any]] = {
    "no composition": (
        an_object({"a": {"anyOf": [TEXT, NUMBER]}}),
        an_object({"a": {"anyOf": [TEXT, NUMBER]}}),
    ),
    "no schema": (None, None),
    "all of": (
        {"allOf": [an_object({"a": TEXT}, "a"), an_object({"b": NUMBER}, "b")], "description": "d"},
        an_object({"a": TEXT, "b": NUMBER}, "a", "b", description="d"),
    ),
    "all of, about one property": (
        an_object({"a": TEXT}, allOf=[an_object({"a": {"minLength": 1}}), an_object({"a": NUMBER}, "a")]),
        an_object({"a": {"allOf": [{"type": "string", "minLength": 1}, NUMBER]}}, "a"),
    ),
    "one object or null (optional parameters)": (
        {"anyOf": [an_object({"a": TEXT}, "a", additionalProperties=False), {"type": "null"}]},
        an_object({"a": TEXT}, "a", additionalProperties=False),
    ),
    "a reference (pydantic)": (
        {"allOf": [{"$ref": "#/$defs/In~1put"}], "$defs": {"In/put": an_object({"a": TEXT}, "a")}},
        an_object({"a": TEXT}, "a", **{"$defs": {"In/put": an_object({"a": TEXT}, "a")}}),
    ),
    "equal alternatives": ({"oneOf": [an_object({"a": TEXT})] * 2}, an_object({"a": TEXT})),
}


@pytest.mark.parametrize(("schema", "expected"), WITHOUT_LOSS.values(), ids=WITHOUT_LOSS)
def test_parts_that_must_match_are_merged_without_a_notice(schema: Any, expected: Any) -> None:
    assert plain(schema) == (expected, ())


def test_required_alternatives_become_a_description() -> None:
    """As gitnexus and huly-mcp declare that one of several properties is needed."""
    choice = [{"required": ["route"]}, {"required": ["file"]}]
    schema = an_object({"route": TEXT, "file": TEXT, "n": NUMBER}, "n", anyOf=choice)
    rule = '{"anyOf":[{"required":["route"]},{"required":["file"]}]}'
    expected = an_object({"route": TEXT, "file": TEXT, "n": NUMBER}, "n", description=rule)
    assert plain(schema) == (expected, lost("anyOf"))
    described = plain({**schema, "description": "Look."})[0]["description"]
    assert described == f"Look. {rule}"


def test_properties_of_alternatives_are_joined() -> None:
    """As a discriminated union of pydantic: every member has the discriminator and its own properties."""
    create = an_object({"kind": {"const": "create"}, "at": TEXT}, "kind", "at", additionalProperties=False)
    remove = an_object({"kind": {"const": "remove"}, "at": NUMBER}, "kind", additionalProperties=False)
    found = plain({"oneOf": [{"$ref": "#/$defs/Create"}, remove], "$defs": {"Create": create}})
    properties = {
        "kind": {"anyOf": [{"const": "create"}, {"const": "remove"}]},
        "at": {"anyOf": [TEXT, NUMBER]},
    }
    rule = (
        '{"oneOf":[{"properties":{"kind":{"const":"create"}},"required":["at"]},'
        '{"properties":{"kind":{"const":"remove"}}}]}'
    )
    more = {"$defs": {"Create": create}, "additionalProperties": False, "description": rule}
    assert found == (an_object(properties, "kind", **more), lost("oneOf"))


def test_a_property_that_only_some_alternatives_narrow_stays_wide() -> None:
    narrow = [an_object({"a": {"enum": ["x"]}}), an_object({"b": TEXT})]
    found, notices = plain(an_object({"a": TEXT}, oneOf=narrow))
    assert found["properties"] == {"a": TEXT, "b": TEXT}
    assert notices == lost("oneOf")


def test_a_choice_within_an_alternative_is_not_described_as_a_rule_for_all() -> None:
    inner = an_object({"a": TEXT, "b": TEXT}, oneOf=[{"required": ["a"]}, {"required": ["b"]}])
    found, notices = plain({"anyOf": [inner, an_object({"c": TEXT})]})
    assert found == an_object({"a": TEXT, "b": TEXT, "c": TEXT})
    assert notices == lost("oneOf", "anyOf")


def test_conditions_that_cannot_be_merged_are_described() -> None:
    first = {"if": {"required": ["a"]}, "then": {"required": ["b"]}}
    second = {"if": {"required": ["c"]}, "then": {"required": ["d"]}}
    found, notices = plain(an_object({}, allOf=[first, second]))
    rule = '{"allOf":[{"if":{"required":["c"]}}]} {"allOf":[{"then":{"required":["d"]}}]}'
    assert found == an_object({}, **first, description=rule)
    assert notices == lost("allOf")


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}] * 9}}},
        {"allOf": [{"$ref": "#/anyOf/0"}, {"$ref": "https://example.test/schema"}, 1, True], "anyOf": 7},
        {"anyOf": [{"properties": 1, "required": 2, "type": ["object", "null"]}, {"type": "string"}]},
        {"oneOf": [], "required": ["a"]},
    ],
    ids=range(4),
)
def test_odd_schemas_give_an_object_too(schema: Any) -> None:
    found, _ = plain(schema)
    assert found["type"] == "object"
    assert found.keys().isdisjoint({"anyOf", "oneOf", "allOf"})


COMPOSED = an_object({"a": TEXT, "b": TEXT}, anyOf=[{"required": ["a"]}, {"required": ["b"]}])


def sent(source: Any, target: str, options: EncodeOptions) -> tuple[dict[str, Any], tuple[str, ...]]:
    tools = (Tool("t", parameters=COMPOSED),)
    request = Request(
        model="m", source=source, messages=(Message("user", (Text("Hi"),)),), max_tokens=9, tools=tools
    )
    encoded = CODECS[target].encode_request(request, options)
    tool = json.decode(encoded.body)["tools"][0]
    for name in (
        ("functionDeclarations", 0) if target == "gemini" else ("function",) if target == "chat" else ()
    ):
        tool = tool[name]
    field = {"gemini": "parametersJsonSchema", "messages": "input_schema"}.get(target, "parameters")
    return tool[field], encoded.notices


def test_every_messages_provider_gets_a_plain_object_from_other_protocols() -> None:
    for options in (OPTIONS, STRICT):
        schema, notices = sent("chat", "messages", options)
        assert schema == plain(COMPOSED)[0]
        assert notices == lost("anyOf")
    assert sent("messages", "messages", OPTIONS) == (COMPOSED, ())
    assert sent("messages", "messages", STRICT)[1] == lost("anyOf")


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_other_providers_get_it_where_their_dialect_says_so(target: str) -> None:
    assert sent("messages", target, OPTIONS) == (COMPOSED, ())
    schema, notices = sent("messages", target, STRICT)
    assert schema == plain(COMPOSED)[0]
    assert notices == tuple(line.replace("messages", target) for line in lost("anyOf"))


def test_gemini_gets_the_schema_as_it_is() -> None:
    assert sent("messages", "gemini", OPTIONS) == (COMPOSED, ())
