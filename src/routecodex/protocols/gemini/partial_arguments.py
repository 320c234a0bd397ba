"""Arguments of a call that Vertex AI streams in several parts (`streamFunctionCallArguments`).

The first part has the name of the function, the others have `partialArgs`: values with their JSON path. A
string may be continued by the next value of its path. `willContinue` is set on all parts except the last,
which may be an empty `functionCall`.
"""

from __future__ import annotations

import re
from typing import Any

from routecodex.canon.parts import Json
from routecodex.wire import json

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_ESCAPED = re.compile(r"\\(.)")
_VALUES = ("stringValue", "numberValue", "boolValue")
_MOST_ELEMENTS = 10_000
"""Arrays are filled up to an index; a larger index is not one of a real call."""


class PartialArguments:
    """The arguments of one call while they arrive."""

    def __init__(self) -> None:
        self._value: Any = {}
        self._open_path: str | None = None

    def add(self, partial_args: Json) -> None:
        """Add the `partialArgs` of one part; malformed ones are skipped."""
        for partial in partial_args if isinstance(partial_args, list) else ():
            path = partial.get("jsonPath") if isinstance(partial, dict) else None
            if isinstance(path, str) and (steps := _steps(path)):
                self._set(steps, partial, continues=path == self._open_path)
                self._open_path = path if partial.get("willContinue") else None

    def merge(self, arguments: Json) -> None:
        """Add whole arguments that a part has besides."""
        if isinstance(arguments, dict):
            self._value.update(arguments)

    def text(self, *, complete: bool) -> str:
        """Return the arguments as JSON; those of an incomplete call lack their last brace."""
        text = json.encode(self._value).decode()
        return text if complete else text[:-1]

    def _set(self, steps: list[str | int], partial: dict[str, Json], *, continues: bool) -> None:
        *parents, last = steps
        holder = self._value
        for step, following in zip(parents, steps[1:], strict=True):
            inner = _get(holder, step)
            if not isinstance(inner, list if isinstance(following, int) else dict):
                inner = [] if isinstance(following, int) else {}
                _put(holder, step, inner)
            holder = inner
        value = next((partial[name] for name in _VALUES if partial.get(name) is not None), None)
        before = _get(holder, last)
        if continues and isinstance(before, str) and isinstance(value, str | None):
            value = before + (value or "")
        _put(holder, last, value)


def _steps(path: str) -> list[str | int]:
    """Return the keys and indexes of a path (RFC 9535: `$.a[0]['b c']`), empty if it is malformed."""
    steps: list[str | int] = []
    at = 1 if path.startswith("$") else 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return []
        name, index, single, double = found.groups()
        quoted = single if single is not None else double
        steps.append(int(index) if index is not None else name or _ESCAPED.sub(r"\1", quoted or ""))
        at = found.end()
    return steps if steps and isinstance(steps[0], str) and _are_small(steps) else []


def _are_small(steps: list[str | int]) -> bool:
    return all(isinstance(step, str) or step < _MOST_ELEMENTS for step in steps)


def _get(holder: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return holder[step] if step < len(holder) else None
    return holder.get(step)


def _put(holder: Any, step: str | int, value: Json) -> None:
    if isinstance(step, int):
        holder.extend([None] * (step + 1 - len(holder)))
    holder[step] = value
