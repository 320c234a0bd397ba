"""Fills in what the file leaves out: presets before it is read, keys and names after."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from routecodex.config.model import Config
from routecodex.config.problems import ConfigPath, Problem, choices, nearest, quoted
from routecodex.config.providers import AuthStyle, KeyConfig, Preset, Protocol, ProviderConfig
from routecodex.config.values import Secret

__all__ = ["apply_presets", "imply_modes", "resolve"]

_AUTH_STYLES: dict[Protocol, AuthStyle] = {
    "chat": "bearer",
    "responses": "bearer",
    "messages": "x-api-key",
    "gemini": "x-goog-api-key",
    "demo": "none",
}


def imply_modes(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree in which a pool with weights and no mode is weighted."""
    routing = tree.get("routing")
    if not isinstance(routing, dict):
        return tree
    implied = {
        route: [_with_implied_mode(entry) for entry in entries] if isinstance(entries, list) else entries
        for route, entries in routing.items()
    }
    return {**tree, "routing": implied}


def _with_implied_mode(entry: Any) -> Any:
    if isinstance(entry, dict) and entry.get("weights") and "mode" not in entry:
        return {**entry, "mode": "weighted"}
    return entry


def apply_presets(
    tree: dict[str, Any], presets: Mapping[str, Preset]
) -> tuple[dict[str, Any], list[Problem]]:
    """The tree with each provider's preset under its own values, and the presets that do not exist."""
    rows = tree.get("providers")
    if not isinstance(rows, dict):
        return tree, []
    problems: list[Problem] = []
    merged: dict[str, Any] = {}
    for name, row in rows.items():
        preset = _preset_name(name, row, presets)
        if preset is not None and preset not in presets:
            problems.append(_unknown_preset(("providers", name, "preset"), preset, presets))
            preset = nearest(preset, presets)
        merged[name] = row if preset is None else _merge_preset(row, presets[preset], preset)
    return {**tree, "providers": merged}, problems


def _preset_name(name: str, row: Any, presets: Mapping[str, Preset]) -> str | None:
    if not isinstance(row, dict):
        return None
    given = row.get("preset")
    if isinstance(given, str):
        return given
    silent = not row.keys() & {"preset", "protocol", "base_url"}
    return name if silent and name in presets else None


def _unknown_preset(place: ConfigPath, name: str, presets: Mapping[str, Preset]) -> Problem:
    meant = nearest(name, presets)
    fix = f"did you mean {quoted(meant)}?" if meant else f"use one of: {choices(presets, limit=30)}"
    return Problem(place, f"names the preset {quoted(name)}, which does not exist", fix)


def _merge_preset(row: dict[str, Any], preset: Preset, name: str) -> dict[str, Any]:
    given: dict[str, Any] = {
        "preset": name,
        "protocol": preset.protocol,
        "auth_style": preset.auth_style,
        "headers": dict(preset.headers),
        "dialect": dict(preset.dialect),
        "models": {model: _without_none(msgspec.to_builtins(one)) for model, one in preset.models.items()},
    }
    if preset.base_url is not None:
        given["base_url"] = preset.base_url
    if preset.env is not None:
        given["auth"] = [{"env": preset.env}]
    if preset.auth_style == "none" and "auth" in row:
        del given["auth_style"]
    return {**given, **{key: _merge_values(given.get(key), value) for key, value in row.items()}}


def _without_none(row: Any) -> Any:
    """The row without what it leaves open."""
    if not isinstance(row, dict):
        return row
    return {name: _without_none(value) for name, value in row.items() if value is not None}


def _merge_values(under: Any, value: Any) -> Any:
    """The row's value over the preset's, table by table."""
    if not isinstance(under, dict) or not isinstance(value, dict):
        return value
    return {**under, **{key: _merge_values(under.get(key), one) for key, one in value.items()}}


def resolve(config: Config, environ: Mapping[str, str], *, directory: Path) -> tuple[Config, list[Problem]]:
    """The configuration with keys resolved and names filled in, and what could not be."""
    problems: list[Problem] = []
    providers = {
        name: _resolve_provider(
            provider, environ, directory=directory, place=("providers", name), into=problems
        )
        for name, provider in config.providers.items()
    }
    problems += _check_store(config.store.url)
    return structs.replace(config, providers=providers), problems


