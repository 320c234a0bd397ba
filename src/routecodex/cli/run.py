"""`routecodex run` and `env`: start a coding agent on the gateway, without a change to its files."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from routecodex.cli.admin_client import AnnouncedServer, Unreachable, user_dir
from routecodex.cli.agent_process import run_in_foreground
from routecodex.cli.agents import AGENTS
from routecodex.cli.agents.agent import Agent, LaunchPlan, LaunchRequest
from routecodex.cli.agents.detection import find_executable, find_version, not_installed
from routecodex.cli.agents.written_files import HIDDEN, shown_content, without_secrets, write_files
from routecodex.cli.gateway_models import (
    GatewayModels,
    check_key,
    checked_model,
    choose_model,
    fetch_models,
    models_for_agent,
)
from routecodex.cli.gateway_start import choose_start, free_address, models_of_start
from routecodex.cli.servers import FAILED, NO_SERVER, complete_id, print_json
from routecodex.cli.shared_gateway import GatewayStart, NoGateway, find_gateway, use_gateway
from routecodex.cli.shell_text import SHELLS, command_text, exports
from routecodex.cli.tables import print_problem

_NOT_INSTALLED = 127
_INTERRUPTED = 130
_LONGEST_SESSION = 256
_NO_KEY = "routecodex"
"""Sent to a gateway that wants no key: agents refuse to start without one."""
_EXIT_CODES = """\b
Exit codes:
  the agent's own, 128 + N if signal N ended it; else
  2    wrong arguments or configuration
  3    no gateway could be reached or started
  127  the agent is not installed
"""
_ENV_EXIT_CODES = """\b
Exit codes:
  0  done
  2  wrong arguments or configuration
  3  no server is running
"""


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options of a run, as far as they describe the agent's start."""

    agent: Agent
    model: str | None = None
    small_model: str | None = None
    session: str | None = None
    server_id: str | None = None
    key: str | None = None
    exe: str | None = None
    arguments: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The models that the person named."""
        return tuple(filter(None, (self.model, self.small_model)))


class AgentCommand(click.Command):
    """A command that says where arguments of the agent go."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; an unknown option is probably one of the agent."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            hint = f"arguments of the agent go behind --, as in `run AGENT -- {exc.option_name} …`"
            raise click.UsageError(f"no such option {exc.option_name!r}; {hint}", ctx) from exc


def _agent(_context: click.Context, _parameter: click.Parameter, name: str) -> Agent:
    from routecodex.config.problems import nearest

    if name in AGENTS:
        return AGENTS[name]
    near = nearest(name.lower(), AGENTS)
    hint = f"did you mean {near!r}? " if near else ""
    raise click.UsageError(f"{name!r} is not an agent; {hint}Agents: {', '.join(AGENTS)}")


