"""Checks what single values cannot show: whether the parts of a configuration fit together."""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from urllib.parse import SplitResult, urlsplit

from routecodex.config.model import Config
from routecodex.config.problems import Place, Problem, choices, nearest, quoted
from routecodex.config.providers import Protocol, Provider
from routecodex.config.routing import Pool

__all__ = ["check", "is_loopback", "split_target"]

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
_SERVER_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
_NAME_FIX = "use letters, digits, _ and - only: targets are split at dots"
_WORDS = frozenset({"clear", "clock", "help", "status", "stopmessage"})
_TAKEN_ROUTES = {
    "direct": "a model that is named outright",
    "force": "a target that a message asks for",
    "sticky": "a sticky target that is in no route",
    "gateway": "what the gateway answers by itself",
}
_WILD = re.compile(r"[*?\[]")
_SURE = 0.8
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
    return [*found, *_aliases(config), *_routes(config)]


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
    if not _NAME.match(name):
        yield Problem(place, f"{quoted(name)} cannot be the name of a provider", _NAME_FIX)
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
        if not _NAME.match(key.alias):
            yield Problem(at, f"{quoted(key.alias)} cannot be an alias", _NAME_FIX)
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


def split_target(config: Config, target: str) -> tuple[str, str | None, str] | None:
    """The provider, key (None: every key) and model that a target names; None if it names none.

    Names are looked up, not split: models may hold dots.
    """
    name, _, rest = target.partition(".")
    provider = config.providers.get(name)
    if provider is None:
        return None
    if rest in provider.models:
        return name, None, rest
    for number, key in enumerate(provider.keys, start=1):
        for alias in (key.alias, str(number)):
            model = rest.removeprefix(f"{alias}.")
            if model != rest and model in provider.models:
                return name, key.alias, model
    return None


def _target(config: Config, target: str, place: Place) -> Iterator[Problem]:
    if split_target(config, target) is not None:
        return
    name, dot, rest = target.partition(".")
    provider = config.providers.get(name)
    if provider is None:
        meant = nearest(name, config.providers)
        fix = f"did you mean {quoted(meant + dot + rest)}?" if meant else _known_providers(config)
        yield Problem(place, f"names the provider {quoted(name)}, which is not configured", fix)
    elif not dot:
        example = next(iter(provider.models), "model")
        yield Problem(
            place, f"{quoted(target)} names no model", f"write provider.model: {quoted(f'{name}.{example}')}"
        )
    else:
        yield _unknown_part(provider, name, rest, place)


def _known_providers(config: Config) -> str:
    return f"use one of: {choices(config.providers)}" if config.providers else "add that provider"


def _unknown_part(provider: Provider, name: str, rest: str, place: Place) -> Problem:
    """The problem of a target whose provider is known: is it the key or the model that is wrong?"""
    aliases = [key.alias for key in provider.keys]
    model = next((model for model in provider.models if rest.endswith(f".{model}")), None)
    if model is not None:
        alias = rest.removesuffix(f".{model}")
        meant = nearest(alias, aliases)
        fix = (
            f"did you mean {quoted(f'{name}.{meant}.{model}')}?" if meant else f"its keys: {choices(aliases)}"
        )
        return Problem(
            place, f"names the key {quoted(alias)}, which provider {quoted(name)} does not have", fix
        )
    if rest in aliases or (rest.isdigit() and 0 < int(rest[:9]) <= len(aliases)):
        example = next(iter(provider.models), "model")
        return Problem(
            place,
            f"names the key {quoted(rest)} of provider {quoted(name)} and no model",
            f"write provider.key.model: {quoted(f'{name}.{rest}.{example}')}",
        )
    prefix = next((f"{alias}." for alias in aliases if rest.startswith(f"{alias}.")), "")
    wanted = rest.removeprefix(prefix)
    meant = nearest(wanted, provider.models)
    add = f"add [providers.{name}.models.{quoted(wanted)}]"
    fix = f"did you mean {quoted(f'{name}.{prefix}{meant}')}? Or {add}" if meant else add
    return Problem(
        place, f"names the model {quoted(wanted)}, which provider {quoted(name)} does not have", fix
    )


