"""Serves `/admin/*`: admits the caller, makes the call, logs every write, and sends the answer.

Calls that return JSON are in `AdminApi`. Calls that send their answer themselves, because it is a stream, has
a cookie or depends on the caller, are added here with `add`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from routecodex.canon.errors import GatewayError, MethodNotAllowed
from routecodex.server.admin import AdminApi
from routecodex.server.admin_access import AdminAccess, Caller
from routecodex.server.admin_calls import ADMIN_CALLS, AdminEndpoint, find_call
from routecodex.server.admin_login import LoginCalls
from routecodex.server.admin_query import check_names
from routecodex.server.error_replies import NO_STORE, json_headers
from routecodex.server.http import HttpRequest, Reply
from routecodex.server.http.reply import Headers
from routecodex.server.openapi import describe_api
from routecodex.wire import json

log = logging.getLogger("routecodex.admin")

_LONGEST_SHOWN = 300


class AdminCall(Struct, frozen=True):
    """One call that was admitted; `name` is its path behind `/admin/`, `row` its line in the table."""

    name: str
    row: AdminEndpoint
    caller: Caller
    request: HttpRequest
    reply: Reply
    id: str

    async def send(self, value: dict[str, Any], status: int = 200) -> None:
        """Send a JSON answer."""
        await self.send_whole(status, [*json_headers(self.id), NO_STORE], json.encode(value))

    async def send_whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send an answer that is no stream."""
        await self.reply.send(status, headers, body)

    async def send_nothing(self, *headers: tuple[bytes, bytes]) -> None:
        """Send an answer without a body."""
        request_id = (b"x-request-id", self.id.encode())
        await self.reply.send(204, [request_id, NO_STORE, *headers], b"")


Direct = Callable[[AdminCall], Awaitable[None]]
"""Makes a call and sends the answer."""
Elsewhere = Callable[[AdminCall], Awaitable[bool]]
"""Answers a call that is for other servers; returns False if it is for this one."""


class AdminService:
    """The admin API of one process, with its access."""

    def __init__(
        self, api: AdminApi, *, access: AdminAccess, login: LoginCalls, capture_mode: Callable[[], str]
    ) -> None:
        self._api = api
        self._access = access
        self._login = login
        self._capture_mode = capture_mode
        self._direct: dict[tuple[str, str], Direct] = {}
        self.answer_elsewhere: Elsewhere | None = None
        self.add("POST", "login", self._log_in)
        self.add("POST", "logout", self._log_out)
        self.add("POST", "login/code", self._make_code)
        self.add("GET", "me", self._me)
        self.add("GET", "openapi.json", self._openapi)

    def add(self, method: str, path: str, direct: Direct) -> None:
        """Add a call that sends its answer itself; `path` is that of its line in the table."""
        self._direct[method, path] = direct

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Method and path of all calls, as the table writes them."""
        return [*self._direct, *self._api.calls]

    def check_access(self, request: HttpRequest, name: str) -> Caller:
        """Return who calls `/admin/<name>`; reject a caller that may not. Ended logins are not known here."""
        return self._access.check(request, name)

    def check_place(self, request: HttpRequest) -> None:
        """Reject a request from another machine, unless those are allowed."""
        self._access.check_place(request)

    async def is_valid(self, caller: Caller) -> bool:
        """Return whether a caller that was admitted may still be served, for answers that take long."""
        return await self._login.is_valid(caller)

    async def serve(self, name: str, request: HttpRequest, *, reply: Reply, id: str) -> None:
        """Answer a call of `/admin/<name>`; access is checked before anything else."""
        caller = self.check_access(request, name)
        row = find_call(request.method, name)
        if not row.is_open:
            await self._login.confirm(caller)
        call = AdminCall(name, row, caller, request, reply, id)
        if not row.is_write or row.path == "login":
            await self.make(call)
            return
        try:
            await self.make(call)
        except GatewayError as error:
            _log_write(call, error.status)
            raise
        _log_write(call, reply.status)

    async def make(self, call: AdminCall) -> None:
        """Make a call that was admitted, here or at the server that it names."""
        elsewhere = self.answer_elsewhere
        if elsewhere is None or not await elsewhere(call):
            await self._make_here(call)

    async def _make_here(self, call: AdminCall) -> None:
        direct = self._direct.get((call.request.method, call.row.path))
        if direct is None:
            self._check_method(call)
            status, value = await self._api.answer(call.name, call.request)
            await call.send(value, status)
            return
        check_names(call.name, call.request)
        await direct(call)

    def _check_method(self, call: AdminCall) -> None:
        """Reject another method of a call that sends its answer itself."""
        steps = call.name.split("/")
        methods = [row.method for row in ADMIN_CALLS if row.fits(steps)]
        method = call.request.method
        if methods and method not in methods:
            raise MethodNotAllowed(f"/admin/{call.name[:200]} accepts {', '.join(methods)}, not {method}")

    async def _log_in(self, call: AdminCall) -> None:
        try:
            caller, cookie = await self._login.log_in(call.request)
        except GatewayError as error:
            log.warning("login from %s refused: %s", _address(call.request), error.code)
            raise
        log.info("login of %s from %s", caller.shown, _address(call.request))
        await call.send_nothing((b"set-cookie", cookie))

    async def _log_out(self, call: AdminCall) -> None:
        await call.send_nothing((b"set-cookie", await self._login.log_out(call.caller)))

    async def _make_code(self, call: AdminCall) -> None:
        await call.send(self._login.make_code())

    async def _me(self, call: AdminCall) -> None:
        about = {"server": self._api.about(), "capture": self._capture_mode()}
        await call.send(self._login.me(call.caller) | about)

    async def _openapi(self, call: AdminCall) -> None:
        await call.send(describe_api())


def _address(request: HttpRequest) -> str:
    return request.client[0] if request.client is not None else "an unknown address"


def _log_write(call: AdminCall, status: int) -> None:
    """Log who changed what from where: fields that may hold secrets or content are not shown."""
    shown = _shown_body(call.request.body, call.row.logged)
    server = "" if call.caller.via else call.request.query_param("server")
    log.info(
        "%s /admin/%s%s by %s from %s: %d%s",
        call.request.method,
        call.name[:_LONGEST_SHOWN],
        f" of server {server[:_LONGEST_SHOWN]!r}" if server else "",
        call.caller.shown,
        _address(call.request),
        status,
        f" {shown}" if shown else "",
    )


def _shown_body(body: bytes, names: tuple[str, ...]) -> str:
    try:
        value = json.decode(body) if body and names else None
    except ValueError:
        return ""
    if not isinstance(value, dict):
        return ""
    shown = {name: value[name] for name in names if name in value}
    return json.encode(shown).decode("utf-8", "replace")[:_LONGEST_SHOWN] if shown else ""
