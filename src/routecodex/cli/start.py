"""`routecodex start`: a server in the background."""

from __future__ import annotations

from pathlib import Path

import click

from routecodex.cli.launch import launched
from routecodex.cli.lifecycle import begin
from routecodex.cli.serve import serve
from routecodex.cli.servers import EXIT_CODES, json_option


@click.command(params=list(serve.params), epilog=EXIT_CODES)
@json_option
def start(*, path: Path | None, host: str | None, port: int | None, workers: int, as_json: bool) -> None:
    """Run the gateway in the background: like `serve`, but the command ends once it is ready.

    What it says goes to `logs/<server id>.log` in the user dir.

    \b
    Examples:
      routecodex start
      routecodex start --config gateway.toml --port 8080 --workers 2
    """
    begin(launched(path, host=host, port=port, workers=workers), as_json=as_json)
