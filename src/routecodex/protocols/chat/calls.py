"""Which call a piece of a stream belongs to, however the upstream numbers its calls."""

from __future__ import annotations

from routecodex.protocols.chat.stream_schema import CallDelta


class CallBook:
    """The calls of one choice in the order they began; a call's number is its place here."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: list[tuple[int | None, str | None]] = []

    def __len__(self) -> int:
        return len(self._known)

    def place(self, delta: CallDelta) -> tuple[int, bool]:
        """The number of the call this piece belongs to, and whether it begins it."""
        number = self._find(delta)
        if number is not None:
            return number, False
        self._known.append((delta.index, delta.id))
        return len(self._known) - 1, True

    def _find(self, delta: CallDelta) -> int | None:
        """By index and id, else by index alone, else the last one when the piece names neither."""
        near = [
            number
            for number, (index, _) in enumerate(self._known)
            if delta.index is None or index == delta.index
        ]
        if delta.id:
            # Some upstreams number every call 0 and tell them apart by id alone.
            for number in near:
                if self._known[number][1] == delta.id:
                    return number
        if delta.name and (delta.id or delta.index is None):
            return None
        if near:
            return near[-1]
        # A piece that names nothing begins no call, whatever its number.
        return None if delta.name or delta.id or not self._known else len(self._known) - 1
