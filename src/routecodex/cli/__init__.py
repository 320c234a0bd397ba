"""The command `routecodex`; one file per group of commands.

serve     run a gateway in the foreground; `demo` runs one on the built-in provider
config    check a configuration
"""

from __future__ import annotations

import click

from routecodex import __version__
from routecodex.cli.config import config
from routecodex.cli.serve import demo, serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="routecodex")
def main() -> None:
    """A gateway between AI clients and model providers: any protocol in, any protocol out."""


main.add_command(serve)
main.add_command(demo)
main.add_command(config)
