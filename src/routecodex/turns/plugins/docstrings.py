"""What a docstring says of a function and of its parameters, in the ways of Google, Sphinx and NumPy."""

from __future__ import annotations

import inspect
import re
from typing import Any

_HEADING = re.compile(r"(?:Args|Arguments|Parameters|Params):\s*")
_OTHER_HEADING = re.compile(r"[A-Z][A-Za-z ]*:\s*")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_SPHINX = re.compile(r":param\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_NUMPY = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?")
_UNDERLINE = re.compile(r"-{3,}")
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
    return _google(lines) | _numpy(lines) | _sphinx(lines)


def _lines(function: Any) -> list[str]:
    # The docstring of a class or of a callable object's type says nothing about this call.
    told = getattr(function, "func", function)
    text = getattr(told, "__doc__", None) if inspect.isroutine(told) else None
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
    """The block below an underlined `Parameters`, up to the next underlined heading."""
    underlined = [at for at in range(1, len(lines)) if _UNDERLINE.fullmatch(lines[at].strip())]
    start = next((at for at in underlined if lines[at - 1].strip() == "Parameters"), None)
    if start is None:
        return {}
    end = next((at - 1 for at in underlined if at > start), len(lines))
    return _entries([line for line in lines[start + 1 : end] if line.strip()], _NUMPY)


def _entries(block: list[str], shape: re.Pattern[str]) -> dict[str, str]:
    """`name (type): text` or `name : type`, each with the deeper lines that follow it."""
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
