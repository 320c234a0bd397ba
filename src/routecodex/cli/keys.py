"""`routecodex keys …`: makes, shows, changes and revokes the keys of clients, with and without a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from routecodex.accounting.figures import show_usd
from routecodex.cli import tables
from routecodex.cli.admin_client import AdminRefused
from routecodex.cli.config import config_option
from routecodex.cli.key_calls import KeyCalls, carry_out, key_calls, name_path
from routecodex.cli.servers import FAILED, complete_id, json_option, print_json
from routecodex.cli.tables import Column, TableRow, moment, print_problem

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_EXIT_CODES = """\b
Exit codes:
  0  done
  1  the client does not exist, exists already or is in the configuration file, or something failed
  2  wrong arguments or configuration
  3  no server is running where --server names one
"""
_COLUMNS = (
    Column("client"),
    Column("team"),
    Column("source", fixed=True),
    Column("key", fixed=True),
    Column("state", fixed=True),
    Column("expires", fixed=True),
    Column("last used", fixed=True),
    Column("limits"),
)
_KINDS = ("routing", "stop_message", "clock", "status", "agents", "approve")
_server_option = click.option(
    "--server",
    "server_id",
    metavar="ID",
    shell_complete=complete_id,
    help="The server whose clients these are; default: the running one.",
)


def _store_options(command: CommandT) -> CommandT:
    """Add the options that choose the store, and --json."""
    for option in (json_option, config_option, _server_option):
        command = option(command)
    return command


def _setting_options(command: CommandT) -> CommandT:
    """Add the options of a client's settings."""
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


_SETTINGS = (
    click.option("--team", metavar="T", help="Its team, of the configuration file."),
    click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="SPEC",
        help="A limit, such as '$20/day' or '2M tokens/week'; may be given more than once.",
    ),
    click.option(
        "--budget", "budgets", multiple=True, metavar="N/WINDOW", help="20/month is --limit '$20/month'."
    ),
    click.option("--rpm", type=int, metavar="N", help="Requests in 60 seconds."),
    click.option("--tpm", type=int, metavar="N", help="Tokens in 60 seconds."),
    click.option("--concurrent", type=int, metavar="N", help="Requests at the same time."),
    click.option("--providers", multiple=True, metavar="GLOB", help="Providers it may use."),
    click.option(
        "--models", multiple=True, metavar="GLOB", help="Models it may use: provider.model, or the model."
    ),
    click.option("--routes", multiple=True, metavar="GLOB", help="Routes it may use."),
    click.option(
        "--instructions",
        metavar="all|none|LIST",
        help=f"Instructions in messages that act: all, none, or some of {','.join(_KINDS)}.",
    ),
    click.option("--role", type=click.Choice(["viewer", "operator"]), help="Its role in the console."),
    click.option("--mcp", multiple=True, metavar="GLOB", help="MCP servers and tools it is offered."),
    click.option("--expires", metavar="30d|TIME", help="When its key ends; TIME: 2027-01-31T00:00:00Z."),
)


@click.group()
def keys() -> None:
    """Make, show, change and revoke the keys of clients.

    Changes take effect within a second in every worker, without a restart. With no server running they are
    made in the store of the configuration.
    """


@keys.command(epilog=_EXIT_CODES)
@click.argument("name")
@_setting_options
@_store_options
def add(*, name: str, server_id: str | None, path: Path | None, as_json: bool, **settings: Any) -> None:
    """Make a client and print its key, which is shown this once.

    \b
    Examples:
      routecodex keys add laptop
      routecodex keys add ci --team core --budget 20/month --rpm 60 --expires 90d
      routecodex keys add guest --models 'glm.*' --instructions none
    """
    calls = key_calls(server_id, path)
    body = {"name": name, **_body(**settings)}
    answer = carry_out(calls, lambda calls: calls.post("", body))
    _show_key(answer, f"client {name} is added; its key, shown this once:", as_json=as_json)


@keys.command("list", epilog=_EXIT_CODES)
@_store_options
def list_(*, server_id: str | None, path: Path | None, as_json: bool) -> None:
    """List all clients, of the configuration file and of the store.

    \b
    Example:
      routecodex keys list --json
    """
    answer = carry_out(key_calls(server_id, path), lambda calls: calls.get(""))
    if as_json:
        print_json({"clients": answer["clients"]})
    elif answer["clients"]:
        tables.show(_COLUMNS, [_cells(row) for row in answer["clients"]])
    else:
        click.echo("there are no clients; `routecodex keys add NAME` makes one")


@keys.command(epilog=_EXIT_CODES)
@click.argument("name")
@_store_options
def show(*, name: str, server_id: str | None, path: Path | None, as_json: bool) -> None:
    """Show one client with its limits.

    \b
    Example:
      routecodex keys show laptop
    """
    answer = carry_out(key_calls(server_id, path), lambda calls: calls.get(name_path(name)))
    _show_client(answer, as_json=as_json)


