"""OpenRouter's `reasoning_details`, also sent by Snowflake: reasoning with signatures and encrypted entries.

OpenRouter docs, "Preserving reasoning": the entries must return unchanged with the results of tool calls. For
clients of other protocols they become the signature of a reasoning part: `details.` and the entries as JSON,
without the text if the part holds it.
"""

from __future__ import annotations

from typing import Any, Final

from routecodex.canon.parts import Json, Reasoning
from routecodex.wire import json

PREFIX: Final = "details."
_TEXTS: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
_OPAQUE: Final = ("signature", "data")
"""Fields of an entry that only its provider can read."""


class DetailsCollector:
    """The entries of one answer, with the pieces of a stream joined; `take` returns them as a signature."""

    __slots__ = ("_entries", "_texts")

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._texts: list[list[str]] = []

    def add(self, details: Json) -> None:
        for entry in details if isinstance(details, list) else ():
            if isinstance(entry, dict):
                self._add_entry(entry)

    def _add_entry(self, entry: dict[str, Any]) -> None:
        field = _TEXTS.get(str(entry.get("type")))
        last = self._entries[-1] if self._entries else {}
        if field is None or any(last.get(name) != entry.get(name) for name in ("type", "index")):
            self._entries.append(dict(entry))
            self._texts.append([])
        else:
            last.update({name: value for name, value in entry.items() if value is not None})
        if field is not None:
            self._texts[-1].append(str(entry.get(field) or ""))

    def take(self) -> str:
        """Return the entries so far as a signature, and forget them; empty if none is signed or encrypted."""
        entries, texts = self._entries, self._texts
        self._entries, self._texts = [], []
        if not any(entry.get(name) for entry in entries for name in _OPAQUE):
            return ""
        for entry, pieces in zip(entries, texts, strict=True):
            if pieces:
                entry[_TEXTS[entry["type"]]] = "".join(pieces)
        written = [entry for entry, pieces in zip(entries, texts, strict=True) if pieces]
        if len(written) == 1:
            written[0].pop(_TEXTS[written[0]["type"]])
        return PREFIX + json.encode(entries).decode()


def entries_of(part: Reasoning) -> list[Json]:
    """Return the entries that the provider sent for a reasoning part; none if its signature is another."""
    signature = part.signature or ""
    try:
        entries = json.decode(signature[len(PREFIX) :]) if signature.startswith(PREFIX) else []
    except ValueError:
        return []
    return [_with_text(entry, part.text) for entry in entries if isinstance(entry, dict)]


def _with_text(entry: dict[str, Any], text: str) -> dict[str, Any]:
    field = _TEXTS.get(str(entry.get("type")))
    if field is None or field in entry:
        return entry
    return {"type": entry["type"], field: text, **entry}
