"""The whole configuration file as one value."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field, structs

from routecodex.config.providers import Provider
from routecodex.config.routing import Classifier, Pool, RoutingOptions
from routecodex.config.server import Logging, Protocols, Server, Store
from routecodex.config.server_tools import ServerTools

__all__ = ["Config"]


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the file says, with defaults and presets filled in."""

    server: Annotated[Server, Meta(description="Where the gateway listens, whom it lets in, limits.")] = (
        Server()
    )
    store: Annotated[Store, Meta(description="Where state is kept.")] = Store()
    logging: Annotated[Logging, Meta(description="What is logged, and how.")] = Logging()
    protocols: Annotated[Protocols, Meta(description="Choices of single protocols.")] = Protocols()
    providers: Annotated[dict[str, Provider], Meta(description="The upstreams, by name.")] = field(
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
        dict[str, tuple[str | Pool, ...]],
        Meta(description="The routes, by name: each a list of targets, or a list of pools."),
    ] = field(default_factory=dict)
    routing_options: Annotated[RoutingOptions, Meta(description="How hard the router tries.")] = (
        RoutingOptions()
    )
    classifier: Annotated[Classifier, Meta(description="What decides the route of a request.")] = Classifier()
    server_tools: Annotated[
        ServerTools, Meta(description="What the gateway does by itself between model calls.")
    ] = ServerTools()

    def pools(self, route: str) -> tuple[Pool, ...]:
        """The pools of a route, a plain list of targets being one round-robin pool; none if unknown."""
        entries = self.routing.get(route, ())
        plain = tuple(entry for entry in entries if isinstance(entry, str))
        if plain:
            return (Pool(id="main", targets=plain),)
        return tuple(
            pool if pool.id else structs.replace(pool, id=f"pool{number}")
            for number, pool in enumerate((entry for entry in entries if isinstance(entry, Pool)), start=1)
        )
