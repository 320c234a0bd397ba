from __future__ import annotations

from typing import Any

import pytest
from jsonschema_rs import validate

from routecodex.providers.demo.schema_fill import Clues, fill_schema

TEXT = "book \"the loft\" and 'the barn' for 4 people and 2.5 hours in Oslo"

CASES: list[tuple[dict[str, Any], Any]] = [
    ({"type": "string"}, "the loft"),
    ({"type": "integer"}, 4),
    ({"type": "number"}, 4.0),
    ({"type": "boolean"}, True),
    ({"type": "null"}, None),
    ({"type": ["null", "integer"]}, 4),
    ({"enum": ["day", "hours"]}, "hours"),
    ({"enum": ["day", "week"]}, "day"),
    ({"const": 9}, 9),
    ({"type": "integer", "minimum": 10}, 10),
    ({"type": "integer", "exclusiveMaximum": 4}, 3),
    ({"type": "integer", "multipleOf": 3}, 6),
    ({"type": "string", "maxLength": 3}, "the"),
    ({"type": "string", "format": "date"}, "2026-01-31"),
    ({"type": "array", "items": {"type": "string"}}, ["the loft"]),
    ({"type": "array", "items": {"type": "string"}, "minItems": 3}, ["the loft", "the barn", "the barn"]),
    ({"anyOf": [{"type": "null"}, {"type": "number"}]}, 4.0),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, 4),
    ({"properties": {"a": {"properties": {"b": {"type": "integer"}}}}}, {"a": {"b": 4}}),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]}, {"b": "the loft"}),
    (
        {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "boolean"}}}]},
        {},
    ),
    ({"type": "object"}, {}),
]


@pytest.mark.parametrize(("schema", "value"), CASES)
def test_a_value_fits_its_schema_and_the_text(schema: dict[str, Any], value: Any) -> None:
    filled = fill_schema(schema, Clues(TEXT))
    assert filled == value
    validate(schema, filled)


def test_names_and_property_names_stand_in_for_quoted_words() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    assert fill_schema(schema, Clues("the weather in New York, please")) == {"city": "New York"}
    assert fill_schema(schema, Clues("the weather")) == {"city": "city"}


def test_schemas_that_hold_themselves_come_to_an_end() -> None:
    node: dict[str, Any] = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                    "all": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["next", "all"],
            }
        },
    }
    filled = fill_schema(node, Clues(""))
    validate(node, filled)
    assert depth(filled) == 7


def depth(filled: Any) -> int:
    """Count the nested objects with these two properties."""
    assert filled.keys() == {"next", "all"}
    inner = [filled["next"], *filled["all"]]
    return 1 + max(map(depth, filter(None, inner)), default=0)


@pytest.mark.parametrize(
    "schema",
    [None, True, [], {"type": 5}, {"$ref": "#/none"}, {"$ref": "#"}, {"anyOf": [True]}, {"minItems": "x"}],
)
def test_schemas_that_are_none_do_no_harm(schema: Any) -> None:
    assert fill_schema(schema, Clues("hello"), name="city") == "city"
