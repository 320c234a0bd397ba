"""`routecodex store …`: copies state from one store to another, checks a store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import click

from routecodex.canon.errors import ConfigError
from routecodex.canon.store_url import is_redis_url
from routecodex.cli.cluster_store import run_alone
from routecodex.cli.config import config_option, config_path, examine_file
from routecodex.cli.servers import FAILED, json_option, print_json
from routecodex.cli.tables import plain, print_problem
from routecodex.cli.views import facts
from routecodex.config import Config, StoreConfig
from routecodex.config.check_store import PREFIX_FIX, is_valid_prefix
from routecodex.server.directories import session_dir, user_dir
from routecodex.server.state_store import open_configured_store, redis_options
from routecodex.server_tools.clock.task_store import BARE
from routecodex.stores.copying import (
    LEFT_OUT,
    CopyInterrupted,
    DamagedValues,
    KeyExists,
    UnknownSpaces,
    copy_store,
)
from routecodex.stores.file import FileStore
from routecodex.stores.store import Store, StoreError

_CHECK_SPACE, _CHECK_KEY = "store", "check"
_PATIENT_MS = 10_000
_MOST_SHOWN = 20
_CODES = """\b
Exit codes:
  0  done
  1  something failed, or a check found a fault; nothing was copied, unless the error says how much
  2  wrong arguments or configuration
