"""Fills a JSON schema with plausible values from the user's text; the same text gives the same value."""

from __future__ import annotations

import re
from typing import Any, TypeVar

_T = TypeVar("_T")
_QUOTED = re.compile(r'"([^"]+)"|`([^`]+)`|“([^”]{1,400})”|(?<!\w)\'([^\']+)\'(?!\w)')
_NAME = re.compile(r"(?<=[a-z,;:] )[A-Z][\w-]+(?: [A-Z][\w-]+)*")
_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w-])")
_DEPTH = 12
_FORMATS = {
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "date-time": "2026-01-31T12:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
}


class Clues:
    """Words and numbers from a text, used in order; the last of each kind repeats."""

    def __init__(self, text: str) -> None:
        self.text = text
        quoted: list[str] = [next(filter(None, groups)) for groups in _QUOTED.findall(text)]
        plain = _QUOTED.sub(" ", text)
        names: list[str] = _NAME.findall(plain)
        self._words = quoted or names
        self._numbers = [float(number) for number in _NUMBER.findall(plain)]

    def word(self, default: str) -> str:
        return _next(self._words, default)

    def number(self, default: float) -> float:
        return _next(self._numbers, default)


def _next(clues: list[_T], default: _T) -> _T:
    if not clues:
        return default
    return clues.pop(0) if len(clues) > 1 else clues[0]


def fill_schema(schema: Any, clues: Clues, *, name: str = "value") -> Any:
    """Return a value that fits the schema; a string without a clue becomes its property's name."""
    return _Filler(schema, clues).value(schema, name)


class _Filler:
    """Fills one schema; `$ref` is resolved from its root."""

    def __init__(self, root: Any, clues: Clues) -> None:
        self.root = root
        self.clues = clues
        self.depth = 0

    def value(self, schema: Any, name: str) -> Any:
        schema = self._resolve(schema)
        for key in ("const", "default"):
            if key in schema:
                return schema[key]
        if schema.get("enum"):
            return self._choose(schema["enum"])
        fill = _FILLERS.get(_kind(schema), _Filler._string)
        self.depth += 1
        try:
            return fill(self, schema, name)
        finally:
            self.depth -= 1

    @property
    def _deep(self) -> bool:
        """Whether to prefer empty and null values, because a schema may contain itself."""
        return self.depth > _DEPTH // 2

    def _resolve(self, schema: Any) -> dict[str, Any]:
        """Resolve references and pick one of the alternatives."""
        for _ in range(_DEPTH):
            if not isinstance(schema, dict):
                return {}
            if "$ref" in schema:
                schema = self._dereference(str(schema["$ref"]))
            elif options := schema.get("anyOf") or schema.get("oneOf"):
                rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
                schema = rest | _first(options, null=self._deep)
            elif schema.get("allOf"):
                schema = self._merge(schema)
            else:
                return schema
        return {}

    def _dereference(self, ref: str) -> Any:
        found = self.root
        for step in ref.removeprefix("#").strip("/").split("/"):
            found = found.get(step, {}) if isinstance(found, dict) and step else found
        return found

    def _merge(self, schema: dict[str, Any]) -> dict[str, Any]:
        merged = {key: value for key, value in schema.items() if key != "allOf"}
        for part in map(self._resolve, schema["allOf"]):
            properties = merged.get("properties", {}) | part.get("properties", {})
            required = [*merged.get("required", ()), *part.get("required", ())]
            merged = merged | part | {"properties": properties, "required": required}
        return merged

    def _choose(self, options: list[Any]) -> Any:
        text = self.clues.text.lower()
        named = (o for o in options if isinstance(o, str) and re.search(rf"\b{re.escape(o.lower())}\b", text))
        return next(named, options[0])

    def _object(self, schema: dict[str, Any], _name: str) -> dict[str, Any]:
        properties: dict[str, Any] = schema.get("properties") or {}
        names = schema.get("required") or ([] if "required" in schema else list(properties))
        if self.depth > _DEPTH:
            # A schema that requires itself without end has no valid value.
            return {}
        return {name: self.value(properties.get(name, {}), name) for name in names}

    def _array(self, schema: dict[str, Any], name: str) -> list[Any]:
        count = max(_count(schema, "minItems", 0), 0 if self._deep else 1)
        count = min(count, _count(schema, "maxItems", count))
        return [self.value(schema.get("items") or {"type": "string"}, name) for _ in range(count)]

    def _string(self, schema: dict[str, Any], name: str) -> str:
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        word = self.clues.word(name)
        word = word.ljust(_count(schema, "minLength", 0), ".")
        return word[: _count(schema, "maxLength", len(word))]

    def _number(self, schema: dict[str, Any], _name: str) -> float:
        return _bounded(self.clues.number(1.0), schema)

    def _integer(self, schema: dict[str, Any], _name: str) -> int:
        step = _count(schema, "multipleOf", 1) or 1
        number = int(_bounded(float(int(self.clues.number(1.0))), schema))
        return -(-number // step) * step

    def _boolean(self, _schema: dict[str, Any], _name: str) -> bool:
        return True

    def _null(self, _schema: dict[str, Any], _name: str) -> None:
        return None


_FILLERS = {
    "object": _Filler._object,
    "array": _Filler._array,
    "string": _Filler._string,
    "number": _Filler._number,
    "integer": _Filler._integer,
    "boolean": _Filler._boolean,
    "null": _Filler._null,
}


def _kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), "null")
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    return str(kind).lower()


def _first(options: Any, *, null: bool) -> dict[str, Any]:
    """Return the first alternative that is null, or the first that is not; else the first."""
    choices = [option for option in options if isinstance(option, dict)] or [{}]
    return next((option for option in choices if (option.get("type") == "null") == null), choices[0])


def _count(schema: dict[str, Any], key: str, default: int) -> int:
    """Return an integer of the schema; any other value counts as absent."""
    value = schema.get(key)
    return value if isinstance(value, int) else default


def _bounded(number: float, schema: dict[str, Any]) -> float:
    limits = (
        ("minimum", max, 0),
        ("maximum", min, 0),
        ("exclusiveMinimum", max, 1),
        ("exclusiveMaximum", min, -1),
    )
    for key, within, beyond in limits:
        limit = schema.get(key)
        if isinstance(limit, int | float) and not isinstance(limit, bool):
            number = float(within(number, limit + beyond))
    return number
