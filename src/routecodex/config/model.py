"""The whole configuration file as one value."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field, structs

from routecodex.config.providers import ProviderConfig
from routecodex.config.routing import ClassifierConfig, PoolConfig, RoutingOptionsConfig
from routecodex.config.server import LoggingConfig, ProtocolsConfig, ServerConfig, StoreConfig
from routecodex.config.server_tools import ServerToolsConfig

__all__ = ["Config"]


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the file says, with defaults and presets filled in."""

    server: Annotated[
        ServerConfig, Meta(description="Where the gateway listens, whom it lets in, limits.")
    ] = ServerConfig()
    store: Annotated[StoreConfig, Meta(description="Where state is kept.")] = StoreConfig()
    logging: Annotated[LoggingConfig, Meta(description="What is logged, and how.")] = LoggingConfig()
    protocols: Annotated[ProtocolsConfig, Meta(description="Choices of single protocols.")] = (
        ProtocolsConfig()
    )
    providers: Annotated[dict[str, ProviderConfig], Meta(description="The upstreams, by name.")] = field(
        default_factory=dict
    )
    models: Annotated[
        dict[str, str],
        Meta(
            description="Names that clients may send, globs allowed, and what each stands for: "
            "`provider.model`, `provider.key.model` or `route:name`. The first that matches counts."
        ),
    ] = field(default_factory=dict)
    routing: Annotated[
        dict[str, tuple[str | PoolConfig, ...]],
        Meta(description="The routes, by name: each a list of targets, or a list of pools."),
    ] = field(default_factory=dict)
    routing_options: Annotated[RoutingOptionsConfig, Meta(description="How hard the router tries.")] = (
        RoutingOptionsConfig()
    )
    classifier: Annotated[ClassifierConfig, Meta(description="What decides the route of a request.")] = (
        ClassifierConfig()
    )
    server_tools: Annotated[
        ServerToolsConfig, Meta(description="What the gateway does by itself between model calls.")
    ] = ServerToolsConfig()

    def pools(self, route: str) -> tuple[PoolConfig, ...]:
        """The pools of a route, a plain list of targets being one round-robin pool; none if unknown."""
        entries = self.routing.get(route, ())
        plain = tuple(entry for entry in entries if isinstance(entry, str))
        if plain:
            return (PoolConfig(id="main", targets=plain),)
        return tuple(
            pool if pool.id else structs.replace(pool, id=f"pool{number}")
            for number, pool in enumerate(
                (entry for entry in entries if isinstance(entry, PoolConfig)), start=1
            )
        )
