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

_STEP = re.compile(r"""\.([^.\[\]]+)|\[([0-9]{1,4})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_ESCAPED = re.compile(r"\\(.)")
_VALUES = ("stringValue", "numberValue", "boolValue")
_MOST_ELEMENTS = 10_000
"""Arrays are filled up to an index, all those of a call together up to this size; no real call needs more."""


class PartialArguments:
    """The arguments of one call while they arrive."""

    def __init__(self) -> None:
        self._value: Any = {}
        self._open_path: str | None = None
        self._elements = 0
        self._place: tuple[Any, str | int] | None = None
        self._root: str | int = ""
        self._text: list[str] = []
        """Pieces of the text at the open path, which belong at `_place` below the key `_root`."""

    def add(self, partial_args: Json) -> None:
        """Add the `partialArgs` of one part; malformed ones are skipped."""
        for partial in partial_args if isinstance(partial_args, list) else ():
            path = partial.get("jsonPath") if isinstance(partial, dict) else None
            if not isinstance(path, str):
                continue
            value = next((partial[name] for name in _VALUES if partial.get(name) is not None), None)
            continues = path == self._open_path
            if continues and self._place is not None and isinstance(value, str | None):
                self._text.append(value or "")
            elif steps := _steps(path):
                self._join_text()
                self._set(steps, value, continues=continues)
            else:
                continue
            self._open_path = path if partial.get("willContinue") else None

    def merge(self, arguments: Json) -> None:
        """Add whole arguments that a part has besides."""
        if isinstance(arguments, dict):
            if self._root in arguments:
                self._join_text()
            self._value.update(arguments)

    def text(self, *, complete: bool) -> str:
        """Return the arguments as JSON; those of an incomplete call lack their last brace."""
        self._join_text()
        text = json.encode(self._value).decode()
        return text if complete else text[:-1]

    def _join_text(self) -> None:
        """Put the pieces of the open text in their place."""
        if self._place is not None:
            holder, step = self._place
            holder[step] = "".join(self._text)
            self._place = None

    def _set(self, steps: list[str | int], value: Json, *, continues: bool) -> None:
        *parents, last = steps
        holder = self._value
        for step, following in zip(parents, steps[1:], strict=True):
            inner = _get(holder, step)
            if not isinstance(inner, list if isinstance(following, int) else dict):
                inner = [] if isinstance(following, int) else {}
                if not self._put(holder, step, inner):
                    return
            holder = inner
        before = _get(holder, last)
        if continues and isinstance(before, str) and isinstance(value, str | None):
            value = before + (value or "")
        if self._put(holder, last, value) and isinstance(value, str):
            self._place, self._root, self._text = (holder, last), steps[0], [value]

    def _put(self, holder: Any, step: str | int, value: Json) -> bool:
        """Put a value in its place; return False if an array would become too long."""
        if isinstance(step, int) and step >= len(holder):
            added = step + 1 - len(holder)
            if self._elements + added > _MOST_ELEMENTS:
                return False
            self._elements += added
            holder.extend([None] * added)
        holder[step] = value
        return True


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
    return steps if steps and isinstance(steps[0], str) else []


def _get(holder: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return holder[step] if step < len(holder) else None
    return holder.get(step)
