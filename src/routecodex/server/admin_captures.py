"""The calls of the admin API on captured requests, and those that send a request as the console.

| Path                          | GET                  | POST                                              |
|-------------------------------|----------------------|---------------------------------------------------|
| `/admin/requests/ID/capture`  | the captured request |                                                   |
| `/admin/requests/ID/replay`   |                      | sends it again to another target or model         |
| `/admin/playground`           |                      | sends a request; the answer is that of a client   |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from routecodex.canon.errors import NotFound
from routecodex.config import CaptureMode
from routecodex.server.admin_service import AdminCall, AdminService
from routecodex.server.captures import Captures
from routecodex.server.console_requests import ConsoleRequest, playground_request, replay_request
from routecodex.server.http import Reply

_OWN = ("owner",)
"""Fields of the file that only the gateway needs."""


class CaptureCalls:
    """The calls on captured requests of one worker; `is_known` tells whether a request of an id was made.

    Without `captures` the server has no user dir to keep them in. `answer_console` answers a request of the
    console on the reply of an admin call.
    """

    def __init__(
        self,
        captures: Captures | None,
        *,
        is_known: Callable[[str], Awaitable[bool]],
        answer_console: Callable[[ConsoleRequest, Reply, str], Awaitable[None]],
    ) -> None:
        self._captures = captures
        self._is_known = is_known
        self._answer = answer_console

    def add_to(self, service: AdminService) -> None:
        """Add the calls to the admin API."""
        service.add("GET", "requests/{id}/capture", self._show)
        service.add("POST", "requests/{id}/replay", self._replay)
        service.add("POST", "playground", self._play)

    @property
    def mode(self) -> CaptureMode:
        """Which requests are captured now, for the console."""
        return "off" if self._captures is None else self._captures.mode

    def has(self, id: str) -> bool:
        """Return whether a request was captured and is still kept."""
        return self._captures is not None and self._captures.has(id)

    async def _show(self, call: AdminCall) -> None:
        captured = await self._read(_id_of(call))
        await call.send({name: value for name, value in captured.items() if name not in _OWN})

    async def _replay(self, call: AdminCall) -> None:
        captured = await self._read(_id_of(call))
        await self._answer(replay_request(call.request, captured), call.reply, call.id)

    async def _play(self, call: AdminCall) -> None:
        await self._answer(playground_request(call.request), call.reply, call.id)

    async def _read(self, id: str) -> dict[str, Any]:
        captured = await self._captures.read(id) if self._captures is not None else None
        if captured is not None:
            return captured
        if not await self._is_known(id):
            raise NotFound(
                f"there is no request {id[:80]!r}, or it is no longer kept", code="unknown_request"
            )
        raise NotFound(f"request {id!r} was not captured; {self._advice()}", code="not_captured")

    def _advice(self) -> str:
        if self.mode == "all":
            return "its capture is no longer kept, or it is still running"
        return f'capture.mode is "{self.mode}"; "all" captures every request from then on'


def _id_of(call: AdminCall) -> str:
    return call.name.split("/")[1]
