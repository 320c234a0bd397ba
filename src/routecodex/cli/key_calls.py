"""Carries out the calls of `routecodex keys`: by a running server, else on the store of a configuration.

Both take the bodies and give the answers of the admin API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

import click
import msgspec

from routecodex.cli.admin_client import (
    AdminClient,
    AdminRefused,
    AnnouncedServer,
    Unreachable,
    announcements,
    is_running,
)
from routecodex.cli.servers import FAILED, exit_without_server, select_one
from routecodex.cli.tables import print_problem

if TYPE_CHECKING:
    from routecodex.accounting.client_calls import ClientCalls

WRONG_ARGUMENTS = 2
Body = dict[str, Any]


class KeyCalls(Protocol):
    """The calls on clients; `file` is the configuration file they may be in, if it is known."""

    @property
    def file(self) -> str | None: ...

    def get(self, path: str) -> dict[str, Any]:
        """Return the answer of GET /admin/clients<path>."""
        ...

    def post(self, path: str, body: Body) -> dict[str, Any]:
        """Return the answer of POST /admin/clients<path>; AdminRefused if the call is rejected."""
        ...


class ServerCalls:
    """Calls the admin API of a running server."""

    def __init__(self, server: AnnouncedServer) -> None:
        self._admin = AdminClient(server)
        self.file = server.config

    def get(self, path: str) -> dict[str, Any]:
        return self._admin.get(f"/admin/clients{path}")

    def post(self, path: str, body: Body) -> dict[str, Any]:
        return self._admin.post(f"/admin/clients{path}", body)


class OfflineCalls:
    """Works on the store of a configuration whose server does not run."""

    def __init__(self, path: Path) -> None:
        from routecodex.cli.config import examine_file, show

        self.file: str | None = str(path)
        config, problems = examine_file(path, stored_clients=True)
        show(problem for problem in problems if problem.severity == "error")
        if config is None:
            raise SystemExit(WRONG_ARGUMENTS)
        if config.store.url.startswith("memory:"):
            print_problem(
                f'{path}: with store.url = "memory:" clients end with the server, and none is running; '
                'set url = "file:", or add [clients.NAME] to the file'
            )
            raise SystemExit(FAILED)
        if config.server.port == 0 and config.server.id is None and config.store.url == "file:":
            print_problem(
                f"{path}: with port = 0 the server gets a store of its own at every start; set server.id"
            )
            raise SystemExit(FAILED)
        self._config = config

    def get(self, path: str) -> dict[str, Any]:
        return self._call("GET", path, b"")

    def post(self, path: str, body: Body) -> dict[str, Any]:
        return self._call("POST", path, msgspec.json.encode(body))

    def _call(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        from routecodex.accounting.client_calls import ClientCalls
        from routecodex.accounting.client_store import ClientDirectory
        from routecodex.canon.errors import GatewayError
        from routecodex.cli.stored_clients import with_directory

        async def work(clients: ClientDirectory) -> dict[str, Any]:
            return await _handle(ClientCalls(clients), method, path, body)

        try:
            answer = with_directory(self._config, work)
        except GatewayError as exc:
            raise AdminRefused(exc.message, code=exc.code or "", status=exc.status) from exc
        # As it would come from a server.
        decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
        return decoded


def _handle(calls: ClientCalls, method: str, path: str, body: bytes) -> Awaitable[dict[str, Any]]:
    name, _, action = path.removeprefix("/").partition("/")
    name = unquote(name)
    if method == "GET":
        return calls.show(name) if name else calls.list()
    if not name:
        return calls.add(body)
    actions = {"": calls.change, "rotate": calls.rotate, "revoke": calls.revoke, "reset": calls.reset}
    return actions[action](name, body)


def name_path(name: str, action: str = "") -> str:
    """Return the path of a client below /admin/clients."""
    return f"/{quote(name, safe='')}" + (f"/{action}" if action else "")


def key_calls(server_id: str | None, path: Path | None) -> KeyCalls:
    """Return the calls of the chosen server or file, else of the running server, else of the default file."""
    if server_id is not None and path is not None:
        raise click.UsageError("give --server or --config, not both")
    if path is not None:
        server = _server_of(path)
        return ServerCalls(server) if server is not None else OfflineCalls(path)
    if server_id is not None:
        return _calls_of(select_one(server_id))
    running = [one for one in announcements() if is_running(one.pid)]
    if running:
        return _calls_of(select_one(None))
    from routecodex.cli.config import config_path

    return OfflineCalls(config_path(None))


def _calls_of(server: AnnouncedServer | None) -> KeyCalls:
    if server is None:
        exit_without_server()
    if is_running(server.pid):
        return ServerCalls(server)
    if server.config is None:
        exit_without_server()
    return OfflineCalls(Path(server.config))


def _server_of(path: Path) -> AnnouncedServer | None:
    """Return the running server of a configuration file."""
    file = str(path.absolute())
    servers = [one for one in announcements() if one.config == file and is_running(one.pid)]
    if len(servers) > 1:
        names = ", ".join(server.id for server in servers)
        raise click.UsageError(f"several servers use {path}; give the id of one with --server: {names}")
    return servers[0] if servers else None


def carry_out(calls: KeyCalls, work: Callable[[KeyCalls], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of a call; print why it was rejected, and exit."""
    try:
        return work(calls)
    except AdminRefused as exc:
        message = exc.message
        if exc.code == "client_in_file" and calls.file is not None:
            message = f"{message}: {calls.file}"
        print_problem(message)
        raise SystemExit(WRONG_ARGUMENTS if exc.status == 400 else FAILED) from exc
    except Unreachable as exc:
        print_problem(str(exc))
        raise SystemExit(FAILED) from exc
