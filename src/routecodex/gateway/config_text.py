"""Reads the text of a configuration with the presets of the gateway, for a check, a plan, or to show it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping

from msgspec import structs

from routecodex.config import Config, Problem, examine
from routecodex.config.effective import EffectiveValue, effective
from routecodex.config.redact import HIDDEN
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?\Z")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_REMOVED = re.compile(f'"{HIDDEN}"|{HIDDEN}')
_TOO_DEEP = Problem((), "is nested too deeply", "use fewer levels of lists and tables")


def examine_text(
    text: str,
    *,
    source: str = "config.toml",
    environ: Mapping[str, str] = os.environ,
    stored_clients: bool = False,
) -> tuple[Config | None, list[Problem]]:
    """Return the configuration of a text, None if it has errors, and all problems.

    The text may be one that the gateway showed: each secret that was removed there stands for another one.
    """
    try:
        config, problems = examine(
            _with_secrets(text),
            source=source,
            environ=environ,
            presets=PRESETS,
            dialect_type=Dialect,
            stored_clients=stored_clients,
        )
    except RecursionError:
        return None, [_TOO_DEEP]
    usable = not any(problem.severity == "error" for problem in problems)
    return (config if usable else None), problems


def _with_secrets(text: str) -> str:
    """Return a text with different secrets in place of those that were removed, each valid as key and URL."""
    numbers = itertools.count(1)

    def secret(found: re.Match[str]) -> str:
        name = f"hidden-{next(numbers)}"
        return f'"http://{name}.invalid"' if found[0].startswith('"') else name

    return _REMOVED.sub(secret, text)


def without_environment(problems: Iterable[Problem], text: str) -> list[Problem]:
    """Return the problems of a text, with the names of variables in place of their values.

    A misplaced variable may hold a secret, and a message quotes what it is about.
    """
    named = {name: os.environ.get(name, "") for name in _VARIABLE.findall(text)}
    values = sorted(((value, name) for name, value in named.items() if value), key=lambda pair: -len(pair[0]))

    def hide(shown: str) -> str:
        for value, name in values:
            shown = shown.replace(value, f"${{{name}}}")
        return shown

    return [
        structs.replace(
            one,
            message=hide(one.message),
            fix=hide(one.fix),
            place=tuple(hide(step) if isinstance(step, str) else step for step in one.place),
        )
        for one in problems
    ]


def effective_values(config: Config, text: str) -> list[EffectiveValue]:
    """Return every value of a configuration that was loaded from this text, without secrets."""
    try:
        return effective(config, text, environ=os.environ, presets=PRESETS)
    except RecursionError:
        return effective(config, "", environ=os.environ, presets=PRESETS)


def stand_ins(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment with values of the same kind in place of its own.

    The plan of a configuration text shows names from it: they must not be values of the environment, which
    may be secret.
    """
    return {name: _stand_in(name, value) for name, value in environ.items()}


def _stand_in(name: str, value: str) -> str:
    if found := _URL.match(value):
        return f"{found[0]}{re.sub('[^a-z0-9]', '-', name.lower())}.invalid"
    if value.lower() in ("true", "false", ""):
        return value
    return "1" if _NUMBER.match(value) else f"env-{name}"
