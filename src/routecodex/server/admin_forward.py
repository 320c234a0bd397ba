"""Sends admin calls on to other servers: with their own token, once, and with the answer as it comes.

The caller was admitted here. Its name and role go along in two headers, which count only with the token: the
other server holds the call to that role again, and its log has the same name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from routecodex.canon.errors import ConfigError, GatewayError, UpstreamError
from routecodex.providers.http import HttpClient, HttpResponse, Timeouts, origin_of
from routecodex.server.admin_access import Caller, forwarding_headers
from routecodex.server.admin_series import COUNTS_HEADER
from routecodex.server.admin_service import AdminCall
from routecodex.server.error_replies import NO_STORE
from routecodex.server.events.event_service import BYE, write_or_stop
from routecodex.server.server_directory import KnownServer
from routecodex.wire import json

_ANSWERS: Final = Timeouts(connect=3.0, first_byte=600.0, idle=600.0)
"""Time limits of a call that is passed on: the playground may take as long as a client."""
_PARTS: Final = Timeouts(connect=3.0, first_byte=10.0, idle=10.0)
"""Time limits of one part of an answer that several servers make together."""
_LARGEST: Final = 64 * 1024 * 1024
_CHECK_SECONDS: Final = 15.0
_OF_CONNECTION: Final = frozenset(
    (b"connection", b"content-length", b"date", b"keep-alive", b"set-cookie", b"transfer-encoding")
)

Query = list[tuple[str, str]]


class Forwarder:
    """Calls the admin API of other servers.

    `client` is called each time, because a reload may replace it. `uncounted` makes a call that only listens
    take no place of a request. `is_valid` returns whether a caller may still be served.
    """

    def __init__(
        self,
        own_id: str,
        *,
        client: Callable[[], HttpClient],
        uncounted: Callable[[], AbstractContextManager[None]],
        is_valid: Callable[[Caller], Awaitable[bool]],
    ) -> None:
        self._own_id = own_id
        self._client = client
        self._uncounted = uncounted
        self._is_valid = is_valid
        self._draining = asyncio.Event()
        self.streams = 0
        """Event streams of other servers that are passed on."""

    def drain(self) -> None:
        """End the event streams of other servers with `bye`."""
        self._draining.set()

    async def forward(self, call: AdminCall, server: KnownServer) -> None:
        """Make a call at another server, and send its answer."""
        response = await self._send(call, server, query=query_of(call), timeouts=_ANSWERS)
        try:
            await self._check(response, server)
            if call.row.path == "events" and response.status == 200:
                await self._pass_events(call, response)
            elif call.row.streams:
                await _pass_stream(call, response)
            else:
                await call.send_whole(response.status, _headers(response), await response.read(_LARGEST))
        except UpstreamError as exc:
            raise unreachable(server, exc.message) from exc
        finally:
            response.close()

    async def fetch(self, call: AdminCall, server: KnownServer, query: Query, *, name: str) -> dict[str, Any]:
        """Return the answer of another server to `GET /admin/<name>`; raise its refusal."""
        response = await self._send(call, server, query=query, timeouts=_PARTS, name=name)
        try:
            await self._check(response, server)
            value = _object(await response.read(_LARGEST))
        except UpstreamError as exc:
            raise unreachable(server, exc.message) from exc
        finally:
            response.close()
        if response.status == 200 and value is not None:
            return value
        raise _refusal(response.status, value, server)

    async def _send(
        self, call: AdminCall, server: KnownServer, *, query: Query, timeouts: Timeouts, name: str = ""
    ) -> HttpResponse:
        """Send a call on; with `name` a GET of that name in its place, as part of a merged answer."""
        if not server.is_alive:
            raise unreachable(server, "it is not running", status=503)
        request = call.request
        method, body = ("GET", b"") if name else (request.method, request.body)
        headers = [(b"authorization", f"Bearer {server.token}".encode())]
        headers += forwarding_headers(call.caller, self._own_id)
        if name:
            headers.append((COUNTS_HEADER.encode(), b"1"))
        for field in ("content-type", "last-event-id", "accept"):
            if field in request.headers:
                headers.append((field.encode(), request.headers[field].encode("latin-1", "replace")))
        # The id stays in the address: whatever else answers there now refuses the call.
        path = f"/admin/{quote(name or call.name, safe='/')}?{urlencode([*query, ('server', server.id)])}"
        try:
            # Without a proxy, as the command line calls it: the token is for that server alone.
            return await self._client().send(
                origin_of(server.url, environ={}),
                method=method.encode(),
                path=(urlsplit(server.url).path.rstrip("/") + path).encode(),
                headers=headers,
                body=body,
                timeouts=timeouts,
            )
        except (UpstreamError, ConfigError) as exc:
            raise unreachable(server, exc.message) from exc

    async def _check(self, response: HttpResponse, server: KnownServer) -> None:
        """Reject an answer that concerns the two servers and not the caller."""
        if response.status not in (401, 403):
            return
        value = _object(await response.read(_LARGEST))
        refusal = _refusal(response.status, value, server)
        advice = _ADVICE.get(refusal.code or "")
        if response.status == 401 or advice is not None:
            raise GatewayError(
                f"server {server.id!r} at {server.url} refused the call: {advice or refusal.message}",
                status=502,
                code="server_refused",
            )
        raise refusal

    async def _pass_events(self, call: AdminCall, response: HttpResponse) -> None:
        call.reply.start(200, _headers(response))
        self.streams += 1
        stopping = asyncio.ensure_future(self._draining.wait())
        try:
            with self._uncounted():
                await self._pump(call, response, stopping)
        finally:
            self.streams -= 1
            stopping.cancel()

    async def _pump(self, call: AdminCall, response: HttpResponse, stopping: asyncio.Future[Any]) -> None:
        """Write frames as they come, until the login ends or one of the servers stops."""
        check_at = time.monotonic() + _CHECK_SECONDS
        while True:
            following = asyncio.ensure_future(response.chunk())
            try:
                await asyncio.wait([following, stopping], return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    await call.reply.end(BYE)
                    return
                data = following.result()
            finally:
                following.cancel()
            if data is None or not await write_or_stop(call.reply, data, stopping):
                break
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + _CHECK_SECONDS
                if not await self._is_valid(call.caller):
                    break
        if not call.reply.ended:
            await call.reply.end()


_ADVICE: Final = {
    "invalid_admin_token": "it has another admin token; set the same server.admin_token on all nodes",
    "admin_not_local": "it answers admin calls of its own machine only; set [console] remote = true there",
}
"""Advice for when a server refuses the calls of another, by the code of its refusal."""


def query_of(call: AdminCall) -> Query:
    """Return the parameters of a call without the server."""
    given = parse_qsl(call.request.query, keep_blank_values=True)
    return [(name, value) for name, value in given if name != "server"]


def unreachable(server: KnownServer, why: str, *, status: int = 502) -> GatewayError:
    """Return the error for a server that gives no answer."""
    return GatewayError(
        f"server {server.id!r} at {server.url} cannot be reached: {why}",
        status=status,
        code="server_unreachable",
    )


async def _pass_stream(call: AdminCall, response: HttpResponse) -> None:
    call.reply.start(response.status, _headers(response))
    while (data := await response.chunk()) is not None:
        await call.reply.write(data)
    await call.reply.end()


def _headers(response: HttpResponse) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in response.headers if name not in _OF_CONNECTION]
    return kept if any(name == NO_STORE[0] for name, _ in kept) else [*kept, NO_STORE]


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.decode(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _refusal(status: int, value: dict[str, Any] | None, server: KnownServer) -> GatewayError:
    """Return the refusal of another server as an error of this one."""
    error = (value or {}).get("error")
    if status < 400 or not isinstance(error, dict):
        return unreachable(server, f"another program answers there (HTTP {status})")
    return GatewayError(
        str(error.get("message") or f"HTTP {status}"),
        status=status,
        code=str(error.get("code") or "") or None,
        param=error.get("param"),
    )
