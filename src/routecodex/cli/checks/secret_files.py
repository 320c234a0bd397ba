"""Checks that other users of the machine cannot read files that hold keys."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from routecodex.cli.checks.result import CheckResult, passed, skipped, warned
from routecodex.cli.config import examine_file
from routecodex.config import Config

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_permissions(file: Path, config: Config | None, user_dir: Path) -> CheckResult:
    """Check the configuration file if keys are written in it, key files, and the files of the user dir."""
    if os.name != "posix":
        return skipped("permissions", "files have no owner-only mode on this system")
    exposed = [*_config_with_keys(file), *filter(_is_open, _secret_files(config, user_dir))]
    if not exposed:
        return passed("permissions", "no other user can read a file that holds a key")
    names = list(dict.fromkeys(str(path) for path in exposed))
    files = "this file, which holds" if len(names) == 1 else "these files, which hold"
    message = f"other users can read {files} keys: {', '.join(names)}"
    return warned("permissions", message, "chmod 600 " + " ".join(map(shlex.quote, names)))


def _config_with_keys(file: Path) -> Iterator[Path]:
    """Yield the configuration file if it has keys in it and others can read it."""
    if not file.is_file():
        return
    with_mode, without = (examine_file(file, with_mode=mode)[1] for mode in (True, False))
    if len(with_mode) > len(without):
        yield file


def _secret_files(config: Config | None, user_dir: Path) -> Iterator[Path]:
    for provider in config.providers.values() if config is not None else ():
        yield from (Path(key.secret.source) for key in provider.auth if key.file is not None)
    yield user_dir / "admin-token"
    for folder in ("keys", "servers"):
        yield from sorted((user_dir / folder).glob("*"))


def _is_open(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & _OTHERS)
