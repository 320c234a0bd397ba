"""Rewrites tool schemas that have anyOf, oneOf or allOf at their root.

MCP servers declare such schemas. Anthropic ("input_schema does not support oneOf, allOf, or anyOf at the top
level") and OpenAI ("schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'…") reject the whole
request for one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json
from routecodex.wire import json

Schema = dict[str, Any]

COMPOSITIONS = frozenset({"allOf", "anyOf", "oneOf"})
_ALTERNATIVES = ("anyOf", "oneOf")

_NOT_MERGED = frozenset(
    {"$defs", "$id", "$schema", "additionalProperties", "definitions", "properties", "required", "type"}
)
"""Keywords of a part that are merged apart from the others, or that only the root needs."""
_TEXTS = frozenset({"title", "description", "examples", "default"})

_MAX_PARTS = 200
_MAX_DEPTH = 16


def plain_parameters(schema: Json, *, tool: str, protocol: str, notices: Notices) -> Json:
    """Return the schema as one object without compositions at its root; a notice names each that is lost.

    Their parts are merged into the root. The choice between alternatives goes into the description.
    """
    if not isinstance(schema, dict) or COMPOSITIONS.isdisjoint(schema):
        return schema
    merger = _Merger(schema)
    plain = merger.merge(schema)
    for keyword in merger.lost:
        notices.dropped(f"{keyword} of tool {tool}", f"{protocol} does not accept it at the root of a schema")
    return _described({**plain, "type": "object"}, merger.choices)


class _Merger:
    """Merges the parts of one root schema; `lost` and `choices` are the constraints that do not fit in."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._parts = 0
        self.lost: dict[str, None] = {}
        self.choices: list[Schema] = []

    def merge(self, schema: Schema, *, depth: int = 0, holds: bool = True) -> Schema:
        """Return the schema without compositions at its own root; `holds`: it is not an alternative."""
        merged = {name: value for name, value in schema.items() if name not in COMPOSITIONS}
        for part in self._objects(schema, "allOf", depth=depth, holds=holds):
            self._add(merged, part, "allOf", holds=holds)
        for keyword in _ALTERNATIVES:
            parts = self._objects(schema, keyword, depth=depth, holds=False)
            if len(parts) == 1:
                self._add(merged, parts[0], keyword, holds=holds)
            elif parts:
                self._lose(keyword, _choice(parts), holds=holds)
                _add_alternatives(merged, parts)
        return merged

    def _objects(self, schema: Schema, keyword: str, *, depth: int, holds: bool) -> list[Schema]:
        """Return the different parts that an object can match, themselves merged."""
        parts = schema.get(keyword)
        different: list[Schema] = []
        for part in parts if isinstance(parts, list) else ():
            self._parts += 1
            # Parts may refer to each other, and to themselves.
            if self._parts > _MAX_PARTS or depth > _MAX_DEPTH:
                self.lost[keyword] = None
                break
            if isinstance(part, dict):
                merged = self.merge(self._resolved(part, keyword), depth=depth + 1, holds=holds)
                if _is_object(merged) and merged not in different:
                    different.append(merged)
        return different

    def _resolved(self, part: Schema, keyword: str) -> Schema:
        reference = part.get("$ref")
        if not isinstance(reference, str):
            return part
        target = _find(self._root, reference)
        if target is None:
            self.lost[keyword] = None
            target = {}
        return {**target, **{name: value for name, value in part.items() if name != "$ref"}}

    def _add(self, merged: Schema, part: Schema, keyword: str, *, holds: bool) -> None:
        """Add the constraints of a part that must match."""
        properties = _properties(merged)
        for name, value in _properties(part).items():
            properties[name] = _both(properties[name], value) if name in properties else value
        _set_properties(merged, properties, [*_required(merged), *_required(part)])
        if "additionalProperties" in part:
            merged.setdefault("additionalProperties", part["additionalProperties"])
        for name, value in part.items():
            if name not in _NOT_MERGED and merged.setdefault(name, value) != value and name not in _TEXTS:
                self._lose(keyword, [{name: value}], holds=holds)

    def _lose(self, keyword: str, parts: list[Schema], *, holds: bool) -> None:
        self.lost[keyword] = None
        if holds and any(parts):
            self.choices.append({keyword: parts})


def _add_alternatives(merged: Schema, parts: Sequence[Schema]) -> None:
    """Add the properties of all alternatives; those that every one requires are required."""
    properties = _properties(merged)
    declared = [_properties(part) for part in parts]
    for name in dict.fromkeys(name for each in declared for name in each):
        values = [each[name] for each in declared if name in each]
        if name not in properties:
            properties[name] = _either(values)
        elif len(values) == len(parts):
            properties[name] = _both(properties[name], _either(values))
    common = [name for name in _required(parts[0]) if all(name in _required(part) for part in parts)]
    _set_properties(merged, properties, [*_required(merged), *common])
    if all(part.get("additionalProperties") is False for part in parts):
        merged.setdefault("additionalProperties", False)


def _choice(parts: Sequence[Schema]) -> list[Schema]:
    """Return the difference between the alternatives: the required properties, and the fixed values."""
    choice = []
    for part in parts:
        others = [_required(other) for other in parts]
        required = [name for name in _required(part) if not all(name in names for names in others)]
        fixed = {name: value for name, value in _properties(part).items() if _is_fixed(value)}
        kept: Schema = {"description": part["description"]} if "description" in part else {}
        if fixed:
            kept["properties"] = fixed
        if required:
            kept["required"] = required
        choice.append(kept)
    return choice


def _is_fixed(value: Json) -> bool:
    return isinstance(value, dict) and ("const" in value or "enum" in value)


def _is_object(schema: Schema) -> bool:
    """Whether an object can match: the arguments of a call are always one."""
    kind = schema.get("type", "object")
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _find(root: Schema, reference: str) -> Schema | None:
    """Return the schema that a reference within the document names."""
    found: Json = root if reference.startswith("#/") else None
    for name in reference[2:].split("/"):
        key = name.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _properties(schema: Schema) -> Schema:
    properties = schema.get("properties")
    return dict(properties) if isinstance(properties, dict) else {}


def _required(schema: Schema) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _set_properties(schema: Schema, properties: Schema, required: list[str]) -> None:
    schema["properties"] = properties
    if required:
        schema["required"] = list(dict.fromkeys(required))


def _both(one: Json, other: Json) -> Json:
    """Return the schema of a value that matches both."""
    if one == other or other is True:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        shared = one.keys() & other.keys()
        if all(one[name] == other[name] for name in shared):
            return {**one, **other}
    return {"allOf": [one, other]}


def _either(values: Sequence[Json]) -> Json:
    """Return the schema of a value that matches one of these."""
    different: list[Json] = []
    for value in values:
        if value not in different:
            different.append(value)
    return different[0] if len(different) == 1 else {"anyOf": different}


def _described(schema: Schema, choices: Sequence[Schema]) -> Schema:
    if not choices:
        return schema
    rules = " ".join(json.encode(choice).decode() for choice in choices)
    before = schema.get("description")
    return {**schema, "description": f"{before} {rules}" if before else rules}
