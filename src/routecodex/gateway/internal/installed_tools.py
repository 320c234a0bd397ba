"""Server tools of other packages: loaded by entry point, reported and left out when they are broken.

Whatever is installed beside the gateway would run inside it; `server_tools.installed` says what may.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from msgspec import Struct

from routecodex.server_tools.framework import ServerTool

ENTRY_POINTS = "routecodex.server_tools"
"""Entry points of other packages: each is a function without arguments that returns a server tool."""

ToolStatus = Literal["loaded", "failed", "not allowed"]

log = logging.getLogger("routecodex.server_tools")


class InstalledTool(Struct, frozen=True, omit_defaults=True):
    """An installed tool, for people: the name and object of its entry point, and what became of it."""

    name: str
    entry_point: str
    status: ToolStatus
    error: str = ""


def load_installed(allowed: Sequence[str]) -> tuple[list[ServerTool], tuple[InstalledTool, ...]]:
    """Load the tools whose names match one of the patterns; return them, and a row for each installed one."""
    return load(entry_points(group=ENTRY_POINTS), allowed)


def load(
    points: Iterable[EntryPoint], allowed: Sequence[str]
) -> tuple[list[ServerTool], tuple[InstalledTool, ...]]:
    """Load the tools of these entry points."""
    tools: list[ServerTool] = []
    rows: list[InstalledTool] = []
    for point in points:
        status: ToolStatus = "loaded"
        error = ""
        if not any(fnmatchcase(point.name, pattern) for pattern in allowed):
            status = "not allowed"
        else:
            try:
                tools.append(_loaded(point))
            except BaseException as exc:  # a broken tool may raise anything, and must not stop the start
                status, error = "failed", f"{type(exc).__name__}: {exc}"
                log.error(
                    "server tool %r (%s) cannot be loaded and is left out: %s; fix or uninstall its package, "
                    "or leave it out of server_tools.installed",
                    point.name,
                    point.value,
                    error,
                )
        rows.append(InstalledTool(point.name, point.value, status, error))
    return tools, tuple(rows)


def _loaded(point: EntryPoint) -> ServerTool:
    tool = point.load()()
    if not isinstance(tool, ServerTool):
        raise TypeError(f"it is a {type(tool).__name__}, not a ServerTool")
    return tool
