"""Network time without the network: the packets of SNTP (RFC 4330) and what answers are worth.

The question carries a random cookie where a client's own time would stand. A server copies it into its
answer, so only who has seen the question can answer it, and nobody learns what time it is here.

Times on the wire are 32 bits of seconds since 1900 and 32 of fraction. Only differences are taken, modulo
their size, which is why nothing happens when the seconds run over in 2036.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from msgspec import Struct

COOKIE_BYTES = 8

FARTHEST_MS = 86_400_000
"""An offset past one day is taken for a lie."""
AGREE_MS = 250.0

_PACKET = struct.Struct("!BBbb II4s QQQQ")
_VERSION_4_CLIENT = 0b00_100_011
_SERVER_MODE = 4
_UNSYNCHRONIZED = 3
_FROM_1900_MS = 2_208_988_800_000
_WRAP = 1 << 64


class BadReply(Exception):
    """A server answered something that cannot be used."""


class ForeignReply(BadReply):
    """The answer is to a question that was not asked."""


class Sample(Struct, frozen=True):
    """What one server says: how far this machine is behind, and how long asking took."""

    server: str
    offset_ms: float
    delay_ms: float


def encode_query(cookie: bytes) -> bytes:
    """The packet to send."""
    return _PACKET.pack(_VERSION_4_CLIENT, 0, 0, 0, 0, 0, b"", 0, 0, 0, int.from_bytes(cookie))


def decode_reply(packet: bytes, *, cookie: bytes, server: str, sent_ms: float, elapsed_ms: float) -> Sample:
    """What the server says; `sent_ms` is the time here when it was asked."""
    if len(packet) < _PACKET.size:
        raise ForeignReply(f"{len(packet)} bytes are too short for an answer")
    head, stratum, _, _, _, _, name, _, origin, received, sent = _PACKET.unpack_from(packet)
    if origin != int.from_bytes(cookie):
        raise ForeignReply("the answer is not to our question")
    _check(head, stratum, name=name, sent=sent)
    asked, answered = _stamp(sent_ms), _stamp(sent_ms + elapsed_ms)
    delay_ms = elapsed_ms - _apart_ms(sent, received)
    offset_ms = (_apart_ms(received, asked) + _apart_ms(sent, answered)) / 2
    if _apart_ms(sent, received) < 0 or delay_ms < -1:
        raise BadReply("it answered before it was asked")
    if abs(offset_ms) > FARTHEST_MS:
        raise BadReply(f"an offset of {offset_ms / 1000:.0f} s is absurd")
    return Sample(server, offset_ms, max(0.0, delay_ms))


def _check(head: int, stratum: int, *, name: bytes, sent: int) -> None:
    if head & 0b111 != _SERVER_MODE:
        raise BadReply(f"mode {head & 0b111} is not that of a server")
    if stratum == 0:
        code = name.rstrip(b"\0").decode("ascii", "replace")
        raise BadReply(f"kiss of death {code!r}: the server does not want to be asked")
    if stratum > 15 or head >> 6 == _UNSYNCHRONIZED:
        raise BadReply("the server is not synchronized itself")
    if sent == 0:
        raise BadReply("the answer carries no time")


def agreed_offset(samples: Sequence[Sample]) -> Sample:
    """The quickest answer among those that most servers agree on; one liar among three is outvoted."""
    if not samples:
        raise BadReply("no server answered")
    groups = [[other for other in samples if _agree(one, other)] for one in samples]
    largest = max(groups, key=len)
    if 2 * len(largest) <= len(samples):
        said = ", ".join(f"{sample.server} {sample.offset_ms:+.0f} ms" for sample in samples)
        raise BadReply(f"the servers disagree: {said}")
    return min(largest, key=lambda sample: sample.delay_ms)


def _agree(one: Sample, other: Sample) -> bool:
    return abs(one.offset_ms - other.offset_ms) <= AGREE_MS + (one.delay_ms + other.delay_ms) / 2


def _stamp(moment_ms: float) -> int:
    return round((moment_ms + _FROM_1900_MS) * (1 << 32) / 1000) % _WRAP


def _apart_ms(later: int, earlier: int) -> float:
    apart = (later - earlier) % _WRAP
    return (apart - _WRAP if apart >= _WRAP // 2 else apart) * 1000 / (1 << 32)
