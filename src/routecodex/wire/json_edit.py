"""Edits JSON at byte offsets; all other bytes stay, white space included.

msgspec reports the length of each value, so offsets are found by reading the keys alone; values are not
scanned again. If a key occurs twice, the length of its first value is unknown. Such an object is encoded
again, with the last value of each key, which is the one that readers use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.wire import json
from routecodex.wire.json import ABSENT, starts_with

Replacement = bytes | None
"""The new bytes of a value, or None to remove it."""

_object_decoder = Decoder(dict[str, Raw])
_list_decoder = Decoder(list[Raw])
_string_decoder = Decoder(str)
_KEY = re.compile(rb'[\s,{]*("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*', re.DOTALL)
_GAP = re.compile(rb"[\s,]*")
_CLOSING = re.compile(rb"[\s{]*\}\s*")


class JsonMember:
    """Offsets of a field: its key, its value, its end."""

    __slots__ = ("end", "name", "start", "value")

    def __init__(self, name: str, start: int, value: int, end: int) -> None:
        self.name = name
        self.start = start
        self.value = value
        self.end = end


class JsonObject:
    """A JSON object whose field values are not decoded.

    `respelled`: the codec reads snake_case names as camelCase, so two spellings may mean one field.
    """

    __slots__ = ("_names", "data", "fields")

    def __init__(self, data: bytes | Raw, *, respelled: bool = False) -> None:
        self.data = data
        self.fields = json.read(data, _object_decoder)
        self._names = {_camel(name): name for name in self.fields} if respelled else None

    def get(self, name: str) -> Raw:
        """Return the value of a field, ABSENT if it is missing."""
        return self.fields.get(self._spelling_of(name), ABSENT)

    def inner(self, data: Raw) -> JsonObject:
        """Read an object inside this one in the same way."""
        return JsonObject(data, respelled=self._names is not None)

    def changed(self, changes: Mapping[str, Replacement]) -> bytes:
        """Return the object with these fields replaced, added or (None) removed, each field once."""
        replacements = {self._spelling_of(name): change for name, change in changes.items()}
        if self._names is not None:
            named = set(self._names.values())
            replacements.update({name: None for name in self.fields if name not in named})
        data = bytes(self.data)
        members = _find_members(data, self.fields)
        if members is None:
            return self._reencode(replacements)
        added = {
            name: change
            for name, change in replacements.items()
            if change is not None and name not in self.fields
        }
        if added and (not members or replacements.get(members[-1].name, b"") is None):
            return self._reencode(replacements)
        return _replace_members(data, members, replacements, added=added)

    def _spelling_of(self, name: str) -> str:
        return name if self._names is None else self._names.get(name, name)

    def _reencode(self, replacements: Mapping[str, Replacement]) -> bytes:
        changed = {name: None if change is None else Raw(change) for name, change in replacements.items()}
        merged = {**self.fields, **changed}
        return json.encode({name: value for name, value in merged.items() if value is not None})


def string_value(raw: Raw) -> str | None:
    """Return the value if it is a string."""
    return json.read(raw, _string_decoder) if starts_with(raw, b'"') else None


def list_items(raw: Raw) -> list[Raw]:
    """Return the items of a list; an object in place of a list is its only item."""
    if starts_with(raw, b"["):
        return json.read(raw, _list_decoder)
    return [raw] if starts_with(raw, b"{") else []


def replace_items(raw: Raw, changes: Mapping[int, Replacement]) -> bytes:
    """Return the list with these items replaced or (None) removed."""
    data = bytes(raw)
    if not starts_with(raw, b"["):
        only = changes.get(0, data)
        return b"[]" if only is None else only
    return _replace_spans(data, _item_spans(data, list_items(raw)), changes)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest) if rest and head else name


def _item_spans(data: bytes, items: Sequence[Raw]) -> list[tuple[int, int]]:
    spans = []
    at = 1
    for item in items:
        gap = _GAP.match(data, at)
        start = at if gap is None else gap.end()
        at = start + len(memoryview(item))
        spans.append((start, at))
    return spans


def _find_members(data: bytes, fields: Mapping[str, Raw]) -> list[JsonMember] | None:
    """Return the fields with their offsets; None if a field occurs twice."""
    members: list[JsonMember] = []
    at = 0
    # Without a repeated key the fields are in the order of the text, so that no name is decoded.
    for name, raw in fields.items():
        key = _KEY.match(data, at)
        value = memoryview(raw)
        if key is None or not data.startswith(value, key.end()):
            return None
        start = key.end()
        at = start + len(value)
        members.append(JsonMember(name, key.start(1), start, at))
    # A repeated key is one more than there are fields.
    return members if _CLOSING.fullmatch(data, at) is not None else None


def _replace_members(
    data: bytes,
    members: Sequence[JsonMember],
    replacements: Mapping[str, Replacement],
    *,
    added: Mapping[str, Replacement],
) -> bytes:
    pieces: dict[int, Replacement] = {}
    for at, member in enumerate(members):
        if member.name in replacements:
            change = replacements[member.name]
            pieces[at] = None if change is None else data[member.start : member.value] + change
    if added:
        last = len(members) - 1
        tail = pieces.get(last) or data[members[last].start : members[last].end]
        more = (b"," + json.encode(name) + b":" + (change or b"") for name, change in added.items())
        pieces[last] = tail + b"".join(more)
    return _replace_spans(data, [(member.start, member.end) for member in members], pieces)


def _replace_spans(data: bytes, spans: Sequence[tuple[int, int]], pieces: Mapping[int, Replacement]) -> bytes:
    """Return the data with spans replaced, or removed together with one comma."""
    if not pieces:
        return data
    last = len(spans) - 1
    while last >= 0 and pieces.get(last, b"") is None:
        last -= 1
    view = memoryview(data)
    out: list[bytes | memoryview] = []
    done = 0
    for at in sorted(at for at in pieces if at <= last):
        piece = pieces[at]
        out += (view[done : spans[at][0]], piece or b"")
        done = spans[at + 1][0] if piece is None else spans[at][1]
    if last < len(spans) - 1:
        out.append(view[done : spans[last][1] if last >= 0 else spans[0][0]])
        done = spans[-1][1]
    out.append(view[done:])
    return b"".join(out)
