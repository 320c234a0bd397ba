"""Encodes request line and headers; adds absent headers, rejects bytes that would allow request smuggling."""

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

_INVALID_IN_TARGET = bytes(range(0x21)) + b"\x7f"
_BODYLESS_METHODS: Final = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))
_LINE_BREAK = re.compile(rb"[\r\n]")


class _AbsentHeaders(NamedTuple):
    """Headers to add because the caller did not set them."""

    host: bool
    accept_encoding: bool


def encode_head(origin: Origin, headers: Headers, *, method: bytes, path: bytes, length: int) -> bytes:
    """Encode request line and headers for a body of `length` bytes."""
    lines = _cached_lines if isinstance(headers, bytes) else _lines
    before, after = lines(origin, headers, method, path)
    if length or method not in _BODYLESS_METHODS:
        return b"%bcontent-length: %d\r\n%b\r\n" % (before, length, after)
    return b"%b%b\r\n" % (before, after)


def _lines(origin: Origin, headers: Headers, method: bytes, path: bytes) -> tuple[bytes, bytes]:
    """Return the lines of the head before and after its content-length."""
    if len(path.translate(None, _INVALID_IN_TARGET)) != len(path):
        raise BadRequest("the upstream path would contain a space or control character; check the model name")
    if isinstance(headers, bytes):
        block, absent = headers, _absent_from_block(headers)
    else:
        block = _join_headers(headers)
        absent = _absent_headers(block)
    lines = [method, b" ", path, b" HTTP/1.1\r\n"]
    if origin.proxy is not None and origin.tls is None:
        lines[2] = b"http://" + origin.host_header + path
        lines.append(_proxy_authorization(origin.proxy))
    if absent.host:
        lines += (b"host: ", origin.host_header, b"\r\n")
    if absent.accept_encoding:
        lines.append(b"accept-encoding: identity\r\n")
    return b"".join(lines), block


# A block in bytes belongs to a provider and is sent with every request: its lines are encoded once.
_cached_lines = lru_cache(maxsize=256)(_lines)


def _join_headers(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    block = b"".join([name + b": " + value + b"\r\n" for name, value in headers])
    lines = len(headers)
    if block.count(b"\n") != lines or block.count(b"\r") != lines:
        raise _line_break(headers)
    return block


def _line_break(headers: Sequence[tuple[bytes, bytes]]) -> ConfigError:
    name = next(name for name, value in headers if _LINE_BREAK.search(name + value))
    return ConfigError(f"header {name[:64]!r} contains a line break; remove it, for example after a key")


def _absent_headers(block: bytes) -> _AbsentHeaders:
    names = b"\n" + block.lower()
    if b"\ncontent-length:" in names or b"\ntransfer-encoding:" in names:
        raise ConfigError("headers content-length and transfer-encoding cannot be configured; remove them")
    return _AbsentHeaders(host=b"\nhost:" not in names, accept_encoding=b"\naccept-encoding:" not in names)


def _absent_from_block(block: bytes) -> _AbsentHeaders:
    if block and (not block.endswith(b"\r\n") or block.startswith(b"\r\n") or b"\r\n\r\n" in block):
        raise ConfigError("an encoded header block must consist of lines that each end with CR LF")
    return _absent_headers(block)


def _proxy_authorization(proxy: Proxy) -> bytes:
    if proxy.authorization is None:
        return b""
    return b"proxy-authorization: " + proxy.authorization + b"\r\n"
