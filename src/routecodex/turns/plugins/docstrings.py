"""What a docstring says of a function and of its parameters, in Google's or Sphinx' way of writing them."""

from __future__ import annotations

import inspect
import re
from typing import Any

_HEADING = re.compile(r"(?:Args|Arguments|Parameters|Params):\s*")
_OTHER_HEADING = re.compile(r"[A-Z][A-Za-z ]*:\s*")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_SPHINX = re.compile(r":param\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_SPHINX_FIELD = re.compile(r":\w+[^:]*:")


def summary(function: Any) -> str:
    """The first paragraph of the docstring, on one line."""
    lines: list[str] = []
    for line in _lines(function):
        if not line.strip() or _HEADING.fullmatch(line.strip()) or _SPHINX_FIELD.match(line.strip()):
            break
        lines.append(line.strip())
    return " ".join(lines)


def parameters(function: Any) -> dict[str, str]:
    """What the docstring says of each parameter."""
    lines = _lines(function)
    return _google(lines) | _sphinx(lines)


def _lines(function: Any) -> list[str]:
    # The docstring of a class or of a callable object's type says nothing about this call.
    text = getattr(function, "__doc__", None) if inspect.isroutine(function) else None
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
    return _entries(block)


def _entries(block: list[str]) -> dict[str, str]:
    """`name (type): text`, each with the deeper lines that follow it."""
    found: dict[str, str] = {}
    depth = min(map(_indent, block), default=0)
    name = None
    for line in block:
        entry = _GOOGLE.fullmatch(line.strip()) if _indent(line) == depth else None
        if entry is not None:
            name = entry[1]
            found[name] = entry[2].strip()
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _sphinx(lines: list[str]) -> dict[str, str]:
    """`:param type name: text`, each with the lines up to the next field or paragraph."""
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
