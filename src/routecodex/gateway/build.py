"""Builds the parts of a gateway from a configuration."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from routecodex.accounting.price_file import FILE_NAME
from routecodex.accounting.prices import PriceTable
from routecodex.canon.events import Event
from routecodex.canon.request import Request
from routecodex.canon.store_url import is_redis_url, parse_redis_url
from routecodex.config import Config, Secret
from routecodex.config.providers import ModelConfig, ProviderConfig
from routecodex.gateway.answer.prepared_target import BuiltinProvider
from routecodex.gateway.answer.recorded_target import RecordedUpstream
from routecodex.gateway.state.model_lists import ModelLists, ModelSource
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.dialect import Dialect
from routecodex.providers import demo
from routecodex.providers.catalog import PRESETS, known_model, price_groups
from routecodex.providers.http import HttpClient, Timeouts, TlsOptions, origin_of
from routecodex.providers.model_listing import ListedModel
from routecodex.providers.upstream import Upstream, configured_secrets
from routecodex.routing import cooldown
from routecodex.routing.classify import ClassifierOptions
from routecodex.routing.registry import Model, Pool, Provider, Registry
from routecodex.routing.roles import RoleTable

_LISTING_MS = 15_000
"""Longest silence of a provider that is asked for its models: nobody waits for it, but its task does."""


def registry(config: Config, lists: ModelLists | None = None) -> Registry:
    """Return the providers, routes and aliases to route to; `lists` has the models that providers name."""
    return Registry(
        [_provider(name, row, lists) for name, row in config.providers.items()],
        routes={route: tuple(map(_pool, config.pools(route))) for route in config.routing},
        aliases=config.models,
    )


def prices(config: Config, user_dir: Path) -> PriceTable:
    """Return the prices of all models."""
    return PriceTable(config.providers, groups_of=price_groups, file=user_dir / FILE_NAME)


def _pool(row: object) -> Pool:
    return msgspec.convert(row, Pool, from_attributes=True)


def _provider(name: str, row: ProviderConfig, lists: ModelLists | None) -> Provider:
    models = {key: _model(key, model) for key, model in row.named_models.items()}
    keys = tuple(key.alias for key in row.keys)
    if not row.discovers:
        return Provider(name=name, protocol=row.protocol, keys=keys, models=models)
    listing = lists.get(name, listing_source(row)) if lists is not None else None
    for listed in _preset_models(row) if listing is None else listing.models:
        models.setdefault(listed.name, _discovered(row, listed))
    return Provider(
        name=name,
        protocol=row.protocol,
        keys=keys,
        models=models,
        describe=lambda model: _discovered(row, ListedModel(model)),
    )


def _model(name: str, row: object) -> Model:
    model = msgspec.convert(row, Model, from_attributes=True)
    return model if model.id else replace(model, id=name)


def _preset_models(row: ProviderConfig) -> Iterator[ListedModel]:
    """Yield the models that the catalog knows, which stand for the list until the first one has come."""
    preset = PRESETS.get(row.preset) if row.preset is not None else None
    known = preset.by_protocol.get(row.protocol) if preset is not None else None
    return (ListedModel(name) for name in (known.models if known is not None else ()))


def _discovered(row: ProviderConfig, listed: ListedModel) -> Model:
    """Return the properties of a model by the catalog, and what the provider's list says of it.

    A server may offer a well-known model with less room than its maker does (vLLM's `max_model_len`).
    """
    known = known_model(listed.name, preset=row.preset, protocol=row.protocol) or ModelConfig()
    sizes = [size for size in (known.context_tokens, listed.context_tokens) if size is not None]
    return Model(
        id=listed.name,
        context_tokens=min(sizes, default=None),
        max_output_tokens=known.max_output_tokens or listed.max_output_tokens,
        vision=known.vision,
        tools=known.tools,
        reasoning=known.reasoning,
    )


def listing_source(row: ProviderConfig) -> str:
    """Return the protocol and the address of a provider, which its list of models belongs to."""
    return f"{row.protocol} {row.base_url}"


def model_sources(config: Config, client: HttpClient, environ: Mapping[str, str]) -> dict[str, ModelSource]:
    """Return the providers that name their models themselves, by name."""
    return {
        name: ModelSource(
            listing_source(row),
            tuple(_upstream(name, address, client, environ) for address in _listing_addresses(row)),
            tuple(key.alias for key in row.keys),
        )
        for name, row in config.providers.items()
        if row.discovers
    }


def _listing_addresses(row: ProviderConfig) -> Iterator[ProviderConfig]:
    """Yield the row with each address that may list its models, its own first, with shorter timeouts."""
    limits = row.timeout
    timeout = replace(
        limits,
        first_byte_ms=min(limits.first_byte_ms, _LISTING_MS),
        idle_ms=min(limits.idle_ms, _LISTING_MS),
    )
    row = replace(row, timeout=timeout)
    yield row
    preset = PRESETS.get(row.preset) if row.preset is not None else None
    known = preset.by_protocol if preset is not None else {}
    if row.protocol not in known or known[row.protocol].base_url != row.base_url:
        return
    for other in known.values():
        if other.protocol != row.protocol and "{" not in other.base_url:
            yield replace(
                row,
                protocol=other.protocol,
                base_url=other.base_url,
                auth_style=other.auth_style,
                dialect=dict(other.dialect),
            )


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
    make = RecordedUpstream if config.capture.is_on else Upstream
    return {name: _upstream(name, row, client, environ, make=make) for name, row in rows.items()}


def _upstream(
    name: str,
    row: ProviderConfig,
    client: HttpClient,
    environ: Mapping[str, str],
    *,
    make: type[Upstream] = Upstream,
) -> Upstream:
    tls = TlsOptions(verify=row.tls.verify, ca_file=row.tls.ca_file)
    return make(
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


def secrets(config: Config, environ: Mapping[str, str]) -> frozenset[str]:
    """Return every configured value that must not be written down: keys, tokens, passwords of proxies."""
    found = {secret.reveal() for secret in _secrets_in(config)}
    for row in config.providers.values():
        if row.protocol != "demo":
            found.update(
                configured_secrets(
                    (), headers=row.headers, query=row.query, origin=origin_of(row.base_url, environ=environ)
                )
            )
    url = config.store.url
    if is_redis_url(url):
        found.add(parse_redis_url(url).password)
    return frozenset(found - {""})


def _secrets_in(value: object) -> Iterator[Secret]:
    """Yield every secret of a configuration, wherever it stands."""
    match value:
        case Secret():
            yield value
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from _secrets_in(getattr(value, name))
        case Mapping():
            for inner in value.values():
                yield from _secrets_in(inner)
        case tuple():
            for inner in value:
                yield from _secrets_in(inner)


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
