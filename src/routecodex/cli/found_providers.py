"""Providers that can be used at once: keys in the environment, model servers on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from routecodex.providers.catalog import PresetRow, preset_rows

PROBE_SECONDS = 0.3
_MOST_BYTES = 4 * 1024 * 1024

GENERAL_KEYS = frozenset(
    ("GITHUB_TOKEN", "HF_TOKEN", "AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK")
)
"""Variables that people set for other purposes than a model: they are used only on request."""


class FoundKey(Struct, frozen=True, kw_only=True):
    """A variable that holds a key, with the presets that it may belong to, in the order of the catalog."""

    variable: str
    rows: tuple[PresetRow, ...]

    @property
    def is_general(self) -> bool:
        """Whether the variable is set for other purposes too."""
        return self.variable in GENERAL_KEYS


class LocalServer(Struct, frozen=True, kw_only=True):
    """The address of a model server on this machine."""

    preset: str
    url: str
    """Base URL of the protocol chat, which ends in `/v1`."""


class FoundServer(Struct, frozen=True, kw_only=True):
    """A model server that runs, with its models and their context sizes where it tells them."""

    server: LocalServer
    models: Mapping[str, int | None]


LOCAL_SERVERS = (
    LocalServer(preset="ollama", url="http://127.0.0.1:11434/v1"),
    LocalServer(preset="lmstudio", url="http://127.0.0.1:1234/v1"),
    LocalServer(preset="vllm", url="http://127.0.0.1:8000/v1"),
    LocalServer(preset="llamacpp", url="http://127.0.0.1:8080/v1"),
)
"""The servers that are searched for, at the ports where they listen by default."""


def find_keys(environ: Mapping[str, str]) -> tuple[FoundKey, ...]:
    """Return the variables of the catalog that are set.

    A row counts for the first of its variables that is set, as in a configuration that names none.
    """
    found: dict[str, list[PresetRow]] = {}
    for row in preset_rows():
        variable = next((name for name in row.env if environ.get(name, "").strip()), None)
        if variable is not None:
            found.setdefault(variable, []).append(row)
    return tuple(FoundKey(variable=name, rows=tuple(rows)) for name, rows in found.items())


def key_variables() -> tuple[str, ...]:
    """Return every variable that is searched for, in the order of the catalog."""
    return tuple(dict.fromkeys(name for row in preset_rows() for name in row.env))


def find_servers(servers: Sequence[LocalServer] = LOCAL_SERVERS) -> tuple[FoundServer, ...]:
    """Return the servers that list their models within 300 ms; all are asked at the same time."""
    found: dict[str, FoundServer] = {}

    def ask(server: LocalServer) -> None:
        models = _list_models(server)
        if models is not None:
            found[server.url] = FoundServer(server=server, models=models)

    deadline = time.monotonic() + PROBE_SECONDS
    # A daemon thread that waits for a silent server does not keep the command from ending.
    threads = [threading.Thread(target=ask, args=(server,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    answered = dict(found)
    return tuple(answered[server.url] for server in servers if server.url in answered)


def _list_models(server: LocalServer) -> dict[str, int | None] | None:
    """Return the models of a server; None if nothing there lists models."""
    from http.client import HTTPConnection, HTTPException

    url = urlsplit(server.url)
    connection = HTTPConnection(url.hostname or "", url.port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", f"{url.path}/models", headers={"accept": "application/json"})
        response = connection.getresponse()
        body = response.read(_MOST_BYTES)
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return _models_of(body) if response.status == 200 else None


def _models_of(body: bytes) -> dict[str, int | None] | None:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    entries = value.get("data") if isinstance(value, dict) else None
    if not isinstance(entries, list) or _is_routecodex(entries):
        return None
    return {entry["id"]: _context_of(entry) for entry in _with_ids(entries)}


def _with_ids(entries: Iterable[Any]) -> list[dict[str, Any]]:
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _is_routecodex(entries: Iterable[Any]) -> bool:
    """Whether the list is that of a RouteCodex: a gateway must not become its own provider."""
    pairs = [(entry["id"], entry.get("owned_by")) for entry in _with_ids(entries) if "." in entry["id"]]
    return bool(pairs) and all(name.startswith(f"{owner}.") for name, owner in pairs)


def _context_of(entry: Mapping[str, Any]) -> int | None:
    """Return the context size that vLLM states as `max_model_len`."""
    size = entry.get("max_model_len")
    return size if isinstance(size, int) and size > 0 else None
