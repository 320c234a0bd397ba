"""Which call a piece of a stream belongs to, however the upstream numbers its calls, and what it lacks."""

from __future__ import annotations

from typing import Any, Final

from routecodex.protocols.chat.stream_schema import WireToolCallDelta
from routecodex.wire import json


class CallPosition:
    """Where a piece belongs: the number of its call, whether it begins it, and whether it tells its name."""

    __slots__ = ("begins", "names", "number")

    def __init__(self, number: int, *, begins: bool, names: bool) -> None:
        self.number: Final = number
        self.begins: Final = begins
        self.names: Final = names


class _Known:
    """How a call is known."""

    __slots__ = ("id", "index", "named")

    def __init__(self, index: int | None, id: str | None) -> None:
        self.index = index
        self.id = id
        self.named = False


class ToolCallIndex:
    """The calls of one choice in the order they began; a call's number is its place here."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: list[_Known] = []

    def __len__(self) -> int:
        return len(self._known)

    def place(self, delta: WireToolCallDelta) -> CallPosition:
        """The place of this piece; a name is told once, by the first piece that has one."""
        number = self._find(delta)
        begins = number is None
        if number is None:
            number = len(self._known)
            self._known.append(_Known(delta.index, delta.id))
        call = self._known[number]
        names = bool(delta.name) and not call.named
        call.named = call.named or names
        return CallPosition(number, begins=begins, names=names)

    def _find(self, delta: WireToolCallDelta) -> int | None:
        """By index and id, else by index alone, else the last one when the piece names neither."""
        known = self._known
        near = [
            number for number, call in enumerate(known) if delta.index is None or call.index == delta.index
        ]
        if delta.id:
            # Some upstreams number every call 0 and tell them apart by id alone.
            for number in near:
                if known[number].id == delta.id:
                    return number
        is_awaited = bool(known) and not known[-1].named
        if delta.name and (delta.id or (delta.index is None and not is_awaited)):
            return None
        if near:
            return near[-1]
        # A piece that names nothing begins no call, whatever its number.
        return None if delta.name or delta.id or not known else len(known) - 1


def is_proper(call: WireToolCallDelta, place: CallPosition) -> bool:
    """Whether a piece has what its place demands: its number, an id with the first piece, a name but once."""
    if call.index != place.number:
        return False
    if place.begins:
        return bool(call.id and call.type) and call.text is not None
    return not call.id and (place.names or not call.name)


def mend_call(call: dict[str, Any], place: CallPosition, *, made_id: str) -> None:
    """Gives a piece what its place demands, and takes what was told before."""
    kind, field = ("custom", "input") if call.get("custom") else ("function", "arguments")
    body = call.get(kind) or {}
    text = body.get(field)
    call["index"] = place.number
    if place.begins:
        call["id"] = call.get("id") or made_id
        call["type"] = kind
        text = "" if text is None else text
    else:
        call.pop("id", None)
        if not place.names:
            body.pop("name", None)
    if text is not None:
        body[field] = text if isinstance(text, str) else json.encode(text).decode()
    call[kind] = body
