"""One server-sent event; `sse.py` reads and writes them."""

from __future__ import annotations

from msgspec import Struct


class Frame(Struct, frozen=True, gc=False):
    """Event name (b"" if unnamed), data, and the original bytes with LF line ends."""

    event: bytes
    data: bytes
    raw: bytes
