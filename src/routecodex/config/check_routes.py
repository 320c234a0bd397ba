"""Checks names of targets wherever they stand: in aliases, routes, pools and weights."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

from routecodex.config.model import Config, PoolConfig
from routecodex.config.problems import ConfigPath, Problem, choices, nearest, quoted
from routecodex.config.providers import ProviderConfig

NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
NAME_FIX = "use letters, digits, _ and - only: targets are split at dots"
_RESERVED_ROUTES = {
    "direct": "a model that is named outright",
    "force": "a target that a message asks for",
    "sticky": "a sticky target that is in no route",
    "gateway": "what the gateway answers by itself",
}
_GLOB = re.compile(r"[*?\[]")
_SIMILARITY = 0.8


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


def _check_target(config: Config, target: str, place: ConfigPath) -> Iterator[Problem]:
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


def _unknown_part(provider: ProviderConfig, name: str, rest: str, place: ConfigPath) -> Problem:
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


def check_aliases(config: Config) -> Iterator[Problem]:
    """What is wrong with the names that clients may send."""
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
            yield from _check_route_name(config, route, place)
        elif target in config.models and split_target(config, target) is None:
            yield Problem(
                place, f"{quoted(target)} is an alias itself, and aliases are not followed", _ALIAS_FIX
            )
        else:
            yield from _check_target(config, target, place)


_ALIAS_FIX = 'name a target ("provider.model") or a route ("route:thinking")'


def _shadowed(config: Config, alias: str, place: ConfigPath) -> Iterator[Problem]:
    """A glob that comes after one which matches all that it does; exact names always count."""
    if not _GLOB.search(alias):
        return
    names = list(config.models)
    earlier = (name for name in names[: names.index(alias)] if "*" in name and not set("?[") & set(name))
    first = next((name for name in earlier if fnmatchcase(alias, name)), None)
    if first is not None:
        told = f"is never used: {quoted(first)} comes before it and matches all that it does"
        yield Problem(place, told, f"put it before {quoted(first)}", severity="warning")


def _check_route_name(config: Config, route: str, place: ConfigPath) -> Iterator[Problem]:
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


def check_routes(config: Config) -> Iterator[Problem]:
    """What is wrong with the routes, their pools and targets."""
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
        if not NAME.match(route):
            yield Problem(place, f"{quoted(route)} cannot be the name of a route", NAME_FIX)
        yield from _suspicious_route(config, route, place)
        if len({type(entry) for entry in entries}) > 1:
            yield Problem(place, "mixes targets and pools", "make every entry a target or every entry a pool")
            continue
        if not entries and route != "default":
            yield Problem(
                place, "is empty: its requests go to default", "add targets", severity="warning", absent=True
            )
        yield from _check_entries(config, route, entries)


def _suspicious_route(config: Config, route: str, place: ConfigPath) -> Iterator[Problem]:
    """A name that means something else, or that nothing leads to and that looks like a mistake."""
    if route in _RESERVED_ROUTES:
        told = f"{quoted(route)} is taken: so the gateway reports {_RESERVED_ROUTES[route]}"
        yield Problem(place, told, "use another name")
    if route in _WELL_KNOWN_ROUTES or f"route:{route}" in config.models.values():
        return
    meant = difflib.get_close_matches(route, _WELL_KNOWN_ROUTES, n=1, cutoff=_SIMILARITY)
    if meant:
        fix = f"did you mean {quoted(meant[0])}?"
        yield Problem(place, "only metadata.routeHint would lead here", fix, severity="warning")


def _first_target(config: Config) -> str:
    for name, provider in config.providers.items():
        for model in provider.models:
            return f"{name}.{model}"
    return "provider.model"


def _check_entries(config: Config, route: str, entries: tuple[str | PoolConfig, ...]) -> Iterator[Problem]:
    place = ("routing", route)
    if all(isinstance(entry, str) for entry in entries):
        yield from _check_targets(config, tuple(str(entry) for entry in entries), place)
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
        yield from _check_targets(config, pool.targets, (*at, "targets"))
        yield from _check_weights(config, pool, (*at, "weights"))
    yield from _overlaps(config, route)


def _overlaps(config: Config, route: str) -> Iterator[Problem]:
    """Targets that an earlier pool of the route has already: they count there alone."""
    seen: dict[tuple[str, str, str], str] = {}
    # Backups come last, wherever they stand.
    for index, pool in sorted(enumerate(config.pools(route)), key=lambda row: row[1].backup):
        for at, target in enumerate(pool.targets):
            before = {seen[one] for one in _expand_target(config, target) if one in seen}
            if before:
                told = f"{quoted(target)} stands in the pool {quoted(min(before))} already, and counts there"
                place = ("routing", route, index, "targets", at)
                yield Problem(place, told, "remove one of the two", severity="warning")
        for one in (one for target in pool.targets for one in _expand_target(config, target)):
            seen.setdefault(one, pool.id)


def _expand_target(config: Config, target: str) -> list[tuple[str, str, str]]:
    """Every key and model that a target stands for."""
    parts = split_target(config, target)
    if parts is None:
        return []
    provider, key, model = parts
    keys = [key] if key is not None else [one.alias for one in config.providers[provider].keys]
    return [(provider, one, model) for one in keys]


def _check_targets(config: Config, targets: tuple[str, ...], place: ConfigPath) -> Iterator[Problem]:
    for index, target in enumerate(targets):
        at = (*place, index)
        yield from _check_target(config, target, at)
        if target in targets[:index]:
            yield Problem(at, f"{quoted(target)} is named twice", "remove one", severity="warning")
        parts = split_target(config, target)
        if parts is None:
            continue
        whole = next((one for one in targets if one != target and _covers(config, one, target)), None)
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


def _covers(config: Config, whole: str, target: str) -> bool:
    """Whether the first target stands for all that the second does, and more."""
    every, some = _expand_target(config, whole), _expand_target(config, target)
    return len(every) > len(some) > 0 and set(some) <= set(every)


def _check_weights(config: Config, pool: PoolConfig, place: ConfigPath) -> Iterator[Problem]:
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


def _shared_weights(config: Config, pool: PoolConfig, place: ConfigPath) -> Iterator[Problem]:
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
