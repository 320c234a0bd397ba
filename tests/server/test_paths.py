from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from routecodex.server.paths import METHODS, find

Meaning = tuple[str, str, str, str]


def meaning(name: str, protocol: str = "chat", argument: str = "", verb: str = "") -> Meaning:
    return name, protocol, argument, verb


KNOWN: list[tuple[str, Meaning]] = [
    ("/", meaning("root")),
    ("", meaning("root")),
    ("/health", meaning("health")),
    ("/health/live", meaning("health")),
    ("/health/ready", meaning("health")),
    ("/metrics", meaning("metrics")),
    ("/ui", meaning("ui")),
    ("/ui/", meaning("ui")),
    ("/ui/assets/pages/keys.js", meaning("ui", argument="assets/pages/keys.js")),
    ("/ui/v1/messages", meaning("ui", argument="v1/messages")),
    ("/admin", meaning("admin")),
    ("/admin/status", meaning("admin", argument="status")),
    ("/admin/health/reset", meaning("admin", argument="health/reset")),
    ("/admin/v1/messages", meaning("admin", argument="v1/messages")),
    ("/v1/chat/completions", meaning("generate", "chat")),
    ("/chat/completions", meaning("generate", "chat")),
    ("/v1/chat/completions/", meaning("generate", "chat")),
    ("/some/prefix/v1/chat/completions", meaning("generate", "chat")),
    ("/v1/v1/chat/completions", meaning("generate", "chat")),
    ("/v1/messages", meaning("generate", "messages")),
    ("/anthropic/v1/messages", meaning("generate", "messages")),
    ("/v1/messages/count_tokens", meaning("count", "messages")),
    ("/v1/responses", meaning("generate", "responses")),
    ("/v1/responses/resp_1", meaning("response", "responses", "resp_1")),
    ("/v1/responses/resp_1/submit_tool_outputs", meaning("submit", "responses", "resp_1")),
    ("/v1/responses/resp_1/input_items", meaning("input_items", "responses", "resp_1")),
    ("/v1/embeddings", meaning("embeddings", "chat")),
    (
        "/v1beta/models/glm.glm-4.7:generateContent",
        meaning("generate", "gemini", "glm.glm-4.7", "generateContent"),
    ),
    (
        "/v1/models/m:streamGenerateContent",
        meaning("generate", "gemini", "m", "streamGenerateContent"),
    ),
    ("/models/m:generateContent", meaning("generate", "gemini", "m", "generateContent")),
    (
        "/v1beta/models/ft:gpt:org/x:generateContent",
        meaning("generate", "gemini", "ft:gpt:org/x", "generateContent"),
    ),
    ("/v1beta/models/m:countTokens", meaning("count", "gemini", "m", "countTokens")),
    ("/v1beta/models", meaning("models", "gemini")),
    ("/v1beta/models/glm.m", meaning("model", "gemini", "glm.m")),
    ("/v1/models", meaning("models", "chat")),
    ("/models", meaning("models", "chat")),
    ("/v1/models/glm.glm-4.7", meaning("model", "chat", "glm.glm-4.7")),
    ("/v1/models/org/model", meaning("model", "chat", "org/model")),
]


@pytest.mark.parametrize(("path", "expected"), KNOWN, ids=[path for path, _ in KNOWN])
def test_a_known_path_is_found(path: str, expected: Meaning) -> None:
    found = find(path)
    assert found is not None
    assert (found.name, found.protocol, found.argument, found.verb) == expected


UNKNOWN = [
    "/v1",
    "/index.html",
    "/v1/chat",
    "/v1/chat/completions/x",
    "/v1/chatcompletions",
    "/v1/messages/batches",
    "/v1/responses/a/b",
    "/v1/health",
    "/healthy",
    "/v1/admin/status",
    "/administrator",
    "/uix",
    "/v1/ui",
    "/metrics/x",
    "/v1/completions",
    "/CHAT/COMPLETIONS",
    "/favicon.ico",
    "/../etc/passwd",
]


@pytest.mark.parametrize("path", UNKNOWN)
def test_any_other_path_is_nothing(path: str) -> None:
    assert find(path) is None


VERB = re.compile(r"/models/(.+):(generateContent|streamGenerateContent|countTokens)$")
"""The actions as one pattern: the meaning in short, but slow for long paths."""

_NAMED = ("generateContent", "streamGenerateContent", "countTokens", "embed")
PIECES = some.sampled_from(
    [
        "/models/",
        "/models",
        "models/",
        ":",
        "/",
        "m",
        "v1beta",
        ".",
        "é",
        *_NAMED,
        *(f":{verb}" for verb in _NAMED),
    ]
)


@given(some.lists(PIECES, max_size=12).map("".join))
def test_models_and_their_verbs_are_found_as_the_pattern_finds_them(path: str) -> None:
    found = find(path)
    match = VERB.search(path.rstrip("/"))
    action = (found.argument, found.verb) if found is not None and found.verb else None
    assert action == (match.groups() if match is not None else None)


BEGINNINGS = ["/models/", "/v1beta/models/", "/responses/", "/responses/x", ":", "/models/m:"]
ENDS = ["", ":", "\nx", ":generateContent\nx", "/input_items\nx"]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize("end", ENDS)
def test_a_path_made_of_beginnings_as_long_as_a_head_is_nothing(beginning: str, end: str) -> None:
    """A search that restarts at every position would block the server for many seconds."""
    assert find(beginning * (65_536 // len(beginning)) + end) is None


def test_a_path_of_absurd_length_is_nothing() -> None:
    assert find("/v1/models/" + "m" * 8000) is not None
    assert find("/v1/models/" + "m" * 9000) is None
    assert find("/" * 9000) is None


def test_every_endpoint_has_its_methods() -> None:
    assert {name for _, (name, *_) in KNOWN} == set(METHODS)
    assert METHODS["generate"] == {"POST"}
    assert METHODS["response"] == {"GET", "DELETE"}
    assert all("OPTIONS" not in methods for methods in METHODS.values())
