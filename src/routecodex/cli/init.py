"""`routecodex init`: writes a configuration for the keys and model servers that are there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click
from msgspec import Struct
from msgspec.structs import replace

from routecodex.cli.admin_client import user_dir
from routecodex.cli.config import config_option, config_path, examine_file, examine_text, show
from routecodex.cli.config_draft import ProviderDraft, config_text, propose_routes
from routecodex.cli.config_edit import EditedConfig, EditRefused, ExistingProviders, add_to_config
from routecodex.cli.config_write import free_key_file, require_writable, write_all
from routecodex.cli.found_providers import LOCAL_SERVERS, key_variables
from routecodex.cli.init_choices import (
    CannotSetUp,
    ChosenProvider,
    Findings,
    InitOptions,
    choose,
    exit_invalid,
    find_all,
    parse_key_envs,
    parse_models,
    parse_presets,
    require_used_models,
    with_variables,
)
from routecodex.cli.servers import FAILED
from routecodex.cli.tables import print_problem
from routecodex.config import Problem, examine
from routecodex.config.syntax import parse
from routecodex.config.values import Secret
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS

_WRONG_CONFIG = 2
_INTERRUPTED = 130
_BOM = "\ufeff"


def _complete_preset(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[str]:
    """Complete names of presets in a shell."""
    return [name for name in PRESETS if name.startswith(prefix)]


@click.command(
    epilog="""\b
Exit codes:
  0    done, or nothing was missing
  1    nothing was found, or the file cannot be written
  2    wrong arguments, or a configuration with errors
  130  interrupted with Ctrl-C; nothing was written
