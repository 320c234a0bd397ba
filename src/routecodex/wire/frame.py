"""One server-sent event; `sse.py` cuts and writes them."""

from __future__ import annotations

from msgspec import Struct


class Frame(Struct, frozen=True, gc=False):
    """Its name (b"" when unnamed), its data, and the bytes it came as (LF line ends)."""

    event: bytes
    data: bytes
    raw: bytes
