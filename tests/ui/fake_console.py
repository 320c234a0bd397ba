"""A gateway that only has the console: it serves the real files and speaks the admin API with made-up data.

Every write is recorded in `FakeConsole.writes`. `down` makes it refuse connections and ends all streams;
`forget_events` makes it another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mimetypes
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from routecodex.console import console_files
from tests.ui import made_up_answers as answers
from tests.ui import made_up_data as data

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
PAGES = ("", "requests", "inspector", "sessions", "providers", "routing", "playground", "keys", "config")
TOKEN = "admin-token-of-the-test"
_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n"
    b"connection: close\r\n\r\nretry: 1000\n\n"
)
_PLAY_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: req_0000000000000001\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)

Json = dict[str, Any]
Query = dict[str, str]


class Refused(Exception):
    """An error of the admin API."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status, self.code = status, code
        self.body = {"error": {"message": message or code, "code": code}, "code": code}


class FakeConsole:
    """The server; `origin` is its address while `served` is entered."""

    def __init__(self, *, requests: int = 400, role: str = "admin", capture: str = "all") -> None:
        self.now = datetime.now(UTC)
        self.rows = [
            data.request_row(n, self.now - timedelta(seconds=(requests - n) * 3)) for n in range(requests)
        ]
        self.role, self.capture = role, capture
        self.providers, self.sessions = data.providers(self.now), data.sessions(self.now)
        self.clients = data.clients(self.now)
        self.writes: list[tuple[str, Json]] = []
        self.calls: list[str] = []
        self.violations: list[str] = []
        self.servers: list[Json] = [{"id": "main", "url": "", "version": "1.0", "alive": True, "self": True}]
        self.missing: list[Json] = []
        self.ui_version = "ui-1"
        self.logged_in = True
        self.codes = {"one-time-code-0123456789"}
        self.boot = 1
        self.origin = ""
        self._events: list[tuple[str, str, Json]] = []
        self._streams: set[asyncio.Queue[tuple[str, str, Json] | None]] = set()
        self._server: asyncio.Server | None = None

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[FakeConsole]:
        await self.up()
        try:
            yield self
        finally:
            await self.down()

    async def up(self) -> None:
        """Listen; again on the port it had before."""
        port = urlsplit(self.origin).port or 0
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.origin = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.servers[0]["url"] = self.origin

    async def down(self) -> None:
        """Stop listening and end all streams."""
        self._end_streams()
        if self._server is not None:
            self._server.close()
            await asyncio.sleep(0)

    def forget_events(self) -> None:
        """Become a new process: another boot, no events to resume."""
        self.boot += 1
        self._events.clear()

    @property
    def subscribers(self) -> int:
        return len(self._streams)

    async def until_subscribers(self, count: int) -> None:
        """Wait until so many streams are open."""
        while self.subscribers != count:
            await asyncio.sleep(0.01)

    def send(self, topic: str, event: Json) -> None:
        """Send an event to all subscribers."""
        name = f"{self.boot}.{len(self._events) + 1}"
        self._events.append((name, topic, event))
        for stream in self._streams:
            stream.put_nowait((name, topic, event))

    def start_request(self, number: int) -> Json:
        row = data.request_row(number, datetime.now(UTC), active=True)
        self.rows.append(row)
        self.send("requests", {"started": [row], "finished": [], "skipped": {"started": 0, "finished": 0}})
        return row

    def finish_request(self, row: Json, **fields: Any) -> Json:
        done = (
            row
            | {"status": 200, "seconds": 1.25, "output_tokens": 321, "cost": 0.0123, "finish": "stop"}
            | fields
        )
        self.rows = [done if one["request"] == row["request"] else one for one in self.rows]
        self.send("requests", {"started": [], "finished": [done], "skipped": {"started": 0, "finished": 0}})
        return done

    def _end_streams(self) -> None:
        for stream in self._streams:
            stream.put_nowait(None)
        self._streams.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (one.partition(":") for one in fields if one)
        }
        method, target, _ = line.split(" ")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        parts = parse_qs(url.query).get("get", [])
        self.calls += [f"{method} {target}", *(f"{method} /admin/{one}" for one in parts)]
        if url.path == "/admin/events" and self.logged_in:
            await self._stream(reader, writer, query)
            return False
        if url.path == "/admin/playground" or url.path.endswith("/replay"):
            await self._play(writer, url.path, json.loads(body))
            return True
        status, extra, content = self._answer(method, unquote(url.path), query, headers, body, parts)
        lines = [
            f"HTTP/1.1 {status} X",
            f"content-length: {len(content)}",
            *(f"{k}: {v}" for k, v in extra.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        await writer.drain()
        return True

    def _answer(
        self, method: str, path: str, query: Query, headers: dict[str, str], body: bytes, parts: list[str]
    ) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/ui"):
            return self._file(path)
        if path == "/foreign":
            return 200, {"content-type": "text/html"}, b"<!doctype html><title>x</title>"
        extra = {"content-type": "application/json", "cache-control": "no-store"}
        try:
            answer = self._admin(method, path.removeprefix("/admin/"), query, headers, body, parts)
        except Refused as refused:
            return refused.status, extra, json.dumps(refused.body).encode()
        if answer is None:
            return 204, {}, b""
        return 200, extra, json.dumps(answer).encode()

    def _file(self, path: str) -> tuple[int, dict[str, str], bytes]:
        name = path.removeprefix("/ui/assets/") if path.startswith("/ui/assets/") else ""
        if not name and path.removeprefix("/ui/") in PAGES:
            name = "index.html"
        found: Path | None = console_files().get(name)
        if found is None:
            return 404, _HEADERS, b""
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "text/plain"
        return 200, _HEADERS | {"content-type": f"{kind}; charset=utf-8", "etag": '"1"'}, found.read_bytes()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, query: Query) -> None:
        stream: asyncio.Queue[tuple[str, str, Json] | None] = asyncio.Queue()
        last = query.get("last_event_id", "")
        names = [name for name, _, _ in self._events]
        resumed = last in names
        hello = {
            "server": "main",
            "version": "1.0",
            "ui": self.ui_version,
            "workers": 2,
            "boot": str(self.boot),
        }
        hello |= {"resumed": resumed, "at": data.iso(datetime.now(UTC))}
        writer.write(_STREAM_HEAD)
        stream.put_nowait((last if resumed else f"{self.boot}.0", "hello", hello))
        for missed in self._events[names.index(last) + 1 :] if resumed else []:
            stream.put_nowait(missed)
        self._streams.add(stream)
        left = asyncio.ensure_future(reader.read())
        left.add_done_callback(lambda _: stream.put_nowait(None))
        try:
            while (event := await stream.get()) is not None:
                name, topic, content = event
                writer.write(f"id: {name}\nevent: {topic}\ndata: {json.dumps(content)}\n\n".encode())
                await writer.drain()
        finally:
            left.cancel()
            self._streams.discard(stream)

    async def _play(self, writer: asyncio.StreamWriter, path: str, body: Json) -> None:
        """Stream an answer in the protocol that was asked for, in chunks."""
        self.writes.append((path.removeprefix("/admin/"), body))
        protocol = body.get("protocol", "chat")
        writer.write(_PLAY_HEAD)
        for frame in answers.play_frames(protocol):
            content = frame.encode()
            writer.write(b"%x\r\n%b\r\n" % (len(content), content))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _admin(
        self, method: str, name: str, query: Query, headers: dict[str, str], body: bytes, parts: list[str]
    ) -> Json | None:
        if name == "login":
            self._login(json.loads(body))
            return None
        if not self.logged_in:
            raise Refused(401, "login_required")
        if method == "POST":
            if headers.get("content-type") != "application/json":
                raise Refused(415, "not_json")
            if headers.get("x-routecodex-csrf") != f"csrf-{self.boot}":
                raise Refused(403, "csrf")
            content = json.loads(body)
            self.writes.append((name, content))
            return self._write(name, content)
        if name == "batch":
            return {"answers": [self._part(one) for one in parts]}
        return self._read(name, query)

    def _part(self, text: str) -> Json:
        """Answer one of several reads."""
        name, _, query = text.partition("?")
        try:
            body = self._read(unquote(name), {key: values[-1] for key, values in parse_qs(query).items()})
        except Refused as refused:
            return {"status": refused.status, "body": refused.body}
        return {"status": 200, "body": body}

    def merged(self, name: str, query: Query) -> Json:
        """Return what a merged answer has besides."""
        if query.get("server") != "all" or name not in (
            "requests",
            "series",
            "providers",
            "sessions",
            "usage",
        ):
            return {}
        return {"servers": ["main"], "missing": self.missing}

    def _login(self, body: Json) -> None:
        good = body.get("token") == TOKEN or body.get("key") == "rcx-viewer" or body.get("code") in self.codes
        if not good:
            code = {"token": "invalid_admin_token", "key": "invalid_api_key", "code": "invalid_code"}[
                next(iter(body))
            ]
            raise Refused(401, code)
        self.codes.discard(body.get("code", ""))
        self.role = "viewer" if "key" in body else self.role
        self.logged_in = True

    def _read(self, name: str, query: Query) -> Json:
        simple: dict[str, Callable[[Query], Json]] = {
            "me": lambda _: self._me(),
            "servers": lambda _: {"servers": self.servers},
            "requests": self._requests,
            "series": self._series,
            "providers": lambda _: {"providers": self.providers},
            "usage": lambda query: answers.usage(query["by"]),
            "clients": lambda _: {"clients": self.clients},
            "teams": lambda _: answers.teams(self.clients),
            "config": lambda _: answers.config(),
            "sessions": self._sessions,
            "routes": lambda _: answers.routes(),
            "routing": lambda _: {
                "id": "main",
                "url": self.origin,
                "alive": True,
                "routing": {"sticky": None, "allow": [], "disable": ["local"]},
                "sessions": [],
            },
        }
        if name in simple:
            return simple[name](query) | self.merged(name, query)
        _, _, rest = name.partition("requests/")
        ident, _, part = rest.partition("/")
        row = next((one for one in self.rows if one["request"] == ident), None)
        if row is None:
            raise Refused(404, "unknown_request")
        if part == "capture":
            if self.capture == "off":
                raise Refused(404, "not_captured")
            return answers.capture()
        return {"request": data.request_detail(row)}

    def _me(self) -> Json:
        server = {
            "id": "main",
            "url": self.origin,
            "pid": 1,
            "version": "1.0",
            "workers": 2,
            "config": "config.toml",
            "active": 1,
            "server_tools": [],
            "started_at": (self.now - timedelta(days=3, hours=4)).timestamp(),
        }
        return {
            "name": "admin",
            "role": self.role,
            "csrf": f"csrf-{self.boot}",
            "server": server,
            "capture": self.capture,
        }

    def _requests(self, query: Query) -> Json:
        rows = [row for row in self.rows if _matches(row, query)]
        limit = int(query.get("limit", 50))
        if query.get("group") == "session":
            return {"groups": answers.groups(rows), "next": None, "total": len(answers.groups(rows))}
        end = len(rows)
        if "before" in query:
            end = next((n for n, row in enumerate(rows) if row["request"] == query["before"]), 0)
        page = rows[max(0, end - limit) : end]
        return {"requests": page, "next": page[0]["request"] if end > limit else None, "total": len(rows)}

    def _series(self, query: Query) -> Json:
        since, until = datetime.fromisoformat(query["since"]), datetime.fromisoformat(query["until"])
        return answers.series(
            since, until, float(query.get("step", 60)), query.get("by", ""), live=len(self.rows)
        )

    def _sessions(self, query: Query) -> Json:
        if "id" in query:
            row = next((one for one in self.sessions if one["id"] == query["id"]), None)
            if row is None:
                raise Refused(404, "unknown_session")
            return {"session": row | {"turns": data.turns(self.now)}}
        found = [row for row in self.sessions if query.get("q", "") in json.dumps(row)]
        return {"sessions": found, "next": None}

    def _write(self, name: str, body: Json) -> Json | None:
        if name == "logout":
            self.logged_in = False
            return None
        if name.startswith("clients"):
            return self._client_write(name, body)
        row = next((one for one in self.sessions if one["id"] == body.get("session")), None)
        if name == "routing" and row is not None:
            row |= {"sticky": None, "allow": [], "disable": []} if body.get("clear") else {}
            row |= {key: body[key] for key in ("sticky", "allow") if key in body}
            row["disable"] = [
                one
                for one in [*row["disable"], *body.get("disable", [])]
                if one not in body.get("enable", [])
            ]
            self.send("sessions", {"changed": [row["id"]]})
        elif name == "routing":
            self._set_keys(body)
        elif name == "sessions/stop_message" and row is not None:
            row["stop_message"] = (
                None
                if body.get("clear")
                else {"text": body["text"], "max_repeats": body["max_repeats"], "used": 0}
            )
            return {"session": row}
        elif name == "clock/add" and row is not None:
            row["tasks"].append({"taskId": "task_9", "dueAt": body["dueAt"], "task": body["task"]})
            return {"taskId": "task_9"}
        elif name == "clock/cancel":
            for one in self.sessions:
                one["tasks"] = [task for task in one["tasks"] if task["taskId"] != body["taskId"]]
        elif name == "health/reset":
            self._change_key(body["target"], state="ok", until=None, error="")
        return answers.write_answer(name, body)

    def _set_keys(self, body: Json) -> None:
        for name in body.get("disable", []):
            self._change_key(name, state="disabled", disabled_by="operator")
        for name in body.get("enable", []):
            self._change_key(name, state="ok", disabled_by=None)

    def _change_key(self, name: str, **fields: Any) -> None:
        for key in (key for provider in self.providers for key in provider["keys"] if key["name"] == name):
            key |= fields
            self.send("health", {"keys": [key]})

    def _client_write(self, name: str, body: Json) -> Json:
        _, _, rest = name.partition("/")
        if not rest:
            if any(row["name"] == body["name"] for row in self.clients):
                raise Refused(409, "client_exists", f"a client {body['name']!r} exists already")
            row = data.clients(self.now)[2] | {"name": body["name"], "blocked": False, "limits": []}
            self.clients.append(row)
            return {"client": row, "key": "rcx-made-for-this-test"}
        client, _, verb = rest.partition("/")
        row = next(one for one in self.clients if one["name"] == client)
        if row["source"] == "file":
            raise Refused(409, "client_in_file", f"client {client!r} is set in the configuration file")
        if verb == "revoke":
            self.clients.remove(row)
            return {"revoked": True}
        row |= {"blocked": body["blocked"]} if "blocked" in body else {}
        return {"client": row} | ({"key": "rcx-rotated-in-this-test"} if verb == "rotate" else {})


def _matches(row: Json, query: Query) -> bool:
    values = row | {"provider": row["target"].split(".")[0]}
    for name in ("client", "provider", "model", "route", "session", "agent", "team", "target", "protocol"):
        if name in query and str(values.get(name) or "") != query[name]:
            return False
    status = query.get("status")
    kind = "active" if row["status"] is None else "error" if row["status"] >= 400 else "ok"
    if status and status not in (kind, str(row["status"])):
        return False
    return query.get("q", "").lower() in json.dumps(row).lower()
