"""Reads untyped tables into the model, collecting every problem instead of stopping at the first.

A wrong value is reported and replaced by its default, so that one mistake neither hides others nor causes
false ones about values that refer to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from msgspec import NODEFAULT, Struct, inspect

from routecodex.config.problems import ConfigPath, Problem, choices, nearest, quoted
from routecodex.config.values import Secret

StructT = TypeVar("StructT", bound=Struct)

_BAD: Any = object()
_NUMBERS = (inspect.IntType, inspect.FloatType)
_LISTS = (inspect.VarTupleType, inspect.ListType)
_TABLES = (inspect.StructType, inspect.DictType)


def read(
    struct: type[StructT], tree: Any, *, at: ConfigPath = (), from_env: frozenset[ConfigPath] = frozenset()
) -> tuple[StructT | None, list[Problem]]:
    """Read the tree into the struct; return it with all problems, or None if a required value has no default.

    `from_env` lists the places whose string came from the environment: numbers and booleans are parsed there,
    and their text is never shown.
    """
    reader = _Reader(from_env)
    value = reader.read(inspect.type_info(struct), tree, at)
    return (None if value is _BAD else cast(StructT, value)), reader.problems


def strip(kind: inspect.Type) -> inspect.Type:
    """Return the type without its metadata and without the None of an optional type."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        kinds = [strip(one) for one in kind.types if not isinstance(one, inspect.NoneType)]
        return kinds[0] if len(kinds) == 1 else inspect.UnionType(tuple(kinds))
    return kind


class _Reader:
    """One pass over a tree."""

    def __init__(self, from_env: frozenset[ConfigPath]) -> None:
        self.from_env = from_env
        self.problems: list[Problem] = []

    def read(self, kind: inspect.Type, value: Any, place: ConfigPath) -> Any:
        kind = strip(kind)
        match kind:
            case inspect.AnyType():
                return value
            case inspect.StructType() if isinstance(value, dict):
                return self._struct(kind, value, place)
            case inspect.DictType() if isinstance(value, dict):
                return self._dict(kind, value, place)
            case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list):
                return self._list(kind, value, place)
            case inspect.UnionType():
                return self._union(kind, value, place)
            case inspect.CustomType() if kind.cls is Secret and isinstance(value, str):
                return Secret(value)
            case _:
                return self._leaf(kind, value, place)

    def _struct(self, kind: inspect.StructType, value: dict[str, Any], place: ConfigPath) -> Any:
        fields = {field.encode_name: field for field in kind.fields}
        for key in value:
            if key not in fields:
                self.problems.append(unknown_key((*place, key), fields))
        built: dict[str, Any] = {}
        for name, field in fields.items():
            read = self._field(field, value, (*place, name))
            if read is not _BAD:
                built[field.name] = read
        if any(field.required and field.name not in built for field in kind.fields):
            return _BAD
        return kind.cls(**built)

    def _field(self, field: inspect.Field, table: dict[str, Any], place: ConfigPath) -> Any:
        extra = _extra(field.type)
        if field.encode_name in table:
            read = self.read(field.type, table[field.encode_name], place)
        elif field.default is not NODEFAULT or field.default_factory is not NODEFAULT:
            return _BAD
        else:
            fix = extra.get("fix", f"add {field.encode_name} = …")
            self.problems.append(Problem(place, "is missing", fix))
            read = _BAD
        return extra.get("stand_in", _BAD) if read is _BAD else read

    def _dict(self, kind: inspect.DictType, value: dict[str, Any], place: ConfigPath) -> Any:
        entries = {key: self.read(kind.value_type, one, (*place, key)) for key, one in value.items()}
        return {key: one for key, one in entries.items() if one is not _BAD}

    def _list(
        self, kind: inspect.VarTupleType | inspect.ListType, value: list[Any], place: ConfigPath
    ) -> tuple[Any, ...]:
        entries = [self.read(kind.item_type, one, (*place, index)) for index, one in enumerate(value)]
        return tuple(one for one in entries if one is not _BAD)

    def _union(self, kind: inspect.UnionType, value: Any, place: ConfigPath) -> Any:
        for one in kind.types:
            if _same_shape(one, value):
                return self.read(one, value, place)
        return self._leaf(kind, value, place)

    def _leaf(self, kind: inspect.Type, value: Any, place: ConfigPath) -> Any:
        if place in self.from_env:
            value = _from_text(kind, value)
        if _fits(kind, value):
            return float(value) if isinstance(kind, inspect.FloatType) else value
        self.problems.append(
            Problem(
                place, f"must be {describe(kind)}, got {self._shown(kind, value, place)}", _fix(kind, value)
            )
        )
        return _BAD

    def _shown(self, kind: inspect.Type, value: Any, place: ConfigPath) -> str:
        if place in self.from_env:
            return "another value from the environment"
        scalar = isinstance(kind, (*_NUMBERS, inspect.BoolType, inspect.LiteralType, inspect.StrType))
        return _text(value) if scalar else _type_text(value)


