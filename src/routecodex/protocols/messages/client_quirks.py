"""Quirks of messages clients, as data.

A tool turn ends without `message_stop`, except for clients that need it: some fail without it, some stop
silently, some drop the turn's usage (measured with the clients named here). A client is recognised by its
headers (names in lower case); every pattern of a row must match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct


class ClientQuirk(Struct, frozen=True):
    """A client that needs `message_stop`, its failure without it, and the headers that identify it."""

    name: str
    loses: str
    headers: dict[str, re.Pattern[str]]


def _headers(**headers: str) -> dict[str, re.Pattern[str]]:
    return {name.replace("_", "-"): re.compile(pattern, re.IGNORECASE) for name, pattern in headers.items()}


NEEDS_MESSAGE_STOP: tuple[ClientQuirk, ...] = (
    ClientQuirk(
        "Anthropic SDK for JavaScript, .stream()",
        "throws: the stream ended without a message",
        _headers(x_stainless_lang="^js$", x_stainless_helper_method="^stream$"),
    ),
    ClientQuirk("Vercel AI SDK", "stops silently", _headers(user_agent=r"(^|[\s,])ai-sdk[/-]")),
    ClientQuirk("Claude Code", "drops the turn's usage", _headers(user_agent="(^|[ ,])claude-(cli|code)/")),
    ClientQuirk("Claude Code", "drops the turn's usage", _headers(x_claude_code_session_id=".")),
    ClientQuirk("pi", "fails", _headers(user_agent="(^|[ ,])pi(-coding-agent)?/")),
    ClientQuirk(
        "pi, and the Anthropic SDK for JavaScript in a browser",
        "fails",
        _headers(x_stainless_lang="^js$", anthropic_dangerous_direct_browser_access="^true$"),
    ),
)

_READ = tuple(dict.fromkeys(name for client in NEEDS_MESSAGE_STOP for name in client.headers))
_LONGEST_REMEMBERED = 256

REFUSAL_SINCE: dict[str, tuple[int, ...]] = {"python": (0, 51, 0), "js": (0, 41, 0)}
"""First version of Anthropic's SDK with the stop reason `refusal`, by language."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_NOT_NEEDED = "auto: this client does not need it"
_SETTINGS = {"always": True, "never": False}


def message_stop_rule(setting: str, headers: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether a tool turn ends with `message_stop`, and the rule that decides it.

    The setting is `auto`, `always` or `never`.
    """
    fixed = _SETTINGS.get(setting)
    if fixed is not None:
        return fixed, setting
    values = tuple(map(headers.get, _READ))
    short = len("".join(filter(None, values))) <= _LONGEST_REMEMBERED
    name = _client_name(values) if short else _client_name.__wrapped__(values)
    return (False, _NOT_NEEDED) if name is None else (True, f"{setting}: {name}")


@lru_cache(maxsize=128)
def _client_name(values: tuple[str | None, ...]) -> str | None:
    """Return the client that needs `message_stop`; the requests of one client have the same values."""
    headers = dict(zip(_READ, values, strict=True))
    return next((client.name for client in NEEDS_MESSAGE_STOP if _matches(client, headers)), None)


def _matches(client: ClientQuirk, headers: Mapping[str, str | None]) -> bool:
    for name, pattern in client.headers.items():
        value = headers.get(name)
        if not value or not pattern.search(value):
            return False
    return True


def knows_refusal(headers: Mapping[str, str]) -> bool:
    """Whether the client knows the stop reason `refusal`; assumed if it does not send its SDK version."""
    language = headers.get("x-stainless-lang")
    if language is None:
        return True
    since = REFUSAL_SINCE.get(language.lower())
    version = _VERSION.match(headers.get("x-stainless-package-version", ""))
    if since is None or version is None:
        return True
    return tuple(map(int, version.groups())) >= since
