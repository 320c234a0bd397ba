"""From a file to a configuration that can be used, or to everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from routecodex.config.check import check
from routecodex.config.model import Config
from routecodex.config.problems import ConfigPath, InvalidConfig, Problem
from routecodex.config.providers import Preset
from routecodex.config.resolve import apply_presets, finish, imply_modes
from routecodex.config.shape import read
from routecodex.config.source import expand, line_of, lines_of, parse

__all__ = ["SMALLEST", "examine", "find_path", "load", "loads"]

SMALLEST = """\
        [providers.openai]
        [routing]
        default = ["openai.gpt-5"]"""
"""A whole file, for those who have none yet: a provider named like a preset, and where requests go."""

_NONE: Mapping[str, Preset] = {}


def find_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the configuration file is looked for when nobody names one."""
    named = environ.get("ROUTECODEX_CONFIG_PATH")
    if named:
        return Path(named).expanduser()
    user_dir = environ.get("ROUTECODEX_USER_DIR") or "~/.routecodex"
    return Path(user_dir).expanduser() / "config.toml"


def load(
    path: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    presets: Mapping[str, Preset] = _NONE,
    dialect_type: type[Struct] | None = None,
) -> Config:
    """The configuration in the file; raises InvalidConfig with every problem found."""
    text = _text(path)
    return loads(text, source=str(path), environ=environ, presets=presets, dialect_type=dialect_type)


def loads(
    text: str,
    *,
    source: str = "config.toml",
    environ: Mapping[str, str] = os.environ,
    presets: Mapping[str, Preset] = _NONE,
    dialect_type: type[Struct] | None = None,
) -> Config:
    """The configuration in the text; raises InvalidConfig with every problem found."""
    config, problems = examine(
        text, source=source, environ=environ, presets=presets, dialect_type=dialect_type
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
    presets: Mapping[str, Preset] = _NONE,
    dialect_type: type[Struct] | None = None,
) -> tuple[Config | None, list[Problem]]:
    """What `loads` makes of the text, and every problem with file and line, warnings included."""
    parsed = parse(text)
    if isinstance(parsed, Problem):
        return None, [structs.replace(parsed, file=source)]
    tree, from_env, problems = expand(imply_modes(parsed), environ)
    written = tree
    tree, unknown = apply_presets(tree, presets)
    config, misshapen = read(Config, tree, from_env=from_env)
    problems += [*unknown, *_unreported(misshapen, problems)]
    if config is not None:
        problems += _dialects(config, dialect_type, from_env)
        config, unresolved = finish(config, environ, directory=Path(source).parent)
        problems += _unreported(unresolved, problems)
        problems += _unreported(check(config, from_env), problems)
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


def _unreported(found: Iterable[Problem], reported: list[Problem]) -> list[Problem]:
    """The problems that are not just the echo of one already reported."""
    places = [problem.place for problem in reported if problem.severity == "error" and problem.place]
    return [one for one in found if not any(_echoes(one, place) for place in places)]


def _echoes(problem: Problem, place: ConfigPath) -> bool:
    inside = problem.place[: len(place)] == place
    return inside or (problem.absent and place[: len(problem.place)] == problem.place)


def _without_preset(found: list[Problem], unknown: list[Problem], tree: dict[str, Any]) -> list[Problem]:
    """The problems without those that a preset may explain which is not known."""
    names = {problem.place[1] for problem in unknown}
    return [one for one in found if one in unknown or not _lacks(one.place, names, tree)]


def _lacks(place: ConfigPath, names: set[str | int], tree: dict[str, Any]) -> bool:
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
        what, fix = "there is no such file", f"create it; the smallest one is:\n{SMALLEST}"
    except UnicodeDecodeError as exc:
        what, fix = f"is not UTF-8 text (byte {exc.start})", "save it as UTF-8"
    except OSError as exc:
        what, fix = f"cannot be read: {exc.strerror}", "name a readable file with --config"
    raise InvalidConfig([Problem((), what, fix, file=str(path))])