def _aliases(config: Config) -> Iterator[Problem]:
    for alias, target in config.models.items():
        place = ("models", alias)
        if not alias:
            yield Problem(place, "an empty name can never be sent", "give it a name")
        if split_target(config, alias) is not None:
            told = "is also a target: requests for that target would go where the alias says"
            yield Problem(place, told, "use another name", severity="warning")
        yield from _shadowed(config, alias, place)
        kind, colon, route = target.partition(":")
        if kind == "route" and colon:
            yield from _route_name(config, route, place)
        elif target in config.models and split_target(config, target) is None:
            yield Problem(place, f"{quoted(target)} is an alias itself, and aliases are not followed", _TO)
        else:
            yield from _target(config, target, place)


_TO = 'name a target ("provider.model") or a route ("route:thinking")'


def _shadowed(config: Config, alias: str, place: Place) -> Iterator[Problem]:
    """A glob that comes after one which matches all that it does; exact names always count."""
    if not _WILD.search(alias):
        return
    names = list(config.models)
    earlier = (name for name in names[: names.index(alias)] if "*" in name and not set("?[") & set(name))
    first = next((name for name in earlier if fnmatchcase(alias, name)), None)
    if first is not None:
        told = f"is never used: {quoted(first)} comes before it and matches all that it does"
        yield Problem(place, told, f"put it before {quoted(first)}", severity="warning")


def _route_name(config: Config, route: str, place: Place) -> Iterator[Problem]:
    # A route that is not configured falls to `default`, so the well-known names need no pools of their own.
    if route in config.routing or route in _WELL_KNOWN_ROUTES:
        return
    meant = nearest(route, [*config.routing, *_WELL_KNOWN_ROUTES])
    fix = f"did you mean {quoted(f'route:{meant}')}?" if meant else f"use one of: {choices(config.routing)}"
    yield Problem(place, f"names the route {quoted(route)}, which does not exist", fix)


_WELL_KNOWN_ROUTES = (
    "default",
    "thinking",
    "coding",
    "tools",
    "search",
    "vision",
    "web_search",
    "longcontext",
    "background",
)


def _routes(config: Config) -> Iterator[Problem]:
    if not config.routing.get("default"):
        what = "is empty" if "default" in config.routing else "is missing"
        yield Problem(
            ("routing", "default"),
            f"{what}: a request that no other route takes would have nowhere to go",
            f"add default = [{quoted(_first_target(config))}]",
            absent=True,
        )
    for route, entries in config.routing.items():
        place = ("routing", route)
        if not _NAME.match(route):
            yield Problem(place, f"{quoted(route)} cannot be the name of a route", _NAME_FIX)
        yield from _odd_route(config, route, place)
        if len({type(entry) for entry in entries}) > 1:
            yield Problem(place, "mixes targets and pools", "make every entry a target or every entry a pool")
            continue
        if not entries and route != "default":
            yield Problem(
                place, "is empty: its requests go to default", "add targets", severity="warning", absent=True
            )
        yield from _entries(config, route, entries)


def _odd_route(config: Config, route: str, place: Place) -> Iterator[Problem]:
    """A name that means something else, or that nothing leads to and that looks like a mistake."""
    if route in _TAKEN_ROUTES:
        told = f"{quoted(route)} is taken: so the gateway reports {_TAKEN_ROUTES[route]}"
        yield Problem(place, told, "use another name")
    if route in _WELL_KNOWN_ROUTES or f"route:{route}" in config.models.values():
        return
    meant = difflib.get_close_matches(route, _WELL_KNOWN_ROUTES, n=1, cutoff=_SURE)
    if meant:
        fix = f"did you mean {quoted(meant[0])}?"
        yield Problem(place, "only metadata.routeHint would lead here", fix, severity="warning")


def _first_target(config: Config) -> str:
    for name, provider in config.providers.items():
        for model in provider.models:
            return f"{name}.{model}"
    return "provider.model"


def _entries(config: Config, route: str, entries: tuple[str | Pool, ...]) -> Iterator[Problem]:
    place = ("routing", route)
    if all(isinstance(entry, str) for entry in entries):
        yield from _targets(config, tuple(str(entry) for entry in entries), place)
        return
    ids = Counter(pool.id for pool in config.pools(route))
    for index, pool in enumerate(config.pools(route)):
        at = (*place, index)
        if ids[pool.id] > 1:
            yield Problem(
                (*at, "id"), f"{quoted(pool.id)} is used more than once", "give each pool its own id"
            )
        if not pool.targets:
            yield Problem(
                (*at, "targets"),
                "there is no target",
                f"add targets = [{quoted(_first_target(config))}]",
                absent=True,
            )
        yield from _targets(config, pool.targets, (*at, "targets"))
        yield from _weights(config, pool, (*at, "weights"))
    yield from _overlaps(config, route)