"""


@click.group()
def store() -> None:
    """Copy state from one store to another, or check a store."""


def _valid_prefix(_context: click.Context, _parameter: click.Parameter, prefix: str | None) -> str | None:
    if prefix is not None and not is_valid_prefix(prefix):
        raise click.BadParameter(f"is not a valid prefix; {PREFIX_FIX}")
    return prefix


def _space_names(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("names no space")
    return names


@store.command(epilog=_CODES)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--prefix",
    metavar="P",
    callback=_valid_prefix,
    help="Beginning of the keys in Redis; default: store.prefix.",
)
@click.option(
    "--spaces",
    metavar="A,B",
    callback=_space_names,
    help="Only these spaces, such as sessions,clock; default: all.",
)
@click.option("--replace", is_flag=True, help="Overwrite keys that TO has already.")
@config_option
@json_option
def copy(
    *,
    source: str,
    target: str,
    prefix: str | None,
    spaces: list[str] | None,
    replace: bool,
    path: Path | None,
    as_json: bool,
) -> None:
    """Copy all state from one store to another; FROM and TO are URLs as in [store].

    Stop the gateways first. Expiry is kept; the registry of nodes, leases and logins are left out. Everything
    is read before the first value is written: a damaged value is named, and nothing is copied. Password and
    TLS of a store that the configuration names are taken from there.

    \b
    Examples:
      routecodex store copy file: redis://127.0.0.1:6379/0
      routecodex store copy redis://old:6379 redis://new:6379 --spaces sessions,clock --json
    """
    config = _config(path)

    async def run() -> dict[str, int]:
        opened = [_open(url, config, prefix) for url in (source, target)]
        try:
            _require_directory(opened[0])
            return await copy_store(*opened, spaces=spaces, replace=replace)
        finally:
            for one in opened:
                await one.close()

    copied = _run(run)
    if as_json:
        print_json({"copied": sum(copied.values()), "spaces": copied})
        return
    rows = {space: str(count) for space, count in copied.items()}
    facts({**rows, "copied": str(sum(copied.values()))})


def _run(work: Any) -> Any:
    try:
        return run_alone(work)
    except KeyExists as exc:
        print_problem(f"nothing was copied: TO has {exc} already; use --replace to overwrite")
    except UnknownSpaces as exc:
        print_problem(f"nothing was copied: {_about_spaces(exc)}")
    except DamagedValues as exc:
        _show_damaged(exc.problems)
    except CopyInterrupted as exc:
        fix = "copy again with --replace"
        print_problem(f"the copy has failed, TO has got {exc.copied} of the values: {exc}; {fix}")
    except StoreError as exc:
        print_problem(str(exc))
    except ConfigError as exc:
        print_problem(exc.message)
        raise SystemExit(2) from exc
    raise SystemExit(FAILED)


def _about_spaces(unknown: UnknownSpaces) -> str:
    excluded = [space for space in unknown.missing if space in LEFT_OUT]
    if excluded:
        return f"{', '.join(map(repr, excluded))} belongs to running processes and is never copied"
    return f"FROM has no space {unknown}; it has {', '.join(unknown.found) or 'none'}"


def _show_damaged(problems: list[str]) -> None:
    for problem in problems[:_MOST_SHOWN]:
        print_problem(problem)
    more = len(problems) - _MOST_SHOWN
    others = f", {more} of them not listed" if more > 0 else ""
    print_problem(
        f"nothing was copied: damaged values: {len(problems)}{others}; "
        "move or delete them: a gateway takes them for missing"
    )


def _require_directory(source: Store) -> None:
    """Raise StoreError for a source without a directory: the URL has probably a wrong path."""
    if isinstance(source, FileStore) and not source.directory.is_dir():
        raise StoreError(f"nothing was copied: FROM is {source.directory}, which is not a directory")


def _config(path: Path | None) -> Config:
    """Return the configuration in use; the defaults if there is none."""
    file = config_path(path)
    if path is None and not file.exists():
        return Config()
    config, problems = examine_file(file, stored_clients=True)
    if config is None:
        first = next(problem for problem in problems if problem.severity == "error")
        print_problem(str(first))
        raise SystemExit(2)
    return config


def _open(url: str, config: Config, prefix: str | None = None) -> Store:
    """Open a store; one that the configuration names has its settings."""
    named = config.store if url == config.store.url else StoreConfig(url=url, prefix=config.store.prefix)
    timeout = max(named.timeout_ms, _PATIENT_MS)
    fields = {"prefix": prefix or named.prefix, "timeout_ms": timeout}
    return open_configured_store(
        _replaced(named, fields), session_dir=session_dir(config, user_dir()), bare=BARE
    )


def _replaced(config: StoreConfig, fields: dict[str, Any]) -> StoreConfig:
    from msgspec.structs import replace

    return replace(config, **fields)


@store.command(epilog=_CODES)
@click.argument("url", required=False)
@config_option
@json_option
def check(url: str | None, path: Path | None, as_json: bool) -> None:
    """Check that a store can be reached, read and written, and that it keeps what it is given.

    Without URL: the store of the configuration.

    \b
    Examples:
      routecodex store check
      routecodex store check redis://127.0.0.1:6379/0 --json
    """
    config = _config(path)
    result = _run(lambda: _checked(url or config.store.url, config))
    if as_json:
        print_json(result)
    else:
        shown = {name: _text(value) for name, value in result.items() if name not in ("warnings", "error")}
        facts(shown)
        for text in result["warnings"]:
            print_problem(text, severity="warning")
    if result["error"]:
        if not as_json:
            print_problem(result["error"])
        raise SystemExit(FAILED)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else plain(str(value))


async def _checked(url: str, config: Config) -> dict[str, Any]:
    """Return what was found; `error` is empty if the store can be used. ConfigError for a wrong URL."""
    opened = _open(url, config)
    result: dict[str, Any] = {
        "url": _shown(url, config),
        "kind": opened.kind,
        "reachable": False,
        "version": None,
        "writable": False,
        "persistence": None,
        "eviction": None,
        "round_trip_ms": None,
        "warnings": [],
        "error": "",
    }
    try:
        await _fill(result, opened)
    except StoreError as exc:
        result["error"] = str(exc)
    finally:
        await opened.close()
    return result


async def _fill(result: dict[str, Any], opened: Store) -> None:
    await opened.get(_CHECK_SPACE, _CHECK_KEY)
    result["reachable"] = True
    described = await opened.describe()
    result |= {name: described[name] for name in ("version", "persistence", "eviction") if name in described}
    result["warnings"] = described.get("warnings", [])
    await opened.check(_CHECK_SPACE)
    await opened.put(_CHECK_SPACE, _CHECK_KEY, b"1", ttl=60)
    result["writable"] = True
    began = time.perf_counter()
    found = await opened.get(_CHECK_SPACE, _CHECK_KEY)
    result["round_trip_ms"] = round((time.perf_counter() - began) * 1000, 3)
    await opened.delete(_CHECK_SPACE, _CHECK_KEY)
    if found is None or found.value != b"1":
        result["error"] = "the store did not return what was written to it"
    await asyncio.sleep(0)


def _shown(url: str, config: Config) -> str:
    """Return the URL without user and password."""
    if not is_redis_url(url):
        return url
    return redis_options(_replaced(config.store, {"url": url})).address.shown
