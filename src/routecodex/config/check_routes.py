"""Checks the names of targets in aliases, routes, pools and weights."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

from routecodex.canon.model_names import is_model_name
from routecodex.config.model import Config, PoolConfig
from routecodex.config.problems import ConfigPath, Problem, choices, nearest, quoted, warning
from routecodex.config.providers import ProviderConfig

NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
NAME_FIX = "use letters, digits, _ and - only: targets are split at dots"
_MODEL_NAME_FIX = "write it as the provider does, without spaces and * ? # < >"
_RESERVED_ROUTES = {
    "direct": "requests whose model names a target",
    "force": "requests with a forced target",
    "sticky": "requests with a sticky target outside of all routes",
    "gateway": "answers of the gateway itself",
}
_GLOB = re.compile(r"[*?\[]")
_SIMILARITY = 0.8


def split_target(config: Config, target: str) -> tuple[str, str | None, str] | None:
    """Return provider, key (None: every key) and model of a target; None if it is unknown.

    Names are looked up, not split: model names may contain dots. If the provider names its models itself,
    every name is known.
    """
    name, _, rest = target.partition(".")
    provider = config.providers.get(name)
    if provider is None:
        return None
    known = provider.named_models
    if rest in known:
        return name, None, rest
    for number, key in enumerate(provider.keys, start=1):
        if provider.discovers and rest in (key.alias, str(number)):
            return None
        for alias in (key.alias, str(number)):
            model = rest.removeprefix(f"{alias}.")
            if model != rest and (model in known or (provider.discovers and is_model_name(model))):
                return name, key.alias, model
    return (name, None, rest) if provider.discovers and is_model_name(rest) else None


def _check_target(config: Config, target: str, place: ConfigPath) -> Iterator[Problem]:
    if split_target(config, target) is not None:
        return
    name, dot, rest = target.partition(".")
    provider = config.providers.get(name)
    if provider is None:
        yield _unknown_provider(config, target, place)
    elif not dot:
        example = next(iter(provider.named_models), "model")
        yield Problem(
            place, f"{quoted(target)} has no model", f"write provider.model: {quoted(f'{name}.{example}')}"
        )
    else:
        yield _unknown_part(provider, name, rest, place)


def _unknown_provider(config: Config, target: str, place: ConfigPath) -> Problem:
    """Return the problem of a target whose provider is unknown: it is misspelled, or the model is alone."""
    name, dot, rest = target.partition(".")
    owners = [owner for owner, provider in config.providers.items() if target in provider.named_models]
    if owners:
        targets = " or ".join(quoted(f"{owner}.{target}") for owner in owners)
        return Problem(place, f"{quoted(target)} has no provider", f"did you mean {targets}?")
    message = f"names the provider {quoted(name)}, which is not configured"
    near = nearest(name, config.providers)
    meant = f"{near}{dot}{rest}" if near is not None else None
    if meant is None or split_target(config, meant) is None:
        known = (f"{owner}.{model}" for owner, row in config.providers.items() for model in row.named_models)
        # The part after the dot of a model name such as glm-4.7 is not a model.
        meant = nearest(target, known) or (None if rest[:1].isdigit() else meant)
    return Problem(place, message, f"did you mean {quoted(meant)}?" if meant else _known_providers(config))


def _known_providers(config: Config) -> str:
    return f"use one of: {choices(config.providers)}" if config.providers else "add that provider"


def _unknown_part(provider: ProviderConfig, name: str, rest: str, place: ConfigPath) -> Problem:
    """Return the problem of a target whose provider is known: its key or its model is wrong."""
    aliases = [key.alias for key in provider.keys]
    model = next((model for model in provider.named_models if rest.endswith(f".{model}")), None)
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
        example = next(iter(provider.named_models), "model")
        return Problem(
            place,
            f"names the key {quoted(rest)} of provider {quoted(name)} but no model",
            f"write provider.key.model: {quoted(f'{name}.{rest}.{example}')}",
        )
    if provider.discovers:
        return Problem(place, f"{quoted(rest)} is not the name of a model", _MODEL_NAME_FIX)
    prefix = next((f"{alias}." for alias in aliases if rest.startswith(f"{alias}.")), "")
    unknown = rest.removeprefix(prefix)
    meant = nearest(unknown, provider.models)
    add = f"add [providers.{name}.models.{quoted(unknown)}]"
    fix = f"did you mean {quoted(f'{name}.{prefix}{meant}')}? Or {add}" if meant else add
    return Problem(
        place, f"names the model {quoted(unknown)}, which provider {quoted(name)} does not have", fix
    )


def check_aliases(config: Config) -> Iterator[Problem]:
    """Check the model names that clients may send."""
    for alias, target in config.models.items():
        place = ("models", alias)
        if not alias:
            yield Problem(place, "clients cannot send an empty name", "set a name")
        if split_target(config, alias) is not None and not _GLOB.search(alias):
            message = "is also a target: requests for that target would go to the alias instead"
            yield warning(place, message, "use another name")
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
    """Warn about a glob after another one that matches the same names; exact names always count."""
    if not _GLOB.search(alias):
        return
    names = list(config.models)
    earlier = (name for name in names[: names.index(alias)] if "*" in name and not set("?[") & set(name))
    first = next((name for name in earlier if fnmatchcase(alias, name)), None)
    if first is not None:
        message = f"is never used: {quoted(first)} comes first and matches the same names"
        yield warning(place, message, f"put it before {quoted(first)}")


def _check_route_name(config: Config, route: str, place: ConfigPath) -> Iterator[Problem]:
    # A route that is not configured falls back to `default`, so well-known names need no pools.
    if route in config.routing or route in _WELL_KNOWN_ROUTES:
        return
    meant = nearest(route, [*config.routing, *_WELL_KNOWN_ROUTES])
    fix = f"did you mean {quoted(f'route:{meant}')}?" if meant else f"use one of: {choices(config.routing)}"
    yield Problem(place, f"names the route {quoted(route)}, which does not exist", fix)


_WELL_KNOWN_ROUTES = (
    *("default", "thinking", "coding", "tools", "search", "vision"),
    *("web_search", "longcontext", "background"),
)


def check_routes(config: Config) -> Iterator[Problem]:
    """Check the routes, their pools and targets."""
    if not config.routing.get("default"):
        state = "is empty" if "default" in config.routing else "is missing"
        yield Problem(
            ("routing", "default"),
            f"{state}: requests that match no other route would fail",
            f"add default = [{quoted(_first_target(config))}]",
            absent=True,
        )
    for route, entries in config.routing.items():
        place = ("routing", route)
        if not NAME.match(route):
            yield Problem(place, f"{quoted(route)} is not a valid name of a route", NAME_FIX)
        yield from _suspicious_route(config, route, place)
        if len({type(entry) for entry in entries}) > 1:
            yield Problem(place, "mixes targets and pools", "make every entry a target or every entry a pool")
            continue
        if not entries and route != "default":
            yield warning(place, "is empty: its requests fall back to default", "add targets", absent=True)
        yield from _check_entries(config, route, entries)


def _suspicious_route(config: Config, route: str, place: ConfigPath) -> Iterator[Problem]:
    """Check for a reserved name, and for an unused name that looks like a misspelling."""
    if route in _RESERVED_ROUTES:
        message = f"{quoted(route)} is reserved: the gateway reports it for {_RESERVED_ROUTES[route]}"
        yield Problem(place, message, "use another name")
    if route in _WELL_KNOWN_ROUTES or f"route:{route}" in config.models.values():
        return
    meant = difflib.get_close_matches(route, _WELL_KNOWN_ROUTES, n=1, cutoff=_SIMILARITY)
    if meant:
        fix = f"did you mean {quoted(meant[0])}?"
        yield warning(place, "only metadata.routeHint can select this route", fix)


def _first_target(config: Config) -> str:
    for name, provider in config.providers.items():
        for model in provider.named_models:
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
                (*at, "targets"), "is empty", f"add targets = [{quoted(_first_target(config))}]", absent=True
            )
        yield from _check_targets(config, pool.targets, (*at, "targets"))
        yield from _check_weights(config, pool, (*at, "weights"))
    yield from _overlaps(config, route)


def _overlaps(config: Config, route: str) -> Iterator[Problem]:
    """Warn about targets of an earlier pool of the route: they count only there."""
    pool_of: dict[tuple[str, str, str], str] = {}
    # Backups come last, in any position.
    for index, pool in sorted(enumerate(config.pools(route)), key=lambda row: row[1].backup):
        for at, target in enumerate(pool.targets):
            before = {pool_of[one] for one in _expand_target(config, target) if one in pool_of}
            if before:
                message = (
                    f"{quoted(target)} is already in the pool {quoted(min(before))} and counts only there"
                )
                place = ("routing", route, index, "targets", at)
                yield warning(place, message, "remove one of the two")
        for one in (one for target in pool.targets for one in _expand_target(config, target)):
            pool_of.setdefault(one, pool.id)


def _expand_target(config: Config, target: str) -> list[tuple[str, str, str]]:
    """Return every key and model that a target covers."""
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
            yield warning(at, f"{quoted(target)} is named twice", "remove one")
        parts = split_target(config, target)
        if parts is None:
            continue
        whole = next((one for one in targets if one != target and _covers(config, one, target)), None)
        if whole is not None:
            message = f"{quoted(target)} is one of the keys that {quoted(whole)} covers"
            yield warning(at, message, "remove one of the two")
        model = config.providers[parts[0]].models.get(parts[2])
        if model is None:
            continue
        if place[1] == "vision" and not model.vision:
            message = f"{quoted(target)} does not support images but is in the route vision"
            yield warning(at, message, "set vision = true on that model, or remove it here")
        long = config.classifier.longcontext_tokens
        if place[1] == "longcontext" and model.context_tokens is not None and model.context_tokens < long:
            message = (
                f"{quoted(target)} holds {model.context_tokens} tokens; requests here have {long} or more"
            )
            fix = "use a larger model here, or lower classifier.longcontext_tokens"
            yield warning(at, message, fix)


def _covers(config: Config, whole: str, target: str) -> bool:
    """Return whether the first target covers all of the second, and more."""
    every, some = _expand_target(config, whole), _expand_target(config, target)
    return len(every) > len(some) > 0 and set(some) <= set(every)


def _check_weights(config: Config, pool: PoolConfig, place: ConfigPath) -> Iterator[Problem]:
    if not math.isfinite(sum(pool.weights.values())):
        yield Problem(place, "add up to infinity", "use smaller numbers: only their ratio counts")
    if pool.mode == "weighted" and not pool.weights:
        message = 'are missing in mode "weighted": every model gets the same share'
        yield warning(place, message, "add weights, or remove the mode", absent=True)
    yield from _shared_weights(config, pool, place)
    if pool.weights and pool.mode != "weighted":
        message = f"have no effect in mode {quoted(pool.mode)}"
        yield warning(place, message, 'set mode = "weighted", or remove them')
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
    """Warn about different weights for keys of one model, which share one weight."""
    first: dict[tuple[str, str], str] = {}
    for target in pool.targets:
        parts = split_target(config, target)
        if parts is None or target not in pool.weights:
            continue
        earlier = first.setdefault((parts[0], parts[2]), target)
        if pool.weights[earlier] != pool.weights[target]:
            message = f"is not used: the keys of a model share one weight, that of {quoted(earlier)}"
            yield warning((*place, target), message, "remove it")
