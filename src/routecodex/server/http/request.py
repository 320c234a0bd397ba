"""One HTTP request with its decoded path and its whole body.

Below `/s/<session>/` every path names its session: for clients that can set a base URL but no header.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_plus, unquote_to_bytes

_PERCENT: Final = 37
_SESSION_PREFIX: Final = b"/s/"
_MAX_SESSION: Final = 256

PATH_SESSION: Final = ":session"
"""Key of the session in the path among the headers; no header of a client can have this name."""
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class HttpRequest:
    """One complete request."""

    __slots__ = (
        "body",
        "client",
        "headers",
        "http_1_0",
        "keep_alive",
        "method",
        "path",
        "query",
        "raw_path",
        "target",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        *,
        headers: dict[str, str],
        body: bytes = b"",
        client: tuple[str, int] | None = None,
        keep_alive: bool = True,
        http_1_0: bool = False,
    ) -> None:
        """Raise ValueError if the path of the target cannot be decoded."""
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.client = client
        self.keep_alive = keep_alive
        self.http_1_0 = http_1_0
        if not target.startswith(b"/"):
            target = self._origin_form(target)
        raw_path, _, query = target.partition(b"?")
        self.raw_path = raw_path
        self.query = query.decode("latin-1")
        if raw_path.startswith(_SESSION_PREFIX):
            raw_path = self._take_session(raw_path)
        self.path = raw_path.decode("ascii") if _PERCENT not in raw_path else _decode_path(raw_path)

    def _take_session(self, raw_path: bytes) -> bytes:
        """Move the session of a path `/s/<session>/…` into `PATH_SESSION`; return the rest of the path."""
        named, _, rest = raw_path[len(_SESSION_PREFIX) :].partition(b"/")
        session = _decode_path(named)
        if not session.strip() or len(session.encode()) > _MAX_SESSION:
            raise ValueError(f"the path must name a session of 1 to {_MAX_SESSION} bytes after /s/")
        self.headers[PATH_SESSION] = session
        return b"/" + rest

    def _origin_form(self, target: bytes) -> bytes:
        """Return path and query of an absolute target; its authority replaces Host (RFC 9112, 3.2.2)."""
        scheme, mark, rest = target.partition(b"://")
        if not mark or not scheme.isalpha():
            return target
        end = next((at for at, byte in enumerate(rest) if byte in b"/?"), len(rest))
        self.headers["host"] = rest[:end].rpartition(b"@")[2].decode("latin-1")
        return rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]

    def query_param(self, name: str) -> str | None:
        """Return the first decoded value of `name` in the query, or None."""
        if not self.query:
            return None
        for pair in self.query.split("&"):
            key, _, value = pair.partition("=")
            if unquote_plus(key) == name:
                return unquote_plus(value)
        return None

    def __repr__(self) -> str:
        """Show method and path only; query, headers and body may hold keys."""
        return f"<HttpRequest {self.method} {self.path}>"


def _decode_path(raw: bytes) -> str:
    if _BROKEN_ESCAPE.search(raw):
        raise ValueError("the path has a '%' without two hex digits after it")
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError as exc:
        raise ValueError("the path is not valid UTF-8") from exc
