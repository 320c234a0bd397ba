"""Frames as most chat upstreams write them, known by their bytes.

    data: {"id":"c-1",…,"choices":[{"index":0,"delta":{ "role":"assistant" },"finish_reason":null}]}
    └───────────────────── head ──────────────────────┘                   └────────── tail ─────────┘

The head is read member by member, so what follows it is known to be the delta of the one choice. The other
frames of a stream are known by beginning with the same bytes. What is written in another way is no less
right, but has to be read as JSON.
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
"""What follows the head of a chunk that says nothing yet, and what then follows the text of one that does."""

_FINISHES: Final = {
    delta + tail.replace(b'_reason":null', b'_reason":"%b"' % said.encode()): said
    for delta in (b"", b'"content":""')
    for tail in _TAILS
    for said in ("stop", "length", "content_filter")
    if settle_finish(said, calls=False)[1] == said
}
"""What follows the head of a chunk that only tells how the answer ended, in a word that stays as it is."""


class ChunkPrefix:
    """What every chunk of an answer has in common, as far as the upstream says it."""

    __slots__ = ("created", "id", "model")

    def __init__(self, id: str | None, created: int | None, model: str | None) -> None:
        self.id = id
        self.created = created
        self.model = model


class KnownFrames:
    """How the frames of one stream begin; before that is known, none is usual but the first."""

    __slots__ = ("_head", "_tail", "_text")

    def __init__(self) -> None:
        self._head = b""
        self._text = b""
        self._tail = b""

    def opening_at(self, run: bytes, at: int) -> tuple[ChunkPrefix | None, int]:
        """The head and the end of a stream's first frame, if that begins there and says nothing yet."""
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
        """What stands before and behind the text, if a frame that says some begins there; else nothing."""
        head, tail = self._text, self._tail
        text = at + len(head)
        if not head or run[at:text] != head:
            return b"", b""
        quote = scan.string_end(run, text)
        if quote <= text or run[quote : quote + len(tail)] != tail:
            return b"", b""
        # Nobody has read a text yet: what is no JSON must not begin an answer.
        if json.try_read(run[text - 1 : quote + 1], _string) is None:
            return b"", b""
        return head, tail

    def finish_at(self, run: bytes, at: int) -> tuple[str, int]:
        """How the answer ended, if a frame begins there that says only this, and where that frame ends."""
        head = self._head
        rest = at + len(head)
        if not head or run[at:rest] != head:
            return "", at
        end = scan.find(run, b"\n\n", rest) + 2
        return _FINISHES.get(run[rest:end], ""), end

    def usage_at(self, run: bytes, at: int) -> tuple[WireUsage | None, int]:
        """The counts, if a frame begins there that has no choice and tells only them, and where it ends."""
        head = self._head[: -len(_CHOICE)] + _USAGE
        counts = at + len(head)
        if not self._head or run[at:counts] != head:
            return None, at
        line = scan.find(run, b"\n", counts)
        if run[line - 1 : line + 2] != b"}\n\n":
            return None, at
        return json.try_read(run[counts : line - 1], _counts), line + 2


def _chunk_prefix(members: tuple[str | int | None, ...]) -> ChunkPrefix | None:
    """The head that these members make, None when one of them is missing or odd."""
    name, kind, created, model = members[0], members[1], members[2], members[3]
    if not (isinstance(name, str) and isinstance(model, str) and isinstance(created, int)):
        return None
    return ChunkPrefix(name, created, model) if name and model and kind == OBJECT else None
