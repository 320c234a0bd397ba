"""A program in place of an agent: it reports how it was started, then ends as it is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

_SCRIPT = """#!{python} -S
import json, os, signal, sys

def show(word):
    # Not print: a signal that comes while it prints would print too, which Python refuses.
    os.write(1, (word + "\\n").encode())

def handle(number, frame):
    show("signal %d" % number)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, handle)
action, _, value = os.environ.get("FAKE_ACTION", "exit 0").partition(" ")
if action != "wait":
    show(json.dumps({{"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd()}}))
if action == "exit":
    sys.exit(int(value))
if action == "die":
    signal.signal(int(value), signal.SIG_DFL) if int(value) != 9 else None
    os.kill(os.getpid(), int(value))
if action == "suspend":
    os.kill(os.getpid(), signal.SIGSTOP)
    show("resumed")
    sys.exit(int(value))
show("waiting")
for line in sys.stdin:
    show("read " + line.strip())
    if line.strip() == "end":
        sys.exit(3)
while True:
    signal.pause()
"""


def install(folder: Path, *names: str) -> Path:
    """Install the program under some names; return its folder, for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        file = folder / name
        file.write_text(_SCRIPT.format(python=sys.executable))
        file.chmod(0o755)
    return folder


def report(lines: list[str]) -> dict[str, Any]:
    """Return what the program reported."""
    assert len(lines) == 1, lines
    return msgspec.json.decode(lines[0], type=dict[str, Any])
