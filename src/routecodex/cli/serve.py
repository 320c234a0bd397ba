"""`routecodex serve`, `start` and `demo`: run a gateway in the foreground, in the background, as a demo."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import ConfigError
from routecodex.cli.config import config_option, config_path, examine_file, with_address
from routecodex.cli.lifecycle import new_launch, start_and_report
from routecodex.cli.servers import EXIT_CODES, json_option
from routecodex.cli.stored_clients import load_server
from routecodex.config import Config, Problem, loads
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from routecodex.server.reload import ConfigSource, stamp
from routecodex.wire import json

_LONGEST_TEMP_DIR = 60
_WORKERS_HELP = "Processes that share the port."


def _stop_when_unused(_context: click.Context, _parameter: click.Parameter, lock: Path | None) -> None:
    if lock is not None:
        from routecodex.cli.shared_gateway import stop_when_unused

        stop_when_unused(lock)


# For `routecodex run`, which starts a gateway that ends with the last run.
until_unused_option = click.option(
    "--until-unused",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    callback=_stop_when_unused,
    expose_value=False,
    hidden=True,
)


@click.command()
@config_option
@click.option("--host", help="Address to listen on, instead of server.host.")
@click.option(
    "--port", "-p", type=click.IntRange(0, 65535), help="Port, instead of server.port; 0: any free port."
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help=_WORKERS_HELP)
@until_unused_option
def serve(path: Path | None, host: str | None, port: int | None, workers: int) -> None:
    """Run the gateway in the foreground until Ctrl-C or SIGTERM.

    \b
    Examples:
      routecodex serve
      routecodex serve --config gateway.toml --port 8080 --workers 2
    """
    atexit.register(_discard_unwritable_output)
    file = config_path(path)
    before = stamp(file)
    config = load_server(path, host=host, port=port)
    source = ConfigSource(path=file, load=lambda: _reload(file, host, port), config=config, stamp=before)
    _run(config, workers=workers, banner=_ready, source=source)


@click.command(params=[one for one in serve.params if one.name != "until_unused"], epilog=EXIT_CODES)
@json_option
def start(*, path: Path | None, host: str | None, port: int | None, workers: int, as_json: bool) -> None:
    """Run the gateway in the background: like `serve`, but the command returns once it is ready.

    Its output goes to `logs/<server id>.log` in the user dir.

    \b
    Examples:
      routecodex start
      routecodex start --config gateway.toml --port 8080 --workers 2
    """
    start_and_report(new_launch(path, host=host, port=port, workers=workers), as_json=as_json)


@click.command()
@click.option(
    "--port",
    "-p",
    type=click.IntRange(0, 65535),
    default=5520,
    show_default=True,
    help="Port to listen on; 0: any free port.",
)
@click.option("--traffic", is_flag=True, help="Also send it some requests, a few a second, to look at.")
@until_unused_option
def demo(port: int, traffic: bool) -> None:
    """Run the gateway with the built-in demo provider: no keys, no network.

    Prints the address of the console, and commands to paste. `routecodex logs` shows its requests, like those
    of any server.

    \b
    Examples:
      routecodex demo --port 5600
      routecodex demo --traffic
    """
    from routecodex.server.directories import user_dir
    from routecodex.server.workers import reserve_port

    atexit.register(_discard_unwritable_output)
    text = resources.files("routecodex.cli").joinpath("demo.toml").read_text("utf-8")
    config = loads(text, source="demo.toml", environ={}, presets=PRESETS, dialect_type=Dialect)
    if traffic:
        from routecodex.cli.demo_traffic import with_clients

        config = with_clients(config)
    ready = partial(_demo_ready, config, traffic)
    if port:
        _run(_demo_config(config, port), workers=1, banner=ready)
        return
    # The port must be known first, because it is part of the server's id.
    with reserve_port(config.server.host, 0) as reserved:
        resolved = _demo_config(config, reserved.getsockname()[1])
        _serve_in_process(resolved, on_ready=ready, home=user_dir(), reuse_port=True)


def _discard_unwritable_output() -> None:
    """Drop output for a terminal that was closed: Python would exit with 120 because it cannot be flushed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _demo_config(config: Config, port: int) -> Config:
    """Return the configuration with an id of its own, so that its log is not that of a real server."""
    return replace(config, server=replace(config.server, id=f"demo-{port}", port=port))


