"""The calls of the admin API on clients and teams.

| Path                           | GET        | POST                                                  |
|--------------------------------|------------|-------------------------------------------------------|
| `/admin/clients`               | all        | makes one; the answer has its key, this once          |
| `/admin/clients/NAME`          | one client | changes its settings                                  |
| `/admin/clients/NAME/rotate`   |            | gives it a new key; the old one stays for a while     |
| `/admin/clients/NAME/revoke`   |            | removes it                                            |
| `/admin/clients/NAME/reset`    |            | sets the windows of its limits to 0                   |
| `/admin/teams`                 | all teams  |                                                       |

A change has reached every worker when its call returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote

from routecodex.accounting.client_calls import ClientCalls
from routecodex.accounting.client_store import ClientDirectory
from routecodex.server.http import HttpRequest

CLIENT_PATHS: Final = {
    "clients": ("GET", "POST"),
    "clients/{name}": ("GET", "POST"),
    "clients/{name}/rotate": ("POST",),
    "clients/{name}/revoke": ("POST",),
    "clients/{name}/reset": ("POST",),
    "teams": ("GET",),
}
"""The calls on clients and teams, with their methods."""

Handler = Callable[[HttpRequest], Awaitable[dict[str, Any]]]


def client_handlers(path: str, directory: Callable[[], ClientDirectory]) -> dict[str, Handler] | None:
    """Return the handlers of `/admin/<path>` by method; None if it is not a call on clients or teams."""
    steps = path.split("/")
    calls = ClientCalls(directory())

    def changing(call: Callable[[HttpRequest], Awaitable[dict[str, Any]]]) -> Handler:
        async def handle(request: HttpRequest) -> dict[str, Any]:
            reply = await call(request)
            await directory().settle()
            return reply

        return handle

    if steps == ["teams"]:
        return {"GET": lambda _request: calls.teams()}
    if steps[0] != "clients":
        return None
    if len(steps) == 1:
        return {
            "GET": lambda _request: calls.list(),
            "POST": changing(lambda request: calls.add(_body(request))),
        }
    name = unquote(steps[1])
    if len(steps) == 2 and name:
        return {
            "GET": lambda _request: calls.show(name),
            "POST": changing(lambda request: calls.change(name, _body(request))),
        }
    action = {"rotate": calls.rotate, "revoke": calls.revoke, "reset": calls.reset}.get(steps[-1])
    if len(steps) != 3 or action is None:
        return None
    return {"POST": changing(lambda request: action(name, _body(request)))}


def _body(request: HttpRequest) -> bytes:
    return request.body or b"{}"
