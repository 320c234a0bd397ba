"""[routing], [routing_options], [classifier]: which target answers a request."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from routecodex.config.bounds import DAY_MS

__all__ = ["ClassifierConfig", "PoolConfig", "RoutingOptionsConfig"]


class PoolConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of targets inside a route."""

    id: Annotated[str, Meta(description="Name of the pool; `pool1`, `pool2`, … when absent.")] = ""
    mode: Annotated[
        Literal["round-robin", "weighted", "priority"],
        Meta(
            description="How a target is chosen: in turn, by `weights`, or always the first that works. "
            "`weighted` when `weights` are given."
        ),
    ] = "round-robin"
    targets: Annotated[
        tuple[str, ...],
        Meta(description="`provider.model` (with every key of it) or `provider.key.model`."),
    ] = ()
    backup: Annotated[bool, Meta(description="Used only when every pool that is no backup failed.")] = False
    weights: Annotated[
        dict[str, Annotated[float, Meta(gt=0)]],
        Meta(description="Share of each target; 1 for those not named."),
    ] = field(default_factory=dict)


class RoutingOptionsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How hard the router tries."""

    affinity: Annotated[
        bool, Meta(description="A session keeps its key within a pool, so that prompt caches stay warm.")
    ] = True
    max_attempts: Annotated[int, Meta(description="Most targets tried for one request.", ge=1, le=100)] = 6
    max_wait_ms: Annotated[
        int, Meta(description="Longest wait for a target when all are cooling down.", ge=0, le=DAY_MS)
    ] = 10_000
    health: Annotated[
        bool, Meta(description="A key that fails is given a rest; `false` tries every key every time.")
    ] = True
    retry_after_max_ms: Annotated[
        int,
        Meta(description="Longest cooldown that an upstream's `Retry-After` can ask for.", ge=0, le=DAY_MS),
    ] = 900_000


class ClassifierConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides the route of a request."""

    longcontext_tokens: Annotated[
        int, Meta(description="Estimated tokens from which a request takes the route `longcontext`.", ge=1)
    ] = 180_000
    background_models: Annotated[
        tuple[str, ...],
        Meta(description="Models (globs) that clients use for small background work."),
    ] = ("*haiku*",)
    background_openings: Annotated[
        tuple[str, ...],
        Meta(
            description="Further beginnings of system texts or messages with which clients ask for titles "
            "and summaries; those of common agents are known."
        ),
    ] = ()
    search_phrases: Annotated[
        tuple[str, ...],
        Meta(
            description="Further phrases that mean a web search is wanted, where a tool can do one; common "
            "ones are known in several languages."
        ),
    ] = ()
