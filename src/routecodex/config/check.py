"""Checks that the parts of a configuration fit together: server, keys, addresses, headers, stores, routes."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from routecodex.config.check_capture import check_capture
from routecodex.config.check_console import check_console
from routecodex.config.check_prices import check_prices
from routecodex.config.check_routes import NAME, NAME_FIX, check_aliases, check_routes
from routecodex.config.check_store import check_store
from routecodex.config.check_teams import check_teams
from routecodex.config.http_values import header_fault, is_header_value, is_host, split_url
from routecodex.config.model import Config
from routecodex.config.problems import ConfigPath, Hidden, Problem, display, quoted, warning
from routecodex.config.providers import DISCOVERED, ModelConfig, Protocol, ProviderConfig
from routecodex.config.server_tools import WebSearchHttpConfig
from routecodex.config.telemetry import TelemetryConfig, url_fault


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_time_server(text: str) -> bool:
    """Return whether the text is `host`, `host:port` or `[v6]:port`."""
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    try:
        parts = urlsplit(f"//{text}")
        return bool(parts.hostname) and parts.netloc == text and parts.port != 0 and not text.endswith(":")
    except ValueError:
        return False


_INSTRUCTION_KEYWORDS = frozenset({"clear", "clock", "help", "status", "stopmessage"})
_VERSION = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?\Z")
_ENDPOINTS = ("/chat/completions", "/responses", "/messages", ":generateContent", ":streamGenerateContent")
_URL_FIX = "write https:// or http://, a host, and a port if needed"


def check_provider(name: str, provider: ProviderConfig, hidden: Hidden) -> Iterator[Problem]:
    """Check a provider; the text of `hidden` places is never shown."""
    place = ("providers", name)
    if not NAME.match(name):
        yield Problem(place, f"{quoted(name)} is not a valid name of a provider", NAME_FIX)
    elif name.lower() in _INSTRUCTION_KEYWORDS:
        yield Problem(place, f"{quoted(name)} is a keyword of chat instructions", "use another name")
    yield from _base_url(provider, (*place, "base_url"), hidden)
    yield from _keys(provider, place)
    yield from _headers(provider.headers, (*place, "headers"))
    yield from check_prices(provider, place)
    for model in filter(str.isdigit, provider.models):
        message = f"{quoted(model)} could also be the number of a key"
        fix = f"use another name, and id = {quoted(model)} for the upstream"
        yield warning((*place, "models", model), message, fix)
    if provider.discovers:
        yield from _discovery(provider, (*place, "models"))
    if provider.codex_items != "auto" and provider.protocol != "responses":
        yield Problem(
            (*place, "codex_items"),
            f"applies to providers with protocol = {quoted('responses')} only",
            "remove it: others always get plain functions",
        )
    if not provider.models and provider.protocol != "demo":
        yield warning(
            (*place, "models"),
            "is empty, so no request can be routed to this provider",
            f'add one: [providers.{name}.models."model-name"]',
            absent=True,
        )


def _discovery(provider: ProviderConfig, place: ConfigPath) -> Iterator[Problem]:
    """Check a provider that names its models itself."""
    if provider.protocol == "demo":
        message = "the demo provider does not list its models, so they cannot be discovered"
        yield Problem(place, message, "name them: models = { model = {} }")
    if provider.models[DISCOVERED] != ModelConfig(id=DISCOVERED):
        fix = "name the model that is meant: its own table has its properties"
        yield Problem((*place, DISCOVERED), "stands for many models and cannot have properties", fix)


def _keys(provider: ProviderConfig, place: ConfigPath) -> Iterator[Problem]:
    parts = split_url(provider.base_url)
    needs_key = provider.protocol != "demo" and provider.auth_style != "none"
    if needs_key and not provider.auth and parts and not is_loopback(parts.hostname or ""):
        fix = 'add auth = [{ env = "NAME_OF_VARIABLE" }], or auth_style = "none" if it needs none'
        yield Problem((*place, "auth"), "has no key", fix, absent=True)
    yield from _same_keys(provider, place)
    counts = Counter(key.alias for key in provider.auth)
    for index, key in enumerate(provider.auth):
        at = (*place, "auth", index, "alias")
        if counts[key.alias] > 1:
            yield Problem(at, f"{quoted(key.alias)} is used more than once", "give each key its own alias")
        if not NAME.match(key.alias):
            yield Problem(at, f"{quoted(key.alias)} is not a valid alias", NAME_FIX)
        elif key.alias.isdigit():
            yield Problem(
                at, f"{quoted(key.alias)} would be taken for the number of a key", "add a letter to it"
            )
        elif key.alias in provider.models:
            yield warning(
                at,
                f"{quoted(key.alias)} is also the name of a model: force and sticky instructions use "
                "the model, disable instructions the key",
                "use another alias",
            )


def _same_keys(provider: ProviderConfig, place: ConfigPath) -> Iterator[Problem]:
    """Warn about keys that occur twice; the demo provider ignores its keys."""
    if provider.protocol == "demo":
        return
    first: dict[str, str] = {}
    for index, key in enumerate(provider.auth):
        value = key.secret.reveal()
        if value and value in first:
            yield warning(
                (*place, "auth", index),
                f"is the same key as {quoted(first[value])}: both share one limit",
                "remove one of them",
            )
        first.setdefault(value, key.alias)


def _headers(headers: Mapping[str, str], place: ConfigPath) -> Iterator[Problem]:
    for name, value in headers.items():
        fault = header_fault(name, value)
        if fault is not None:
            yield Problem((*place, name), *fault)


def check_search(row: WebSearchHttpConfig, hidden: Hidden) -> Iterator[Problem]:
    """Check the search API; the text of `hidden` places is never shown."""
    place = ("server_tools", "web_search", "http")
    if row.url is not None and split_url(row.url) is None:
        yield _not_a_url(row.url, (*place, "url"), hidden)
    elif row.url is not None and "@" in row.url.partition("://")[2].partition("/")[0]:
        yield Problem((*place, "url"), "contains a user name or password", "put the key in key or headers")
    if row.key is not None and not is_header_value(row.key.reveal()):
        yield Problem(
            (*place, "key"),
            "contains a character that is not allowed in a header",
            "copy the key again, without spaces",
        )
    yield from _headers(row.headers, (*place, "headers"))


def check_telemetry(row: TelemetryConfig, hidden: Hidden) -> Iterator[Problem]:
    """Check the address and headers of a collector; the text of `hidden` places is never shown."""
    for key in ("endpoint", "traces_endpoint"):
        url, place = getattr(row, key), ("telemetry", key)
        if url is None:
            continue
        if split_url(url) is None:
            yield _not_a_url(url, place, hidden)
        elif fault := url_fault(url):
            yield Problem(place, *fault)
    headers = {name: secret.reveal() for name, secret in row.headers.items()}
    yield from _headers(headers, ("telemetry", "headers"))


def _not_a_url(url: str, place: ConfigPath, hidden: Hidden) -> Problem:
    return Problem(place, f"{display(url, place, hidden)} is not a URL", _URL_FIX)


def _base_url(provider: ProviderConfig, place: ConfigPath, hidden: Hidden) -> Iterator[Problem]:
    url = provider.base_url
    if provider.protocol == "demo":
        return
    if not url:
        yield Problem(place, "is missing", f"set it: base_url = {quoted(_URL_EXAMPLES[provider.protocol])}")
        return
    parts = split_url(url)
    if parts is None:
        yield _not_a_url(url, place, hidden)
    elif parts.username or parts.password:
        yield Problem(place, "contains a user name or password", "put the key in auth")
    elif parts.query or parts.fragment:
        yield Problem(place, "contains a query", 'put it in query = { name = "value" }')
    else:
        yield from _ending(provider.protocol, url, place)


_URL_EXAMPLES: dict[Protocol, str] = {
    "chat": "https://api.example.com/v1",
    "responses": "https://api.example.com/v1",
    "messages": "https://api.example.com",
    "gemini": "https://api.example.com",
    "demo": "",
}


def _ending(protocol: Protocol, url: str, place: ConfigPath) -> Iterator[Problem]:
    endpoint = next((end for end in _ENDPOINTS if url.endswith(end)), None)
    version = _VERSION.search(url)
    if endpoint is not None:
        yield Problem(place, f"ends in {endpoint}, which the gateway adds", "remove that")
    elif protocol == "messages" and version:
        shorter = quoted(url[: version.start()])
        yield Problem(place, f"ends in {version[0]}, which the gateway adds", f"use {shorter}")
    elif protocol == "gemini" and (version or "/v1beta" in url):
        shorter = quoted(re.sub(r"/v1(?:beta)?(?:/.*)?\Z", "", url))
        yield Problem(place, "contains the version of the API, which the gateway adds", f"use {shorter}")
    elif protocol in {"chat", "responses"} and not version:
        yield warning(
            place,
            "does not end in a version such as /v1",
            f"use {quoted(url + '/v1')} unless the provider says otherwise",
        )


_SERVER_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
_NO_PLACES: Hidden = frozenset()


def check(config: Config, hidden: Hidden = _NO_PLACES, *, stored_clients: bool = False) -> list[Problem]:
    """Return every error and warning about how the parts of the configuration fit together.

    The text of `hidden` places came from the environment and is not shown. With `stored_clients`, clients may
    come from the store: the caller checks that an open address has some.
    """
    problems: list[Problem] = [
        *_server(config),
        *([] if stored_clients else open_address(config)),
        *_origins(config),
        *check_teams(config, lambda url: split_url(url) is not None),
        *check_console(config, split_url),
        *check_capture(config),
        *check_store(config, hidden),
        *_ntp(config),
    ]
    for name, provider in config.providers.items():
        problems.extend(check_provider(name, provider, hidden))
    problems.extend(check_search(config.server_tools.web_search.http, hidden))
    problems.extend(check_telemetry(config.telemetry, hidden))
    if not config.providers:
        problems.append(
            Problem(
                ("providers",),
                "is empty",
                'add one, such as [providers.openai] with preset = "openai"',
                absent=True,
            )
        )
    return [*problems, *check_aliases(config), *check_routes(config)]


OPEN_ADDRESS: ConfigPath = ("server", "client_keys")
"""Place of the problem that other machines can reach a gateway without clients."""


def open_address(config: Config) -> list[Problem]:
    """Return the problem of a gateway that other machines can reach and whose file names no client."""
    host = config.server.host
    if is_loopback(host) or config.has_clients:
        return []
    message = (
        f"the gateway refuses to start on {quoted(host)} without client keys: "
        "anyone who reaches it could spend yours"
    )
    fix = (
        "run `routecodex keys add NAME`, or add client_keys = "
        '[{ name = "laptop", key = "${ROUTECODEX_KEY}" }], or set host = "127.0.0.1"'
    )
    return [Problem(OPEN_ADDRESS, message, fix, absent=True)]


def _server(config: Config) -> Iterator[Problem]:
    server = config.server
    if server.id is not None and not _SERVER_ID.match(server.id):
        yield Problem(
            ("server", "id"), f"{quoted(server.id)} is not a valid name", "use letters, digits, . _ and -"
        )
    if server.advertise_url is not None and not _is_plain_url(server.advertise_url):
        yield Problem(
            ("server", "advertise_url"),
            "is not the URL of a server",
            'write "http://host:port", without a path',
        )
    if server.admin_token is not None and not server.admin_token:
        yield Problem(
            ("server", "admin_token"), "is empty", "set a token, or remove the line to have one generated"
        )


def _is_plain_url(url: str) -> bool:
    parts = split_url(url)
    return parts is not None and not (parts.path.strip("/") or parts.query or parts.fragment or "@" in url)


_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:\*|(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>\*|[0-9]{1,5}))?)\Z",
    re.IGNORECASE,
)
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def _origins(config: Config) -> Iterator[Problem]:
    for index, origin in enumerate(config.server.allowed_origins):
        yield from _origin(origin, ("server", "allowed_origins", index), keyed=config.has_clients)


def _origin(origin: str, place: ConfigPath, *, keyed: bool) -> Iterator[Problem]:
    found = _ORIGIN.match(origin)
    if origin in {"*", "null"}:
        if not keyed:
            pages = "every web page" if origin == "*" else "a sandboxed frame of every web page"
            message = f"{quoted(origin)} lets {pages} spend your provider keys"
            yield warning(place, message, "list the origins, or set client_keys")
    elif found is None:
        yield Problem(place, f"{quoted(origin)} is not an origin", _origin_fix(origin))
    elif found["host"] is None and found["scheme"].lower() in _DEFAULT_PORTS:
        message = f"{quoted(origin)} stands for every web page"
        yield Problem(place, message, 'name the host, or write "*" for all pages')
    elif found["port"] and found["port"] == _DEFAULT_PORTS.get(found["scheme"].lower()):
        message = f"{quoted(origin)} has the default port, which browsers leave out"
        yield Problem(place, message, f"write {quoted(origin.rpartition(':')[0])}")


def _origin_fix(text: str) -> str:
    parts = split_url(text)
    if parts is not None:
        return "write " + quoted(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
    if "://" not in text and is_host(text.partition(":")[0]):
        return "write " + quoted(f"https://{text}") + " or " + quoted(f"http://{text}")
    return "write scheme://host or scheme://host:port"


def _ntp(config: Config) -> Iterator[Problem]:
    ntp = config.server_tools.clock.ntp
    place = ("server_tools", "clock", "ntp", "servers")
    if ntp.enabled and not ntp.servers:
        yield Problem(place, "is empty", "add one, or set enabled = false")
    for index, server in enumerate(ntp.servers):
        if not is_time_server(server):
            yield Problem(
                (*place, index), f"{quoted(server)} is not a time server", 'use "host" or "host:port"'
            )
