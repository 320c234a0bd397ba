"""Tools from functions: schemas from type hints and docstrings, arguments checked and converted.

    @tool
    def read_file(path: Path, lines: int = 100) -> str:
        \"\"\"Reads the beginning of a file.\"\"\"

A plain function runs in its own thread, so that it does not block the loop. A coroutine function runs on the
loop; an async generator function streams its result. Descriptions of parameters come from docstrings in the
style of Google, Sphinx or NumPy.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from threading import Thread
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, overload

import msgspec
from msgspec import UNSET, UnsetType

from routecodex.turns.json_types import convert, schema_of
from routecodex.turns.message import copied

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class BadArguments(ValueError):
    """The arguments of a call do not fit the tool; the model gets the message."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its chat-shaped `schema`, and the functions that run it.

    `prepare` checks the arguments and converts them for `run`. Without `run`, the plugin's `call_tool` runs
    the call. Calling the tool calls its original function.
    """

    schema: Mapping[str, Any]
    run: Callable[[Any], Any] | None = None
    prepare: Callable[[dict[str, Any]], Any] = dict
    timeout: float | None = None
    function: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        name: str = self.schema["function"]["name"]
        return name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise TypeError(f"the tool {self.name!r} was not created from a function")
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout: float | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Create a tool from a function, optionally with another name, description or time limit."""
    make = partial(_function_tool, name=name, description=description, timeout=timeout)
    return make if function is None else make(function)


def as_tool(value: object) -> Tool:
    """Return a Tool unchanged, or create one from a chat-shaped schema or a function."""
    if isinstance(value, Tool):
        return value
    if isinstance(value, Mapping):
        return _schema_tool(value)
    if callable(value):
        return tool(value)
    raise TypeError(f"a tool must be a function, a Tool or a schema, not {value!r}")


def _schema_tool(schema: Mapping[str, Any]) -> Tool:
    tool_schema = copied(schema if "function" in schema else {"type": "function", "function": schema})
    function = tool_schema["function"]
    tool_name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(tool_name, str):
        raise TypeError(f"a tool schema must have a function with a name, not {schema!r}")
    return Tool(tool_schema)


def _function_tool(
    function: Callable[..., Any], *, name: str | None, description: str | None, timeout: float | None
) -> Tool:
    tool_name = name or _own_name(function)
    if _NAME.fullmatch(tool_name) is None:
        raise ValueError(
            f"{tool_name!r} is not a valid tool name: use up to 64 of A-Z a-z 0-9 _ -, set with name="
        )
    arguments = _arguments_type(function, tool_name)
    declaration: dict[str, Any] = {"name": tool_name}
    if text := summary(function) if description is None else description:
        declaration["description"] = text
    declaration["parameters"] = _schema(arguments, function)
    return Tool(
        {"type": "function", "function": declaration},
        run=partial(_run, function),
        prepare=partial(_prepare, arguments),
        timeout=timeout,
        function=function,
    )


def _own_name(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, partial) else function
    return getattr(inner, "__name__", "") or type(inner).__name__


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _signature(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, ValueError, TypeError) as exc:
        raise TypeError(f"the parameters of the tool {name!r} cannot be read: {exc}") from exc
    for parameter in signature.parameters.values():
        if parameter.kind not in _BY_NAME:
            raise TypeError(
                f"the tool {name!r} has {parameter}; every parameter must accept a keyword argument"
            )
    return list(signature.parameters.values())


def _arguments_type(function: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    """Return a struct with a field per parameter; parameters with a default are optional."""
    fields: list[Any] = []
    for parameter in _signature(function, name):
        hint = _hint(parameter)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, _either(hint, UnsetType), UNSET))
    # msgspec resolves string annotations in this module.
    module = getattr(function, "__module__", None)
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True, module=module)


def _hint(parameter: inspect.Parameter) -> Any:
    """Return the parameter's type; a default of None makes None valid."""
    hint = parameter.annotation
    if hint is parameter.empty or hint is object:
        return Any
    if parameter.default is not None:
        return _described(hint)
    inner, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    return _described(_annotated(_either(inner, None), extras))


def _described(hint: Any) -> Any:
    """Return the type with the string in `Annotated` as its description."""
    if get_origin(hint) in (Union, UnionType):
        return _either(*map(_described, get_args(hint)))
    if get_origin(hint) is not Annotated:
        return hint
    inner, *extras = get_args(hint)
    return _annotated(inner, extras)


def _either(*kinds: Any) -> Any:
    return Union[kinds]  # noqa: UP007  # `|` does not accept string annotations


def _annotated(inner: Any, extras: list[Any]) -> Any:
    for extra in extras:
        meta = msgspec.Meta(description=extra) if isinstance(extra, str) else extra
        inner = Annotated[inner, meta]
    return inner


