"""Python types and JSON: schemas for models, values from their answers.

msgspec handles dataclasses, Structs, TypedDicts and most types of the standard library; the hooks below add
paths and pydantic models. pydantic is optional and never imported here: a program with a pydantic model has
imported it already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, TypeVar, get_origin

import msgspec

T = TypeVar("T")

_STRING_TYPES: dict[type, Callable[[Any], Any]] = {PurePath: PurePath, Path: Path}
"""Standard library types that are strings in JSON, with their constructors."""


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type; raise TypeError if it has none."""
    adapter = _pydantic_adapter(kind)
    if adapter is not None:
        return _inlined(adapter.json_schema())
    try:
        return _inlined(msgspec.json.schema(kind, schema_hook=_hook_schema))
    except NotImplementedError as exc:
        raise TypeError(str(exc)) from exc


def convert(value: Any, kind: type[T]) -> T:
    """Return a decoded JSON value as the type; raise ValueError saying what does not fit."""
    adapter = _pydantic_adapter(kind)
    if adapter is not None:
        return _validated(adapter, value)  # type: ignore[no-any-return]  # pydantic may be missing
    try:
        return msgspec.convert(value, kind, dec_hook=_hook_value)
    except msgspec.ValidationError as error:
        # Models sometimes write numbers as strings.
        try:
            return msgspec.convert(value, kind, strict=False, dec_hook=_hook_value)
        except msgspec.ValidationError:
            raise error from None


def encodable(value: Any) -> Any:
    """Return a value that msgspec cannot encode as one that it can; an `enc_hook`."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    return str(value)


def _pydantic_adapter(kind: Any) -> Any:
    """Return the TypeAdapter of a pydantic model or dataclass; None for every other type."""
    pydantic = sys.modules.get("pydantic")
    plain = get_origin(kind) or kind
    if not isinstance(plain, type) or not hasattr(pydantic, "TypeAdapter"):
        return None
    assert pydantic is not None
    # `__is_pydantic_dataclass__` is what pydantic.dataclasses.is_pydantic_dataclass looks at.
    if issubclass(plain, pydantic.BaseModel) or "__is_pydantic_dataclass__" in vars(plain):
        return pydantic.TypeAdapter(kind)
    return None


def _validated(adapter: Any, value: Any) -> Any:
    """Validate as JSON, where pydantic accepts a string as a date even in strict models."""
    try:
        return adapter.validate_json(msgspec.json.encode(value))
    except ValueError as exc:
        errors = getattr(exc, "errors", None)
        if errors is None:
            raise
        raise ValueError("; ".join(map(_described, errors(include_url=False)))) from exc


def _described(error: dict[str, Any]) -> str:
    """Return one error of pydantic on one line, with its path in the form of msgspec."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"])
    return f"{error['msg']} - at `${path}`" if path else str(error["msg"])


def _hook_schema(kind: type) -> dict[str, Any]:
    if kind in _STRING_TYPES:
        return {"type": "string"}
    adapter = _pydantic_adapter(kind)
    if adapter is not None:
        schema: dict[str, Any] = adapter.json_schema()
        return schema
    raise NotImplementedError(f"{kind.__name__} is not supported")


def _hook_value(kind: type, value: Any) -> Any:
    if kind not in _STRING_TYPES:
        return _validated(_pydantic_adapter(kind), value)
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    return _STRING_TYPES[kind](value)


def _inlined(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without `$ref`, except for recursive types: not every provider resolves them."""
    shapes = _collected(whole)
    recursive = False

    def resolved(node: Any, inside: tuple[str, ...]) -> Any:
        nonlocal recursive
        if isinstance(node, list):
            return [resolved(item, inside) for item in node]
        if not isinstance(node, dict):
            return node
        shape = str(node.get("$ref", "")).removeprefix("#/$defs/")
        if shape and shape in inside:
            recursive = True
            return dict(node)
        if shape:
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            return {**resolved(shapes[shape], (*inside, shape)), **siblings}
        return _typed({key: resolved(value, inside) for key, value in node.items()})

    root: dict[str, Any] = resolved(whole, ())
    # A recursive shape may refer to any of the others.
    return {**root, "$defs": shapes} if recursive else root


def _collected(whole: dict[str, Any]) -> dict[str, Any]:
    """Take the definitions out of a schema; those of pydantic models are inside the node of the model."""
    shapes: dict[str, Any] = {}

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for item in node:
                walk(item)
        if not isinstance(node, dict):
            return
        for name, shape in node.pop("$defs", {}).items():
            walk(shape)
            if shapes.setdefault(name, shape) != shape:
                raise TypeError(f"two types are named {name!r}; rename one")
        for inner in node.values():
            walk(inner)

    walk(whole)
    return shapes


_JSON_TYPES = {str: "string", int: "integer"}


def _typed(node: dict[str, Any]) -> dict[str, Any]:
    """Add the type of an enum's values, which some providers require."""
    choices = node.get("enum")
    kinds = {type(choice) for choice in choices} if isinstance(choices, list) else set()
    if len(kinds) == 1 and "type" not in node and (kind := _JSON_TYPES.get(kinds.pop())) is not None:
        return {"type": kind, **node}
    return node
