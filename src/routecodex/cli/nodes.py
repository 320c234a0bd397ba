"""Nodes of a cluster: found in the Redis store of the configuration in use, and in the user dir."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from routecodex.cli import views
from routecodex.cli.admin_client import (
    AdminClient,
    AdminRefused,
    AnnouncedServer,
    Unreachable,
    announcements,
    may_be_that_server,
    user_dir,
)
from routecodex.cli.servers import (
    EXIT_CODES,
    FAILED,
    ServerReply,
    call_server,
    choose_server,
    complete_id,
    exit_without_server,
    json_option,
    print_json,
)
from routecodex.cli.tables import print_problem

if TYPE_CHECKING:
    from routecodex.cli.cluster_store import Cluster

_CONFIG = "routecodex.config"
_REFUSALS = {
    "admin_not_local": "answers its own machine only; set remote = true under [console] in its configuration",
    "invalid_admin_token": "has another admin token; set the same server.admin_token on all nodes",
}
"""Text with a fix for refusals, by their code."""
Command = Callable[..., None]


def _note_config(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    context.meta[_CONFIG] = path


def node_option(command: Command) -> Command:
    """Add `--server` and `--config`; the nodes of the configuration's Redis store are among the servers."""
    server = click.option(
        "--server",
        "server_id",
        metavar="ID",
        shell_complete=complete_id,
        help="Only this server; default: all running servers and nodes.",
    )
    return server(config_file_option(command))


config_file_option = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_note_config,
    expose_value=False,
    help="Configuration whose Redis store names the nodes; default: as for `serve`.",
)


def call_nodes(server_id: str | None, call: Callable[[AdminClient], dict[str, Any]]) -> list[ServerReply]:
    """Call the server or node with that id, or all of them."""
    replies = [call_server(server, call) for server in select_nodes(server_id)]
    for reply in replies:
        if reply.refused is not None and reply.refused.code in _REFUSALS:
            print_problem(f"{reply.server.id} {_REFUSALS[reply.refused.code]}")
    return replies


def select_nodes(server_id: str | None) -> list[AnnouncedServer]:
    """Return the server or node with that id, or all; an unknown id is a usage error."""
    return choose_server(_servers_and_nodes(), server_id)


def _servers_and_nodes() -> list[AnnouncedServer]:
    local = announcements()
    cluster = _cluster()
    if cluster is None:
        return local
    nodes = {row["id"]: _node(row, cluster) for row in cluster.nodes}
    # A server that was killed leaves its announcement behind; the node of its id may run elsewhere now.
    running = {name for name, one in nodes.items() if one.shows_life}
    current = {one.id: one for one in local if one.id not in running or may_be_that_server(one)}
    return sorted({**nodes, **current}.values(), key=lambda server: server.id)


def _node(row: dict[str, Any], cluster: Cluster) -> AnnouncedServer:
    return AnnouncedServer(
        id=row["id"],
        url=row["url"],
        pid=0,
        token=cluster.token,
        started_at=row["started_at"],
        is_alive=row["alive"] or bool(cluster.refusal),
        shows_life=row["alive"],
    )


def _cluster() -> Cluster | None:
    """Return the cluster of the configuration; None if it names no Redis store."""
    context = click.get_current_context(silent=True)
    path = None if context is None else context.meta.get(_CONFIG)
    if not _may_name_redis(path):
        return None
    from routecodex.cli.cluster_store import StoreUnreachable, cluster_of

    try:
        return cluster_of(path)
    except StoreUnreachable:
        # Nodes may be running: without a server of this machine nobody can be asked.
        if not announcements():
            raise SystemExit(FAILED) from None
        return None


def _may_name_redis(path: Path | None) -> bool:
    """Return whether it is worth loading the configuration, which takes longer than most commands."""
    import os

    named = path or os.environ.get("ROUTECODEX_CONFIG_PATH")
    file = Path(named).expanduser() if named else user_dir() / "config.toml"
    try:
        text = file.read_bytes().lower()
    except OSError:
        return path is not None
    return b"store" in text and (b"redis" in text or b"${" in text)


@click.command("nodes", epilog=EXIT_CODES)
@config_file_option
@json_option
def status_nodes(as_json: bool) -> None:
    """Show the nodes that share the Redis store, and the servers of this machine.

    A warning says which nodes have another configuration.

    \b
    Examples:
      routecodex daemon status nodes
      routecodex daemon status nodes --config gateway.toml --json
    """
    rows = _all_rows()
    if as_json:
        print_json({"nodes": rows})
    else:
        views.show_rows("nodes", rows)
    _warn_of_differences(rows)
    if not any(row["alive"] for row in rows):
        exit_without_server()


def _all_rows() -> list[dict[str, Any]]:
    cluster = _cluster()
    rows = [] if cluster is None else [_judged(row, cluster) for row in cluster.nodes]
    names = {row["id"] for row in rows}
    local = [_local_row(server) for server in announcements() if server.id not in names]
    return sorted((*rows, *local), key=lambda row: str(row["id"]))


def _judged(row: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Return the row of a node; one that cannot show signs of life is asked itself."""
    if row["alive"] or not cluster.refusal:
        return row
    try:
        AdminClient(_node(row, cluster)).status()
    except Unreachable:
        return row
    except AdminRefused:
        pass
    return {**row, "alive": True}


def _local_row(server: AnnouncedServer) -> dict[str, Any]:
    """Return the row of a server that shares no store with others."""
    row: dict[str, Any] = {
        "id": server.id,
        "url": server.url,
        "alive": False,
        "version": None,
        "started_at": server.started_at,
        "workers": None,
        "store": None,
        "draining": False,
        "config": None,
    }
    admin = AdminClient(server)
    try:
        status = admin.status()
        ready = admin.readiness()
    except (Unreachable, AdminRefused):
        return row
    store = ready.get("store") or {}
    about = {name: status.get(name) for name in ("version", "workers")}
    return {
        **row,
        **about,
        "alive": True,
        "store": store.get("kind"),
        "draining": ready.get("status") == "draining",
    }


def _warn_of_differences(rows: Iterable[dict[str, Any]]) -> None:
    groups: dict[str, list[str]] = {}
    for row in rows:
        if row["alive"] and row["config"]:
            groups.setdefault(row["config"], []).append(row["id"])
    if len(groups) > 1:
        listed = "; ".join(f"{digest}: {', '.join(ids)}" for digest, ids in groups.items())
        print_problem(f"the configurations of the nodes differ ({listed})", severity="warning")
