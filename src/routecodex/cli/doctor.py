"""`routecodex doctor`: checks the set-up, and with agents whether they work with every target."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import ConfigError
from routecodex.cli import tables
from routecodex.cli.admin_client import announcements, user_dir
from routecodex.cli.agents import AGENTS
from routecodex.cli.checks.configuration import check_config, every_target, named_targets
from routecodex.cli.checks.result import CheckResult, Status, failed
from routecodex.cli.config import config_option, config_path
from routecodex.cli.servers import FAILED, json_option, print_json
from routecodex.config import Config
from routecodex.config.problems import choices, nearest
from routecodex.config.server_tools import NtpConfig

if TYPE_CHECKING:
    from routecodex.cli.checks.gateway_in_use import GatewayInUse

_NO_GATEWAY = "correct this; `routecodex doctor` without an agent checks proxies and providers"
_EPILOG = """\b
Exit codes:
  0  nothing failed; warnings are allowed
  1  a check failed
  2  wrong arguments
"""


class DoctorOptions(Struct, frozen=True, kw_only=True):
    """Scope of the checks: agents, targets, the file, whether to try keys and to stay on this machine."""

    agents: tuple[str, ...]
    targets: tuple[str, ...]
    file: Path
    keys: bool
    offline: bool


@click.command(epilog=_EPILOG)
@click.argument("agents", nargs=-1, metavar="[AGENT]...", type=click.Choice(list(AGENTS)))
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="T",
    help="Only this target (`provider.model`, or `provider` for all its models); may be repeated.",
)
@config_option
@click.option("--keys", is_flag=True, help="Try every key of every provider with one small request.")
@click.option("--offline", is_flag=True, help="Send nothing off this machine.")
@json_option
def doctor(
    *,
    agents: tuple[str, ...],
    targets: tuple[str, ...],
    path: Path | None,
    keys: bool,
    offline: bool,
    as_json: bool,
) -> None:
    """Check the set-up, and with agents whether they work with your targets.

    Without an agent: configuration, port, disk, permissions of keys, clock, proxy variables, and whether each
    provider can be reached. With agents: whether they are installed, which of your settings get in the way,
    and requests as the agent sends them, through the gateway to each target of your routes. These requests
    cost a few tokens.

    AGENT is claude, codex, gemini, opencode, qwen, pi, aider or crush.

    \b
    Examples:
      routecodex doctor
      routecodex doctor --keys
      routecodex doctor claude --target glm.glm-4.7
    """
    options = DoctorOptions(
        agents=tuple(dict.fromkeys(agents)),
        targets=targets,
        file=config_path(path),
        keys=keys,
        offline=offline,
    )
    import asyncio  # slow to import, and `routecodex --help` loads this module

    results = asyncio.run(_collect(options, shown=not as_json))
    if as_json:
        ok = not any(result.status == "fail" for result in results)
        print_json({"ok": ok, "checks": results})
    else:
        _show_summary(results)
    if any(result.status == "fail" for result in results):
        raise SystemExit(FAILED)


async def _collect(options: DoctorOptions, *, shown: bool) -> list[CheckResult]:
    results: list[CheckResult] = []
    async for result in _run(options):
        results.append(result)
        if shown:
            _show(result)
    return results


async def _run(options: DoctorOptions) -> AsyncIterator[CheckResult]:
    config, result = check_config(options.file)
    targets = _select_targets(config, options.targets) if config is not None else []
    yield result
    if not options.agents:
        async for result in _check_machine(config, options):
            yield result
    if config is not None and options.keys:
        for result in await _check_keys(config, options):
            yield result
    if options.agents:
        async for result in _check_agents(config, options, targets):
            yield result


def _select_targets(config: Config, wanted: Sequence[str]) -> list[str]:
    """Return the targets to check as `provider.model`; an unknown name is a usage error."""
    if not wanted:
        return named_targets(config)
    every = every_target(config)
    found: list[str] = []
    for name in wanted:
        chosen = [name] if name in every else [one for one in every if one.partition(".")[0] == name]
        if not chosen:
            close = nearest(name, every)
            hint = f"did you mean {close!r}?" if close else f"known: {choices(every)}"
            raise click.UsageError(f"no target is called {name!r}; {hint}")
        found += chosen
    return list(dict.fromkeys(found))


async def _check_machine(config: Config | None, options: DoctorOptions) -> AsyncIterator[CheckResult]:
    from routecodex.cli.checks.machine import check_clock, check_disk, check_port
    from routecodex.cli.checks.providers import check_providers
    from routecodex.cli.checks.proxy_variables import check_proxy
    from routecodex.cli.checks.secret_files import check_permissions

    yield check_port(config, announcements())
    yield check_disk(_state_folders(config))
    yield check_permissions(options.file, config, user_dir())
    ntp = config.server_tools.clock.ntp if config is not None else NtpConfig()
    yield await check_clock(ntp, os.environ, offline=options.offline)
    yield check_proxy(config, os.environ)
    if config is not None:
        async for result in check_providers(config, os.environ, offline=options.offline):
            yield result


def _state_folders(config: Config | None) -> Iterator[Path]:
    from routecodex.server.directories import session_dir

    yield user_dir()
    if config is None:
        return
    yield session_dir(config)
    scheme, _, path = config.store.url.partition(":")
    if scheme == "file" and path:
        yield Path(path.removeprefix("//")).expanduser()


async def _check_keys(config: Config, options: DoctorOptions) -> list[CheckResult]:
    from routecodex.cli.checks.provider_keys import check_keys

    return await check_keys(config, os.environ, offline=options.offline)


async def _check_agents(
    config: Config | None, options: DoctorOptions, targets: list[str]
) -> AsyncIterator[CheckResult]:
    if config is None:
        for name in options.agents:
            for result in _check_person(name):
                yield result
        return
    from routecodex.cli.checks.gateway_in_use import open_gateway, running_server

    server = running_server(options.file, announcements())
    async with AsyncExitStack() as stack:
        gateway, problem = None, ""
        try:
            opened = open_gateway(config, server=server, environ=os.environ)
            gateway = await stack.enter_async_context(opened)
        except ConfigError as exc:
            problem = exc.message
        for name in options.agents:
            for result in _check_person(name):
                yield result
            async for result in _check_shapes(name, config, targets, gateway=gateway, options=options):
                yield result if gateway is not None else replace(result, message=problem)


def _check_person(name: str) -> Iterator[CheckResult]:
    """Yield the checks of an agent that need no gateway."""
    from routecodex.cli.checks.agent_program import check_installed
    from routecodex.cli.checks.agent_settings import PersonalFiles, check_settings

    yield check_installed(AGENTS[name], os.environ)
    yield check_settings(AGENTS[name], PersonalFiles(environ=os.environ, work=Path.cwd()))


async def _check_shapes(
    name: str, config: Config, targets: list[str], *, gateway: GatewayInUse | None, options: DoctorOptions
) -> AsyncIterator[CheckResult]:
    from routecodex.cli.checks.shape_runs import run_agent, target_facts
    from routecodex.cli.checks.shapes import AGENT_SHAPES

    shapes = AGENT_SHAPES[name]
    if gateway is None:
        for target in targets:
            for shape in shapes.shapes:
                yield failed(f"{name}.{target}.{shape}", "no gateway could be started", _NO_GATEWAY)
        return
    facts = [target_facts(config, target) for target in targets]
    async for result in run_agent(name, shapes, facts, gateway=gateway, offline=options.offline):
        yield result


_MARKS: dict[Status, tuple[str, str, str]] = {
    "ok": ("✓", "+", "green"),
    "warn": ("!", "!", "yellow"),
    "fail": ("✗", "x", "red"),
    "skip": ("-", "-", ""),
}
"""Sign of each status, the one for terminals without Unicode, and its colour."""


def _show(result: CheckResult) -> None:
    sign, plain_sign, colour = _MARKS[result.status]
    mark = sign if _can_print(sign) else plain_sign
    if colour and tables.is_coloured(sys.stdout):
        mark = tables.style(mark, colour)
    tables.echo(f"{mark} {tables.plain(result.id)}: {_printable(result.message)}")
    if result.fix:
        tables.echo(f"    fix: {_printable(result.fix)}")


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _printable(text: str) -> str:
    """Return the text in one line, as far as the terminal can show it."""
    text = tables.plain(" ".join(text.split("\n")))
    return text if _can_print(text) else text.encode("ascii", "replace").decode()


_NOUNS: dict[Status, str] = {"ok": "ok", "warn": "warning", "fail": "failed", "skip": "skipped"}


def _show_summary(results: Sequence[CheckResult]) -> None:
    counts = {status: sum(one.status == status for one in results) for status in _NOUNS}
    parts = [f"{count} {_noun(status, count)}" for status, count in counts.items() if count]
    tables.echo()
    tables.echo(f"{len(results)} checks: {', '.join(parts)}")


def _noun(status: Status, count: int) -> str:
    return "warnings" if status == "warn" and count > 1 else _NOUNS[status]