def _reload(file: Path, host: str | None, port: int | None) -> tuple[Config | None, list[Problem]]:
    loaded, problems = examine_file(file, host=host, port=port)
    return (None if loaded is None else with_address(loaded, host, port)), problems


def _run(
    config: Config, *, workers: int, banner: Callable[[str, int], None], source: ConfigSource | None = None
) -> None:
    from routecodex.server import descriptors
    from routecodex.server.directories import user_dir

    descriptors.raise_limit()

    def ready(host: str, port: int) -> None:
        # A terminal that is closed at this moment must not stop the server in the middle of its start.
        with contextlib.suppress(OSError):
            banner(host, port)
            descriptors.report(config.server.max_concurrent)

    if workers == 1:
        _serve_in_process(config, on_ready=ready, home=user_dir(), source=source)
    else:
        _run_workers(config, workers=workers, banner=ready, source=source, home=user_dir())


def _run_workers(
    config: Config,
    *,
    workers: int,
    banner: Callable[[str, int], None],
    source: ConfigSource | None,
    home: Path,
) -> None:
    from routecodex.accounting.ledger_file import ledger_path
    from routecodex.server import announce
    from routecodex.server.directories import session_dir
    from routecodex.server.process import set_up_logs
    from routecodex.server.workers import Worker, Workers, reserve_port

    try:
        reserved = reserve_port(config.server.host, config.server.port)
    except OSError as exc:
        raise _cannot_listen(config, exc, source.path if source is not None else None) from exc
    port = reserved.getsockname()[1]
    shared = replace(config, server=replace(config.server, port=port))
    announced = announce.describe(
        shared,
        token=announce.admin_token(shared, home),
        port=port,
        file=source.path if source is not None else None,
        session_dir=session_dir(shared, home),
        ledger=ledger_path(shared, home),
    )

    def work(worker: Worker) -> None:
        _serve_in_process(
            shared,
            worker=str(worker.index),
            reuse_port=True,
            parent=worker.parent,
            heartbeat=worker.heartbeat,
            on_ready=lambda _host, _port: worker.ready(),
            home=home,
            source=source,
            announced=announced,
            workers=workers,
            spread=worker.spread,
            event_dir=event_dir,
        )

    def ready() -> None:
        announce.write(home, announced)
        banner(shared.server.host, port)

    set_up_logs(config)
    watchdog = config.server.worker_timeout_ms / 1000
    # A short path: that of a Unix socket may have about a hundred bytes.
    with reserved, tempfile.TemporaryDirectory(prefix="routecodex-", dir=_short_temp_dir()) as folder:
        event_dir = Path(folder)
        try:
            code = Workers(workers, work, on_ready=ready, watchdog=watchdog).serve()
        finally:
            announce.remove(home, announced)
    raise SystemExit(code)


def _short_temp_dir() -> str | None:
    """Return a directory for sockets if the usual one has a long path; None for the usual one."""
    return "/tmp" if len(tempfile.gettempdir()) > _LONGEST_TEMP_DIR else None  # noqa: S108  # a folder of its own is made below


def _serve_in_process(config: Config, *, source: ConfigSource | None = None, **options: Any) -> None:
    """Serve in this process; on failure print a short error and exit."""
    from routecodex.server.process import serve as run
    from routecodex.server.serve import CannotListen

    try:
        run(config, source=source, **options)
    except CannotListen as exc:
        raise _cannot_listen(config, exc.__cause__, source.path if source is not None else None) from exc
    except ConfigError as exc:
        click.echo(f"error: {exc.message}", err=True)
        raise SystemExit(2) from exc
    except OSError as exc:
        click.echo(f"error: {exc}", err=True)
        raise SystemExit(1) from exc


