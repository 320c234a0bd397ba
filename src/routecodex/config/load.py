"""Loads a file into a checked configuration or a list of problems.

Parse TOML, insert values of the environment, fill in the variables of OpenTelemetry, repair first mistakes,
apply presets, read the model, resolve keys, check, and add the line numbers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from routecodex.config.check import check
from routecodex.config.exposure import exposed_keys
from routecodex.config.model import Config
from routecodex.config.presets import apply_presets, fill_addresses
from routecodex.config.problems import ConfigPath, InvalidConfig, Problem, quoted
from routecodex.config.providers import Preset
from routecodex.config.repair import repair
from routecodex.config.resolve import imply_modes, imply_values, resolve
from routecodex.config.shape import read
from routecodex.config.syntax import MINIMAL_CONFIG, line_of, lines_of, parse
from routecodex.config.telemetry import fill_telemetry

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}|\$\{[^}]*\}?")


def expand(
    tree: dict[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], frozenset[ConfigPath], list[Problem]]:
    """Insert `${NAME}` and `${NAME:-default}`; return the tree, the changed places and the problems."""
    places: set[ConfigPath] = set()
    problems: list[Problem] = []

    def walk(value: Any, place: ConfigPath) -> Any:
        if isinstance(value, dict):
            return {key: walk(one, (*place, key)) for key, one in value.items()}
        if isinstance(value, list):
            return [walk(one, (*place, index)) for index, one in enumerate(value)]
        if not isinstance(value, str) or "$" not in value:
            return value
        if "${" in value:
            places.add(place)
        return _VARIABLE.sub(lambda match: fill(match, place), value)

    def fill(match: re.Match[str], place: ConfigPath) -> str:
        if match[0] == "$$":
            return "$"
        name, default = match[1], match[3]
        if name is None:
            problems.append(
                Problem(
                    place,
                    f"has a {quoted('${')} without a valid variable name",
                    "write ${NAME}, or $$ for one $",
                )
            )
            return match[0]
        value = environ.get(name)
        if match[2] is not None:
            return value or default
        if value is None:
            problems.append(
                Problem(
                    place,
                    f"uses the environment variable {name}, which is not set",
                    f"set {name}, or add a default: ${{{name}:-…}}",
                )
            )
            return match[0]
        return value

    return walk(tree, ()), frozenset(places), problems


def whole_variables(value: Any, place: ConfigPath = ()) -> dict[ConfigPath, str]:
    """Return the places whose whole text is one environment variable, with its name."""
    if isinstance(value, str):
        found = _VARIABLE.fullmatch(value)
        return {place: found[1]} if found is not None and found[1] else {}
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
    return {at: name for step, one in entries for at, name in whole_variables(one, (*place, step)).items()}


_NO_PRESETS: Mapping[str, Preset] = {}


def find_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the configuration file if the command line does not name one."""
    named = environ.get("ROUTECODEX_CONFIG_PATH")
    if named:
        return Path(named).expanduser()
    user_dir = environ.get("ROUTECODEX_USER_DIR") or "~/.routecodex"
    return Path(user_dir).expanduser() / "config.toml"


def load(
    path: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    presets: Mapping[str, Preset] = _NO_PRESETS,
    dialect_type: type[Struct] | None = None,
    stored_clients: bool = False,
) -> Config:
    """Load the file; raise InvalidConfig with every problem.

    With `stored_clients` an open address needs no clients in the file: the caller looks into the store.
    """
    return loads(
        _text(path),
        source=str(path),
        environ=environ,
        presets=presets,
        dialect_type=dialect_type,
        stored_clients=stored_clients,
    )


def loads(
    text: str,
    *,
    source: str = "config.toml",
    environ: Mapping[str, str] = os.environ,
    presets: Mapping[str, Preset] = _NO_PRESETS,
    dialect_type: type[Struct] | None = None,
    stored_clients: bool = False,
) -> Config:
    """Load the text; raise InvalidConfig with every problem."""
    config, problems = examine(
        text,
        source=source,
        environ=environ,
        presets=presets,
        dialect_type=dialect_type,
        stored_clients=stored_clients,
    )
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors or config is None:
        raise InvalidConfig(errors)
    return config


