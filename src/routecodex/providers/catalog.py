"""The catalog: presets of well-known providers, from the rows of presets.json.

A row has the facts: addresses by protocol (the first is the default), variables of the key, region and plan,
deviations in words, and the sources of all this. `known_models` and `deviations` add what a configuration
needs besides. The file is read when the first name is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Literal

import msgspec
from msgspec import Struct, structs

from routecodex.config.providers import (
    AuthStyle,
    ModelConfig,
    Preset,
    PriceGroups,
    Protocol,
    ProviderConfig,
)
from routecodex.providers.deviations import AUTH_STYLES, dialect_of
from routecodex.providers.known_models import models_of
from routecodex.providers.model_facts import facts_of


class PresetRow(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One address that people get from a provider: plans have their own rows."""

    preset: str
    aliases: tuple[str, ...] = ()
    name: str
    region: Literal["global", "cn", "local"]
    plan: Literal["usage", "coding", "token"]
    base_url: dict[Protocol, str]
    env: tuple[str, ...]
    auth: AuthStyle
    models: Literal["discover", "list"]
    """`discover`: the provider lists its models; `list`: it does not."""
    dialect: tuple[str, ...]
    source: tuple[str, ...]
    prices: str | None = None
    """Group of its prices; None for plans, which cost a flat fee."""


_ALIAS_PROTOCOLS: Mapping[str, Protocol] = {"openai-responses": "responses", "glm-anthropic": "messages"}
"""Default protocol of aliases that differ from their row."""


@cache
def preset_rows() -> tuple[PresetRow, ...]:
    """Return the rows of the catalog, in order."""
    data = resources.files("routecodex.providers").joinpath("presets.json").read_bytes()
    return msgspec.json.decode(data, type=tuple[PresetRow, ...])


@cache
def _rows_by_name() -> dict[str, PresetRow]:
    return {name: row for row in preset_rows() for name in (row.preset, *row.aliases)}


def row_of(name: str) -> PresetRow | None:
    """Return the row of a preset or alias."""
    return _rows_by_name().get(name)


@cache
def _preset(name: str) -> Preset:
    row = _rows_by_name()[name]
    first = _ALIAS_PROTOCOLS.get(name, next(iter(row.base_url)))
    others = tuple(_at_protocol(row, protocol) for protocol in row.base_url if protocol != first)
    return structs.replace(_at_protocol(row, first), others=others)


def _at_protocol(row: PresetRow, protocol: Protocol) -> Preset:
    return Preset(
        about=row.name,
        protocol=protocol,
        base_url=row.base_url[protocol],
        env=row.env,
        auth_style=AUTH_STYLES.get((row.preset, protocol), row.auth),
        models=models_of(row.preset, protocol),
        dialect=dialect_of(row.preset, protocol),
        lists_models=row.models == "discover",
    )


def known_model(name: str, *, preset: str | None, protocol: Protocol) -> ModelConfig | None:
    """Return the properties of a model that a provider lists or a client names; None if it is unknown."""
    row = _rows_by_name().get(preset or "")
    if row is None:
        return facts_of(name, None)
    return models_of(row.preset, protocol).get(name) or facts_of(name, row.prices)


class _Presets(Mapping[str, Preset]):
    """All presets by name and alias; each is made when it is looked up."""

    def __getitem__(self, name: str) -> Preset:
        return _preset(name)

    def __contains__(self, name: object) -> bool:
        return name in _rows_by_name()

    def __iter__(self) -> Iterator[str]:
        return iter(_rows_by_name())

    def __len__(self) -> int:
        return len(_rows_by_name())


PRESETS: Mapping[str, Preset] = _Presets()


def price_groups(name: str, provider: ProviderConfig) -> PriceGroups:
    """Return where the prices of a configured provider are found: by its preset, else by its name.

    A plan that costs a flat fee and a server on this machine have no price per token. A provider that is only
    named like one of them may be something else.
    """
    row = _rows_by_name().get(provider.preset or name)
    if row is None:
        return PriceGroups((provider.preset or name,), flat_rate=provider.protocol == "demo")
    names = (row.prices, row.preset, provider.preset or name)
    flat_rate = provider.preset is not None and (row.plan != "usage" or row.region == "local")
    return PriceGroups(tuple(dict.fromkeys(filter(None, names))), flat_rate=flat_rate)