def unknown_key(place: ConfigPath, known: Iterable[str]) -> Problem:
    """Return the problem of a key that the model does not have."""
    meant = nearest(str(place[-1]), known)
    fix = f"did you mean {quoted(meant)}?" if meant else f"remove it; known here: {choices(known, limit=30)}"
    return Problem(place, "is not a known key", fix)


def describe(kind: inspect.Type) -> str:
    """Describe a value of the type, for messages."""
    kind = strip(kind)
    match kind:
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            return noun + _bounds(kind)
        case inspect.StrType():
            return "a string" if not kind.min_length else "a non-empty string"
        case inspect.LiteralType():
            listed = ", ".join(quoted(str(value)) for value in kind.values)
            return listed if len(kind.values) == 1 else f"one of {listed}"
        case inspect.UnionType():
            return " or ".join(describe(one) for one in kind.types)
        case _:
            return _NOUNS.get(type(kind), "a value")


_NOUNS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.CustomType: "a string",
    inspect.StructType: "a table",
    inspect.DictType: "a table",
    inspect.VarTupleType: "a list",
    inspect.ListType: "a list",
}


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    if kind.ge is not None:
        return f" of at least {kind.ge}"
    if kind.gt is None:
        return ""
    return f" above {kind.gt}" + ("" if kind.le is None else f" and up to {kind.le}")


def _fits(kind: inspect.Type, value: Any) -> bool:
    match kind:
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool) and _within(kind, value)
        case inspect.FloatType():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and math.isfinite(value) and _within(kind, value)
        case inspect.StrType():
            return isinstance(value, str) and len(value) >= (kind.min_length or 0)
        case inspect.LiteralType():
            return isinstance(value, str) and value in kind.values
        case _:
            return False


def _within(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    tests = (
        (kind.ge, value.__ge__),
        (kind.le, value.__le__),
        (kind.gt, value.__gt__),
        (kind.lt, value.__lt__),
    )
    return all(bound is None or test(bound) for bound, test in tests)


def _same_shape(kind: inspect.Type, value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(kind, _TABLES)
    if isinstance(value, list):
        return isinstance(kind, _LISTS)
    return _fits(kind, value)


_BOOLEANS: Mapping[str, bool] = {"true": True, "false": False}
_FROM_TEXT: dict[type[inspect.Type], Callable[[str], Any]] = {
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: lambda text: _BOOLEANS[text.lower()],
}


def _from_text(kind: inspect.Type, value: Any) -> Any:
    convert = _FROM_TEXT.get(type(kind))
    if convert is None or not isinstance(value, str):
        return value
    try:
        return convert(value.strip())
    except (ValueError, KeyError):
        return value


def _fix(kind: inspect.Type, value: Any) -> str:
    if isinstance(kind, inspect.LiteralType) and isinstance(value, str):
        meant = nearest(value, (str(one) for one in kind.values))
        return f"did you mean {quoted(meant)}?" if meant else "use one of those"
    if isinstance(kind, _NUMBERS) and isinstance(value, str) and re.fullmatch(r"[0-9][0-9_.]*", value):
        return f"write {value} without the quotes"
    if isinstance(kind, inspect.BoolType) and isinstance(value, str) and value.lower() in _BOOLEANS:
        return f"write {value.lower()} without the quotes"
    if isinstance(kind, inspect.StructType):
        return "write { … } with any of: " + ", ".join(field.encode_name for field in kind.fields)
    if isinstance(kind, _LISTS):
        return "put it in [ ]"
    return f"write {describe(kind)}"


def _extra(kind: inspect.Type) -> dict[str, Any]:
    return (kind.extra or {}) if isinstance(kind, inspect.Metadata) else {}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value if len(value) <= 60 else value[:60] + "…")
    return str(value) if isinstance(value, int | float) else _type_text(value)


def _type_text(value: Any) -> str:
    nouns = ((bool, "a boolean"), (str, "a string"), (int, "a number"), (float, "a number"))
    tables = ((dict, "a table"), (list, "a list"))
    return next((noun for kind, noun in (*nouns, *tables) if isinstance(value, kind)), "a date or time")
