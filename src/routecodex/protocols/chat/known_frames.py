"""Recognises the frames that most chat upstreams write by their bytes, without decoding JSON.

    data: {"id":"c-1",…,"choices":[{"index":0,"delta":{ "role":"assistant" },"finish_reason":null}]}
    └───────────────────── head ──────────────────────┘                   └────────── tail ─────────┘

The head of the first frame is read member by member, so the delta of the one choice must follow it. Later
frames are recognised by beginning with the same bytes. Any other frame is decoded as JSON.
"""

from __future__ import annotations

from typing import Final

from msgspec.json import Decoder

from routecodex.protocols.chat.chunks import settle_finish
from routecodex.protocols.chat.schema import WireUsage
from routecodex.wire import json, scan

OBJECT: Final = "chat.completion.chunk"

_START: Final = b"data: {"
_MEMBERS: Final = (b"id", b"object", b"created", b"model", b"service_tier", b"system_fingerprint")
_CHOICE: Final = b'{"index":0,"delta":{'
_DELTA: Final = b',"choices":[' + _CHOICE
_USAGE: Final = b'],"usage":'
_CONTENT: Final = b'"content":"'
_string: Final = Decoder(str)
_counts: Final = Decoder(WireUsage)

_TAILS: Final = [
    b"}" + logprobs + b',"finish_reason":null}]' + usage + b"}\n\n"
    for logprobs in (b',"logprobs":null', b"")
    for usage in (b"", b',"usage":null')
]
_EMPTY_DELTAS: Final = (
    b'"role":"assistant","content":"","refusal":null',
    b'"role":"assistant","content":""',
    b'"role":"assistant","content":null',
    b'"role":"assistant"',
    b'"content":"","role":"assistant"',
)

_OPENINGS: Final = {delta + tail: b'"' + tail for delta in _EMPTY_DELTAS for tail in _TAILS}
"""Bytes after the head of a first chunk without content; the bytes after the text of later chunks."""

_FINISHES: Final = {
    delta + tail.replace(b'_reason":null', b'_reason":"%b"' % reason.encode()): reason
    for delta in (b"", b'"content":""')
    for tail in _TAILS
    for reason in ("stop", "length", "content_filter")
    if settle_finish(reason, calls=False)[1] == reason
}
"""Bytes after the head of a chunk that has only a finish reason, if that needs no correction."""


class ChunkPrefix:
    """Fields that all chunks of an answer share."""

    __slots__ = ("created", "id", "model", "tier")

    def __init__(
        self, id: str | None, created: int | None, model: str | None, tier: str | None = None
    ) -> None:
        self.id = id
        self.created = created
        self.model = model
        self.tier = tier


class KnownFrames:
    """Known bytes of the frames of one stream, learned from its first frame."""

    __slots__ = ("_head", "_tail", "_text")

    def __init__(self) -> None:
        self._head = b""
        self._text = b""
        self._tail = b""

    def opening_at(self, run: bytes, at: int) -> tuple[ChunkPrefix | None, int]:
        """Return the head and the end of a stream's first frame, if it begins there without content."""
        begin = at + len(_START)
        if run[at:begin] != _START:
            return None, at
        members, end = scan.plain_members(run, begin, _MEMBERS)
        delta = end + len(_DELTA)
        if run[end:delta] != _DELTA or (head := _chunk_prefix(members)) is None:
            return None, at
        self._head = run[at:delta]
        after = scan.find(run, b"\n\n", delta) + 2
        tail = _OPENINGS.get(run[delta:after])
        if tail is None:
            return None, at
        self._text, self._tail = self._head + _CONTENT, tail
        return head, after

    def text_at(self, run: bytes, at: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after the text, if a text frame begins there; else empty."""
        head, tail = self._text, self._tail
        text = at + len(head)
        if not head or run[at:text] != head:
            return b"", b""
        quote = scan.string_end(run, text)
        if quote <= text or run[quote : quote + len(tail)] != tail:
            return b"", b""
        # The first text is decoded once: an answer must not begin with invalid JSON.
        if json.try_read(run[text - 1 : quote + 1], _string) is None:
            return b"", b""
        return head, tail

    def finish_at(self, run: bytes, at: int) -> tuple[str, int]:
        """Return the finish reason, if a frame with only that begins there, and the end of the frame."""
        head = self._head
        rest = at + len(head)
        if not head or run[at:rest] != head:
            return "", at
        end = scan.find(run, b"\n\n", rest) + 2
        return _FINISHES.get(run[rest:end], ""), end

    def usage_at(self, run: bytes, at: int) -> tuple[WireUsage | None, int]:
        """Return the usage, if a frame with only that begins there, and the end of the frame."""
        head = self._head[: -len(_CHOICE)] + _USAGE
        counts = at + len(head)
        if not self._head or run[at:counts] != head:
            return None, at
        line = scan.find(run, b"\n", counts)
        if run[line - 1 : line + 2] != b"}\n\n":
            return None, at
        return json.try_read(run[counts : line - 1], _counts), line + 2


def _chunk_prefix(members: tuple[str | int | None, ...]) -> ChunkPrefix | None:
    """Return the prefix of these members; None if one is missing or has an unexpected type."""
    name, kind, created, model, tier = members[0], members[1], members[2], members[3], members[4]
    if not (isinstance(name, str) and isinstance(model, str) and isinstance(created, int)):
        return None
    if not (name and model and kind == OBJECT):
        return None
    return ChunkPrefix(name, created, model, tier if isinstance(tier, str) else None)
