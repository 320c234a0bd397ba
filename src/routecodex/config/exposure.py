"""Finds keys in files that other users of the machine can read: configurations and files of keys."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from routecodex.config.problems import ConfigPath, Hidden, Problem, warning
from routecodex.config.values import Secret

_READ_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


def exposed_keys(config: Struct, from_env: Hidden, *, file: str, mode: int) -> list[Problem]:
    """Return a warning if the file has keys in it, not only names of variables, and others can read it.

    `config` is as read from the file, before keys are taken from variables and other files.
    """
    if not mode & _READ_BY_OTHERS:
        return []
    places = [place for place in _secret_places(config, ()) if place not in from_env]
    if not places:
        return []
    keys = "a key" if len(places) == 1 else f"{len(places)} keys"
    message = f"the file holds {keys}, and other users can read it (mode {stat.S_IMODE(mode):o})"
    return [warning(places[0], message, f"chmod 600 {file}, or write ${{NAME}} and set the variable")]


def exposed_file(path: Path, place: ConfigPath) -> list[Problem]:
    """Return a warning if other users can read the file of a key."""
    mode = path.stat().st_mode
    if not mode & _READ_BY_OTHERS:
        return []
    message = f"other users can read {path} (mode {stat.S_IMODE(mode):o})"
    return [warning(place, message, f"chmod 600 {path}")]


def _secret_places(value: Any, place: ConfigPath) -> Iterator[ConfigPath]:
    if isinstance(value, Secret):
        if value:
            yield place
        return
    entries: Any = ()
    if isinstance(value, Struct):
        entries = ((name, getattr(value, name)) for name in value.__struct_fields__)
    elif isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list | tuple):
        entries = enumerate(value)
    for step, one in entries:
        yield from _secret_places(one, (*place, step))