def _cannot_listen(config: Config, cause: BaseException | None, file: Path | None) -> SystemExit:
    number = getattr(cause, "errno", None) or 0
    reason = os.strerror(number) if number > 0 else getattr(cause, "strerror", None) or cause
    click.echo(f"error: cannot listen on {config.server.host}:{config.server.port}: {reason}", err=True)
    option = "port" if number in (errno.EADDRINUSE, errno.EACCES) else "host"
    demo = "choose another port: `routecodex demo --port N` or `make demo PORT=N`"
    fix = demo if file is None else f"set another {option} with --{option}, or under [server] in {file}"
    click.echo(f"    fix: {fix}", err=True)
    return SystemExit(1)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _ready(host: str, port: int) -> None:
    click.echo(f"routecodex listens on {_url(host, port)}", file=sys.stderr)


class Example(Struct, frozen=True):
    """A request to paste, with its title and its session."""

    about: str
    path: str
    body: dict[str, Any]
    session: str | None = None

    def command(self, url: str) -> str:
        """Return the request as a curl command."""
        session = f" -H 'x-session-id: {self.session}'" if self.session else ""
        text = json.encode(self.body).decode()
        return f"curl -N {url}{self.path} -H 'content-type: application/json'{session} -d '{text}'"


def _chat(text: str, *, stream: bool = False) -> dict[str, Any]:
    return {"model": "demo.demo-1", "stream": stream, "messages": [{"role": "user", "content": text}]}


_EXAMPLES = (
    Example("chat completions", "/v1/chat/completions", _chat("Hello, gateway!", stream=True)),
    Example(
        "messages, with thinking",
        "/v1/messages",
        {
            "model": "demo.demo-1",
            "max_tokens": 2000,
            "stream": True,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "messages": [{"role": "user", "content": "Think, then say hello."}],
        },
    ),
    Example(
        "responses",
        "/v1/responses",
        {"model": "demo.demo-1", "stream": True, "input": "Hello over Responses!"},
    ),
    Example(
        "an instruction: use another model in this conversation from now on",
        "/v1/chat/completions",
        _chat("<**!spare.spare-1**> Who answers me now?"),
        session="try-1",
    ),
    Example(
        "the gateway shows the current settings; <**clear**> removes them, <**help**> lists all instructions",
        "/v1/chat/completions",
        _chat("<**status**>"),
        session="try-1",
    ),
)


def _console_url(config: Config, url: str) -> str:
    """Return the address of the console with a new one-time code."""
    from routecodex.server import announce
    from routecodex.server.directories import user_dir
    from routecodex.server.login_tokens import LoginSigner, login_url

    code, _ = LoginSigner(announce.admin_token(config, user_dir())).new_code(time.time())
    return login_url(url, code)


def _demo_ready(config: Config, traffic: bool, host: str, port: int) -> None:
    url = _url(host, port)
    click.echo(f"RouteCodex demo on {url}: no keys, no network. Ctrl-C stops it.\n")
    click.echo("# the console: this address logs in once, within ten minutes; `routecodex ui` makes another")
    click.echo(f"{_console_url(config, url)}\n")
    if traffic:
        from routecodex.cli.demo_traffic import start_traffic

        click.echo("Three clients send requests, about one a second each. Send your own too:\n")
        start_traffic(host, port)
    else:
        click.echo("Paste one of these:\n")
    for example in _EXAMPLES:
        click.echo(f"# {example.about}\n{example.command(url)}\n")
    click.echo(
        "Commands in a message, such as `demo:error 429`, `demo:cutoff` or `demo:tool NAME`, test one thing"
    )
    click.echo("each: see The demo in docs/clients.md.")
    click.echo("To see where a request went and why, use `curl -i` for the headers, or `routecodex logs`")
    click.echo("(`make install` puts that command into .venv/bin).\n")
