"""Fills in presets and the variable parts of addresses, before the tables are read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from routecodex.config.problems import ConfigPath, Problem, choices, quoted, warning
from routecodex.config.providers import DISCOVERED, Preset, Protocol
from routecodex.config.repair import meant_preset

_MAX_NEAR = 4
_MAX_LISTED = 30
_WORD = re.compile(r"[a-z0-9.]+")
_PLACEHOLDER = re.compile(r"\{(resource|region)\}")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\Z")
_VARIABLES = {"resource": ("AZURE_RESOURCE_NAME",), "region": ("AWS_REGION", "AWS_DEFAULT_REGION")}
"""Placeholders of addresses, with the environment variables that fill them."""


def apply_presets(
    tree: dict[str, Any], presets: Mapping[str, Preset], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the tree with the values of presets filled in.

    The problems are presets that do not exist, and protocols that a preset does not have.
    """
    rows = tree.get("providers")
    if not isinstance(rows, dict):
        return tree, []
    problems: list[Problem] = []
    merged: dict[str, Any] = {}
    for name, row in rows.items():
        preset = _preset_name(name, row, presets)
        if preset is not None and preset not in presets:
            near = near_presets(preset, presets)
            problems.append(_unknown_preset(("providers", name, "preset"), preset, near, presets))
            preset = next(iter(near), None)
        elif preset is None and (preset := meant_preset(name, row, presets)) is not None:
            problems.append(_misspelled_preset(("providers", name), preset))
        elif preset is not None and (lacking := _lacking_protocol(name, row, presets[preset])) is not None:
            problems.append(lacking)
            row = {**row, "protocol": presets[preset].protocol}
        if preset is not None and (silent := _cannot_discover(name, row, presets[preset])) is not None:
            problems.append(silent)
        merged[name] = row if preset is None else _merge_preset(row, presets[preset], preset, environ)
    return {**tree, "providers": merged}, problems


def _preset_name(name: str, row: Any, presets: Mapping[str, Preset]) -> str | None:
    if not isinstance(row, dict):
        return None
    preset = row.get("preset")
    if isinstance(preset, str):
        return preset
    unset = not row.keys() & {"preset", "protocol", "base_url"}
    return name if unset and name in presets else None


def near_presets(name: str, presets: Mapping[str, Preset]) -> list[str]:
    """Return the presets that a name may mean: nearly the same name, or the same maker, as in `alibaba`."""
    lower = name.lower()
    names = list(presets)
    close = difflib.get_close_matches(lower, names, n=_MAX_NEAR, cutoff=0.8)
    return close or _sharing_words(lower, presets) or difflib.get_close_matches(lower, names, n=_MAX_NEAR)


def _sharing_words(name: str, presets: Mapping[str, Preset]) -> list[str]:
    """Return the presets that share the most words with a name, in their own name or their provider's."""
    words = set(_WORD.findall(name))
    shared = {
        one: len(words.intersection(_WORD.findall(f"{one} {preset.about}".lower())))
        for one, preset in presets.items()
    }
    most = max(shared.values(), default=0)
    return [one for one, count in shared.items() if count == most][:_MAX_NEAR] if most else []


def _unknown_preset(place: ConfigPath, name: str, near: list[str], presets: Mapping[str, Preset]) -> Problem:
    fix = f"use one of: {choices(presets, limit=_MAX_LISTED)}"
    if near:
        fix = f"did you mean {' or '.join(map(quoted, near))}?"
    elif len(presets) > _MAX_LISTED:
        fix += "; `routecodex config presets` lists them"
    return Problem(place, f"names the preset {quoted(name)}, which does not exist", fix)


def _misspelled_preset(place: ConfigPath, meant: str) -> Problem:
    fix = f"did you mean [providers.{meant}]? For another provider set protocol and base_url"
    return Problem(place, "has no protocol, and no preset has this name", fix)


def _lacking_protocol(name: str, row: dict[str, Any], preset: Preset) -> Problem | None:
    """Return the problem of a protocol for which neither the preset nor the row has an address."""
    protocol = row.get("protocol")
    known = preset.by_protocol
    if not isinstance(protocol, str) or protocol not in get_args(Protocol):
        return None
    if protocol in known or "base_url" in row:
        return None
    message = f"{quoted(str(row.get('preset', name)))} has no address for the protocol {quoted(protocol)}"
    return Problem(
        ("providers", name, "protocol"), message, f"use one of: {choices(known)}; or set base_url yourself"
    )


