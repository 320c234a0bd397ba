"""Several reads of the admin API in one call: `GET /admin/batch?get=clients&get=series%3Fby%3Dmodel`.

A page shows the answers of many calls at once, and a browser has six connections to a server. Each part is
admitted, checked and answered as if it had come alone; one that fails does not spoil the others.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Raw

from routecodex.canon.errors import BadRequest, GatewayError
from routecodex.server.admin_calls import find_call
from routecodex.server.admin_service import AdminCall, AdminService
from routecodex.server.error_replies import error_reply
from routecodex.server.http import HttpRequest
from routecodex.server.http.reply import Headers

_PATH: Final = "batch"
_MOST: Final = 20


class BatchPart(AdminCall, frozen=True, kw_only=True):
    """One of several calls; its answer is kept in `sent`."""

    sent: list[tuple[int, bytes]]

    async def send_whole(self, status: int, headers: Headers, body: bytes) -> None:
        self.sent.append((status, body))


class BatchCalls:
    """Answers several calls of an admin API at once."""

    def __init__(self, service: AdminService) -> None:
        self._service = service

    def add(self) -> None:
        """Add the call to the service."""
        self._service.add("GET", _PATH, self._answer)

    async def _answer(self, call: AdminCall) -> None:
        given = parse_qsl(call.request.query, keep_blank_values=True)
        wanted = [value for name, value in given if name == "get"]
        if not 0 < len(wanted) <= _MOST:
            raise BadRequest(f"get: 1 to {_MOST} calls are possible, not {len(wanted)}", param="get")
        parts = await asyncio.gather(*(self._part(call, text) for text in wanted))
        await call.send({"answers": [{"status": status, "body": Raw(body)} for status, body in parts]})

    async def _part(self, call: AdminCall, text: str) -> tuple[int, bytes]:
        request = _request(call, text)
        name = request.path.removeprefix("/admin/")
        try:
            row = find_call("GET", name)
            if row.streams or row.path == _PATH:
                raise BadRequest(f"get: {name[:80]!r} cannot be part of a batch", param="get")
            caller = self._service.check_access(request, name)
            part = BatchPart(name, row, caller, request, call.reply, call.id, sent=[])
            await self._service.make(part)
            return part.sent[0]
        except GatewayError as error:
            status, _, body = error_reply(error.detached(), request, call.id)
            return status, body


def _request(call: AdminCall, text: str) -> HttpRequest:
    """Return a part as a request of its own, for the server that the batch names."""
    name, _, query = text.partition("?")
    server = call.request.query_param("server")
    given = [*parse_qsl(query, keep_blank_values=True), *([("server", server)] if server else [])]
    target = f"/admin/{quote(name, safe='/%')}?{urlencode(given)}"
    try:
        return HttpRequest("GET", target.encode(), headers=call.request.headers, client=call.request.client)
    except ValueError as exc:
        raise BadRequest(f"get: {text[:80]!r} is not the path of a call", param="get") from exc