@keys.command("set", epilog=_EXIT_CODES)
@click.argument("name")
@_setting_options
@click.option("--clear-limits", is_flag=True, help="Remove all limits first, rpm, tpm and concurrent too.")
@_store_options
def set_(
    *,
    name: str,
    clear_limits: bool,
    server_id: str | None,
    path: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Change settings of a client; those that are not given stay. --limit replaces all its limits.

    \b
    Examples:
      routecodex keys set laptop --limit '$5/day' --limit '60 requests/60s'
      routecodex keys set laptop --clear-limits
    """
    cleared: dict[str, Any] = (
        {"limits": [], "rpm": None, "tpm": None, "concurrent": None} if clear_limits else {}
    )
    body = {**cleared, **_body(**settings)}
    if not body:
        raise click.UsageError("nothing to change; give one of the options")
    _change(name, body, server_id, path, as_json=as_json)


@keys.command(epilog=_EXIT_CODES)
@click.argument("name")
@click.option(
    "--overlap", default="24h", show_default=True, metavar="TIME", help="How long the old key stays valid."
)
@_store_options
def rotate(*, name: str, overlap: str, server_id: str | None, path: Path | None, as_json: bool) -> None:
    """Give a client a new key and print it; the old one stays valid for a while.

    \b
    Examples:
      routecodex keys rotate laptop
      routecodex keys rotate laptop --overlap 0s
    """
    calls = key_calls(server_id, path)
    answer = carry_out(calls, lambda calls: calls.post(name_path(name, "rotate"), {"overlap": overlap}))
    _show_key(answer, f"the new key of client {name}, shown this once:", as_json=as_json)


@keys.command(epilog=_EXIT_CODES)
@click.argument("name")
@_store_options
def revoke(*, name: str, server_id: str | None, path: Path | None, as_json: bool) -> None:
    """Remove a client; its keys are refused from now on.

    \b
    Example:
      routecodex keys revoke laptop
    """
    calls = key_calls(server_id, path)
    answer = carry_out(calls, lambda calls: calls.post(name_path(name, "revoke"), {}))
    if as_json:
        print_json(answer)
    else:
        click.echo(f"client {name} is revoked")


@keys.command(epilog=_EXIT_CODES)
@click.argument("name")
@_store_options
def block(*, name: str, server_id: str | None, path: Path | None, as_json: bool) -> None:
    """Refuse the requests of a client with 403 until it is unblocked."""
    _change(name, {"blocked": True}, server_id, path, as_json=as_json)


@keys.command(epilog=_EXIT_CODES)
@click.argument("name")
@_store_options
def unblock(*, name: str, server_id: str | None, path: Path | None, as_json: bool) -> None:
    """Accept the requests of a blocked client again."""
    _change(name, {"blocked": False}, server_id, path, as_json=as_json)


@keys.command(epilog=_EXIT_CODES)
@click.argument("name")
@_store_options
def reset(*, name: str, server_id: str | None, path: Path | None, as_json: bool) -> None:
    """Set the windows of a client's limits to 0."""
    calls = key_calls(server_id, path)
    answer = carry_out(calls, lambda calls: calls.post(name_path(name, "reset"), {}))
    _show_client(answer, as_json=as_json)


@keys.command("import", epilog=_EXIT_CODES)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--from",
    "source",
    required=True,
    type=click.Choice(["litellm"]),
    help="litellm: the answer of GET /key/list?return_full_object=true, or of /key/info.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be imported, and change nothing.")
@_store_options
def import_(
    *,
    file: Path,
    source: str,
    dry_run: bool,
    server_id: str | None,
    path: Path | None,
    as_json: bool,
) -> None:
    """Import the keys of another gateway, so that people keep the keys they have.

    Names, teams, budgets, rates, models, expiry and blocks are taken over; spend is not.

    \b
    Examples:
      routecodex keys import --from litellm keys.json --dry-run
      routecodex keys import --from litellm keys.json
    """
    from routecodex.accounting.litellm_keys import LiteLlmKeysError, convert_keys

    try:
        rows = convert_keys(file.read_bytes(), time.time())
    except (LiteLlmKeysError, OSError) as exc:
        print_problem(f"{file}: {exc}; nothing was imported")
        raise SystemExit(FAILED) from exc
    calls = key_calls(server_id, path)
    result: dict[str, list[Any]] = {"imported": [], "skipped": []}
    owners: dict[str, str] = {}
    for row in rows:
        reason = row.reason
        digest = str((row.body or {}).get("key_sha256")).lower()
        if row.name in result["imported"]:
            reason = "another key of the file has the same name"
        elif digest in owners:
            reason = f"its key is that of {owners[digest]!r} in the same file"
        elif row.body is not None:
            reason = _import(calls, {**row.body, "dry_run": dry_run})
        if reason:
            result["skipped"].append({"name": row.name, "reason": reason})
        else:
            owners[digest] = row.name
            result["imported"].append(row.name)
    _show_import(result, dry_run=dry_run, as_json=as_json)


