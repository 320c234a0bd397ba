"""What there is to route to: providers with their keys and models, routes with their pools.

target   provider.key.model, fully named: what one upstream attempt uses
pool     an ordered group of targets inside a route
route    a named list of pools
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

Mode = Literal["round-robin", "weighted", "priority"]


class Target(Struct, frozen=True, cache_hash=True):
    """One way to send a request: this provider, with this key, for this model."""

    provider: str
    key: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}.{self.key}.{self.model}"


class Step(Struct, frozen=True):
    """One target to try and the rule that admitted it."""

    target: Target
    reason: str


class Model(Struct, frozen=True, kw_only=True):
    """What is known of one model; `id` is the upstream's own name for it."""

    id: str
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    vision: bool = True
    tools: bool = True
    reasoning: bool = True


class Provider(Struct, frozen=True, kw_only=True):
    """One upstream: its protocol, its keys in order, its models."""

    name: str
    protocol: str
    keys: tuple[str, ...]
    models: dict[str, Model] = field(default_factory=dict)


class Pool(Struct, frozen=True, kw_only=True):
    """Targets of a route, as the configuration names them."""

    id: str
    targets: tuple[str, ...]
    mode: Mode = "round-robin"
    backup: bool = False
    weights: dict[str, float] = field(default_factory=dict)


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
        self.alias_of = functools.lru_cache(maxsize=1024)(self._alias_of)
        self.targets_of = functools.lru_cache(maxsize=4096)(self._targets_of)
        self.steps_of = functools.lru_cache(maxsize=256)(self._steps_of)

    def model(self, target: Target) -> Model:
        """What is known of the target's model."""
        return self.providers[target.provider].models[target.model]

    def _alias_of(self, name: str) -> str | None:
        """What the alias map makes of a model name; the first glob that matches counts."""
        exact = self.aliases.get(name)
        if exact is not None:
            return exact
        return next((to for glob, to in self.aliases.items() if fnmatch.fnmatchcase(name, glob)), None)

    def _targets_of(self, name: str) -> tuple[Target, ...]:
        """The targets `provider.model` or `provider.key.model` stands for; none when it is not known.

        Model names may hold dots: after the provider the whole rest is tried as a model first.
        """
        provider = self.providers.get(name.partition(".")[0])
        rest = name.partition(".")[2]
        if provider is None or not rest:
            return ()
        if rest in provider.models:
            return tuple(Target(provider.name, key, rest) for key in provider.keys)
        key, _, model = rest.partition(".")
        if key in provider.keys and model in provider.models:
            return (Target(provider.name, key, model),)
        return ()

    def _steps_of(self, route: str) -> tuple[Step, ...]:
        """The targets of a route in the order of its pools, backups last, each once."""
        steps: dict[Target, Step] = {}
        for pool in sorted(self.routes.get(route, ()), key=lambda pool: pool.backup):
            reason = f"pool {pool.id}" + (" (backup)" if pool.backup else "")
            for target in (target for name in pool.targets for target in self.targets_of(name)):
                steps.setdefault(target, Step(target, reason))
        return tuple(steps.values())
