"""The command `routecodex`; one module per group of commands, imported only when it is called.

init          init: writes a configuration (init_choices, init_questions, tested_providers)
config_draft  the text of a configuration for found_providers; config_edit adds to a file; config_write writes
serve         serve, start, demo: run a gateway (demo_traffic)
run           run, env: start a coding agent on the gateway (agents/, agent_process, shell_text); its gateway:
              shared_gateway, gateway_start, gateway_models
lifecycle     stop, restart, status: servers in the background
service       service: a gateway that the user's session starts (service_units, service_control)
logs          logs: the requests of a server
daemon        daemon: shows and changes the state of running servers
ui            ui: opens the console
explain       explain: the plan of a request, with every reason
chat          chat: a conversation in the terminal (chat_session, chat_commands, chat_output, chat_tools,
              chat_models, chat_usage)
markdown      Markdown on a terminal while it streams (markdown_inline, markdown_table, word_wrap)
config        config: checks a configuration
keys          keys: clients and their keys (key_calls, stored_clients)
usage         usage: requests, tokens and costs, from the usage ledger
prices        prices: shows, imports and checks the prices of models
doctor        doctor: checks the set-up, and agents against every target (checks/)
completion    completion: shell completion
servers       selects the servers of a command; admin_client: calls their admin API
views         server state as tables; tables: layout and colours
reference     writes docs/cli.md from the help texts
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from routecodex import __version__

COMMANDS = {
    "init": "init",
    "run": "run",
    "env": "run",
    "serve": "serve",
    "start": "serve",
    "stop": "lifecycle",
    "restart": "lifecycle",
    "status": "lifecycle",
    "service": "service",
    "logs": "logs",
    "daemon": "daemon",
    "explain": "explain",
    "chat": "chat",
    "config": "config",
    "keys": "keys",
    "usage": "usage",
    "prices": "prices",
    "store": "store",
    "doctor": "doctor",
    "ui": "ui",
    "demo": "serve",
    "completion": "completion",
}
"""Module of each command; a command starts fast because only its own module is imported."""


_MAX_HELP_WIDTH = 120
_PIPED_HELP_WIDTH = 80


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context; help is as wide as the terminal, up to a width that is pleasant to read."""
        widest = _MAX_HELP_WIDTH if sys.stdout.isatty() else _PIPED_HELP_WIDTH
        return super().make_context(info_name, args, parent, **{"max_content_width": widest, **extra})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(import_module(f"routecodex.cli.{module}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            from routecodex.config.problems import nearest

            close = None if args[0].startswith("-") else nearest(args[0], COMMANDS)
            if close is None:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {close!r}?", ctx) from exc


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Exit codes:
  0  done
  1  something failed
  2  wrong arguments or configuration
  3  no server is running
""",
)
@click.version_option(__version__, prog_name="routecodex")
def main() -> None:
    """A gateway between AI clients and model providers: any protocol in, any protocol out."""
