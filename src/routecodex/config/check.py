"""Checks what single values cannot show: whether the parts of a configuration fit together."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from routecodex.config.check_routes import NAME, NAME_FIX, aliases, routes, split_target
from routecodex.config.model import Config
from routecodex.config.problems import Place, Problem, quoted
from routecodex.config.providers import Protocol, Provider

__all__ = ["check", "is_loopback", "split_target"]

_SERVER_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
_WORDS = frozenset({"clear", "clock", "help", "status", "stopmessage"})
_VERSION = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?\Z")
_ENDPOINTS = ("/chat/completions", "/responses", "/messages", ":generateContent", ":streamGenerateContent")


def check(config: Config) -> list[Problem]:
    """Every error and warning about how the parts of the configuration fit together."""
    found: list[Problem] = [*_server(config), *_store(config)]
    for name, provider in config.providers.items():
        found.extend(_provider(name, provider))
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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
    names = Counter(key.name for key in server.client_keys)
    for index, key in enumerate(server.client_keys):
        if not key.key:
            yield Problem(("server", "client_keys", index, "key"), "is empty", "give the key")
        if names[key.name] > 1:
            place = ("server", "client_keys", index, "name")
            yield Problem(place, f"{quoted(key.name)} is used more than once", "give each key its own name")


def _store(config: Config) -> Iterator[Problem]:
    place = ("store", "url")
    scheme, colon, rest = config.store.url.partition(":")
    if scheme in {"redis", "rediss"}:
        yield Problem(place, "this version ships the stores file: and memory: only", 'use url = "file:"')
    elif not colon or scheme not in {"file", "memory"} or (scheme == "memory" and rest):
        yield Problem(place, "is no store this version knows", 'use "file:", "file:/path" or "memory:"')


def _provider(name: str, provider: Provider) -> Iterator[Problem]:
    place = ("providers", name)
    if not NAME.match(name):
        yield Problem(place, f"{quoted(name)} cannot be the name of a provider", NAME_FIX)
    elif name.lower() in _WORDS:
        yield Problem(place, f"{quoted(name)} is a word of the instructions in a chat", "use another name")
    yield from _base_url(provider, (*place, "base_url"))
    yield from _keys(provider, place)
    for model in filter(str.isdigit, provider.models):
        told = f"{quoted(model)} would also be read as the number of a key"
        fix = f"use another name, and id = {quoted(model)} for the upstream"
        yield Problem((*place, "models", model), told, fix, severity="warning")
    if not provider.models and provider.protocol != "demo":
        yield Problem(
            (*place, "models"),
            "there is no model, so nothing can be routed here",
            f'add one: [providers.{name}.models."model-name"]',
            severity="warning",
            absent=True,
        )


def _keys(provider: Provider, place: Place) -> Iterator[Problem]:
    parts = _split(provider.base_url)
    asks = provider.protocol != "demo" and provider.auth_style != "none"
    if asks and not provider.auth and parts and not is_loopback(parts.hostname or ""):
        fix = 'add auth = [{ env = "NAME_OF_VARIABLE" }], or auth_style = "none" if it asks for none'
        yield Problem((*place, "auth"), "there is no key", fix, absent=True)
    counts = Counter(key.alias for key in provider.auth)
    for index, key in enumerate(provider.auth):
        at = (*place, "auth", index, "alias")
        if counts[key.alias] > 1:
            yield Problem(at, f"{quoted(key.alias)} is used more than once", "give each key its own alias")
        if not NAME.match(key.alias):
            yield Problem(at, f"{quoted(key.alias)} cannot be an alias", NAME_FIX)
        elif key.alias.isdigit():
            yield Problem(
                at, f"{quoted(key.alias)} would be read as the number of a key", "add a letter to it"
            )
        elif key.alias in provider.models:
            yield Problem(
                at,
                f"{quoted(key.alias)} is also the name of a model: instructions that force or stick take it "
                "for the model, those that disable for the key",
                "use another alias",
                severity="warning",
            )


def _split(url: str) -> SplitResult | None:
    """The parts of an http(s) URL with a host, or None if it is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def _base_url(provider: Provider, place: Place) -> Iterator[Problem]:
    url = provider.base_url
    if provider.protocol == "demo":
        return
    if not url:
        yield Problem(place, "is missing", f"set it: base_url = {quoted(_URL_EXAMPLES[provider.protocol])}")
        return
    parts = _split(url)
    if parts is None:
        yield Problem(place, "is not a URL", "write https:// or http://, a host, and a port if need be")
    elif parts.username or parts.password:
        yield Problem(place, "holds a user name or password", "put the key in auth")
    elif parts.query or parts.fragment:
        yield Problem(place, "holds a query", 'put it in query = { name = "value" }')
    else:
        yield from _ending(provider.protocol, url, place)


_URL_EXAMPLES: dict[Protocol, str] = {
    "chat": "https://api.example.com/v1",
    "responses": "https://api.example.com/v1",
    "messages": "https://api.example.com",
    "gemini": "https://api.example.com",
    "demo": "",
}


def _ending(protocol: Protocol, url: str, place: Place) -> Iterator[Problem]:
    endpoint = next((end for end in _ENDPOINTS if url.endswith(end)), None)
    version = _VERSION.search(url)
    if endpoint is not None:
        yield Problem(place, f"ends in {endpoint}, which is added to it", "leave that off")
    elif protocol == "messages" and version:
        shorter = quoted(url[: version.start()])
        yield Problem(place, f"ends in {version[0]}, which is added to it", f"use {shorter}")
    elif protocol == "gemini" and (version or "/v1beta" in url):
        shorter = quoted(re.sub(r"/v1(?:beta)?(?:/.*)?\Z", "", url))
        yield Problem(place, "holds the version of the API, which is added to it", f"use {shorter}")
    elif protocol in {"chat", "responses"} and not version:
        yield Problem(
            place,
            "does not end in a version such as /v1",
            f"use {quoted(url + '/v1')} unless the provider says otherwise",
            severity="warning",
        )
