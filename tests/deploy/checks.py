"""Checks of the files in `deploy/` with the programs that read them, where they are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.deploy.chart import ROOT

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "routecodex.service"
NGINX = DEPLOY / "nginx.conf"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(program: str) -> str | None:
    """Return the path of a system program, or None."""
    return shutil.which(program, path=SYSTEM_PATH)


def check_unit(folder: Path) -> str:
    """Return what `systemd-analyze verify` says of the unit; nothing if it is right.

    It demands that the program exists, so a copy names one that does.
    """
    program = find("systemd-analyze")
    assert program is not None
    copy = folder / UNIT.name
    copy.write_text(UNIT.read_text("utf-8").replace("/opt/routecodex/bin/routecodex", "/bin/true"), "utf-8")
    done = subprocess.run([program, "verify", str(copy)], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if copy.name in line]
    return "\n".join(lines) or ("" if done.returncode == 0 else done.stderr)


def check_nginx(folder: Path) -> str:
    """Return the errors of `nginx -t`; the names of the gateways are replaced, as they are not known here."""
    program = find("nginx")
    assert program is not None
    text = re.sub(r"gateway-(\d):5520", r"127.0.0.\1:5520", NGINX.read_text("utf-8"))
    copy = folder / "nginx.conf"
    copy.write_text(text.replace("/tmp/", f"{folder}/"), "utf-8")
    done = subprocess.run(
        [program, "-t", "-c", str(copy), "-p", str(folder)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr
