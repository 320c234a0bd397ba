"""`make deploy-check`: renders the chart into build/deploy, and checks every file of `deploy/`."""

from __future__ import annotations

import plistlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.deploy import chart, checks


def main() -> int:
    """Return 1 if a file is wrong; programs that are missing are named."""
    into = chart.ROOT / "build" / "deploy"
    shutil.rmtree(into, ignore_errors=True)
    found = [*_chart(into)]
    with tempfile.TemporaryDirectory() as folder:
        found += _with("systemd-analyze", checks.check_unit, Path(folder))
        found += _with("nginx", checks.check_nginx, Path(folder))
    plistlib.loads((checks.DEPLOY / "launchd" / "dev.routecodex.gateway.plist").read_bytes())
    for line in found:
        print(line, file=sys.stderr)
    print(f"checked deploy/; the rendered chart is in {into.relative_to(chart.ROOT)}")
    return 1 if found else 0


def _chart(into: Path) -> list[str]:
    chart.install_go()
    with tempfile.TemporaryDirectory() as folder:
        program = chart.build_renderer(Path(folder))
        defaults = Path(folder) / "defaults.yaml"
        defaults.write_text("{}\n")
        renderings = [
            (defaults, into / "defaults"),
            (chart.EVERY_OPTION, into),
            (chart.PERSISTENT, into / "persistent"),
        ]
        return [
            mistake
            for values, folder in renderings
            for mistake in chart.mistakes(chart.render(program, values, folder))
        ]


def _with(program: str, check: Callable[[Path], str], folder: Path) -> list[str]:
    if checks.find(program) is None:
        print(f"{program} is not installed: its file is not checked")
        return []
    found = check(folder)
    return [found] if found else []


if __name__ == "__main__":
    raise SystemExit(main())
