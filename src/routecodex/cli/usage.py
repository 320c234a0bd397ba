"""`routecodex usage`: requests, tokens and costs, from the usage ledger of a server."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from routecodex.accounting.figures import FIGURE_NAMES
from routecodex.accounting.ledger_file import UnreadableLedger, ledger_path
from routecodex.accounting.ledger_query import GROUPS
from routecodex.accounting.usage_report import InvalidUsageQuery, UsageQuestion, merge, read_usage, zone_of
from routecodex.cli import tables
from routecodex.cli.admin_client import AdminClient, announcements, is_running, user_dir
from routecodex.cli.config import config_option, config_path, load_or_exit
from routecodex.cli.servers import (
    FAILED,
    call_servers,
    complete_id,
    exit_by_replies,
    json_option,
    print_json,
    unknown_server,
)
from routecodex.cli.tables import Column, TableRow, dollars, print_problem

_EXIT_CODES = """\b
Exit codes:
  0  done
  1  a ledger cannot be read, or a server rejected the call
  2  wrong arguments or configuration
  3  no server is running (with --all)
"""
_FIGURES = (
    *(Column(title, right=True, fixed=True) for title in ("requests", "errors", "input", "cached", "output")),
    Column("cost", right=True, fixed=True),
)
_NOTES = (Column("not reported", right=True, fixed=True), Column("no price", right=True, fixed=True))


@click.command(epilog=_EXIT_CODES)
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(GROUPS),
    help="Show figures by this name; may be given several times. provider, model and key count calls.",
)
@click.option("--since", metavar="TIME", help="Begin: 7d, 24h, a date or a time. Default: today.")
@click.option("--until", metavar="TIME", help="End, in the same forms. Default: now.")
@click.option("--client", metavar="NAME", help="Only this client.")
@click.option("--team", metavar="NAME", help="Only this team.")
@click.option("--provider", metavar="NAME", help="Only calls of this provider.")
@click.option("--model", metavar="NAME", help="Only calls of this model of a provider.")
@click.option("--session", metavar="ID", help="Only this session.")
@click.option("--all", "ask_all", is_flag=True, help="Ask every running server instead of reading its file.")
@config_option
@click.option(
    "--server",
    "server_id",
    metavar="ID",
    shell_complete=complete_id,
    help="The ledger of this server, running or not; default: all running servers.",
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def usage(
    by: tuple[str, ...],
    since: str | None,
    until: str | None,
    *,
    ask_all: bool,
    path: Path | None,
    server_id: str | None,
    as_json: bool,
    as_csv: bool,
    **filters: str | None,
) -> None:
    """Show requests, tokens and costs.

    The ledger is that of --server or --config, else those of the running servers, else that of the default
    configuration file. No server needs to run. Days are those of usage.timezone.

    \b
    Examples:
      routecodex usage
      routecodex usage --by client --since 7d
      routecodex usage --by day --by model --since 2026-11-01 --csv
      routecodex usage --by session --client laptop
    """
    _check_flags(ask_all=ask_all, path=path, server_id=server_id, as_json=as_json, as_csv=as_csv)
    try:
        question = UsageQuestion(by=by, since=since, until=until, filters=filters, now=time.time())
    except InvalidUsageQuery as exc:
        raise click.UsageError(f"--{exc.parameter}: {exc.message}") from exc
    if ask_all:
        answer = _ask_servers(question, by, since=since, until=until, filters=filters)
    else:
        answer = _read_files(question, _ledgers(path, server_id))
    if as_json:
        print_json(answer)
    elif as_csv:
        _print_csv(answer)
    else:
        _show(answer)


def _check_flags(
    *, ask_all: bool, path: Path | None, server_id: str | None, as_json: bool, as_csv: bool
) -> None:
    if ask_all and (path is not None or server_id is not None):
        raise click.UsageError("--all asks every running server; leave out --server and --config")
    if path is not None and server_id is not None:
        raise click.UsageError("--config and --server both choose a ledger; give one of them")
    if as_json and as_csv:
        raise click.UsageError("--json and --csv: give one of them")


def _ledgers(path: Path | None, server_id: str | None) -> list[Path]:
    """Return the files of the chosen servers."""
    if server_id is not None:
        return [_ledger_of_server(server_id)]
    if path is None:
        running = [server for server in announcements() if is_running(server.pid)]
        found = [Path(server.ledger) for server in running if server.ledger]
        if found:
            return found
        if running:
            print_problem("the running servers keep no usage ledger; set usage.enabled")
            raise SystemExit(FAILED)
        kept = sorted((user_dir() / "usage").glob("*.sqlite"))
        if not config_path(None).exists() and kept:
            return kept
    file = ledger_path(load_or_exit(path), user_dir())
    if file is None:
        print_problem("there is no usage ledger; set usage.enabled")
        raise SystemExit(FAILED)
    return [file]


def _ledger_of_server(server_id: str) -> Path:
    announced = {server.id: server.ledger for server in announcements()}
    kept = {file.stem: file for file in (user_dir() / "usage").glob("*.sqlite")}
    ledger = announced.get(server_id)
    if ledger:
        return Path(ledger)
    # The id is looked up, not joined to a path.
    if server_id in kept:
        return kept[server_id]
    if server_id in announced:
        print_problem(f"{server_id} keeps no usage ledger; set usage.enabled")
        raise SystemExit(FAILED)
    raise unknown_server(server_id, {*announced, *kept})


def _read_files(question: UsageQuestion, files: Sequence[Path]) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    for file in dict.fromkeys(files):
        try:
            answers.append(read_usage(file, question))
        except FileNotFoundError:
            click.echo(f"no request has been counted yet: {file} does not exist", err=True)
        except UnreadableLedger as exc:
            print_problem(str(exc))
            raise SystemExit(FAILED) from exc
    if len(answers) == 1:
        return answers[0]
    return merge(question, answers, zone_of("UTC"))


def _ask_servers(
    question: UsageQuestion,
    by: Sequence[str],
    *,
    since: str | None,
    until: str | None,
    filters: Mapping[str, str | None],
) -> dict[str, Any]:
    def call(admin: AdminClient) -> dict[str, Any]:
        return admin.get("/admin/usage", by=",".join(by) or None, since=since, until=until, **filters)

    replies = call_servers(None, call)
    exit_by_replies(replies)
    return merge(question, [reply.answer for reply in replies if reply.answer], zone_of("UTC"))


def _print_csv(answer: Mapping[str, Any]) -> None:
    names = [*answer["by"], *FIGURE_NAMES]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    rows = answer["rows"] if answer["by"] else [answer["total"]]
    writer.writerows([["" if row[name] is None else row[name] for name in names] for row in rows])


def _show(answer: Mapping[str, Any]) -> None:
    names, total = answer["by"], answer["total"]
    notes = [column for column, field in zip(_NOTES, _NOTED, strict=True) if total[field]]
    columns = [*map(Column, names), *_FIGURES, *notes]
    rows: list[TableRow] = [
        [*(str(row[name]) or "—" for name in names), *_cells(row, total)] for row in answer["rows"]
    ]
    if not names:
        rows = [_cells(total, total)]
    elif rows:
        rows.append(["total", *("" for _ in names[1:]), *_cells(total, total)])
    tables.heading(f"from {answer['since']} to {answer['until']}")
    tables.show(columns, rows)


_NOTED = ("cost_estimated", "cost_unknown")


def _cells(row: Mapping[str, Any], total: Mapping[str, Any]) -> TableRow:
    rate = row["cache_hit_rate"]
    is_unknown = row["requests"] and row["cost_unknown"] == row["requests"]
    cells = [
        str(row["requests"]),
        str(row["errors"]),
        str(row["input_tokens"]),
        "" if rate is None else f"{rate:.0%}",
        str(row["output_tokens"]),
        dollars(None if is_unknown else row["cost"]),
    ]
    if total["cost_estimated"]:
        cells.append(dollars(row["cost_estimated"]) if row["cost_estimated"] else "")
    if total["cost_unknown"]:
        cells.append(str(row["cost_unknown"] or ""))
    return cells
