"""`routecodex prices …`: shows, imports and checks the prices of models."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from routecodex.accounting import litellm, price_file, price_report
from routecodex.accounting.price_file import FILE_NAME, PriceFileError
from routecodex.accounting.prices import PriceTable
from routecodex.cli import tables
from routecodex.cli.admin_client import AdminClient, announcements, is_running, user_dir
from routecodex.cli.config import config_option, config_path, load_or_exit
from routecodex.cli.servers import (
    FAILED,
    call_servers,
    exit_by_replies,
    json_option,
    print_json,
    server_option,
)
from routecodex.cli.tables import Column, TableRow, print_problem
from routecodex.config.providers import ProviderConfig
from routecodex.providers.catalog import price_groups

_COLUMNS = (
    Column("provider", fixed=True),
    Column("model"),
    *(Column(title, right=True, fixed=True) for title in ("input", "output", "cache read", "write", "1 h")),
    Column("tiers, modes"),
    Column("source", fixed=True),
    Column("date", fixed=True),
)
_EXIT_CODES = """\b
Exit codes:
  0  done
  1  a model has no price, or a file cannot be used
  2  wrong arguments or configuration
"""


@click.group()
def prices() -> None:
    """Show, import and check the prices of models, in USD per million tokens.

    The price of a model is that of the configuration, the provider's own figure in its answers, that of
    prices.json in the user dir, or that of the package: the first there is.
    """


@prices.command(epilog=_EXIT_CODES)
@click.argument("pattern", default="*")
@config_option
@server_option
@json_option
def show(pattern: str, path: Path | None, server_id: str | None, as_json: bool) -> None:
    """Show the prices of the configured models, then all other rows of the price files.

    PATTERN is a glob over `provider.model`. The configuration is that of --config, else that of the running
    servers, else the default file.

    \b
    Examples:
      routecodex prices show
      routecodex prices show 'anthropic.*'
      routecodex prices show '*.glm-4.7' --json
    """
    answer = _answer(pattern, path, server_id, needs_config=False)
    if as_json:
        print_json(answer)
        return
    _show_file_error(answer)
    if not answer["prices"]:
        print_problem(f"no model matches {pattern!r}; write a glob over provider.model, in quotes")
        raise SystemExit(FAILED)
    tables.show(_COLUMNS, [_cells(row) for row in answer["prices"]])


@prices.command(epilog=_EXIT_CODES)
@click.option(
    "--file",
    "source",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The file to import.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["routecodex", "litellm"]),
    default="routecodex",
    help="routecodex: the format of the package; litellm: LiteLLM's model_prices_and_context_window.json.",
)
@json_option
def update(source: Path, form: str, as_json: bool) -> None:
    """Import a price file as prices.json of the user dir; it goes before the prices of the package.

    It replaces an earlier one. Running servers use it within a second. A file with a mistake changes nothing.

    \b
    Examples:
      routecodex prices update --file prices.json
      routecodex prices update --file model_prices_and_context_window.json --format litellm
    """
    try:
        saved = _import(source, form)
    except PriceFileError as exc:
        print_problem(f"{exc.message}; nothing was changed")
        raise SystemExit(FAILED) from exc
    except OSError as exc:
        print_problem(f"{exc.filename or source}: {exc.strerror}; nothing was changed")
        raise SystemExit(FAILED) from exc
    if as_json:
        print_json(saved)
        return
    counts = f"{_counted(saved['prices'], 'price')} of {_counted(saved['providers'], 'provider')}"
    click.echo(f"{saved['file']}: {counts} as of {saved['as_of']}")
    if saved["skipped"]:
        click.echo(f"left out: {_counted(len(saved['skipped']), 'row')} without usable prices per token")


def _import(source: Path, form: str) -> dict[str, Any]:
    data, today = source.read_bytes(), price_file.day_of(time.time())
    skipped: list[dict[str, str]] = []
    if form == "litellm":
        file, skipped = litellm.convert(data, source=str(source), today=today)
    else:
        file = price_file.parse(data, source=str(source), today=today)
    return price_report.save_prices(file, user_dir() / FILE_NAME, skipped=skipped)


@prices.command(epilog=_EXIT_CODES)
@config_option
@server_option
@json_option
def check(path: Path | None, server_id: str | None, as_json: bool) -> None:
    """Check that every configured model has a price; warn about prices older than 180 days.

    \b
    Examples:
      routecodex prices check
      routecodex prices check --config gateway.toml --json
    """
    found = price_report.check_prices(
        _answer("*", path, server_id, needs_config=True), price_file.day_of(time.time())
    )
    if as_json:
        print_json(found)
    else:
        _show_check(found)
    if found["missing"] or found["file_error"]:
        raise SystemExit(FAILED)


@prices.command()
@json_option
def reset(as_json: bool) -> None:
    """Remove prices.json of the user dir, so that the prices of the package count again."""
    path = user_dir() / FILE_NAME
    removed = path.exists()
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        print_problem(f"{path} cannot be removed: {exc.strerror}")
        raise SystemExit(FAILED) from exc
    if as_json:
        print_json({"file": str(path), "removed": removed})
    else:
        click.echo(f"{path} removed" if removed else f"{path} does not exist; nothing to do")


def _answer(pattern: str, path: Path | None, server_id: str | None, *, needs_config: bool) -> dict[str, Any]:
    """Return the prices by a file, by the running servers, or by the default file."""
    if path is not None and server_id is not None:
        raise click.UsageError("--config works without a server; leave out --server")
    if path is None and (server_id is not None or any(is_running(one.pid) for one in announcements())):
        return _answer_of_servers(pattern, server_id)
    providers: Mapping[str, ProviderConfig] = {}
    if path is not None or needs_config or config_path(None).exists():
        providers = load_or_exit(path).providers
    table = PriceTable(providers, groups_of=price_groups, file=user_dir() / FILE_NAME)
    return price_report.show_prices(table, pattern)


def _answer_of_servers(pattern: str, server_id: str | None) -> dict[str, Any]:
    def call(admin: AdminClient) -> dict[str, Any]:
        return admin.get("/admin/prices", pattern=pattern)

    replies = call_servers(server_id, call)
    exit_by_replies(replies)
    answers = [reply.answer for reply in replies if reply.answer]
    rows: list[Any] = []
    for answer in answers:
        rows += [row for row in answer["prices"] if row not in rows] if rows else answer["prices"]
    return {**answers[0], "prices": rows}


def _show_file_error(answer: Mapping[str, Any]) -> None:
    if answer["file_error"]:
        print_problem(f"{answer['file_error']}; the file is not used. `routecodex prices reset` removes it")


def _show_check(found: Mapping[str, Any]) -> None:
    _show_file_error(found)
    for row in found["missing"]:
        place = f'providers.{row["provider"]}.models."{row["model"]}".price'
        print_problem(
            f'{row["provider"]}.{row["model"]} has no price; set {place}, or "free" if it costs nothing'
        )
    old = [row for row in found["old"] if row["configured"]]
    for row in old:
        text = f"the price of {row['provider']}.{row['model']} is from {row['date']}, {row['days']} days ago"
        print_problem(f"{text}; {price_report.UPDATE_FIX}", severity="warning")
    others = len(found["old"]) - len(old)
    if others:
        text = (
            f"{_counted(others, 'other row')} of the price files are older than {price_report.OLD_DAYS} days"
        )
        print_problem(text, severity="warning")
    priced = found["models"] - len(found["missing"])
    click.echo(
        f"{priced} of {_counted(found['models'], 'model')} have a price; prices as of {found['as_of']}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _cells(row: Mapping[str, Any]) -> TableRow:
    names = ("input", "output", "cache_read", "cache_write", "cache_write_1h")
    amounts = [_amount(row.get(name)) for name in names]
    if row["free"]:
        amounts = ["free", *("" for _ in names[1:])]
    elif row["source"] is None:
        amounts = ["unknown", *("" for _ in names[1:])]
    return [row["provider"], row["model"], *amounts, _extras(row), row["source"] or "-", row["date"] or "-"]


def _extras(row: Mapping[str, Any]) -> str:
    tiers: Sequence[Mapping[str, Any]] = row.get("tiers", ())
    shown = [
        f">{tier['above']}: {_amount(tier.get('input'))}/{_amount(tier.get('output'))}" for tier in tiers
    ]
    if row.get("reasoning") is not None:
        shown.append(f"reasoning: {_amount(row['reasoning'])}")
    return ", ".join([*shown, *row.get("modes", {})])


def _amount(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")