def _session(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if not value.strip() or not value.isprintable():
        raise click.BadParameter("a session needs a printable name")
    if len(value.encode("utf-8", "surrogateescape")) > _LONGEST_SESSION:
        raise click.BadParameter(f"longer than {_LONGEST_SESSION} bytes")
    return value.strip()


def _complete_agent(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[str]:
    return [name for name in AGENTS if name.startswith(prefix)]


_agent_argument = click.argument("agent", callback=_agent, shell_complete=_complete_agent)
_model_option = click.option(
    "--model",
    metavar="M",
    help="Model, as `/v1/models` lists it; default: the first of the route `default`, "
    "for claude and gemini their own names.",
)
_small_model_option = click.option(
    "--small-model", metavar="M", help="Model for small work, for claude and opencode."
)
_session_option = click.option(
    "--session",
    metavar="ID",
    callback=_session,
    help="Session of all requests, for instructions in the chat.",
)
_server_option = click.option(
    "--server", "server_id", metavar="ID", shell_complete=complete_id, help="Server to use, if several run."
)
_key_option = click.option(
    "--key",
    metavar="VALUE",
    envvar="ROUTECODEX_KEY",
    help="Client key, if the gateway wants one; default: $ROUTECODEX_KEY.",
)
_exe_option = click.option("--exe", metavar="PATH", help="The agent's program; default: from PATH.")


@click.command(cls=AgentCommand, epilog=_EXIT_CODES, context_settings={"max_content_width": 100})
@_agent_argument
@_model_option
@_small_model_option
@_session_option
@click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration of the gateway, if one must be started; default as for `serve`.",
)
@_server_option
@_key_option
@_exe_option
@click.option("--demo", is_flag=True, help="Use the built-in demo provider: no keys, no network.")
@click.option("--print", "printed", is_flag=True, help="Start and write nothing; show what would be done.")
@click.option("--json", "as_json", is_flag=True, help="With --print: as JSON.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
def run(*, path: Path | None, demo: bool, printed: bool, as_json: bool, **options: Any) -> None:
    """Start a coding agent on the gateway: claude, codex, gemini, opencode, qwen, pi, aider or crush.

    Uses the running gateway, or starts one that stops with the last agent. None of the agent's own files is
    changed: it gets variables, flags, and files below `agents/` in the user dir.

    \b
    Examples:
      routecodex run claude
      routecodex run codex --model glm.glm-4.7 -- exec "fix the tests"
      routecodex run opencode --demo
    """
    given = _checked(RunOptions(**options))
    if as_json and not printed:
        raise click.UsageError("--json needs --print")
    if demo and (path is not None or given.server_id is not None):
        raise click.UsageError("--demo starts a gateway of its own; leave out --config and --server")
    with _failures():
        if printed:
            _print_plan(given, path=path, demo=demo, as_json=as_json)
        else:
            raise SystemExit(_run(given, path=path, demo=demo))


@click.command(epilog=_ENV_EXIT_CODES)
@_agent_argument
@click.option(
    "--shell", type=click.Choice(list(SHELLS)), default="sh", show_default=True, help="Syntax of the output."
)
@_model_option
@_small_model_option
@_session_option
@_server_option
@_key_option
@_exe_option
def env(*, shell: str, **options: Any) -> None:
    """Print the variables by which an agent uses the running gateway, for a shell to evaluate.

    A last comment shows the command to start, if the agent needs flags too.

    \b
    Examples:
      eval "$(routecodex env claude)"
      routecodex env codex --shell fish | source
    """
    given = _checked(RunOptions(**options))
    with _failures():
        server = find_gateway(given.server_id)
        if server is None:
            raise NoGateway("no server is running; `routecodex start` starts one")
        executable = find_executable(given.agent, os.environ, given.exe)
        request = _request(given, server.url, executable, models=_models_of(server, given))
        plan = _planned(request, given.agent)
        _write(request, plan)
        for line in exports(shell, plan.env, plan.unset):
            click.echo(line)
        if plan.flags:
            name = given.exe or given.agent.executables[0]
            click.echo(f"# start: {command_text(shell, (name, *plan.flags))}")


def _checked(options: RunOptions) -> RunOptions:
    if options.small_model is not None and not options.agent.has_small_model:
        names = " and ".join(name for name, agent in AGENTS.items() if agent.has_small_model)
        raise click.UsageError(f"--small-model is for {names}")
    return options


@contextmanager
def _failures() -> Iterator[None]:
    """Turn failures into messages and exit codes; stdout is the agent's."""
    try:
        yield
    except (NoGateway, Unreachable) as exc:
        print_problem(str(exc))
        for line in getattr(exc, "log", ()):
            click.echo(f"    {line}", err=True)
        raise SystemExit(NO_SERVER) from exc
    except (KeyboardInterrupt, click.Abort) as exc:
        raise SystemExit(_INTERRUPTED) from exc


def _run(options: RunOptions, *, path: Path | None, demo: bool) -> int:
    executable = find_executable(options.agent, os.environ, options.exe)
    if executable is None:
        print_problem(not_installed(options.agent, options.exe))
        return _NOT_INSTALLED
    server = find_gateway(options.server_id, demo=demo)
    start = _start(options, server, path=path, demo=demo)
    with use_gateway(options.server_id, demo=demo or _is_demo(start), start=start) as use:
        request = _request(options, use.server.url, executable, models=_models_of(use.server, options))
        plan = _planned(request, options.agent)
        _report(use.server, path=path, started=use.started)
        _write(request, plan)
        return _start_agent(request, plan)


def _start(
    options: RunOptions, server: AnnouncedServer | None, *, path: Path | None, demo: bool
) -> GatewayStart | None:
    """Return the gateway to start, if none is running and none was named."""
    if server is not None or options.server_id is not None:
        return None
    return choose_start(path, demo=demo)


def _is_demo(start: GatewayStart | None) -> bool:
    return start is not None and start.is_demo


def _report(server: AnnouncedServer, *, path: Path | None, started: bool) -> None:
    if started:
        click.echo(f"routecodex: started a gateway at {server.url}, log: {server.log}", err=True)
    elif path is not None and server.config != str(path.absolute()):
        about = f"{server.id} is running with {server.config or 'the demo'}"
        print_problem(f"--config is not used, because {about}", severity="warning")


def _models_of(server: AnnouncedServer, options: RunOptions) -> GatewayModels:
    check_key(server, options.key)
    return fetch_models(server, options.key, options.names)


def _request(
    options: RunOptions, url: str, executable: Path | None, *, models: GatewayModels
) -> LaunchRequest:
    model = choose_model(options.agent, models, options.model)
    small = options.small_model and checked_model(models, options.small_model)
    return LaunchRequest(
        url=url,
        key=options.key or _NO_KEY,
        models=models_for_agent(models, model, small),
        folder=(user_dir() / "agents" / options.agent.name).absolute(),
        environ=os.environ,
        generated_session=f"run-{secrets.token_hex(4)}",
        executable=None if executable is None else str(executable),
        arguments=options.arguments,
        model=model,
        small_model=small,
        session=options.session,
        codex_rows=models.codex_rows,
    )


def _planned(request: LaunchRequest, agent: Agent) -> LaunchPlan:
    plan = agent.plan(request)
    return replace(plan, env=plan.env | _without_proxy(request))


def _without_proxy(request: LaunchRequest) -> dict[str, str]:
    """Return variables that keep requests to the gateway away from a person's HTTP proxy."""
    proxies = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    if not any(request.environ.get(name) for name in proxies):
        return {}
    present = request.environ.get("NO_PROXY") or request.environ.get("no_proxy") or ""
    hosts = [host.strip() for host in present.split(",") if host.strip()]
    missing = [host for host in ("127.0.0.1", "localhost", "::1") if host not in hosts]
    if "*" in hosts or not missing:
        return {}
    return dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join((*hosts, *missing)))


def _write(request: LaunchRequest, plan: LaunchPlan) -> None:
    if not plan.files:
        return
    try:
        write_files(request.folder, plan.files)
    except OSError as exc:
        print_problem(f"cannot write below {request.folder}: {exc.strerror}; set ROUTECODEX_USER_DIR")
        raise SystemExit(FAILED) from exc


def _argv(request: LaunchRequest, plan: LaunchPlan, program: str) -> list[str]:
    arguments = request.arguments if plan.arguments is None else plan.arguments
    return [program, *plan.flags, *arguments]


def _start_agent(request: LaunchRequest, plan: LaunchPlan) -> int:
    environ = {name: value for name, value in os.environ.items() if name not in plan.unset}
    assert request.executable is not None
    sys.stdout.flush()
    try:
        return run_in_foreground(_argv(request, plan, request.executable), environ | plan.env)
    except OSError as exc:
        print_problem(f"cannot start {request.executable}: {exc.strerror}")
        return FAILED


def _print_plan(options: RunOptions, *, path: Path | None, demo: bool, as_json: bool) -> None:
    executable = find_executable(options.agent, os.environ, options.exe)
    if executable is None:
        print_problem(not_installed(options.agent, options.exe), severity="warning")
    server = find_gateway(options.server_id, demo=demo)
    if server is not None:
        url, models = server.url, _models_of(server, options)
    elif options.server_id is not None:
        raise NoGateway(f"{options.server_id} is not running; `routecodex restart {options.server_id}`")
    else:
        url = free_address()
        models = models_of_start(choose_start(path, demo=demo), options.names)
    request = replace(_request(options, url, executable, models=models), key=HIDDEN)
    shown = _shown(options.agent, request, running=server is not None)
    if as_json:
        print_json(shown)
    else:
        _print_for_people(options.agent, shown)


def _shown(agent: Agent, request: LaunchRequest, *, running: bool) -> dict[str, Any]:
    plan = _planned(request, agent)
    program = request.executable
    version = None if program is None else find_version(agent, Path(program), os.environ)
    argv = _argv(request, plan, program or agent.executables[0])
    return {
        "agent": agent.name,
        "version": version,
        "executable": program,
        "argv": [without_secrets(word) for word in argv],
        "env": {name: without_secrets(value) for name, value in plan.env.items()},
        "unset": list(plan.unset),
        "files": [{"path": str(file.path), "content": shown_content(file)} for file in plan.files],
        "gateway": {"url": request.url, "running": running},
    }


def _print_for_people(agent: Agent, shown: dict[str, Any]) -> None:
    gateway = shown["gateway"]
    state = "running" if gateway["running"] else "would be started, on a free port"
    click.echo(f"# {agent.title} {shown['version'] or 'of unknown version'}")
    click.echo(f"# gateway: {gateway['url']} ({state})")
    for file in shown["files"]:
        click.echo(f"# file: {file['path']} ({_summary(file['content'])})")
    for line in exports("sh", shown["env"], shown["unset"]):
        click.echo(line)
    click.echo(command_text("sh", shown["argv"]))


def _summary(content: str) -> str:
    return content if content.startswith("link to ") else f"{len(content.encode())} bytes"
