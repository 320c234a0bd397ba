"""Tools from functions: their schemas and their arguments."""

from __future__ import annotations

import dataclasses
import enum
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest

from routecodex.turns import BadArguments, Tool, tool
from routecodex.turns.plugins.function_tools import as_tool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Box(TypedDict, total=False):
    label: str


class Leaf(msgspec.Struct):
    """A leaf."""

    size: float


class Node(msgspec.Struct):
    children: list[Node] = []


def parameters(function: Callable[..., Any]) -> Any:
    return tool(function).schema["function"]["parameters"]


def test_the_schema_of_a_function_comes_from_its_hints_and_its_docstring() -> None:
    def read_file(path: str, lines: int = 100, mode: Literal["text", "hex"] = "text") -> str:
        """Reads the beginning
        of a file.

        More that is not for models.

        Args:
            path (str): Where it is,
                from the root.
            lines: How many.

        Returns:
            The text.
        """
        return path

    assert tool(read_file).schema == {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Reads the beginning of a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Where it is, from the root."},
                    "lines": {"type": "integer", "description": "How many.", "default": 100},
                    "mode": {"type": "string", "enum": ["hex", "text"], "default": "text"},
                },
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    }


def test_sphinx_parameters_are_read_too() -> None:
    def find(name: str, depth: int) -> None:
        """Finds something.

        :param name: What to find,
            by its name.
        :param int depth: How deep.
        :returns: nothing
        """

    assert parameters(find)["properties"] == {
        "name": {"type": "string", "description": "What to find, by its name."},
        "depth": {"type": "integer", "description": "How deep."},
    }
    assert tool(find).schema["function"]["description"] == "Finds something."


def test_numpy_parameters_are_read_too() -> None:
    def find(name: str, depth: int = 1, *, loose: bool = False) -> None:
        """Finds something.

        Parameters
        ----------
        name : str
            What to find,
            by its name.

            Or by a part of it.
        depth : int, optional
            How deep.
        loose
            Whether a part will do.

        Returns
        -------
        None
            Nothing.
        """

    assert parameters(find)["properties"] == {
        "name": {"type": "string", "description": "What to find, by its name. Or by a part of it."},
        "depth": {"type": "integer", "description": "How deep.", "default": 1},
        "loose": {"type": "boolean", "description": "Whether a part will do.", "default": False},
    }
    assert tool(find).schema["function"]["description"] == "Finds something."


def test_a_partial_has_the_name_and_the_words_of_its_function() -> None:
    def find(name: str, depth: int) -> None:
        """Finds something."""

    told = tool(partial(find, depth=3)).schema["function"]
    assert (told["name"], told["description"]) == ("find", "Finds something.")
    assert told["parameters"]["required"] == ["name"]


