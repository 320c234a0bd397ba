"""`routecodex completion`: prints the completion script of a shell."""

from __future__ import annotations

import click


@click.command(
    epilog="""\b
Examples:
  eval "$(routecodex completion bash)"        in ~/.bashrc
  eval "$(routecodex completion zsh)"         in ~/.zshrc
  routecodex completion fish > ~/.config/fish/completions/routecodex.fish
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and server ids in your shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(context.find_root().command, {}, "routecodex", "_ROUTECODEX_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())
