"""`demo:` commands in a user's text; the list is in the package's docstring."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

_COMMAND = re.compile(r"(?<![\w:])demo:([a-z]+)[ \t]*([^\n]*)")


class DemoCommand(Struct, frozen=True):
    """One command: its name and the rest of its line, up to the next command."""

    name: str
    rest: str

    def number(self, default: float) -> float:
        """The number that follows the command."""
        found = re.match(r"\d+(?:\.\d+)?", self.rest)
        return float(found.group()) if found else default


def parse(text: str) -> list[DemoCommand]:
    """All commands in the text, in order."""
    lines = re.sub(r"[ \t]+(?=demo:[a-z])", "\n", text)
    return [DemoCommand(name, rest.strip()) for name, rest in _COMMAND.findall(lines)]


def tool_call(command: DemoCommand) -> tuple[str, dict[str, Any] | None]:
    """(name, arguments) of a `demo:tool`; None when it has no JSON object."""
    name, _, rest = command.rest.partition(" ")
    start = rest.find("{")
    end = rest.rfind("}") if start >= 0 else -1
    while end > start:
        value = _object(rest[start : end + 1])
        if value is not None:
            return name, value
        end = rest.rfind("}", 0, end)
    return name, None


def _object(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
