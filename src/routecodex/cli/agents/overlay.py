"""Folders of ours that stand in for a person's: one file changed, everything else linked."""

from __future__ import annotations

import contextlib
from collections.abc import Container
from pathlib import Path
from typing import Any

import click
import msgspec

from routecodex.cli.agents.agent import PlannedFile


def peek_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a person's file that we only look at; empty if it cannot be read."""
    with contextlib.suppress(click.UsageError):
        return read_object(file)
    return {}


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a person's file; empty if there is no file.

    Comments and trailing commas are allowed, as some agents allow them. A file that is not an object is a
    usage error, because the agent would reject it too, and would name our copy of it.
    """
    try:
        text = file.read_text("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"cannot read {file}: {exc}") from exc
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(without_comments(text))
    except msgspec.DecodeError as exc:
        raise click.UsageError(
            f"{file} is not valid JSON: {exc}; the agent could not read it either"
        ) from exc
    if not isinstance(value, dict):
        raise click.UsageError(f"{file} does not hold a JSON object; the agent could not read it either")
    return value


def without_comments(text: str) -> str:
    """Return JSON without comments and without commas before a closing bracket; strings stay as they are."""
    kept: list[str] = []
    comma: int | None = None
    at = 0
    while at < len(text):
        end = _token_end(text, at)
        piece = text[at:end]
        at = end
        if piece.startswith(("//", "/*")):
            continue
        if piece in "}]" and comma is not None:
            kept[comma] = ""
        if not piece.isspace():
            comma = len(kept) if piece == "," else None
        kept.append(piece)
    return "".join(kept)


def _token_end(text: str, at: int) -> int:
    """Return where the string, comment or character ends that begins here."""
    if text.startswith("//", at):
        end = text.find("\n", at)
        return len(text) if end < 0 else end
    if text.startswith("/*", at):
        end = text.find("*/", at + 2)
        return len(text) if end < 0 else end + 2
    return _string_end(text, at) if text[at] == '"' else at + 1


def _string_end(text: str, at: int) -> int:
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    return end + 1


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return both objects as one; values of `above` win, objects are merged."""
    merged = dict(below)
    for name, value in above.items():
        present = merged.get(name)
        if isinstance(value, dict) and isinstance(present, dict):
            value = merge(present, value)
        merged[name] = value
    return merged


def json_text(value: object) -> str:
    """Return the value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def links(person: Path, ours: Path, *, but: Container[str]) -> tuple[PlannedFile, ...]:
    """Return a link for every entry of a person's folder that we do not write ourselves."""
    try:
        entries = sorted(person.iterdir())
    except OSError:
        return ()
    return tuple(PlannedFile(path=ours / one.name, link=one) for one in entries if one.name not in but)
