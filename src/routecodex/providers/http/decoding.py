"""Content codings we never asked for: gzip and deflate undone piece by piece, in bounded memory."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zlib import _Decompress

__all__ = ["Inflater", "inflater_for"]

_PIECE = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_WBITS_GZIP, _WBITS_ZLIB, _WBITS_RAW = 31, 15, -15
_CODINGS = {b"gzip": True, b"x-gzip": True, b"deflate": False}


def inflater_for(encoding: bytes | None) -> Inflater | None:
    """An inflater for a content-encoding we can undo, else None: the body is passed on as it is."""
    if encoding is None:
        return None
    is_gzip = _CODINGS.get(encoding.strip().lower())
    return None if is_gzip is None else Inflater(gzip=is_gzip)


class Inflater:
    """Undoes one coding; `pending` says that more output waits without more input."""

    __slots__ = ("_gzip", "_tail", "_zlib", "pending")

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._zlib: _Decompress | None = None
        self._tail = b""
        self.pending = False

    @property
    def finished(self) -> bool:
        """Whether the coded body is whole; one that never began counts as whole."""
        return self._zlib is None or self._zlib.eof

    def decode(self, raw: bytes) -> bytes:
        """The next piece of output, at most a mebibyte; raises `zlib.error` on anything malformed."""
        while True:
            output = self._step(self._tail + raw if self._tail else raw)
            if output or not self.pending:
                return output
            raw = b""

    def _step(self, data: bytes) -> bytes:
        inflate = self._current(data)
        if inflate is None:
            self._tail, self.pending = b"", False
            return b""
        output = inflate.decompress(data, _PIECE)
        self._tail = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        self.pending = bool(self._tail) or (len(output) == _PIECE and not inflate.eof)
        return output

    def _current(self, data: bytes) -> _Decompress | None:
        """The state to feed: a new one at the start and at each further gzip member, None for padding."""
        if self._zlib is None:
            if not data:
                return None
            self._zlib = zlib.decompressobj(self._wbits(data[0]))
        elif self._zlib.eof:
            if not self._gzip or not data.startswith(_GZIP_MAGIC):
                return None
            self._zlib = zlib.decompressobj(_WBITS_GZIP)
        return self._zlib

    def _wbits(self, first: int) -> int:
        if self._gzip:
            return _WBITS_GZIP
        # "deflate" means a zlib stream, yet some servers send the bare one: the method nibble tells.
        return _WBITS_ZLIB if first & 0x0F == 8 and first >> 4 <= 7 else _WBITS_RAW
