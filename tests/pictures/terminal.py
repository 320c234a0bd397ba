"""Records a session of the command line as an SVG: what it prints is what a newcomer sees.

`python -m tests.pictures.terminal` runs the commands with a home of its own and writes `docs/terminal.svg`.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[2] / "docs" / "terminal.svg"
COMMANDS = (
    "routecodex init --demo --yes",
    "routecodex start",
    "echo 'Hello, gateway!' | routecodex chat --model demo.demo-1",
    "echo '<**!demo.demo-small**> Use the small model.' | routecodex chat --session work",
    "echo 'And now?' | routecodex chat --session work",
    "routecodex doctor --offline",
    "routecodex logs",
    "routecodex stop",
)
WIDTH = 106
ROW, CELL, MARGIN = 19, 7.83, 18
COLOURS = {"prompt": "#7dcf8a", "command": "#f4f1ea", "output": "#c9c4b8"}

Row = tuple[str, str]
"""The kind of a row, and its text."""


def record(commands: Sequence[str], home: Path) -> list[Row]:
    """Run the commands one after the other, and return what a terminal shows."""
    environ = {
        **os.environ,
        "HOME": str(home),
        "ROUTECODEX_USER_DIR": str(home / ".routecodex"),
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
    }
    program = home / "bin" / "routecodex"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m routecodex "$@"\n')
    program.chmod(0o755)
    environ["PATH"] = f"{program.parent}{os.pathsep}{environ['PATH']}"
    rows: list[Row] = []
    for command in commands:
        rows += [("command", command), *(("output", line) for line in _output(command, environ, home))]
    return rows


def _output(command: str, environ: Mapping[str, str], home: Path) -> list[str]:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (60, WIDTH))
    process = subprocess.Popen(["/bin/sh", "-c", command], env=environ, cwd=home, stdout=slave, stderr=slave)
    os.close(slave)
    text = _read(master).decode().replace(str(home), "~")
    process.wait()
    lines = [wrapped for line in text.splitlines() for wrapped in _wrap(line.rstrip())]
    return [*lines, ""] if lines and lines[-1] else lines


def _read(master: int) -> bytes:
    """Return all that the processes of a terminal write to it."""
    pieces: list[bytes] = []
    # Linux ends the last read of a terminal with EIO.
    with os.fdopen(master, "rb", buffering=0) as screen, contextlib.suppress(OSError):
        while piece := screen.read(65536):
            pieces.append(piece)
    return b"".join(pieces)


def _wrap(line: str) -> list[str]:
    return [line[at : at + WIDTH] for at in range(0, len(line), WIDTH)] or [""]


def draw(rows: Sequence[Row]) -> str:
    """Return the rows as an SVG that every browser shows in its own monospaced font."""
    width, height = round(2 * MARGIN + CELL * (WIDTH + 2)), 2 * MARGIN + ROW * len(rows)
    texts = [
        _text(kind, text, MARGIN + ROW * (number + 0.75)) for number, (kind, text) in enumerate(rows) if text
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img"'
            ' aria-label="A terminal session with RouteCodex">',
            f'<rect width="{width}" height="{height}" rx="10" fill="#22211e"/>',
            '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">',
            *texts,
            "</g>",
            "</svg>\n",
        ]
    )


def _text(kind: str, text: str, y: float) -> str:
    if kind == "command":
        prompt = f'<tspan fill="{COLOURS["prompt"]}">$ </tspan>'
        text = f'{prompt}<tspan fill="{COLOURS["command"]}">{escape(text, quote=False)}</tspan>'
    else:
        text = escape(text, quote=False)
    text = re.sub(r"  +", lambda found: "\u00a0" * len(found[0]), text)
    return f'<text x="{MARGIN}" y="{y:g}" fill="{COLOURS["output"]}" xml:space="preserve">{text}</text>'


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(draw(record(COMMANDS, Path(folder))), "utf-8")


if __name__ == "__main__":
    main()
