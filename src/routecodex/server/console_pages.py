"""Serves the console below `/ui/`: the shell at its nine addresses, and the files of the package.

The shell holds no data and needs no login. Everything is sent with an ETag and asked for again each time, so
that an upgraded server never mixes its files with old ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from routecodex.canon.errors import NotFound
from routecodex.console import console_files
from routecodex.server.http.reply import Headers, WholeReply

_SHELL: Final = "index.html"
_ASSETS: Final = "/ui/assets/"
_PAGES: Final = frozenset(
    (
        "/ui/",
        *(
            f"/ui/{page}"
            for page in (
                "requests",
                "inspector",
                "sessions",
                "providers",
                "routing",
                "playground",
                "keys",
                "config",
            )
        ),
    )
)
_CONTENT_TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "json": b"application/json; charset=utf-8",
}
_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        b"trusted-types 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
_DIGITS: Final = 32


class ConsoleFile(Struct, frozen=True):
    """One file: its content, its headers, its ETag."""

    content: bytes
    headers: Headers
    etag: str


class ConsolePages:
    """The files of the console, read once when the first is asked for."""

    def __init__(self) -> None:
        self._files: dict[str, ConsoleFile] = {}
        self._version = ""

    @property
    def version(self) -> str:
        """Digest of all files: another one means that the page is that of another version."""
        self._read()
        return self._version

    def answer(self, path: str, headers: Mapping[str, str]) -> WholeReply:
        """Return the response to a path below `/ui`; NotFound if there is nothing."""
        if path == "/ui":
            return 308, [*_HEADERS, (b"location", b"/ui/")], b""
        self._read()
        name = _SHELL if path in _PAGES else path.removeprefix(_ASSETS) if path.startswith(_ASSETS) else ""
        file = self._files.get(name)
        if file is None or (name == _SHELL and path not in _PAGES):
            raise NotFound(f"{path[:200]} does not exist; the console is at /ui/")
        if _matches(headers.get("if-none-match", ""), file.etag):
            return 304, file.headers, b""
        return 200, file.headers, file.content

    def _read(self) -> None:
        if self._files:
            return
        whole = hashlib.sha256()
        for name, path in console_files().items():
            file = _file(name, path.read_bytes())
            whole.update(f"{name}\0{file.etag}\0".encode())
            self._files[name] = file
        self._version = whole.hexdigest()[:_DIGITS]


def error_headers() -> Headers:
    """Return the headers that errors below `/ui` have as well."""
    return _HEADERS


def _file(name: str, content: bytes) -> ConsoleFile:
    etag = f'"{hashlib.sha256(content).hexdigest()[:_DIGITS]}"'
    kind = _CONTENT_TYPES[name.rpartition(".")[2]]
    return ConsoleFile(content, [(b"content-type", kind), *_HEADERS, (b"etag", etag.encode())], etag)


def _matches(sent: str, etag: str) -> bool:
    """Return whether If-None-Match names this file (RFC 9110, 13.1.2: compared weakly)."""
    return sent.strip() == "*" or any(one.strip().removeprefix("W/") == etag for one in sent.split(","))
