"""Which path is what. A prefix before the known paths is fine: clients are configured in many ways."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Endpoint:
    """What a path means: the endpoint's name, the protocol that speaks there, and what the path names."""

    name: str
    protocol: str = "chat"
    argument: str = ""
    verb: str = ""
    methods: frozenset[str] = frozenset()


PathRow = tuple[re.Pattern[str], str, str]


def _table(*rows: tuple[str, str, str]) -> tuple[PathRow, ...]:
    # A dot is any character: one that a line end stops would be tried again from every place before it.
    return tuple((re.compile(pattern, re.DOTALL), name, protocol) for pattern, name, protocol in rows)


_TABLE = _table(
    (r"^/$", "root", "chat"),
    (r"^/health(?:/live|/ready)?$", "health", "chat"),
    (r"^/metrics$", "metrics", "chat"),
    (r"^/admin(?:/(?P<argument>.*))?$", "admin", "chat"),
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
"""What Gemini's paths say of a model, after a colon."""
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
    "generate": frozenset({"POST"}),
    "count": frozenset({"POST"}),
    "response": frozenset({"GET", "DELETE"}),
    "submit": frozenset({"POST"}),
    "input_items": frozenset({"GET"}),
    "embeddings": frozenset({"POST"}),
    "models": frozenset({"GET", "HEAD"}),
    "model": frozenset({"GET", "HEAD"}),
}
"""The methods each endpoint takes."""


VERBS = ("generateContent", "streamGenerateContent", "countTokens")
"""What Gemini's paths can ask of a model here."""

_VERB = re.compile(r":([a-z]+(?:[A-Z][a-z]+)*)$")


def verb_of(path: str) -> str:
    """What a path asks of a model, known or not; empty where it does not ask for anything."""
    found = _VERB.search(path)
    return found[1] if found is not None else ""


def find(path: str) -> Endpoint | None:
    """The endpoint of a path, or None."""
    return _known(path) if len(path) <= _REMEMBERED else _find(path)


def _find(path: str) -> Endpoint | None:
    if len(path) > _LONGEST:
        return None
    path = path.rstrip("/") or "/"
    return _search(_TABLE, path) or _spoken_of(path) or _search(_MODELS_TABLE, path)


def _search(table: tuple[PathRow, ...], path: str) -> Endpoint | None:
    for pattern, name, protocol in table:
        match = pattern.search(path)
        if match is not None:
            return Endpoint(name, protocol, match.groupdict().get("argument") or "", "", METHODS[name])
    return None


def _spoken_of(path: str) -> Endpoint | None:
    """The endpoint of a path that ends with a model and what to do with it.

    Not by a pattern: the colon would be looked for again from every place where a model may be named.
    """
    before, _, verb = path.rpartition(":")
    name = _VERBS.get(verb)
    _, _, model = before.partition(_MODELS)
    return Endpoint(name, "gemini", model, verb, METHODS[name]) if name is not None and model else None


_LONGEST = 8192
"""No path that means something comes near it; a model or an answer may have a long name."""
# Long paths are rare, and whoever sends many of them must not fill the memory.
_REMEMBERED = 256
_known = functools.lru_cache(maxsize=2048)(_find)
