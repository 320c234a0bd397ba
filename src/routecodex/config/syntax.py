"""Parses the text of a configuration file: tables, lines of the keys, and syntax errors with a fix."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from routecodex.config.problems import ConfigPath, Problem, path_text, quoted

MINIMAL_CONFIG = """\
        [providers.openai]
        [routing]
        default = ["openai.gpt-5"]"""
"""The smallest useful file: a provider named like a preset, and a default route."""

_TOML_POSITION = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\Z")
_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEYS = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEYS})[ \t]*\]")
_ENTRY = re.compile(rf"[ \t]*({_KEYS})[ \t]*=")
_LONG_QUOTE = re.compile(r'"""|\'\'\'')
_TUPLE = re.compile(r"""\((?:(?:'[^']*'|"[^"]*")(?:, |,?(?=\))))+\)""")
_TWICE = re.compile(r"Cannot declare (.+) twice\Z")
_SCALAR = re.compile(rf"[ \t]*({_KEYS})[ \t]*=[ \t]*([^\s\"'\[{{#][^#\"']*)")
_WORD = re.compile(r"[^\s,\]}#\"']+")
_COLON = re.compile(rf"[ \t]*({_KEYS})[ \t]*:(?:\s|\Z)")
_CURLY_QUOTES = "“”„‘’"
_CREDENTIAL = re.compile(r"auth|key|token|secret|password|value|header|query|@", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{\w+\}\Z")


def parse(text: str) -> dict[str, Any] | Problem:
    """Parse the text into tables; return a syntax error with line and column as a Problem."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        return _other_format(text) or _syntax_problem(text, str(exc))


def _other_format(text: str) -> Problem | None:
    """Return the problem of a file whose first line is JSON or YAML."""
    for number, line in enumerate(text.splitlines(), start=1):
        start = line.strip()
        if not start or start.startswith("#"):
            continue
        is_yaml = start == "---" or _COLON.match(line)
        name = "JSON" if start.startswith("{") else "YAML" if is_yaml else None
        if name is None:
            return None
        message = f"is {name}, but the configuration is written in TOML"
        return Problem((), message, f"write it as TOML; the smallest file is:\n{MINIMAL_CONFIG}", line=number)
    return None


def _syntax_problem(text: str, message: str) -> Problem:
    at = _TOML_POSITION.search(message)
    error = _TOML_POSITION.sub("", message)
    if at is None or at[1] is None:
        line, column, where = text.count("\n") + 1, None, "at the end of the file"
    else:
        line, column, where = int(at[1]), int(at[2]), f"at line {at[1]}, column {at[2]}"
    lines = text.split("\n")
    error, fix = _repetition(lines[:line], error) or (_readable(error), "")
    if not fix and column is not None:
        fix = _line_fix(lines[line - 1], column, error)
    return Problem((), f"is not valid TOML {where}: {error}", fix or "correct the syntax there", line=line)


def _repetition(lines: list[str], error: str) -> tuple[str, str] | None:
    """Return message and fix for a table or a key that occurs again in the last of the lines."""
    if twice := _TWICE.match(error):
        table = tuple(ast.literal_eval(twice[1]))
        first = lines_of("\n".join(lines[:-1])).get(table)
        below = f"below the first one, at line {first}," if first else "below the first one,"
        return f"[{path_text(table)}] is declared twice", f"move its lines {below} and remove this one"
    entry = _ENTRY.match(lines[-1]) if error == "Cannot overwrite a value" else None
    return None if entry is None else (f"{entry[1]} is set twice", "keep one of the two lines")


def _readable(error: str) -> str:
    """Return the parser's message with TOML paths instead of Python tuples."""
    return _TUPLE.sub(lambda found: path_text(tuple(ast.literal_eval(found[0]))), error)


def _line_fix(line: str, column: int, error: str) -> str:
    """Return the fix for an unquoted string, a misspelled boolean or a colon; empty for anything else."""
    if colon := _COLON.match(line):
        return f"write = instead of : after {colon[1]}"
    scalar = _SCALAR.match(line)
    if scalar is not None and error.startswith(("Invalid value", "Expected newline")):
        key, value = scalar[1], scalar[2].strip()
        if value.lower() in {"true", "false"}:
            return f"write {value.lower()} in lower case"
        advice = "use straight quotes" if value[0] in _CURLY_QUOTES else "put the text in quotes"
        return f"{advice}: {key} = {_shown(value.strip(_CURLY_QUOTES), key)}"
    if error != "Invalid value" or "=" not in line:
        return ""
    word = _WORD.match(line, column - 1)
    if word is None:
        return "write a value after =" if line.rstrip().endswith("=") else ""
    return (
        f"put the text in quotes: {quoted(word[0])}"
        if not _CREDENTIAL.search(line)
        else "put the text in quotes"
    )


def _shown(value: str, key: str) -> str:
    """Return the value as TOML, unless it may be a secret."""
    is_public = _REFERENCE.match(value) or not _CREDENTIAL.search(f"{key} {value}")
    return quoted(value) if is_public else '"…"'


def lines_of(text: str) -> dict[ConfigPath, int]:
    """Return the line of every key that starts a line, and of every table."""
    found: dict[ConfigPath, int] = {}
    table: ConfigPath = ()
    counts: dict[ConfigPath, int] = {}
    closing: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if closing is not None:
            closing = None if closing in line else closing
            continue
        if header := _HEADER.match(line):
            table = _path_of_keys(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, number)
        elif entry := _ENTRY.match(line):
            found.setdefault((*table, *_path_of_keys(entry[1])), number)
        closing = _left_open(line)
    return found


def _path_of_keys(keys: str) -> ConfigPath:
    tree: Any = tomllib.loads(f"{keys} = 0")
    steps: list[str | int] = []
    while isinstance(tree, dict):
        (key, tree), *_ = tree.items()
        steps.append(key)
    return tuple(steps)


def _left_open(line: str) -> str | None:
    """Return the closing quotes of a multi-line string that this line leaves open, if any."""
    marks = _LONG_QUOTE.findall(line)
    return marks[-1] if len(marks) % 2 else None


def line_of(place: ConfigPath, lines: Mapping[ConfigPath, int]) -> int | None:
    """Return the line of the place, or of the nearest enclosing place that has one."""
    for length in range(len(place), 0, -1):
        if place[:length] in lines:
            return lines[place[:length]]
    return None
