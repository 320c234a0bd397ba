"""The head of a request as bytes, with what the caller left out added and what could smuggle refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from routecodex.canon.errors import BadRequest, ConfigError
from routecodex.providers.http.origin import Origin
from routecodex.providers.http.proxy import Proxy

__all__ = ["Headers", "encode_head"]

Headers = Sequence[tuple[bytes, bytes]] | bytes

_NOT_IN_A_TARGET = bytes(range(0x21)) + b"\x7f"
_WITHOUT_BODY: Final = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))
_LINE_BREAK = re.compile(rb"[\r\n]")


class _Missing(NamedTuple):
    """Which of the headers we can add the caller did not give."""

    host: bool
    accept_encoding: bool


def encode_head(origin: Origin, headers: Headers, *, method: bytes, path: bytes, length: int) -> bytes:
    """Request line and header block, ready to be followed by a body of `length` bytes."""
    made = _ready_lines if isinstance(headers, bytes) else _lines
    before, after = made(origin, headers, method, path)
    if length or method not in _WITHOUT_BODY:
        return b"%bcontent-length: %d\r\n%b\r\n" % (before, length, after)
    return b"%b%b\r\n" % (before, after)


def _lines(origin: Origin, headers: Headers, method: bytes, path: bytes) -> tuple[bytes, bytes]:
    """The lines of the head before and after the one that tells the length of the body."""
    if len(path.translate(None, _NOT_IN_A_TARGET)) != len(path):
        raise BadRequest("the path of the upstream request would contain a space or control character")
    if isinstance(headers, bytes):
        block, missing = headers, _missing_from_block(headers)
    else:
        block = _joined(headers)
        missing = _missing(block)
    lines = [method, b" ", path, b" HTTP/1.1\r\n"]
    if origin.proxy is not None and origin.tls is None:
        lines[2] = b"http://" + origin.host_header + path
        lines.append(_proxy_authorization(origin.proxy))
    if missing.host:
        lines += (b"host: ", origin.host_header, b"\r\n")
    if missing.accept_encoding:
        lines.append(b"accept-encoding: identity\r\n")
    return b"".join(lines), block


# A ready-made block belongs to a provider and is sent again and again: its lines are made once.
_ready_lines = lru_cache(maxsize=256)(_lines)


def _joined(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    block = b"".join([name + b": " + value + b"\r\n" for name, value in headers])
    lines = len(headers)
    if block.count(b"\n") != lines or block.count(b"\r") != lines:
        raise _line_break(headers)
    return block


def _line_break(headers: Sequence[tuple[bytes, bytes]]) -> ConfigError:
    name = next(name for name, value in headers if _LINE_BREAK.search(name + value))
    return ConfigError(f"header {name[:64]!r} contains a line break; is there one after a key?")


def _missing(block: bytes) -> _Missing:
    names = b"\n" + block.lower()
    if b"\ncontent-length:" in names or b"\ntransfer-encoding:" in names:
        raise ConfigError("content-length and transfer-encoding cannot be set: they follow from the body")
    return _Missing(host=b"\nhost:" not in names, accept_encoding=b"\naccept-encoding:" not in names)


def _missing_from_block(block: bytes) -> _Missing:
    if block and (not block.endswith(b"\r\n") or block.startswith(b"\r\n") or b"\r\n\r\n" in block):
        raise ConfigError("a ready-made header block must be lines that each end with CR LF")
    return _missing(block)


def _proxy_authorization(proxy: Proxy) -> bytes:
    if proxy.authorization is None:
        return b""
    return b"proxy-authorization: " + proxy.authorization + b"\r\n"