def _import(calls: KeyCalls, body: dict[str, Any]) -> str:
    """Make the client of one row; return why it was not made."""

    def post(calls: KeyCalls) -> dict[str, Any]:
        try:
            return calls.post("", body)
        except AdminRefused as exc:
            if exc.status >= 500:
                raise
            return {"reason": exc.message}

    return str(carry_out(calls, post).get("reason", ""))


def _show_import(result: Mapping[str, Any], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    for row in result["skipped"]:
        print_problem(f"{row['name']}: {row['reason']}", severity="skipped")
    names = ", ".join(result["imported"]) or "none"
    click.echo(f"{'would be imported' if dry_run else 'imported'}: {names}")


def _change(
    name: str, body: dict[str, Any], server_id: str | None, path: Path | None, *, as_json: bool
) -> None:
    answer = carry_out(key_calls(server_id, path), lambda calls: calls.post(name_path(name), body))
    _show_client(answer, as_json=as_json)


def _body(
    *, limits: Sequence[str], budgets: Sequence[str], instructions: str | None, **settings: Any
) -> dict[str, Any]:
    """Return the settings that were given, as the admin API takes them."""
    body: dict[str, Any] = {}
    spent = [*limits, *(f"${budget.removeprefix('$')}" for budget in budgets)]
    if spent:
        body["limits"] = spent
    if instructions is not None:
        body["instructions"] = _instructions(instructions)
    allow = {name: list(settings.pop(name)) for name in ("providers", "models", "routes") if settings[name]}
    for name in ("providers", "models", "routes"):
        settings.pop(name, None)
    if allow:
        body["allow"] = allow
    mcp = settings.pop("mcp")
    if mcp:
        body["mcp"] = list(mcp)
    return {**body, **{name: value for name, value in settings.items() if value is not None}}


def _instructions(text: str) -> str | list[str]:
    if text in ("all", "none"):
        return text
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in _KINDS:
            known = ", ".join(_KINDS)
            raise click.UsageError(f"--instructions: {kind!r} is not one of {known}, nor all or none")
    return kinds


def _show_key(answer: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print the key alone on stdout, so that a script can take it."""
    if as_json:
        print_json({"client": answer["client"], "key": answer["key"]})
        return
    click.echo(text, err=True)
    click.echo(answer["key"])


def _show_client(answer: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"client": answer["client"]})
        return
    client = answer["client"]
    rows = (
        ("client", client["name"]),
        ("team", client["team"] or "-"),
        ("source", client["source"]),
        ("keys", ", ".join(map(_key, client["keys"])) or "-"),
        ("state", _state(client)),
        ("created", moment(client["created_at"]) or "-"),
        ("expires", moment(client["expires_at"]) or "never"),
        ("last used", moment(client["last_used_at"]) or "never"),
        ("in flight", str(client["in_flight"])),
        ("concurrent", str(client["concurrent"] or "-")),
        *((name, " ".join(client["allow"][name])) for name in ("providers", "models", "routes")),
        ("instructions", _words(client["instructions"])),
        ("role", client["role"] or "-"),
        ("mcp", " ".join(client["mcp"])),
        *(("limit", _limit(row)) for row in client["limits"]),
    )
    for name, value in rows:
        tables.echo(f"{name:<12}  {tables.plain(value)}")


def _words(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(value) or "none"


def _key(key: Mapping[str, Any]) -> str:
    until = f" until {moment(key['expires_at'])}" if key["expires_at"] else ""
    return f"{key['prefix'] or '(hidden)'}{'…' if key['prefix'] else ''}{until}"


def _limit(row: Mapping[str, Any]) -> str:
    used = ""
    if row["used"] is not None:
        used = f", {_amount(row, row['used'])} used, {_amount(row, row['remaining'])} left"
        used += f", resets {row['resets_at']}" if row["resets_at"] else ""
    shadow = ", shadow" if row["mode"] == "shadow" else ""
    models = f" for {' '.join(row['models'])}" if row["models"] else ""
    return f"{row['limit']}{models} of {row['owner']}{used}{shadow}"


def _amount(row: Mapping[str, Any], amount: float) -> str:
    return show_usd(amount) if row["unit"] == "usd" else f"{amount:.0f}"


def _state(client: Mapping[str, Any]) -> str:
    if client["blocked"]:
        return "blocked"
    expires = client["expires_at"]
    return "expired" if expires is not None and _epoch(expires) <= time.time() else "valid"


def _epoch(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def _cells(row: Mapping[str, Any]) -> TableRow:
    return [
        row["name"],
        row["team"] or "-",
        row["source"],
        ", ".join(key["prefix"] or "(hidden)" for key in row["keys"]) or "-",
        _state(row),
        moment(row["expires_at"]) or "never",
        moment(row["last_used_at"]) or "never",
        ", ".join(_limit_names(row)) or "-",
    ]


def _limit_names(row: Mapping[str, Any]) -> list[str]:
    concurrent = [f"{row['concurrent']} concurrent"] if row["concurrent"] else []
    return [*concurrent, *(limit["limit"] for limit in row["limits"])]