def examine(
    text: str,
    *,
    source: str = "config.toml",
    environ: Mapping[str, str] = os.environ,
    presets: Mapping[str, Preset] = _NO_PRESETS,
    dialect_type: type[Struct] | None = None,
    mode: int = 0,
    stored_clients: bool = False,
) -> tuple[Config | None, list[Problem]]:
    """Load the text; return the configuration and every problem with file and line, warnings included.

    `mode` has the permissions of the file; `stored_clients` is as in `load`.
    """
    parsed = parse(text)
    if isinstance(parsed, Problem):
        return None, [structs.replace(parsed, file=source)]
    tree, from_env, problems = expand(imply_values(imply_modes(parsed)), environ)
    tree, filled, ignored = fill_telemetry(tree, environ)
    from_env |= frozenset(filled)
    tree, mistakes = repair(tree, presets, from_env)
    written = tree
    tree, unknown = apply_presets(tree, presets, environ)
    tree, unfilled = fill_addresses(tree, environ)
    config, misshapen = read(Config, tree, from_env=from_env)
    problems += [*ignored, *mistakes, *unknown, *unfilled]
    problems += _unreported(misshapen, problems)
    if config is not None:
        problems += exposed_keys(config, from_env, file=source, mode=mode)
        problems += _dialects(config, dialect_type, from_env)
        config, unresolved = resolve(
            config, environ, directory=Path(source).parent, variables=whole_variables(parsed)
        )
        problems += _unreported(unresolved, problems)
        found = check(config, from_env, stored_clients=stored_clients)
        problems += _unreported(_as_written(found, written), problems)
    problems = _without_preset(problems, unknown, written)
    lines = lines_of(text)
    return config, sorted(
        (structs.replace(one, file=source, line=line_of(one.place, lines)) for one in problems),
        key=lambda one: one.line or 0,
    )


def _dialects(
    config: Config, dialect_type: type[Struct] | None, from_env: frozenset[ConfigPath]
) -> list[Problem]:
    if dialect_type is None:
        return []
    problems: list[Problem] = []
    for name, provider in config.providers.items():
        place: ConfigPath = ("providers", name, "dialect")
        dialect: dict[str, Any] = {
            key: list(value) if isinstance(value, tuple) else value for key, value in provider.dialect.items()
        }
        problems += read(dialect_type, dialect, at=place, from_env=from_env)[1]
    return problems


def _as_written(found: list[Problem], tree: dict[str, Any]) -> list[Problem]:
    """Return the problems without warnings about addresses of presets, which are as the provider says."""
    return [one for one in found if one.severity == "error" or not _is_preset_address(one.place, tree)]


def _is_preset_address(place: ConfigPath, tree: dict[str, Any]) -> bool:
    return (
        place[:1] == ("providers",)
        and place[2:] == ("base_url",)
        and ("base_url" not in tree["providers"][place[1]])
    )


def _unreported(found: Iterable[Problem], reported: list[Problem]) -> list[Problem]:
    """Return the problems that do not follow from one already reported."""
    places = [problem.place for problem in reported if problem.severity == "error" and problem.place]
    return [one for one in found if not any(_echoes(one, place) for place in places)]


def _echoes(problem: Problem, place: ConfigPath) -> bool:
    inside = problem.place[: len(place)] == place
    return inside or (problem.absent and place[: len(problem.place)] == problem.place)


def _without_preset(found: list[Problem], unknown: list[Problem], tree: dict[str, Any]) -> list[Problem]:
    """Return the problems without those that an unknown preset may cause."""
    names = {problem.place[1] for problem in unknown}
    return [one for one in found if one in unknown or not _depends_on_preset(one.place, names, tree)]


def _depends_on_preset(place: ConfigPath, names: set[str | int], tree: dict[str, Any]) -> bool:
    if place[:1] == ("providers",):
        return len(place) > 2 and place[1] in names and place[2] not in tree["providers"][place[1]]
    value: Any = tree
    for step in place:
        inside = isinstance(value, list) or (isinstance(value, dict) and step in value)
        value = value[step] if inside else None
    return any(str(target).partition(".")[0] in names for target in (value, place[-1]))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        message, fix = "the file does not exist", f"create it; the smallest one is:\n{MINIMAL_CONFIG}"
    except UnicodeDecodeError as exc:
        message, fix = f"is not UTF-8 text (byte {exc.start})", "save it as UTF-8"
    except OSError as exc:
        message, fix = f"cannot be read: {exc.strerror}", "name a readable file with --config"
    raise InvalidConfig([Problem((), message, fix, file=str(path))])