def _check_store(url: str) -> list[Problem]:
    """What keeps the directory of a file store from being made or written."""
    scheme, _, rest = url.partition(":")
    path = Path(re.sub("^///", "/", rest))
    if scheme != "file" or not rest.startswith(("/", "~/")):
        return []
    place: ConfigPath = ("store", "url")
    try:
        there = next(one for one in (path.expanduser(), *path.expanduser().parents) if one.exists())
    except (OSError, RuntimeError) as exc:
        return [Problem(place, f"{path} cannot be looked at: {exc}", "name another directory")]
    if not there.is_dir():
        return [Problem(place, f"{there} is no directory", "name a directory, or one that can be made")]
    if os.access(there, os.W_OK | os.X_OK):
        return []
    # Whoever checks a file need not be who runs the gateway.
    told = f"{there} cannot be written by this user"
    return [Problem(place, told, "name another directory, or run as its owner", severity="warning")]


def _resolve_provider(
    provider: ProviderConfig,
    environ: Mapping[str, str],
    *,
    directory: Path,
    place: ConfigPath,
    into: list[Problem],
) -> ProviderConfig:
    auth: list[KeyConfig] = []
    for index, key in enumerate(provider.auth):
        found = _secret(key, environ, directory=directory, place=(*place, "auth", index))
        if isinstance(found, Problem):
            into.append(found)
            found = Secret("")
        auth.append(structs.replace(key, alias=key.alias or f"key{index + 1}", value=found))
    ca_file = provider.tls.ca_file
    if ca_file is not None:
        path = _path(ca_file, directory)
        into += _check_ca_file(path, (*place, "tls", "ca_file"))
        ca_file = str(path)
    return structs.replace(
        provider,
        base_url=provider.base_url.rstrip("/"),
        auth=tuple(auth),
        auth_style=provider.auth_style or _AUTH_STYLES[provider.protocol],
        models={name: structs.replace(one, id=one.id or name) for name, one in provider.models.items()},
        tls=structs.replace(provider.tls, ca_file=ca_file),
    )


def _check_ca_file(path: Path, place: ConfigPath) -> list[Problem]:
    """What keeps the file from being one of authorities to trust."""
    import ssl  # few have such a file, and every command waits for what is imported here

    if not path.is_file():
        return [Problem(place, f"names {path}, which is no file", "mend the path")]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        told = f"names {path}, which holds no certificate in PEM form"
        return [Problem(place, told, "name a file with -----BEGIN CERTIFICATE----- in it")]
    except OSError as exc:
        return [Problem(place, f"cannot read {path}: {exc.strerror}", "mend the file's permissions")]
    return []


def _path(text: str, directory: Path) -> Path:
    return directory / Path(text).expanduser()


def _secret(
    key: KeyConfig, environ: Mapping[str, str], *, directory: Path, place: ConfigPath
) -> Secret | Problem:
    given = [name for name in ("value", "env", "file") if getattr(key, name) is not None]
    if len(given) != 1:
        what = "has no key" if not given else f"has its key in several places: {', '.join(given)}"
        return Problem(place, what, "give exactly one of value, env and file")
    place = (*place, given[0])
    if key.env is not None:
        if key.env not in environ:
            return Problem(place, f"the environment variable {key.env} is not set", f"set {key.env}")
        return _check_secret(environ[key.env], place)
    if key.file is None:
        return _check_secret(key.secret.reveal(), place)
    path = _path(key.file, directory)
    try:
        return _check_secret(path.read_text(encoding="utf-8").strip(), place)
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "it is not text"
        return Problem(place, f"cannot read {path}: {why}", "mend the path or the file's permissions")


def _check_secret(value: str, place: ConfigPath) -> Secret | Problem:
    if not value:
        return Problem(place, "is empty", "give the key")
    if not (value.isascii() and value.isprintable() and " " not in value):
        return Problem(
            place, "holds a character that cannot stand in a header", "copy the key again, without spaces"
        )
    return Secret(value)
