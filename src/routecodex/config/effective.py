"""The values in force, and where each comes from: the file, the environment, a preset, or a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import fields

from routecodex.config.load import expand
from routecodex.config.model import Config
from routecodex.config.presets import apply_presets
from routecodex.config.problems import ConfigPath, Problem, path_text
from routecodex.config.providers import Preset
from routecodex.config.redact import HIDDEN, redact_value
from routecodex.config.resolve import imply_modes, imply_values
from routecodex.config.syntax import line_of, lines_of, parse
from routecodex.config.telemetry import fill_telemetry
from routecodex.config.values import Secret

ValueSource: TypeAlias = Literal["file", "env", "preset", "default"]


class EffectiveValue(Struct, frozen=True, kw_only=True):
    """One value: its path in the file, what is in force without secrets, where it comes from, its line."""

    key: str
    value: Any
    source: ValueSource
    line: int | None


def effective(
    config: Config, text: str, *, environ: Mapping[str, str], presets: Mapping[str, Preset]
) -> list[EffectiveValue]:
    """Return every value of a configuration that was loaded from this text.

    A value of the environment is shown as the variable that has it: it may be a secret. Values of the
    variables of OpenTelemetry are in no line of the file.
    """
    parsed = parse(text)
    tree = {} if isinstance(parsed, Problem) else imply_values(imply_modes(parsed))
    expanded, from_env, _ = expand(tree, environ)
    _, variables, _ = fill_telemetry(expanded, environ)
    merged, _ = apply_presets(expanded, presets, environ)
    lines = lines_of(text)
    secrets = [secret.reveal() for secret in _secrets(config)]
    rows: list[EffectiveValue] = []
    for place, value in _leaves(config, ()):
        if place in variables:
            variable = None if value is None else f"${{{variables[place]}}}"
            rows.append(EffectiveValue(key=path_text(place), value=variable, source="env", line=None))
            continue
        source = _source(place, tree, merged, from_env)
        written = _at(tree, place)
        shown = _shown(place, value, secrets)
        if source == "env" and isinstance(written, str):
            shown = redact_value([str(step) for step in place], written, secrets)
        rows.append(
            EffectiveValue(
                key=path_text(place),
                value=shown,
                source=source,
                line=line_of(place, lines) if source in ("file", "env") else None,
            )
        )
    return rows


def known_secrets(config: Config) -> list[str]:
    """Return every secret of a configuration, for texts that must not contain one."""
    return [secret.reveal() for secret in _secrets(config)]


def _secrets(value: Any) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, Struct):
        for one in fields(value):
            yield from _secrets(getattr(value, one.name))
    elif isinstance(value, dict | tuple | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _secrets(one)


def _leaves(value: Any, place: ConfigPath) -> Iterator[tuple[ConfigPath, Any]]:
    if isinstance(value, Struct):
        for one in fields(value):
            yield from _leaves(getattr(value, one.name), (*place, one.encode_name))
    elif isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _leaves(one, (*place, str(key)))
    elif isinstance(value, tuple) and any(isinstance(one, Struct) for one in value):
        for index, one in enumerate(value):
            yield from _leaves(one, (*place, index))
    else:
        yield place, value


_ABSENT = object()


def _at(tree: Any, place: ConfigPath) -> Any:
    for step in place:
        inside = isinstance(tree, dict) and step in tree
        inside = inside or (isinstance(tree, list) and isinstance(step, int) and step < len(tree))
        if not inside:
            return _ABSENT
        tree = tree[step]
    return tree


def _source(
    place: ConfigPath, tree: dict[str, Any], merged: dict[str, Any], from_env: frozenset[ConfigPath]
) -> ValueSource:
    if any(at[: len(place)] == place for at in from_env):
        return "env"
    if _at(tree, place) is not _ABSENT:
        return "file"
    return "preset" if _at(merged, place) is not _ABSENT else "default"


def _shown(place: ConfigPath, value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Secret):
        return HIDDEN if value else None
    if isinstance(value, str):
        return redact_value([str(step) for step in place], value, secrets)
    if isinstance(value, tuple | list):
        return [_shown(place, one, secrets) for one in value]
    if isinstance(value, dict):
        return {key: _shown((*place, str(key)), one, secrets) for key, one in value.items()}
    return value if isinstance(value, int | float | bool) or value is None else str(value)