def _overlaps(config: Config, route: str) -> Iterator[Problem]:
    """Targets that an earlier pool of the route has already: they count there alone."""
    seen: dict[tuple[str, str, str], str] = {}
    # Backups come last, wherever they stand.
    for index, pool in sorted(enumerate(config.pools(route)), key=lambda row: row[1].backup):
        for at, target in enumerate(pool.targets):
            before = {seen[one] for one in _single(config, target) if one in seen}
            if before:
                told = f"{quoted(target)} stands in the pool {quoted(min(before))} already, and counts there"
                place = ("routing", route, index, "targets", at)
                yield Problem(place, told, "remove one of the two", severity="warning")
        for one in (one for target in pool.targets for one in _single(config, target)):
            seen.setdefault(one, pool.id)


def _single(config: Config, target: str) -> list[tuple[str, str, str]]:
    """Every key and model that a target stands for."""
    parts = split_target(config, target)
    if parts is None:
        return []
    provider, key, model = parts
    keys = [key] if key is not None else [one.alias for one in config.providers[provider].keys]
    return [(provider, one, model) for one in keys]


def _targets(config: Config, targets: tuple[str, ...], place: Place) -> Iterator[Problem]:
    for index, target in enumerate(targets):
        at = (*place, index)
        yield from _target(config, target, at)
        if target in targets[:index]:
            yield Problem(at, f"{quoted(target)} is named twice", "remove one", severity="warning")
        parts = split_target(config, target)
        if parts is None:
            continue
        whole = next((one for one in targets if one != target and _holds(config, one, target)), None)
        if whole is not None:
            told = f"{quoted(target)} is one of the keys that {quoted(whole)} stands for"
            yield Problem(at, told, "remove one of the two", severity="warning")
        model = config.providers[parts[0]].models[parts[2]]
        if place[1] == "vision" and not model.vision:
            told = f"{quoted(target)} cannot see images and is in the route vision"
            yield Problem(at, told, "set vision = true on that model, or remove it here", severity="warning")
        long = config.classifier.longcontext_tokens
        if place[1] == "longcontext" and model.context_tokens is not None and model.context_tokens < long:
            told = f"{quoted(target)} holds {model.context_tokens} tokens; requests here have {long} or more"
            fix = "use a larger model here, or lower classifier.longcontext_tokens"
            yield Problem(at, told, fix, severity="warning")


def _holds(config: Config, whole: str, target: str) -> bool:
    """Whether the first target stands for all that the second does, and more."""
    every, some = _single(config, whole), _single(config, target)
    return len(every) > len(some) > 0 and set(some) <= set(every)


def _weights(config: Config, pool: Pool, place: Place) -> Iterator[Problem]:
    if not math.isfinite(sum(pool.weights.values())):
        yield Problem(place, "add up to infinity", "write smaller numbers: only their relation counts")
    if pool.mode == "weighted" and not pool.weights:
        told = 'are missing in mode "weighted": every model gets the same share'
        yield Problem(place, told, "add weights, or remove the mode", severity="warning", absent=True)
    yield from _shared_weights(config, pool, place)
    if pool.weights and pool.mode != "weighted":
        told = f"have no effect in mode {quoted(pool.mode)}"
        yield Problem(place, told, 'set mode = "weighted", or remove them', severity="warning")
    for target in pool.weights:
        if target not in pool.targets:
            meant = nearest(target, pool.targets)
            fix = (
                f"did you mean {quoted(meant)}?"
                if meant
                else f"add it to targets, or use: {choices(pool.targets)}"
            )
            yield Problem((*place, target), "is not a target of this pool", fix)


def _shared_weights(config: Config, pool: Pool, place: Place) -> Iterator[Problem]:
    """Different weights for keys of one model, whose share is one."""
    first: dict[tuple[str, str], str] = {}
    for target in pool.targets:
        parts = split_target(config, target)
        if parts is None or target not in pool.weights:
            continue
        earlier = first.setdefault((parts[0], parts[2]), target)
        if pool.weights[earlier] != pool.weights[target]:
            told = f"is not used: the keys of a model share one weight, that of {quoted(earlier)}"
            yield Problem((*place, target), told, "remove it", severity="warning")
