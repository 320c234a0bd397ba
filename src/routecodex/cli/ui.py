"""`routecodex ui`: opens the console of a running server in the browser, logged in."""

from __future__ import annotations

import click

from routecodex.cli.admin_client import AdminClient, AdminRefused, Unreachable
from routecodex.cli.servers import EXIT_CODES, FAILED, NO_SERVER, complete_id, exit_without_server, select_one
from routecodex.cli.tables import print_problem


@click.command(epilog=EXIT_CODES)
@click.option(
    "--server", "server_id", metavar="ID", shell_complete=complete_id, help="The server, if several run."
)
@click.option("--print", "prints", is_flag=True, help="Print the address instead of opening it.")
def ui(server_id: str | None, prints: bool) -> None:
    """Open the console of a running server in the browser.

    The address logs in as admin, once, within ten minutes. Call the command again for another one.

    \b
    Examples:
      routecodex ui
      routecodex ui --server 127.0.0.1-5520 --print
    """
    url = _login_url(server_id)
    if prints:
        click.echo(url)
        return
    import webbrowser

    if webbrowser.open(url):
        click.echo(f"opened {url.partition('#')[0]}", err=True)
    else:
        click.echo("no browser could be opened; open this address:", err=True)
        click.echo(url)


def _login_url(server_id: str | None) -> str:
    """Return an address that logs in once; exit if no server makes one."""
    server = select_one(server_id)
    if server is None:
        exit_without_server()
    admin = AdminClient(server)
    try:
        admin.status()
        return str(admin.post("/admin/login/code")["url"])
    except Unreachable as exc:
        print_problem(f"{server.id} is dead: {exc}; `routecodex start` starts a server")
        raise SystemExit(NO_SERVER) from exc
    except AdminRefused as exc:
        print_problem(f"{server.id}: {exc.message}")
        raise SystemExit(FAILED) from exc
