"""Fills in modes before the tables are read, and keys and names after."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from routecodex.config.exposure import exposed_file
from routecodex.config.model import Config, ServerConfig, StoreConfig, StoreSecret
from routecodex.config.problems import ConfigPath, Problem, warning
from routecodex.config.providers import AuthStyle, KeyConfig, Protocol, ProviderConfig
from routecodex.config.teams import ClientConfig, ClientKeySource
from routecodex.config.values import Secret

_AUTH_STYLES: dict[Protocol, AuthStyle] = {
    "chat": "bearer",
    "responses": "bearer",
    "messages": "x-api-key",
    "gemini": "x-goog-api-key",
    "demo": "none",
}


_STORE_PASSWORDS = ("password", "sentinel_password")
_STORE_FILES = ("ca_file", "cert_file", "key_file")
_NO_VARIABLES: Mapping[ConfigPath, str] = {}


def imply_modes(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with mode `weighted` in pools that have weights and no mode."""
    routing = tree.get("routing")
    if not isinstance(routing, dict):
        return tree
    implied = {
        route: [_with_implied_mode(entry) for entry in entries] if isinstance(entries, list) else entries
        for route, entries in routing.items()
    }
    return {**tree, "routing": implied}


def imply_values(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with a table for each key of a client and password of the store that is a string."""
    clients, store = tree.get("clients"), tree.get("store")
    if isinstance(clients, dict):
        tree = {**tree, "clients": {name: _with_table(row, "key") for name, row in clients.items()}}
    if isinstance(store, dict):
        for name in _STORE_PASSWORDS:
            store = _with_table(store, name)
        tree = {**tree, "store": store}
    return tree


def _with_table(row: Any, name: str) -> Any:
    if isinstance(row, dict) and isinstance(row.get(name), str):
        return {**row, name: {"value": row[name]}}
    return row


def _with_implied_mode(entry: Any) -> Any:
    if isinstance(entry, dict) and entry.get("weights") and "mode" not in entry:
        return {**entry, "mode": "weighted"}
    return entry


def resolve(
    config: Config,
    environ: Mapping[str, str],
    *,
    directory: Path,
    variables: Mapping[ConfigPath, str] = _NO_VARIABLES,
) -> tuple[Config, list[Problem]]:
    """Resolve keys and fill in names; return the configuration and the problems.

    `variables` are the places whose whole text is one environment variable, with its name.
    """
    problems: list[Problem] = []
    providers = {
        name: _resolve_provider(
            provider,
            environ,
            directory=directory,
            variables=variables,
            place=("providers", name),
            into=problems,
        )
        for name, provider in config.providers.items()
    }
    clients = {
        name: _resolve_client(client, environ, directory=directory, place=("clients", name), into=problems)
        for name, client in config.clients.items()
    }
    problems += _check_store(config.store.url)
    server = _resolve_server(config.server, environ)
    store = _resolve_store(config.store, environ, directory=directory, into=problems)
    codex = config.codex
    if codex.instructions_file is not None:
        path = _path(codex.instructions_file, directory)
        problems += _check_instructions(path)
        codex = structs.replace(codex, instructions_file=str(path))
    resolved = structs.replace(
        config, server=server, store=store, providers=providers, clients=clients, codex=codex
    )
    return resolved, problems


def _resolve_server(server: ServerConfig, environ: Mapping[str, str]) -> ServerConfig:
    """Return the server with its id and URL from the environment: several nodes may share one file."""
    return structs.replace(
        server,
        id=environ.get("ROUTECODEX_SERVER_ID") or server.id,
        advertise_url=(environ.get("ROUTECODEX_ADVERTISE_URL") or server.advertise_url or "").rstrip("/")
        or None,
    )


def _resolve_store(
    store: StoreConfig, environ: Mapping[str, str], *, directory: Path, into: list[Problem]
) -> StoreConfig:
    """Return the store with the values of its passwords and with absolute paths."""
    files = {name: _path(file, directory) for name in _STORE_FILES if (file := getattr(store, name))}
    for name, path in files.items():
        if name == "ca_file":
            into += _check_ca_file(path, ("store", name))
        elif not os.access(path, os.R_OK):
            into.append(Problem(("store", name), f"names {path}, which cannot be read", "correct the path"))
    store = structs.replace(store, **{name: str(path) for name, path in files.items()})
    for name in _STORE_PASSWORDS:
        given: StoreSecret | None = getattr(store, name)
        if given is not None:
            found = _store_password(given, environ, directory=directory, place=("store", name), into=into)
            store = structs.replace(store, **{name: structs.replace(given, value=found)})
    return store


def _store_password(
    given: StoreSecret,
    environ: Mapping[str, str],
    *,
    directory: Path,
    place: ConfigPath,
    into: list[Problem],
) -> Secret:
    found = _secret(given, environ, directory=directory, place=place)
    if isinstance(found, Problem):
        into.append(found)
        return Secret("")
    if given.file is not None:
        into += exposed_file(_path(given.file, directory), (*place, "file"))
    return found


def _resolve_client(
    client: ClientConfig,
    environ: Mapping[str, str],
    *,
    directory: Path,
    place: ConfigPath,
    into: list[Problem],
) -> ClientConfig:
    """Return the client with the value of its key."""
    if client.key is None:
        return client
    place = (*place, "key")
    found = _secret(client.key, environ, directory=directory, place=place)
    if isinstance(found, Problem):
        into.append(found)
        found = Secret("")
    elif client.key.file is not None:
        into += exposed_file(_path(client.key.file, directory), (*place, "file"))
    return structs.replace(client, key=structs.replace(client.key, value=found))


def _check_instructions(path: Path) -> list[Problem]:
    """Return the problem of a file of instructions for Codex: without any, it would send no system prompt."""
    place: ConfigPath = ("codex", "instructions_file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "it is not text"
        return [Problem(place, f"cannot read {path}: {why}", "correct the path or the file's permissions")]
    if not text.strip():
        return [Problem(place, f"names {path}, which is empty", "write the instructions, or remove the line")]
    return []


def _check_store(url: str) -> list[Problem]:
    """Return the problem that prevents creating or writing the directory of a file store."""
    scheme, _, rest = url.partition(":")
    path = Path(re.sub("^///", "/", rest))
    if scheme != "file" or not rest.startswith(("/", "~/")):
        return []
    place: ConfigPath = ("store", "url")
    try:
        existing = next(one for one in (path.expanduser(), *path.expanduser().parents) if one.exists())
    except (OSError, RuntimeError) as exc:
        return [Problem(place, f"{path} cannot be inspected: {exc}", "name another directory")]
    if not existing.is_dir():
        return [
            Problem(place, f"{existing} is not a directory", "name a directory, or one that can be created")
        ]
    if os.access(existing, os.W_OK | os.X_OK):
        return []
    # The user who checks a file need not be the one who runs the gateway.
    message = f"{existing} cannot be written by this user"
    return [warning(place, message, "name another directory, or run as its owner")]


def _resolve_provider(
    provider: ProviderConfig,
    environ: Mapping[str, str],
    *,
    directory: Path,
    variables: Mapping[ConfigPath, str],
    place: ConfigPath,
    into: list[Problem],
) -> ProviderConfig:
    auth: list[KeyConfig] = []
    for index, key in enumerate(provider.auth):
        found = _secret(key, environ, directory=directory, place=(*place, "auth", index))
        if isinstance(found, Problem):
            into.append(found)
            found = Secret("")
        found.source = found.source or variables.get((*place, "auth", index, "value"), "")
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
    """Return the problem of a file of trusted authorities."""
    import ssl  # rarely needed, and slow to import for every command

    if not path.is_file():
        return [Problem(place, f"names {path}, which is not a file", "correct the path")]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        message = f"names {path}, which has no certificate in PEM form"
        return [Problem(place, message, "name a file with -----BEGIN CERTIFICATE----- in it")]
    except OSError as exc:
        return [Problem(place, f"cannot read {path}: {exc.strerror}", "correct the file's permissions")]
    return []


def _path(text: str, directory: Path) -> Path:
    return directory / Path(text).expanduser()


def _secret(
    key: KeyConfig | ClientKeySource | StoreSecret,
    environ: Mapping[str, str],
    *,
    directory: Path,
    place: ConfigPath,
) -> Secret | Problem:
    check = _check_password if isinstance(key, StoreSecret) else _check_secret
    sources = [name for name in ("value", "env", "file") if getattr(key, name) is not None]
    if len(sources) != 1:
        message = f"has several keys: {', '.join(sources)}" if sources else "has no key"
        return Problem(place, message, "set exactly one of value, env and file")
    place = (*place, sources[0])
    if key.env is not None:
        if key.env not in environ:
            return Problem(place, f"the environment variable {key.env} is not set", f"set {key.env}")
        return check(environ[key.env], place, source=key.env)
    if key.file is None:
        return check(key.value.reveal() if key.value is not None else "", place)
    path = _path(key.file, directory)
    try:
        return check(path.read_text(encoding="utf-8").strip(), place, source=str(path))
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "it is not text"
        return Problem(place, f"cannot read {path}: {why}", "correct the path or the file's permissions")


def _check_password(value: str, place: ConfigPath, *, source: str = "") -> Secret | Problem:
    return Secret(value, source) if value else Problem(place, "is empty", "set the password")


def _check_secret(value: str, place: ConfigPath, *, source: str = "") -> Secret | Problem:
    if not value:
        return Problem(place, "is empty", "set the key")
    if not (value.isascii() and value.isprintable() and " " not in value):
        return Problem(
            place,
            "contains a character that is not allowed in a header",
            "copy the key again, without spaces",
        )
    return Secret(value, source)