def optional(a: Optional[int], b: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013, UP045  # people write so
def collections(a: list[str], b: dict[str, int], c: tuple[int, ...]) -> None: ...
def chosen(a: Color, b: Literal[1, 2]) -> None: ...
def shaped(a: Point, b: Box, c: Leaf) -> None: ...
def noted(a: Annotated[int, "how many"], b: Annotated[int, msgspec.Meta(gt=0)]) -> None: ...
def noted_or_none(
    a: Annotated[int, "how many"] = None,  # type: ignore[assignment]  # noqa: RUF013  # people write so
    b: Annotated[int | None, "how many"] = None,
    c: Annotated[int, "how many"] | None = None,
) -> None: ...
def quoted(a: "int", b: "int" = None, c: "list[Color]" = ()) -> None: ...  # type: ignore[assignment]  # noqa: UP037, RUF013  # so too
def free(a, b: Any, c: object) -> None: ...  # type: ignore[no-untyped-def]  # and so
def placed(a: Path, b: Path | None = None) -> None: ...


HINTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "optional": (
        optional,
        {
            "a": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
    ),
    "collections": (
        collections,
        {
            "a": {"type": "array", "items": {"type": "string"}},
            "b": {"type": "object", "additionalProperties": {"type": "integer"}},
            "c": {"type": "array", "items": {"type": "integer"}},
        },
    ),
    "enums and literals": (
        chosen,
        {
            "a": {"title": "Color", "type": "string", "enum": ["blue", "red"]},
            "b": {"type": "integer", "enum": [1, 2]},
        },
    ),
    "dataclass, TypedDict and Struct": (
        shaped,
        {
            "a": {
                "title": "Point",
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                "required": ["x"],
            },
            "b": {
                "title": "Box",
                "type": "object",
                "properties": {"label": {"type": "string"}},
                "required": [],
            },
            "c": {
                "title": "Leaf",
                "description": "A leaf.",
                "type": "object",
                "properties": {"size": {"type": "number"}},
                "required": ["size"],
            },
        },
    ),
    "notes in Annotated": (
        noted,
        {
            "a": {"type": "integer", "description": "how many"},
            "b": {"type": "integer", "exclusiveMinimum": 0},
        },
    ),
    "notes on what may be None": (
        noted_or_none,
        {
            "a": {"description": "how many", "anyOf": [{"type": "integer"}, {"type": "null"}]},
            "b": {"description": "how many", "anyOf": [{"type": "integer"}, {"type": "null"}]},
            "c": {"anyOf": [{"type": "integer", "description": "how many"}, {"type": "null"}]},
        },
    ),
    "quoted once more": (
        quoted,
        {
            "a": {"type": "integer"},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "c": {"type": "array", "items": {"title": "Color", "type": "string", "enum": ["blue", "red"]}},
        },
    ),
    "anything": (free, {"a": {}, "b": {}, "c": {}}),
    "paths": (placed, {"a": {"type": "string"}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
}


@pytest.mark.parametrize(("function", "properties"), HINTS.values(), ids=HINTS)
def test_every_hint_has_its_schema(function: Callable[..., Any], properties: dict[str, Any]) -> None:
    assert parameters(function)["properties"] == properties


def test_only_a_type_that_contains_itself_keeps_a_reference() -> None:
    def grow(root: Node) -> None: ...

    schema = parameters(grow)
    assert schema["properties"]["root"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert "Node" in schema["$defs"]


VALUES: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
    (optional, {"a": None}, {"a": None}),
    (optional, {"a": "3", "b": None}, {"a": 3, "b": None}),
    (chosen, {"a": "red", "b": 2}, {"a": Color.RED, "b": 2}),
    (shaped, {"a": {"x": 1}, "b": {}, "c": {"size": 2}}, {"a": Point(1), "b": {}, "c": Leaf(2.0)}),
    (placed, {"a": "/tmp"}, {"a": Path("/tmp")}),
    (free, {"a": [1], "b": None, "c": "x"}, {"a": [1], "b": None, "c": "x"}),
    (quoted, {"a": "1", "c": ["red"]}, {"a": 1, "c": [Color.RED]}),
]


@pytest.mark.parametrize(("function", "given", "taken"), VALUES)
def test_arguments_are_converted_and_those_left_out_stay_out(
    function: Callable[..., Any], given: dict[str, Any], taken: dict[str, Any]
) -> None:
    assert tool(function).prepare(given) == taken


REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (optional, {}, "missing required field `a`"),
    (optional, {"a": "x"}, r"Expected `int \| null`, got `str` - at `\$.a`"),
    (optional, {"a": 1, "z": 1}, "unknown field `z`"),
    (chosen, {"a": "green", "b": 1}, "Invalid enum value 'green'"),
    (shaped, {"a": {}, "b": {}, "c": {}}, r"missing required field `x` - at `\$.a`"),
    (placed, {"a": 3}, "Expected `str`, got `int`"),
]


@pytest.mark.parametrize(("function", "given", "said"), REFUSED)
def test_bad_arguments_are_named(function: Callable[..., Any], given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArguments, match=said):
        tool(function).prepare(given)


async def test_a_function_runs_in_another_thread() -> None:
    here = threading.get_ident()

    def where() -> bool:
        return threading.get_ident() == here

    made = tool(where)
    assert made.run is not None
    assert await made.run({}) is False


async def test_coroutine_functions_and_objects_with_an_async_call_run_on_the_loop() -> None:
    here = threading.get_ident()

    async def where() -> bool:
        return threading.get_ident() == here

    class Where:
        async def __call__(self) -> bool:
            return threading.get_ident() == here

    for function in (where, partial(where), Where()):
        made = tool(name="where")(function)
        assert made.run is not None
        assert await made.run({}) is True


async def test_what_a_thread_raises_is_raised() -> None:
    def leave() -> None:
        raise SystemExit(2)

    made = tool(leave)
    assert made.run is not None
    with pytest.raises(SystemExit):
        await made.run({})


def test_the_decorator_keeps_the_function_callable_and_takes_a_name_a_description_and_a_limit() -> None:
    @tool(name="sum", description="Adds.", timeout=3)
    def add(a: int, b: int) -> int:
        return a + b

    assert add(1, 2) == 3
    assert (add.name, add.schema["function"]["description"], add.timeout) == ("sum", "Adds.", 3)
    with pytest.raises(TypeError, match="not created from a function"):
        Tool({"function": {"name": "x"}})()


def test_a_method_is_a_tool_without_its_self() -> None:
    class Shelf:
        def put(self, book: str) -> None:
            """Puts a book."""

    assert list(parameters(Shelf().put)["properties"]) == ["book"]


def starred(*names: str) -> None: ...
def positional(a: int, /) -> None: ...
def keyworded(**names: str) -> None: ...
def untold(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # what is tried
def undefined(a: "list[Missing]") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037  # what is tried
def odd(a: threading.Thread) -> None: ...


async def pieces() -> AsyncIterator[str]:
    yield ""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (starred, r"has \*names"),
        (positional, "every parameter must accept a keyword argument"),
        (keyworded, r"has \*\*names"),
        (untold, "parameters of the tool 'untold' cannot be read"),
        (odd, r"the parameter 'a: threading\.Thread' of the tool 'odd' has a type without a JSON schema"),
        (undefined, "parameters of the tool 'undefined' cannot be read: name 'Missing' is not defined"),
    ],
)
def test_a_function_no_model_could_call_is_refused_by_name(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        tool(function)


def test_a_name_no_provider_takes_is_refused() -> None:
    with pytest.raises(ValueError, match="'<lambda>' is not a valid tool name"):
        tool(lambda: 1)


def test_a_schema_is_a_tool_with_or_without_its_wrapping() -> None:
    function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert as_tool(function).schema == {"type": "function", "function": function}
    assert as_tool({"type": "function", "function": function}).schema["function"] == function
    made = tool(pieces)
    assert as_tool(made) is made


@pytest.mark.parametrize("given", [3, {"parameters": {}}, {"function": "f"}])
def test_what_is_no_tool_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match="not"):
        as_tool(given)