def _schema(arguments: type[msgspec.Struct], function: Callable[..., Any]) -> dict[str, Any]:
    name = arguments.__name__
    try:
        schema = schema_of(arguments)
    except TypeError as exc:
        raise TypeError(
            f"{_unsupported_parameter(function)} of the tool {name!r} has a type without a JSON schema"
        ) from exc
    except NameError as exc:
        raise TypeError(f"the parameters of the tool {name!r} cannot be read: {exc}") from exc
    schema.pop("title", None)
    descriptions = parameters(function)
    for parameter in inspect.signature(function).parameters.values():
        field = schema["properties"][parameter.name]
        if parameter.name in descriptions:
            field.setdefault("description", descriptions[parameter.name])
        if isinstance(parameter.default, str | int | float):
            field["default"] = parameter.default
    return schema


def _unsupported_parameter(function: Callable[..., Any]) -> str:
    """Return the parameter whose type has no schema, if one of them alone is the reason."""
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        try:
            schema_of(_hint(parameter))
        except TypeError:
            return f"the parameter {str(parameter)!r}"
    return "a parameter"


def _prepare(arguments: type[msgspec.Struct], values: dict[str, Any]) -> dict[str, Any]:
    """Return the passed arguments, checked and converted to the function's types."""
    try:
        checked = convert(values, arguments)
    except ValueError as exc:
        raise BadArguments(str(exc)) from exc
    values = {name: getattr(checked, name) for name in arguments.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET}


def _run(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    is_plain = inspect.isroutine(function) or isinstance(function, partial)
    called = function if is_plain else type(function).__call__
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        return function(**values)
    return in_thread(partial(function, **values))


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run a blocking call in its own thread; if the caller is cancelled, the call goes on and is ignored.

    The loop's thread pool would make calls wait for each other, and a call that never returns would keep the
    process from ending.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def deliver(value: Any, error: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(call)
        except BaseException as exc:
            error = exc
        # The loop may be closed by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, value, error)

    Thread(target=work, name="tool", daemon=True).start()
    value, error = await outcome
    if error is not None:
        raise error
    return value


_HEADING = re.compile(r"(?:Args|Arguments|Parameters|Params):\s*")
_OTHER_HEADING = re.compile(r"[A-Z][A-Za-z ]*:\s*")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_SPHINX = re.compile(r":param\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_NUMPY = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?")
_UNDERLINE = re.compile(r"-{3,}")
_SPHINX_FIELD = re.compile(r":\w+[^:]*:")


def summary(function: Any) -> str:
    """Return the first paragraph of the docstring, on one line."""
    lines: list[str] = []
    for line in _lines(function):
        if not line.strip() or _HEADING.fullmatch(line.strip()) or _SPHINX_FIELD.match(line.strip()):
            break
        lines.append(line.strip())
    return " ".join(lines)


def parameters(function: Any) -> dict[str, str]:
    """Return the descriptions of the parameters in the docstring."""
    lines = _lines(function)
    return _google(lines) | _numpy(lines) | _sphinx(lines)


def _lines(function: Any) -> list[str]:
    # The docstring of a class or of a callable object's type does not describe the call.
    routine = getattr(function, "func", function)
    text = getattr(routine, "__doc__", None) if inspect.isroutine(routine) else None
    return inspect.cleandoc(text).splitlines() if text else []


def _google(lines: list[str]) -> dict[str, str]:
    start = next((at for at, line in enumerate(lines) if _HEADING.fullmatch(line.strip())), None)
    if start is None:
        return {}
    heading = _indent(lines[start])
    block: list[str] = []
    for line in lines[start + 1 :]:
        if line.strip() and _indent(line) <= heading:
            break
        if line.strip():
            block.append(line)
    return _entries(block, _GOOGLE)


def _numpy(lines: list[str]) -> dict[str, str]:
    """Parse the block below an underlined `Parameters`, up to the next underlined heading."""
    underlined = [at for at in range(1, len(lines)) if _UNDERLINE.fullmatch(lines[at].strip())]
    start = next((at for at in underlined if lines[at - 1].strip() == "Parameters"), None)
    if start is None:
        return {}
    end = next((at - 1 for at in underlined if at > start), len(lines))
    return _entries([line for line in lines[start + 1 : end] if line.strip()], _NUMPY)


def _entries(block: list[str], shape: re.Pattern[str]) -> dict[str, str]:
    """Parse entries `name (type): text` or `name : type`, each with the deeper lines that follow."""
    found: dict[str, str] = {}
    depth = min(map(_indent, block), default=0)
    name = None
    for line in block:
        entry = shape.fullmatch(line.strip()) if _indent(line) == depth else None
        if entry is not None:
            name = entry[1]
            found[name] = "".join(entry.groups()[1:]).strip()
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _sphinx(lines: list[str]) -> dict[str, str]:
    """Parse entries `:param type name: text`, each with the lines up to the next field or paragraph."""
    found: dict[str, str] = {}
    name = None
    for line in map(str.strip, lines):
        entry = _SPHINX.fullmatch(line)
        if entry is not None:
            name = entry[1]
            found[name] = entry[2].strip()
        elif not line or _SPHINX_FIELD.match(line) or _OTHER_HEADING.fullmatch(line):
            name = None
        elif name is not None:
            found[name] = f"{found[name]} {line}".strip()
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
