"""Targets to route to: providers with their keys and models, routes with their pools.

target   provider.key.model, fully named: the destination of one upstream attempt
pool     an ordered group of targets inside a route
route    a named list of pools
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from routecodex.canon.model_names import is_model_name

Mode = Literal["round-robin", "weighted", "priority"]
Prefer = Literal["model", "key"]

_MAX_CACHED_NAME = 256
"""Longest name that is cached: names come from clients, so the cache must be bounded."""


_MAX_NEAR = 5

VIA = "claude-via-"
"""Prefix of `provider.model` under which Claude Code lists a model that is not called Claude."""


class Target(Struct, frozen=True, cache_hash=True):
    """One destination of a request: a model of a provider, with one of its keys."""

    provider: str
    key: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}.{self.key}.{self.model}"


class Selector(Struct, frozen=True):
    """A resolved name: a provider, one of its keys, one of its models, or one key for one model."""

    provider: str
    key: str | None = None
    model: str | None = None

    def covers(self, target: Target | Selector) -> bool:
        """Return whether the selector includes the target, or every target of another selector."""
        return (
            self.provider == target.provider
            and self.key in (None, target.key)
            and self.model in (None, target.model)
        )

    def overlaps(self, other: Selector) -> bool:
        """Return whether a target can be included by both."""
        return (
            self.provider == other.provider
            and (None in (self.key, other.key) or self.key == other.key)
            and (None in (self.model, other.model) or self.model == other.model)
        )

    def __str__(self) -> str:
        return ".".join(filter(None, (self.provider, self.key, self.model)))


class PlanStep(Struct, frozen=True):
    """One target of a plan, the rule that admitted it, and its route."""

    target: Target
    reason: str
    route: str = ""


class Model(Struct, frozen=True, kw_only=True):
    """Properties of one model; `id` is its name at the upstream."""

    id: str
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    vision: bool = True
    tools: bool = True
    reasoning: bool = True


class Provider(Struct, frozen=True, kw_only=True):
    """One upstream: its protocol, its keys in order, its models.

    `describe` is set for a provider that names its models itself: every name that `admits` accepts can be
    used, and `describe` returns the properties of one that is not among `models`.
    """

    name: str
    protocol: str
    keys: tuple[str, ...]
    models: dict[str, Model] = field(default_factory=dict)
    describe: Callable[[str], Model] | None = None
    admits: Callable[[str], bool] | None = None

    def serves(self, model: str) -> bool:
        """Return whether a model can be requested from it."""
        if model in self.models:
            return True
        if self.describe is None or not is_model_name(model):
            return False
        return self.admits is None or self.admits(model)


class Pool(Struct, frozen=True, kw_only=True):
    """Targets of a route, as the configuration names them."""

    id: str
    targets: tuple[str, ...]
    mode: Mode = "round-robin"
    backup: bool = False
    weights: dict[str, float] = field(default_factory=dict)


class TargetRules(Protocol):
    """Rules for what a client may use."""

    def admits_provider(self, name: str) -> bool: ...
    def admits_target(self, provider: str, model: str) -> bool: ...
    def admits_route(self, route: str) -> bool: ...


class Registry:
    """Providers, routes and model aliases; every dotted name resolves here."""

    def __init__(
        self,
        providers: Iterable[Provider],
        *,
        routes: Mapping[str, tuple[Pool, ...]],
        aliases: Mapping[str, str],
    ) -> None:
        self.providers = {provider.name: provider for provider in providers}
        self.routes = dict(routes)
        self.aliases = dict(aliases)
        self._known_alias = functools.lru_cache(maxsize=1024)(self._alias_of)
        self._known_targets = functools.lru_cache(maxsize=4096)(self._targets_of)
        self._known_selector = functools.lru_cache(maxsize=4096)(self._resolve)
        self.smallest_context = min(filter(None, self._context_sizes()), default=sys.maxsize)
        """Tokens up to which every target of a route has room."""

    def model(self, target: Target) -> Model:
        """Return the properties of the target's model."""
        provider = self.providers[target.provider]
        found = provider.models.get(target.model)
        if found is None:
            assert provider.describe is not None, f"{target} is not a target"
            found = provider.describe(target.model)
        return found

    def is_listed(self, target: Target) -> bool:
        """Return whether the configuration or the provider itself names the target's model."""
        return target.model in self.providers[target.provider].models

    def _context_sizes(self) -> Iterator[int | None]:
        """Yield the sizes of all models that routes may name; a provider's own list may have thousands."""
        for provider in self.providers.values():
            if provider.describe is None:
                yield from (model.context_tokens for model in provider.models.values())
        for route in self.routes:
            yield from (self.model(target).context_tokens for target in self.targets_in(route))

    def resolve(self, name: str, *, prefer: Prefer = "model") -> Selector | None:
        """Resolve a dotted name; return None if it is unknown.

        After the provider: the whole rest as a model, digits as the number of a key, an alias of a key, or
        an alias and a model. `prefer` decides if a model and a key share a name. If the provider names its
        models itself, a rest that is none of these is a model too.
        """
        known = self._known_selector if len(name) <= _MAX_CACHED_NAME else self._resolve
        return known(name, prefer)

    def alias_of(self, name: str) -> str | None:
        """Return the target of an alias for a model name; the first matching glob counts.

        `claude-via-provider.model` stands for that target: Claude Code shows no other names.
        """
        return self._known_alias(name) if len(name) <= _MAX_CACHED_NAME else self._alias_of(name)

    def targets_of(self, name: str) -> tuple[Target, ...]:
        """Return the targets of `provider.model` or `provider.key.model`; none if it is unknown.

        Model names may contain dots: after the provider the whole rest is tried as a model first.
        """
        return self._known_targets(name) if len(name) <= _MAX_CACHED_NAME else self._targets_of(name)

    def near(self, name: str) -> tuple[str, ...]:
        """Return the targets most like `provider.model` of a known provider, at most five."""
        head, dot, rest = name[:_MAX_CACHED_NAME].partition(".")
        provider = self.providers.get(head)
        if provider is None or not dot:
            return ()
        same = (f"{other.name}.{rest}" for other in self.providers.values() if rest in other.models)
        if provider.describe is not None:
            # Any name can be used, so this is not one; its own list may have thousands.
            return tuple(same)[:_MAX_NEAR]
        ranked = sorted(provider.models, key=lambda model: _similarity(model, rest), reverse=True)
        return (*same, *(f"{head}.{model}" for model in ranked))[:_MAX_NEAR]

    def _resolve(self, name: str, prefer: Prefer) -> Selector | None:
        head, dot, rest = name.partition(".")
        provider = self.providers.get(head)
        if provider is None:
            return None
        if not dot:
            return Selector(head)
        readings = (_as_model, _as_key) if prefer == "model" else (_as_key, _as_model)
        found = (read(provider, rest) for read in (*readings, _as_key_and_model, _as_any_model))
        return next((selector for selector in found if selector is not None), None)

    def _alias_of(self, name: str) -> str | None:
        exact = self.aliases.get(name)
        if exact is not None:
            return exact
        via = name.removeprefix(VIA)
        if via != name and name.partition(".")[0] not in self.providers:
            head, dot, _ = via.partition(".")
            if dot and head in self.providers:
                return via
        return next((to for glob, to in self.aliases.items() if fnmatch.fnmatchcase(name, glob)), None)

    def _targets_of(self, name: str) -> tuple[Target, ...]:
        provider = self.providers.get(name.partition(".")[0])
        rest = name.partition(".")[2]
        if provider is None or not rest:
            return ()
        found = _as_model(provider, rest) or _as_key_and_model(provider, rest)
        if found is None and rest not in provider.keys:
            found = _as_any_model(provider, rest)
        return () if found is None else tuple(self.covered(found))

    def targets_in(self, route: str) -> Iterator[Target]:
        """Yield every target of a route, in the order of the configuration."""
        pools = self.routes.get(route, ())
        return (target for pool in pools for name in pool.targets for target in self.targets_of(name))

    def restricted(self, rules: TargetRules) -> Registry:
        """Return the part of this registry whose targets and routes the rules admit.

        If a route is not admitted, a target must be in one that is: naming it must not lead around the rule.
        """
        admitted = [route for route in self.routes if rules.admits_route(route)]
        within: set[tuple[str, str]] | None = None
        if len(admitted) < len(self.routes):
            targets = (target for route in admitted for target in self.targets_in(route))
            within = {(target.provider, target.model) for target in targets}

        def admits(provider: str, model: str) -> bool:
            return rules.admits_target(provider, model) and (within is None or (provider, model) in within)

        known = (row for row in self.providers.values() if rules.admits_provider(row.name))
        rows = (_restricted(row, functools.partial(admits, row.name)) for row in known)
        providers = [row for row in rows if row.models or row.describe is not None]
        part = Registry(providers, routes={}, aliases={})
        routes = {route: part._pools_of(self.routes[route]) for route in admitted}
        aliases = {name: to for name, to in self.aliases.items() if part._leads_to(to, routes)}
        return Registry(providers, routes=routes, aliases=aliases)

    def _pools_of(self, pools: Iterable[Pool]) -> tuple[Pool, ...]:
        """Return the pools with the targets that exist here, without those that are empty."""
        kept = (
            replace(pool, targets=tuple(name for name in pool.targets if self.targets_of(name)))
            for pool in pools
        )
        return tuple(pool for pool in kept if pool.targets)

    def _leads_to(self, name: str, routes: Mapping[str, tuple[Pool, ...]]) -> bool:
        return bool(routes.get(name[6:])) if name.startswith("route:") else bool(self.targets_of(name))

    def covered(self, selector: Selector) -> Iterator[Target]:
        """Yield every target of a selector, in the order of the configuration."""
        provider = self.providers[selector.provider]
        keys = provider.keys if selector.key is None else (selector.key,)
        models = provider.models if selector.model is None else (selector.model,)
        return (Target(provider.name, key, model) for model in models for key in keys)


def _restricted(provider: Provider, admits: Callable[[str], bool]) -> Provider:
    """Return the provider with the models that are admitted."""
    models = {name: model for name, model in provider.models.items() if admits(name)}
    return replace(provider, models=models, admits=admits)


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _as_model(provider: Provider, rest: str) -> Selector | None:
    return Selector(provider.name, model=rest) if rest in provider.models else None


def _as_key(provider: Provider, rest: str) -> Selector | None:
    if rest.isascii() and rest.isdigit():
        # `int` takes quadratic time: a number of a thousand digits is not converted.
        number = int(rest) if len(rest) < 10 else 0
        return (
            Selector(provider.name, provider.keys[number - 1]) if 0 < number <= len(provider.keys) else None
        )
    return Selector(provider.name, rest) if rest in provider.keys else None


def _as_key_and_model(provider: Provider, rest: str) -> Selector | None:
    # Aliases and numbers do not contain dots: the rest after the first dot is the model.
    alias, _, model = rest.partition(".")
    key = _as_key(provider, alias) if provider.serves(model) else None
    return None if key is None else Selector(provider.name, key.key, model)


def _as_any_model(provider: Provider, rest: str) -> Selector | None:
    return Selector(provider.name, model=rest) if provider.serves(rest) else None
