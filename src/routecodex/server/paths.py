"""The table of paths. A prefix before a known path is allowed, because base URLs of clients differ."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Endpoint:
    """The endpoint of a path: its name, its protocol, and the argument in the path."""

    name: str
    protocol: str = "chat"
    argument: str = ""
    verb: str = ""
    methods: frozenset[str] = frozenset()


PathRow = tuple[re.Pattern[str], str, str]


def _table(*rows: tuple[str, str, str]) -> tuple[PathRow, ...]:
    # With DOTALL, a search does not restart at every position because of a line end in the path.
    return tuple((re.compile(pattern, re.DOTALL), name, protocol) for pattern, name, protocol in rows)


_TABLE = _table(
    (r"^/$", "root", "chat"),
    # Claude Code 2.1.326 probes its base URL with HEAD /api/hello, besides HEAD /.
    (r"/api/hello$", "root", "chat"),
    (r"^/health(?:/live|/ready)?$", "health", "chat"),
    (r"^/metrics$", "metrics", "chat"),
    (r"^/admin(?:/(?P<argument>.*))?$", "admin", "chat"),
    (r"^/ui(?:/(?P<argument>.*))?$", "ui", "chat"),
    (r"/chat/completions$", "generate", "chat"),
    (r"/messages$", "generate", "messages"),
    (r"/messages/count_tokens$", "count", "messages"),
    (r"/responses$", "generate", "responses"),
    (r"/responses/(?P<argument>[^/]+)$", "response", "responses"),
    (r"/responses/(?P<argument>[^/]+)/submit_tool_outputs$", "submit", "responses"),
    (r"/responses/(?P<argument>[^/]+)/input_items$", "input_items", "responses"),
    (r"/embeddings$", "embeddings", "chat"),
)

_VERBS = {"generateContent": "generate", "streamGenerateContent": "generate", "countTokens": "count"}
"""Endpoints of Gemini by the action after the colon of a model's path."""
_MODELS_TABLE = _table(
    (r"/v1beta/models$", "models", "gemini"),
    (r"/v1beta/models/(?P<argument>.+)$", "model", "gemini"),
    (r"/models$", "models", "chat"),
    (r"/models/(?P<argument>.+)$", "model", "chat"),
)
_MODELS = "/models/"


METHODS: dict[str, frozenset[str]] = {
    "root": frozenset({"GET", "HEAD"}),
    "health": frozenset({"GET", "HEAD"}),
    "metrics": frozenset({"GET", "HEAD"}),
    "admin": frozenset({"GET", "POST"}),
    "ui": frozenset({"GET", "HEAD"}),
    "generate": frozenset({"POST"}),
    "count": frozenset({"POST"}),
    "response": frozenset({"GET", "DELETE"}),
    "submit": frozenset({"POST"}),
    "input_items": frozenset({"GET"}),
    "embeddings": frozenset({"POST"}),
    "models": frozenset({"GET", "HEAD"}),
    "model": frozenset({"GET", "HEAD"}),
}
"""Methods of each endpoint."""


_ROUTES = {
    ("generate", "chat"): "/v1/chat/completions",
    ("generate", "messages"): "/v1/messages",
    ("generate", "responses"): "/v1/responses",
    ("count", "messages"): "/v1/messages/count_tokens",
    ("response", "responses"): "/v1/responses/{id}",
    ("submit", "responses"): "/v1/responses/{id}/submit_tool_outputs",
    ("input_items", "responses"): "/v1/responses/{id}/input_items",
    ("embeddings", "chat"): "/v1/embeddings",
    ("models", "chat"): "/v1/models",
    ("models", "gemini"): "/v1beta/models",
    ("model", "chat"): "/v1/models/{model}",
    ("model", "gemini"): "/v1beta/models/{model}",
}


def route_of(path: str) -> str:
    """Return the endpoint of a path as clients know it, without ids, for traces; empty if there is none."""
    endpoint = find(path)
    if endpoint is None:
        return ""
    if endpoint.verb:
        return f"/v1beta/models/{{model}}:{endpoint.verb}"
    return _ROUTES.get((endpoint.name, endpoint.protocol), "")


VERBS = tuple(_VERBS)
"""Actions of Gemini that the gateway supports."""

_VERB = re.compile(r":([a-z]+(?:[A-Z][a-z]+)*)$")


def verb_of(path: str) -> str:
    """Return the Gemini action at the end of a path, supported or not; empty without one."""
    found = _VERB.search(path)
    return found[1] if found is not None else ""


def find(path: str) -> Endpoint | None:
    """Return the endpoint of a path, or None."""
    return _find_cached(path) if len(path) <= _MAX_CACHED_LENGTH else _find(path)


def _find(path: str) -> Endpoint | None:
    if len(path) > _MAX_LENGTH:
        return None
    path = path.rstrip("/") or "/"
    return _search(_TABLE, path) or _gemini_action(path) or _search(_MODELS_TABLE, path)


def _search(table: tuple[PathRow, ...], path: str) -> Endpoint | None:
    for pattern, name, protocol in table:
        match = pattern.search(path)
        if match is not None:
            return Endpoint(name, protocol, match.groupdict().get("argument") or "", "", METHODS[name])
    return None


def _gemini_action(path: str) -> Endpoint | None:
    """Return the endpoint of a path that ends with a Gemini model and an action.

    Without a pattern, which would search for the colon again from every `/models/` in the path.
    """
    before, _, verb = path.rpartition(":")
    name = _VERBS.get(verb)
    _, _, model = before.partition(_MODELS)
    return Endpoint(name, "gemini", model, verb, METHODS[name]) if name is not None and model else None


_MAX_LENGTH = 8192
"""Characters of the longest path; model names and response ids may be long."""
# Long paths are not cached, so that a client cannot fill the memory with them.
_MAX_CACHED_LENGTH = 256
_find_cached = functools.lru_cache(maxsize=2048)(_find)
