"""A fake admin API of a server: answers from a table and records every call."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

Answer = tuple[int, Any]
EMPTY: dict[str, Any] = {"sticky": None, "allow": [], "disable": []}
REQUEST: dict[str, Any] = {
    "time": "2025-01-01T10:00:00.000Z",
    "status": 200,
    "protocol": "messages",
    "session": "s1",
    "model": "claude",
    "target": "glm.primary.glm-4.7",
    "route": "thinking",
    "reason": "fresh question",
    "first_byte": 0.5,
    "seconds": 2.25,
    "input_tokens": 10,
    "output_tokens": 20,
    "finish": "stop",
}
"""A row of the request log."""


class AdminServer:
    """One server with an id; `answers` by method and path, and every call as (method, path, body)."""

    def __init__(self, server_id: str, url: str) -> None:
        self.id = server_id
        self.url = url
        self.token = f"token-of-{server_id}"
        self.calls: list[tuple[str, str, Any]] = []
        self.answers: dict[str, Answer] = {
            "GET /admin/status": (200, {"id": server_id, "url": url, "pid": os.getpid(), "active": 3}),
            "GET /admin/routing": (200, self.routing()),
        }

    def routing(self, *sessions: dict[str, Any], **changed: Any) -> dict[str, Any]:
        """Return an answer of `/admin/routing`."""
        routing = {**EMPTY, **changed}
        return {
            "id": self.id,
            "url": self.url,
            "alive": True,
            "routing": routing,
            "sessions": list(sessions),
        }

    def received(self) -> list[tuple[str, str, Any]]:
        """Return the calls without those of `/admin/status`."""
        return [call for call in self.calls if call[1] != "/admin/status"]

    def announce(self, user: Path, **more: Any) -> None:
        """Announce the server."""
        announce(user, {"id": self.id, "url": self.url, "token": self.token, "pid": os.getpid(), **more})


def announce(user: Path, row: dict[str, Any]) -> None:
    """Write an announcement."""
    (user / "servers").mkdir(parents=True, exist_ok=True)
    full = {"started_at": 1.0, "config": None, "log": None, **row}
    (user / "servers" / f"{row['id']}.json").write_bytes(msgspec.json.encode(full))


@contextlib.contextmanager
def admin_server(server_id: str, user: Path | None = None) -> Iterator[AdminServer]:
    """Run a fake server on a free port, announced in the user dir."""
    stand_in: AdminServer

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            body = msgspec.json.decode(self.rfile.read(size)) if size else None
            stand_in.calls.append((self.command, self.path, body))
            status, value = _answer(stand_in, self)
            content = value if isinstance(value, bytes) else msgspec.json.encode(value)
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = answer  # noqa: N815  # the name is the library's
        do_POST = answer  # noqa: N815  # the name is the library's

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        stand_in = AdminServer(server_id, f"http://127.0.0.1:{http.server_port}")
        if user is not None:
            stand_in.announce(user)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield stand_in
        finally:
            http.shutdown()
            thread.join()


def _answer(stand_in: AdminServer, handler: BaseHTTPRequestHandler) -> Answer:
    if handler.headers.get("authorization") != f"Bearer {stand_in.token}":
        return 401, {"error": {"message": "the admin token is missing or wrong", "code": "invalid_token"}}
    exact = stand_in.answers.get(f"{handler.command} {handler.path}")
    if exact is not None:
        return exact
    name = f"{handler.command} {handler.path.partition('?')[0]}"
    return stand_in.answers.get(name, (404, {"error": {"message": "nothing here", "code": "not_found"}}))
