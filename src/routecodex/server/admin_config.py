"""The calls of the admin API on the configuration. They never write the file, and never show a secret.

| Path                  | GET                                                  | POST                   |
|-----------------------|------------------------------------------------------|------------------------|
| `/admin/config`       | text, problems, values in force with source and line |                        |
| `/admin/config/check` |                                                      | the problems of a text |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from routecodex.config import Config, Problem
from routecodex.config.effective import known_secrets
from routecodex.config.redact import redact
from routecodex.gateway.config_text import effective_values, examine_text, without_environment
from routecodex.server.http import HttpRequest
from routecodex.server.reload import FileComparison
from routecodex.wire import json

Compare = Callable[[], Awaitable[FileComparison]]


class ConfigText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text of a configuration file."""

    text: str


_texts = Decoder(ConfigText)


class ConfigCalls:
    """Answers the calls on the configuration.

    `compare` compares the file with what runs; None without a file.
    `secrets` are further values that no answer may contain.
    """

    def __init__(
        self,
        *,
        path: Path | None,
        running: Callable[[], Config],
        compare: Compare | None,
        has_stored_clients: Callable[[], bool],
        secrets: Sequence[str] = (),
    ) -> None:
        self._path = path
        self._running = running
        self._compare = compare
        self._has_stored_clients = has_stored_clients
        self._secrets = tuple(secrets)

    async def show(self, _request: HttpRequest) -> dict[str, Any]:
        """Return the file without secrets, its problems, and every value in force."""
        config = self._running()
        text = "" if self._path is None else await asyncio.to_thread(_read, self._path)
        found = None if self._compare is None else await self._compare()
        problems = [] if found is None else found.problems
        secrets = (*known_secrets(config), *self._secrets)
        values = await asyncio.to_thread(effective_values, config, text)
        return {
            "path": None if self._path is None else str(self._path),
            "text": await asyncio.to_thread(redact, text, secrets),
            "effective": msgspec.to_builtins(values),
            "problems": [problem_row(problem) for problem in without_environment(problems, text)],
            "changed": found is not None and found.changed,
            "changes": [] if found is None else await asyncio.to_thread(_changes, found, text),
        }

    async def check(self, request: HttpRequest) -> dict[str, Any]:
        """Return the problems of a text as if it were the file."""
        text = json.read(request.body or b"{}", _texts).text
        source = "config.toml" if self._path is None else str(self._path)
        _, problems = await asyncio.to_thread(
            examine_text, text, source=source, stored_clients=self._has_stored_clients()
        )
        return {"problems": [problem_row(problem) for problem in without_environment(problems, text)]}


def _changes(found: FileComparison, text: str) -> list[dict[str, Any]]:
    """Return the values that differ between the file and what runs; secrets are hidden, so not compared."""
    if found.now is None or not found.changed:
        return []
    before, after = (
        {one.key: one.value for one in effective_values(config, text)}
        for config in (found.running, found.now)
    )
    keys = [*after, *(key for key in before if key not in after)]
    return [
        {"key": key, "running": before.get(key), "file": after.get(key)}
        for key in keys
        if before.get(key) != after.get(key)
    ]


def problem_row(problem: Problem) -> dict[str, Any]:
    """Return a problem as the admin API shows it."""
    return {
        "severity": problem.severity,
        "path": problem.path,
        "line": problem.line,
        "message": problem.message,
        "fix": problem.fix,
    }


def _read(path: Path) -> str:
    """Return the text of the file; empty if it is gone, with other characters where it is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8-sig", "replace")
    except OSError:
        return ""
