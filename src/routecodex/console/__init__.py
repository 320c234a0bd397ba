"""The console: the web page at `/ui/`, as files that the server sends unchanged.

`index.html` is the shell; every other file is served below `/ui/assets/` by its name here.
"""

from __future__ import annotations

from pathlib import Path

_SUFFIXES = frozenset({".html", ".css", ".js", ".json"})


def console_files() -> dict[str, Path]:
    """Return the files of the console by their name in this package, as in `pages/requests.js`."""
    root = Path(__file__).parent
    found = sorted(path for path in root.rglob("*") if path.suffix in _SUFFIXES)
    return {path.relative_to(root).as_posix(): path for path in found}
