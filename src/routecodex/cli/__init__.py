"""The command `routecodex`; one file per group of commands, read only when it is called.

serve         run a gateway in the foreground; `demo` runs one on the built-in provider
lifecycle     start one in the background, stop it, restart it, list those that run
logs          show the requests of a server as they pass
daemon        see and change what running servers do
explain       the plan of a request, and every reason
chat          a conversation in the terminal (chat_session, chat_output, chat_tools)
config        check a configuration
completion    shell completion
tables        what people see; servers and admin_client: whom a command speaks to, and how
"""

from __future__ import annotations

from importlib import import_module

import click

from routecodex import __version__

COMMANDS = {
    "serve": "serve",
    "start": "lifecycle",
    "stop": "lifecycle",
    "restart": "lifecycle",
    "status": "lifecycle",
    "logs": "logs",
    "daemon": "daemon",
    "explain": "explain",
    "chat": "chat",
    "config": "config",
    "demo": "serve",
    "completion": "completion",
}
"""Each command and the module it is in: a command starts fast when only its own module is loaded."""


class Lazy(click.Group):
    """A group that knows its commands by name and loads them when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found: click.Command = getattr(import_module(f"routecodex.cli.{module}"), cmd_name)
        return found

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
    cls=Lazy,
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