"""
)
@click.option("--yes", "-y", is_flag=True, help="Ask nothing: use the keys and servers that are found.")
@click.option(
    "--preset",
    "presets",
    multiple=True,
    metavar="NAME",
    shell_complete=_complete_preset,
    help="Set up only this provider; may be repeated.",
)
@click.option(
    "--key-env",
    "key_envs",
    multiple=True,
    metavar="PRESET=VAR",
    help="Environment variable that holds the key of a preset; may be repeated.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="PRESET=MODEL",
    help="Model of a preset that answers most requests; repeated for one preset, the others are added.",
)
@config_option
@click.option("--no-test", is_flag=True, help="Send no test request with each key.")
@click.option("--dry-run", is_flag=True, help="Print the configuration on stdout; write and test nothing.")
@click.option("--force", is_flag=True, help="Start anew; an existing file is kept as FILE.bak-<time>.")
@click.option("--demo", is_flag=True, help="Set up the built-in demo provider: no key, no network.")
def init(
    *,
    yes: bool,
    presets: tuple[str, ...],
    key_envs: tuple[str, ...],
    models: tuple[str, ...],
    path: Path | None,
    no_test: bool,
    dry_run: bool,
    force: bool,
    demo: bool,
) -> None:
    """Write a configuration for the API keys and model servers that you have.

    Looks for keys in the environment and for Ollama, LM Studio, vLLM and llama.cpp on this machine, asks
    which of them to use, and proposes routes. Without a terminal it asks nothing, as with --yes. An existing
    file is only added to. Keys never stand in the file: it names their variables, and a key that you type
    goes into a file of its own in the user dir.

    \b
    Examples:
      routecodex init
      routecodex init --yes --no-test
      routecodex init --preset zai-coding --key-env zai-coding=MY_KEY --model zai-coding=glm-5.1
    """
    options = InitOptions(
        file=config_path(path),
        presets=parse_presets(presets),
        key_envs=parse_key_envs(key_envs, os.environ),
        models=parse_models(models),
        test=not no_test and not dry_run,
        dry_run=dry_run,
        force=force,
        demo=demo,
    )
    asks = not yes and sys.stdin.isatty() and sys.stdout.isatty()
    if not yes and not asks:
        click.echo("There is no terminal: nothing is asked, as with --yes.", err=True)
    try:
        _run(options, asks=asks)
    except (click.Abort, KeyboardInterrupt):
        click.echo("\ninterrupted: nothing was written", err=True)
        raise SystemExit(_INTERRUPTED) from None


class _Result(Struct, frozen=True, kw_only=True):
    """The text to write, and what is new in it."""

    text: str
    providers: Sequence[ProviderDraft]
    routes: Mapping[str, Sequence[str]]


def _run(options: InitOptions, *, asks: bool) -> None:
    before = None if options.force else _read_existing(options.file)
    if not options.dry_run:
        _require_writable(options.file)
    existing = ExistingProviders(_tables(before or ""))
    findings = Findings() if options.demo and not options.named else find_all(existing)
    chosen = _choose(options, findings, asks=asks)
    if not chosen and not findings.used:
        _exit_without_providers(findings, asks=asks)
    chosen = _without_present(chosen, existing)
    if options.test and any(one.has_key for one in chosen):
        from routecodex.cli.tested_providers import tested_providers  # it loads the gateway

        chosen = tested_providers(chosen, asks=asks)
        if not chosen:
            click.echo("No provider is left; nothing was written.", err=True)
            raise SystemExit(FAILED)
    chosen = [_with_key_file(one) for one in chosen]
    result = _checked(before, chosen, options.file)
    if options.dry_run:
        click.echo(result.text, nl=False)
    elif result.text == before:
        click.echo(f"{options.file}: nothing is missing, nothing was changed")
    elif not asks or _confirmed(options, result, before):
        _write(options, result, chosen)
        _report(options, result, before)


def _read_existing(file: Path) -> str | None:
    """Return the text of the file, None if there is none; exit if it is not a readable TOML file."""
    try:
        text = file.read_bytes().decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError):
        _exit_broken(examine_file(file)[1], file)
    problem = parse(text.removeprefix(_BOM))
    if isinstance(problem, Problem):
        _exit_broken([replace(problem, file=str(file))], file)
    return text


def _tables(text: str) -> dict[str, object]:
    tree = parse(text.removeprefix(_BOM))
    return {} if isinstance(tree, Problem) else tree


def _exit_broken(problems: Sequence[Problem], file: Path) -> NoReturn:
    """Show the errors of a configuration that cannot be added to, and exit."""
    show(problem for problem in problems if problem.severity == "error")
    option = f" --config {file}" if file != config_path(None) else ""
    click.echo(
        f"{file} was not changed. `routecodex config check{option}` shows its problems; "
        "`routecodex init --force` starts anew and keeps a copy.",
        err=True,
    )
    raise SystemExit(_WRONG_CONFIG)


def _require_writable(file: Path) -> None:
    try:
        require_writable(file)
    except OSError as exc:
        _exit_unwritable(exc, file)


def _exit_unwritable(exc: OSError, file: Path) -> NoReturn:
    where = exc.filename or file
    fix = "choose another file with --config, or set ROUTECODEX_USER_DIR to a directory that you can write"
    print_problem(f"cannot write {file}: {where}: {exc.strerror}\n    fix: {fix}")
    raise SystemExit(FAILED)


def _choose(options: InitOptions, findings: Findings, *, asks: bool) -> list[ChosenProvider]:
    """Return the providers to set up, chosen by the person or by the options."""
    if asks:
        from routecodex.cli.init_questions import ask_providers

        return ask_providers(options, findings)
    try:
        chosen, left_out = choose(options, findings)
    except CannotSetUp as exc:
        print_problem(str(exc))
        raise SystemExit(FAILED) from None
    for line in left_out:
        click.echo(f"left out: {line}", err=True)
    require_used_models(options, chosen)
    return chosen


def _without_present(chosen: Sequence[ChosenProvider], existing: ExistingProviders) -> list[ChosenProvider]:
    """Return the providers that the file does not have, and name the others."""
    names = [existing.named_like(one.draft) for one in chosen]
    for one, name in zip(chosen, names, strict=True):
        if name is not None:
            click.echo(f"{one.draft.name} is left as it is: the file has it as [providers.{name}]", err=True)
    return [one for one, name in zip(chosen, names, strict=True) if name is None]


def _exit_without_providers(findings: Findings, *, asks: bool) -> NoReturn:
    """Say what was looked for, and exit."""
    if asks:
        click.echo("No provider was chosen; nothing was written.", err=True)
        raise SystemExit(FAILED)
    servers = ", ".join(f"{PRESETS[one.preset].about} ({one.url})" for one in LOCAL_SERVERS)
    found = (
        "no key and no model server was found" if not findings.keys else "nothing that was found can be used"
    )
    print_problem(f"{found}; nothing was written")
    _explain("looked for keys in: ", ", ".join(key_variables()))
    _explain("looked for servers: ", servers)
    _explain(
        "fix: ",
        "set the variable of your provider, name another one with --key-env PRESET=VAR, or try the "
        "built-in demo with --demo",
    )
    raise SystemExit(FAILED)


def _with_key_file(one: ChosenProvider) -> ChosenProvider:
    if one.key is None:
        return one
    file = free_key_file(user_dir().absolute() / "keys", one.draft.name)
    return replace(one, draft=replace(one.draft, key_file=str(file)))


def _checked(before: str | None, chosen: Sequence[ChosenProvider], file: Path) -> _Result:
    """Return the new text; exit if `config check` would not accept it."""
    drafts, secrets = with_variables(chosen)
    try:
        trial = _result(before, drafts)
        result = _result(before, [one.draft for one in chosen])
    except EditRefused as exc:
        print_problem(f"{file} was not changed: {exc}")
        click.echo(
            "    fix: add the providers yourself; `routecodex init --dry-run --force` prints them", err=True
        )
        raise SystemExit(_WRONG_CONFIG) from exc
    config, problems = examine_text(
        trial.text.removeprefix(_BOM), source=str(file), environ={**os.environ, **secrets}
    )
    if config is not None:
        return result
    if before is None:
        exit_invalid(problems)
    _exit_broken(problems, file)


def _result(before: str | None, drafts: Sequence[ProviderDraft]) -> _Result:
    if before is None:
        return _Result(text=config_text(drafts), providers=drafts, routes=propose_routes(drafts))
    mark, text = (_BOM, before[1:]) if before.startswith(_BOM) else ("", before)
    config = examine(text, environ=os.environ, presets=PRESETS, dialect_type=Dialect)[0]
    edited: EditedConfig = add_to_config(text, drafts, config=config)
    return _Result(text=mark + edited.text, providers=edited.providers, routes=edited.routes)


def _explain(head: str, text: str) -> None:
    """Print a part of an explanation on stderr, in lines that fit a terminal."""
    click.echo(click.wrap_text(head + text, 100, "    ", "      "), err=True)


def _confirmed(options: InitOptions, result: _Result, before: str | None) -> bool:
    """Show what is new and ask whether to write it; exit if not."""
    if result.providers:
        click.echo(f"Providers: {', '.join(one.name for one in result.providers)}")
    if result.routes:
        click.echo("Routes, with their targets in order:" if before is None else "Routes that are new:")
        width = max(map(len, result.routes))
        for name, targets in result.routes.items():
            click.echo(f"  {name:<{width}}  {', '.join(targets)}")
    verb = "Write" if before is None else "Add this to"
    if click.confirm(f"{verb} {options.file}?", default=True):
        return True
    click.echo("Nothing was written.", err=True)
    raise SystemExit(FAILED)


def _write(options: InitOptions, result: _Result, chosen: Sequence[ChosenProvider]) -> None:
    keys: dict[Path, Secret] = {
        Path(one.draft.key_file): one.key for one in chosen if one.key is not None and one.draft.key_file
    }
    backup = _backup_path(options.file) if options.force and options.file.exists() else None
    try:
        write_all(options.file, result.text, keys=keys, back_up_as=backup)
    except OSError as exc:
        _exit_unwritable(exc, options.file)
    if backup is not None:
        click.echo(f"the old file is kept as {backup}", err=True)


def _backup_path(file: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    names = (f"{file.name}.bak-{stamp}{'' if number == 1 else f'-{number}'}" for number in range(1, 1000))
    return next(path for path in map(file.with_name, names) if not path.exists())


def _report(options: InitOptions, result: _Result, before: str | None) -> None:
    """Say what was written and what to do next."""
    names = ", ".join(one.name for one in result.providers)
    news = {"providers": names, "routes": ", ".join(result.routes)}
    verb = "wrote" if before is None else "added to"
    shown = "; ".join(f"{noun} {listed}" for noun, listed in news.items() if listed)
    click.echo(f"{verb} {options.file}: {shown}")
    if before is not None and result.providers and "default" not in result.routes:
        click.echo(
            "the route default was set and stays as it is; add the new providers to it if you like", err=True
        )
    option = "" if options.file == config_path(None) else f" --config {options.file}"
    click.echo(
        f"start the gateway with `routecodex start{option}`, or an agent with `routecodex run claude{option}`"
    )
