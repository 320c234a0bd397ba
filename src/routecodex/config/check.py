"""Checks what single values cannot show: whether the parts of a configuration fit together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from routecodex.config.addresses import is_loopback, is_time_server
from routecodex.config.check_routes import aliases, routes, split_target
from routecodex.config.check_upstreams import check_provider, check_search
from routecodex.config.model import Config
from routecodex.config.problems import Hidden, Problem, quoted, shown

__all__ = ["check", "split_target"]

_SERVER_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
_NOTHING: Hidden = frozenset()


def check(config: Config, hidden: Hidden = _NOTHING) -> list[Problem]:
    """Every error and warning about how the parts of the configuration fit together.

    The text of `hidden` places came from the environment and is not shown.
    """
    found: list[Problem] = [*_server(config), *_client_keys(config), *_store(config, hidden), *_ntp(config)]
    for name, provider in config.providers.items():
        found.extend(check_provider(name, provider, hidden))
    found.extend(check_search(config.server_tools.web_search.http, hidden))
    if not config.providers:
        found.append(
            Problem(
                ("providers",),
                "there is no provider",
                'add one, such as [providers.openai] with preset = "openai"',
                absent=True,
            )
        )
    return [*found, *aliases(config), *routes(config)]


def _server(config: Config) -> Iterator[Problem]:
    server = config.server
    if server.id is not None and not _SERVER_ID.match(server.id):
        yield Problem(
            ("server", "id"), f"{quoted(server.id)} cannot be a name", "use letters, digits, . _ and -"
        )
    if not is_loopback(server.host) and not server.client_keys:
        yield Problem(
            ("server", "client_keys"),
            f"the gateway refuses to start on {quoted(server.host)} without client keys: "
            "anyone who reaches it could spend yours",
            'add client_keys = [{ name = "laptop", key = "${ROUTECODEX_KEY}" }], or set host = "127.0.0.1"',
            absent=True,
        )
    if server.admin_token is not None and not server.admin_token:
        yield Problem(
            ("server", "admin_token"), "is empty", "give a token, or remove the line to have one made"
        )


def _client_keys(config: Config) -> Iterator[Problem]:
    keys = config.server.client_keys
    names = Counter(key.name for key in keys)
    owners: dict[str, str] = {}
    for index, key in enumerate(keys):
        place = ("server", "client_keys", index)
        value = key.key.reveal()
        if not value:
            yield Problem((*place, "key"), "is empty", "give the key")
        elif value in owners:
            told = f"is the key of {quoted(owners[value])} too: nobody could tell the two apart"
            yield Problem((*place, "key"), told, "give each its own key")
        if names[key.name] > 1:
            told = f"{quoted(key.name)} is used more than once"
            yield Problem((*place, "name"), told, "give each key its own name")
        owners.setdefault(value, key.name)


def _store(config: Config, hidden: Hidden) -> Iterator[Problem]:
    place = ("store", "url")
    url = config.store.url
    scheme, colon, rest = url.partition(":")
    if scheme in {"redis", "rediss"}:
        yield Problem(place, "this version ships the stores file: and memory: only", 'use url = "file:"')
    elif not colon or scheme not in {"file", "memory"} or (scheme == "memory" and rest):
        told = f"{shown(url, place, hidden)} is no store this version knows"
        yield Problem(place, told, 'use "file:", "file:/path" or "memory:"')
    elif rest and not rest.startswith(("/", "~/")):
        told = f"{shown(url, place, hidden)} is no absolute path"
        yield Problem(place, told, 'use "file:/path", or "file:" for the session dir')


def _ntp(config: Config) -> Iterator[Problem]:
    ntp = config.server_tools.clock.ntp
    place = ("server_tools", "clock", "ntp", "servers")
    if ntp.enabled and not ntp.servers:
        yield Problem(place, "there is no server to ask", "name one, or set enabled = false")
    for index, server in enumerate(ntp.servers):
        if not is_time_server(server):
            yield Problem((*place, index), f"{quoted(server)} is no time server", 'use "host" or "host:port"')
