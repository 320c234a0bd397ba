"""Chooses the configuration of a gateway that `routecodex run` must start."""

from __future__ import annotations

import os
import socket
import sys
from importlib import resources
from pathlib import Path

import click

from routecodex.cli.admin_client import user_dir
from routecodex.cli.config import config_path, examine_file, show
from routecodex.cli.gateway_models import GatewayModels, configured_models
from routecodex.cli.shared_gateway import GatewayStart
from routecodex.cli.tables import print_problem
from routecodex.config import Config, examine
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS

_WRONG = 2
_NOTHING_FOUND = (
    "no configuration, no key of a known provider in the environment, no model server on this machine; "
    "`routecodex init` sets one up, `--demo` tries an agent without"
)


def choose_start(path: Path | None, *, demo: bool) -> GatewayStart:
    """Return the gateway to start: the demo, a file, or what `init --yes` would write; else exit."""
    if demo:
        return _demo()
    file = config_path(path)
    if path is not None or os.environ.get("ROUTECODEX_CONFIG_PATH") or file.exists():
        return GatewayStart(file=file, session_dir=_session_dir(_load(file)))
    text = _proposed(file)
    if text is None:
        return _offer_demo()
    config = _parse(text, "proposal")
    assert config is not None
    return GatewayStart(text=text, session_dir=_session_dir(config))


def models_of_start(start: GatewayStart, names: tuple[str, ...]) -> GatewayModels:
    """Return the models that the gateway would have."""
    if start.file is not None:
        config: Config | None = examine_file(start.file)[0]
    else:
        demo = resources.files("routecodex.cli").joinpath("demo.toml").read_text("utf-8")
        config = _parse(start.text or demo, "demo.toml")
    assert config is not None
    return configured_models(config, names)


def free_address() -> str:
    """Return an address with a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def _demo() -> GatewayStart:
    return GatewayStart(session_dir=str(user_dir() / "sessions" / "run-demo"))


def _session_dir(config: Config) -> str:
    """Return the directory of the state, that of the server that `start` would run: the port differs."""
    given = os.environ.get("ROUTECODEX_SESSION_DIR")
    return given or str(user_dir() / "sessions" / config.identity)


def _load(file: Path) -> Config:
    loaded, problems = examine_file(file, with_mode=True)
    show(problems)
    if loaded is None:
        print_problem(f"the gateway cannot start; check again with `routecodex config check --config {file}`")
        raise SystemExit(_WRONG)
    return loaded


def _proposed(file: Path) -> str | None:
    from routecodex.cli.config_draft import propose_config

    text = propose_config(os.environ)
    if text is not None:
        about = f"there is no {file}; using the keys and servers found on this machine for this run"
        click.echo(f"routecodex: {about} (`routecodex init` writes it)", err=True)
    return text


def _parse(text: str, source: str) -> Config | None:
    return examine(text, source=source, environ=os.environ, presets=PRESETS, dialect_type=Dialect)[0]


def _offer_demo() -> GatewayStart:
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.echo(f"routecodex: {_NOTHING_FOUND}", err=True)
        if click.confirm("Run with the demo provider?", err=True):
            return _demo()
        raise SystemExit(_WRONG)
    print_problem(_NOTHING_FOUND)
    raise SystemExit(_WRONG)