def _discovers(row: dict[str, Any]) -> bool:
    models = row.get("models")
    return isinstance(models, dict) and DISCOVERED in models


def _cannot_discover(name: str, row: dict[str, Any], preset: Preset) -> Problem | None:
    """Return the problem of models that are to be taken from a provider which does not list them."""
    if preset.lists_models or "base_url" in row or not _discovers(row):
        return None
    message = f"{preset.about} does not list its models, so they cannot be discovered"
    fix = f'name them: [providers.{name}.models."model-name"]'
    return Problem(("providers", name, "models"), message, fix)


def _merge_preset(
    row: dict[str, Any], preset: Preset, name: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    protocol = row.get("protocol")
    preset = preset.by_protocol.get(protocol, preset) if isinstance(protocol, str) else preset
    defaults: dict[str, Any] = {
        "preset": name,
        "protocol": preset.protocol,
        "base_url": preset.base_url,
        "auth_style": preset.auth_style,
        "headers": dict(preset.headers),
        "dialect": dict(preset.dialect),
        "models": {model: _without_none(msgspec.to_builtins(one)) for model, one in preset.models.items()},
    }
    if _discovers(row):
        # The provider names its models itself: those of the preset are only facts about some of them.
        defaults["models"] = {}
    if preset.env:
        defaults["auth"] = [{"env": next(filter(environ.get, preset.env), preset.env[0])}]
    if preset.auth_style == "none" and "auth" in row:
        del defaults["auth_style"]
    return {**defaults, **{key: _merge_values(defaults.get(key), value) for key, value in row.items()}}


def _without_none(row: Any) -> Any:
    """Return the row without None values, and with lists as a file has them."""
    if isinstance(row, tuple):
        return [_without_none(one) for one in row]
    if not isinstance(row, dict):
        return row
    return {name: _without_none(value) for name, value in row.items() if value is not None}


def _merge_values(under: Any, value: Any) -> Any:
    """Merge the row's value over the preset's, table by table."""
    if not isinstance(under, dict) or not isinstance(value, dict):
        return value
    return {**under, **{key: _merge_values(under.get(key), one) for key, one in value.items()}}


def fill_addresses(tree: dict[str, Any], environ: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the tree with `{resource}` and `{region}` of base URLs filled in, and the problems."""
    rows = tree.get("providers")
    if not isinstance(rows, dict):
        return tree, []
    problems: list[Problem] = []
    filled = {}
    for name, row in rows.items():
        usable = isinstance(row, dict) and isinstance(row.get("base_url"), str)
        filled[name] = _filled(("providers", name), row, environ, problems) if usable else row
    return {**tree, "providers": filled}, problems


def _filled(
    place: ConfigPath, row: dict[str, Any], environ: Mapping[str, str], into: list[Problem]
) -> dict[str, Any]:
    url: str = row["base_url"]
    wanted = dict.fromkeys(_PLACEHOLDER.findall(url))
    for key in _VARIABLES:
        if key in row and key not in wanted:
            message = f"has no effect: the base URL does not contain {{{key}}}"
            into.append(warning((*place, key), message, "remove it"))
    for key in wanted:
        url = url.replace(f"{{{key}}}", _label(key, row, environ, place=(*place, key), into=into))
    return {**row, "base_url": url}


def _label(
    key: str, row: dict[str, Any], environ: Mapping[str, str], *, place: ConfigPath, into: list[Problem]
) -> str:
    """Return the value of a placeholder; with a problem, a stand-in that causes no other."""
    source = next(filter(environ.get, _VARIABLES[key]), None)
    value = row[key] if key in row else environ.get(source or "")
    if isinstance(value, str) and _LABEL.match(value):
        return value
    if value is None:
        variables = " or ".join(_VARIABLES[key])
        fix = f'set {key} = "…", or the environment variable {variables}'
        into.append(Problem(place, f"is missing: the base URL contains {{{key}}}", fix, absent=True))
    elif isinstance(value, str):
        message = f"is not the name of a {key}" if key in row else f"{source} is not the name of a {key}"
        into.append(Problem(place, message, "use letters, digits and -, without the rest of the address"))
    return key
