"""The text of the file: TOML syntax, line numbers, and values from the environment."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from routecodex.config.problems import ConfigPath, Problem, quoted

__all__ = ["expand", "line_of", "lines_of", "parse"]

_AT = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\Z")
_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEYS = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEYS})[ \t]*\]")
_ENTRY = re.compile(rf"[ \t]*({_KEYS})[ \t]*=")
_LONG_QUOTE = re.compile(r'"""|\'\'\'')
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}|\$\{[^}]*\}?")


def parse(text: str) -> dict[str, Any] | Problem:
    """The tables of the text, or the syntax error with its line and column."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        told = str(exc)
        at = _AT.search(told)
        what = _AT.sub("", told)
        if at is None or at[1] is None:
            line, where = text.count("\n") + 1, "at the end of the file"
        else:
            line, where = int(at[1]), f"at line {at[1]}, column {at[2]}"
        return Problem((), f"is not valid TOML {where}: {what}", "mend the syntax there", line=line)


def lines_of(text: str) -> dict[ConfigPath, int]:
    """The line of every key that starts one, tables included."""
    found: dict[ConfigPath, int] = {}
    table: ConfigPath = ()
    counts: dict[ConfigPath, int] = {}
    closing: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if closing is not None:
            closing = None if closing in line else closing
            continue
        if header := _HEADER.match(line):
            table = _place(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, number)
        elif entry := _ENTRY.match(line):
            found.setdefault((*table, *_place(entry[1])), number)
        closing = _left_open(line)
    return found


def _place(keys: str) -> ConfigPath:
    tree: Any = tomllib.loads(f"{keys} = 0")
    steps: list[str | int] = []
    while isinstance(tree, dict):
        (key, tree), *_ = tree.items()
        steps.append(key)
    return tuple(steps)


def _left_open(line: str) -> str | None:
    """The quotes that close a multi-line string begun in this line, if one is left open."""
    marks = _LONG_QUOTE.findall(line)
    return marks[-1] if len(marks) % 2 else None


def line_of(place: ConfigPath, lines: Mapping[ConfigPath, int]) -> int | None:
    """The line of the place, or of the nearest thing around it that has one."""
    for length in range(len(place), 0, -1):
        if place[:length] in lines:
            return lines[place[:length]]
    return None


def expand(
    tree: dict[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], frozenset[ConfigPath], list[Problem]]:
    """The tree with `${NAME}` and `${NAME:-default}` filled in, where that happened, and what was missing."""
    places: set[ConfigPath] = set()
    problems: list[Problem] = []

    def walk(value: Any, place: ConfigPath) -> Any:
        if isinstance(value, dict):
            return {key: walk(one, (*place, key)) for key, one in value.items()}
        if isinstance(value, list):
            return [walk(one, (*place, index)) for index, one in enumerate(value)]
        if not isinstance(value, str) or "$" not in value:
            return value
        if "${" in value:
            places.add(place)
        return _VARIABLE.sub(lambda match: fill(match, place), value)

    def fill(match: re.Match[str], place: ConfigPath) -> str:
        if match[0] == "$$":
            return "$"
        name, default = match[1], match[3]
        if name is None:
            problems.append(
                Problem(
                    place, f"has a {quoted('${')} that names no variable", "write ${NAME}, or $$ for one $"
                )
            )
            return match[0]
        value = environ.get(name)
        if match[2] is not None:
            return value or default
        if value is None:
            problems.append(
                Problem(
                    place,
                    f"uses the environment variable {name}, which is not set",
                    f"set {name}, or give a default: ${{{name}:-…}}",
                )
            )
            return match[0]
        return value

    return walk(tree, ()), frozenset(places), problems
