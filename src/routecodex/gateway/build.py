"""Builds the parts of a gateway from a configuration."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import msgspec

from routecodex.accounting.price_file import FILE_NAME
from routecodex.accounting.prices import PriceTable
from routecodex.canon.events import Event
from routecodex.canon.request import Request
from routecodex.config import Config
from routecodex.config.providers import ProviderConfig
from routecodex.gateway.answer.prepared_target import BuiltinProvider
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.dialect import Dialect
from routecodex.providers import demo
from routecodex.providers.catalog import price_groups
from routecodex.providers.http import HttpClient, Timeouts, TlsOptions, origin_of
from routecodex.providers.upstream import Upstream
from routecodex.routing import cooldown
from routecodex.routing.classify import ClassifierOptions
from routecodex.routing.registry import Model, Pool, Provider, Registry
from routecodex.routing.roles import RoleTable


def registry(config: Config) -> Registry:
    """Return the providers, routes and aliases to route to."""
    return Registry(
        [_provider(name, row) for name, row in config.providers.items()],
        routes={route: tuple(map(_pool, config.pools(route))) for route in config.routing},
        aliases=config.models,
    )


def prices(config: Config, user_dir: Path) -> PriceTable:
    """Return the prices of all models."""
    return PriceTable(config.providers, groups_of=price_groups, file=user_dir / FILE_NAME)


def _pool(row: object) -> Pool:
    return msgspec.convert(row, Pool, from_attributes=True)


def _provider(name: str, row: ProviderConfig) -> Provider:
    models = {key: _model(key, model) for key, model in row.models.items()}
    return Provider(
        name=name, protocol=row.protocol, keys=tuple(key.alias for key in row.keys), models=models
    )


def _model(name: str, row: object) -> Model:
    model = msgspec.convert(row, Model, from_attributes=True)
    return model if model.id else msgspec.structs.replace(model, id=name)


def scripted(config: Config) -> frozenset[str]:
    """Return the names of the demo providers."""
    return frozenset(name for name, row in config.providers.items() if row.protocol == "demo")


def health_options(config: Config) -> cooldown.CooldownOptions:
    """Return the options of cooldowns."""
    options = config.routing_options
    return cooldown.CooldownOptions(enabled=options.health, retry_after_max=options.retry_after_max_ms / 1000)


def classifier_options(config: Config) -> ClassifierOptions:
    """Return the options of the classifier."""
    row = config.classifier
    return ClassifierOptions(
        longcontext_tokens=row.longcontext_tokens,
        background_models=row.background_models,
        search_phrases=row.search_phrases,
        role_routes=frozenset(
            name for name in ("subagent", "compaction", "web_search") if config.pools(name)
        ),
    )


def role_table(config: Config) -> RoleTable:
    """Return the openings by which requests show their role, with those of the configuration."""
    return RoleTable(
        compactions=config.server_tools.stop_message.compaction_sentinels,
        utilities=config.classifier.background_openings,
    )


def upstreams(config: Config, client: HttpClient, environ: Mapping[str, str]) -> dict[str, Upstream]:
    """Return the providers that are reached over HTTP, by name."""
    rows = {name: row for name, row in config.providers.items() if row.protocol != "demo"}
    return {name: _upstream(name, row, client, environ) for name, row in rows.items()}


def _upstream(name: str, row: ProviderConfig, client: HttpClient, environ: Mapping[str, str]) -> Upstream:
    tls = TlsOptions(verify=row.tls.verify, ca_file=row.tls.ca_file)
    return Upstream(
        name,
        codec=CODECS[row.protocol],
        base_url=row.base_url,
        origin=origin_of(row.base_url, tls=tls, environ=environ),
        client=client,
        secrets={key.alias: key.secret.reveal() for key in row.keys},
        auth_style=row.auth_style,
        timeouts=Timeouts(
            connect=row.timeout.connect_ms / 1000,
            first_byte=row.timeout.first_byte_ms / 1000,
            idle=row.timeout.idle_ms / 1000,
        ),
        headers=row.headers,
        query=row.query,
        dialect=msgspec.convert(row.dialect, Dialect),
        billing_header=row.keeps_billing_header,
        codex_items=row.codex_form,
    )


def key_sources(config: Config) -> dict[tuple[str, str], str]:
    """Return the variable, file or table to check for each key, by provider and alias."""
    return {
        (name, key.alias): key.secret.source or f"providers.{name}.auth"
        for name, row in config.providers.items()
        for key in row.keys
    }


def builtin_providers(config: Config) -> dict[str, BuiltinProvider]:
    """Return the built-in providers, which answer in events, by name."""
    return {name: _demo(row.pace) for name, row in config.providers.items() if row.protocol == "demo"}


def _demo(pace: float) -> BuiltinProvider:
    def answer(request: Request) -> AsyncGenerator[Event, None]:
        return demo.answer(request, pace=pace * demo.PACE)

    return answer
