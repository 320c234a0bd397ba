"""The models of the endpoint of `routecodex chat`: its list, and names that are close to a wrong one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from routecodex.turns.http_sender import root_of

AUTO = "auto"
KEY_VARIABLE = "ROUTECODEX_KEY"
_TIMEOUT_SECONDS = 10.0
_MAX_BYTES = 16 * 1024 * 1024
_MAX_NEAR = 3
_UNAUTHORIZED = (401, 403)

_PATHS = {
    "chat": "/models",
    "responses": "/models",
    # The page sizes are the largest that Anthropic and Google allow.
    "messages": "/v1/models?limit=1000",
    "gemini": "/v1beta/models?pageSize=1000",
}
_KEY_HEADERS = {"messages": "x-api-key", "gemini": "x-goog-api-key"}


class ModelsUnavailable(Exception):
    """The endpoint did not list its models."""


class _ListedModel(Struct):
    """One model in the list of any protocol."""

    id: str = ""
    name: str = ""


class _ModelPage(Struct):
    data: list[_ListedModel] = msgspec.field(default_factory=list)
    models: list[_ListedModel] = msgspec.field(default_factory=list)


def client_key() -> str | None:
    """Return the client key of the gateway."""
    return os.environ.get(KEY_VARIABLE)


def list_models(base_url: str, protocol: str, key: str | None) -> list[str]:
    """Return the names of all models that the endpoint lists, in its order."""
    url = urlsplit(root_of(base_url, protocol))
    status, body = _get(url.scheme, url.netloc, f"{url.path}{_PATHS[protocol]}", _headers(protocol, key))
    if status in _UNAUTHORIZED:
        raise ModelsUnavailable(f"{base_url} rejected the key (HTTP {status}); set ${KEY_VARIABLE}")
    if status != 200:
        raise ModelsUnavailable(f"{base_url} does not list its models (HTTP {status})")
    try:
        page = msgspec.json.decode(body, type=_ModelPage)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ModelsUnavailable(f"{base_url} sent a list of models that cannot be read: {exc}") from exc
    names = (model.id or model.name.removeprefix("models/") for model in (*page.data, *page.models))
    return [name for name in names if name]


def _headers(protocol: str, key: str | None) -> dict[str, str]:
    headers = {"accept": "application/json"}
    if protocol == "messages":
        headers["anthropic-version"] = "2023-06-01"
    if key and protocol in _KEY_HEADERS:
        headers[_KEY_HEADERS[protocol]] = key.strip()
    elif key:
        headers["authorization"] = f"Bearer {key.strip()}"
    return headers


def _get(scheme: str, host: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    connect = HTTPSConnection if scheme == "https" else HTTPConnection
    connection = connect(host, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(_MAX_BYTES)
    except (OSError, HTTPException, ValueError) as exc:
        raise ModelsUnavailable(f"{scheme}://{host} does not answer: {exc or type(exc).__name__}") from exc
    finally:
        connection.close()


def is_listed(name: str, models: Sequence[str]) -> bool:
    """Whether the gateway knows the name: `auto`, one of its list, or `provider.key.model` of such a one."""
    provider, _, rest = name.partition(".")
    return name == AUTO or name in models or f"{provider}.{rest.partition('.')[2]}" in models


def is_refused(name: str, models: Sequence[str]) -> bool:
    """Whether the gateway answers 404: a name of a known provider that is not listed; others are routed."""
    provider, dot, _ = name.partition(".")
    known = any(model.startswith(f"{provider}.") for model in models)
    return bool(dot) and known and not is_listed(name, models)


def near_names(name: str, models: Sequence[str]) -> list[str]:
    """Return the listed names that are most like this one, or that contain it."""
    found = difflib.get_close_matches(name, models, n=_MAX_NEAR, cutoff=0.6)
    containing = [model for model in models if name.lower() in model.lower()]
    same_provider = [model for model in models if model.partition(".")[0] == name.partition(".")[0]]
    return list(dict.fromkeys((*found, *containing, *same_provider)))[:_MAX_NEAR]
