"""Frames of server-sent events (HTML standard, 9.2), and a ring of the last ones to resume from."""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from routecodex.wire import json

TOPICS: Final = ("requests", "stats", "health", "sessions", "routing", "config")
"""Topics that can be chosen; `hello`, `lag` and `bye` always come."""

LARGEST_FRAME: Final = 64 * 1024
RING_BYTES: Final = 4 * 1024 * 1024
COMMENT: Final = b": keep-alive\n\n"
RETRY: Final = b"retry: 1000\n\n"

_ID = re.compile(r"([0-9a-f]{1,32})\.([0-9]{1,15})\Z")


def encode_frame(event: str, data: Any, id: str = "") -> bytes:
    """Return one frame; JSON has no line ends, so that its data is one line."""
    line = f"id: {id}\n" if id else ""
    return f"{line}event: {event}\ndata: ".encode() + json.encode(data) + b"\n\n"


class RingEntry(NamedTuple):
    """A frame in the ring."""

    number: int
    topic: str
    frame: bytes


class EventRing:
    """The last frames of a hub, each with an id; `boot` is new with every hub."""

    def __init__(self, max_bytes: int = RING_BYTES) -> None:
        self.boot: Final = secrets.token_hex(6)
        self._max_bytes = max_bytes
        self._entries: deque[RingEntry] = deque()
        self._bytes = 0
        self._number = 0

    @property
    def last_id(self) -> str:
        """Id of the newest frame."""
        return f"{self.boot}.{self._number}"

    @property
    def size(self) -> int:
        """Bytes of the frames that are kept."""
        return self._bytes

    def add(self, topic: str, data: Any) -> bytes:
        """Return the frame of an event and keep it; the oldest are dropped."""
        self._number += 1
        frame = encode_frame(topic, data, self.last_id)
        self._entries.append(RingEntry(self._number, topic, frame))
        self._bytes += len(frame)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._entries.popleft().frame)
        return frame

    def since(self, last_id: str, topics: Collection[str]) -> list[bytes] | None:
        """Return the frames behind that id; None if it is not ours, or some of them are gone."""
        found = _ID.match(last_id)
        if found is None or found[1] != self.boot:
            return None
        number = int(found[2])
        oldest = self._entries[0].number if self._entries else self._number + 1
        if not oldest - 1 <= number <= self._number:
            return None
        return [one.frame for one in self._entries if one.number > number and one.topic in topics]
