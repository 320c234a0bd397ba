"""The whole configuration file as one value.

[routing], [routing_options], [classifier]: which target answers a request.

[server], [store], [logging], [protocols]: how the gateway itself runs.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct, field, structs

from routecodex.config.providers import ProviderConfig
from routecodex.config.server_tools import ServerToolsConfig
from routecodex.config.values import DAY_MS, DAY_SECONDS, YEAR_HOURS, Secret


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


class ClientKeyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that a client of this gateway may present."""

    name: Annotated[
        str,
        Meta(
            description="Who it belongs to; shown in logs in place of the key.",
            min_length=1,
            extra={"fix": 'say whose key it is: name = "laptop"'},
        ),
    ]
    key: Annotated[
        Secret,
        Meta(
            description="The key, as Bearer, `x-api-key`, `x-goog-api-key` or `?key=`.",
            extra={"fix": 'give the key: key = "${ROUTECODEX_KEY}"'},
        ),
    ]


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the gateway listens, whom it lets in, and its limits."""

    host: Annotated[
        str,
        Meta(description="Address to listen on. Anything but loopback needs `client_keys`.", min_length=1),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(description="Port to listen on; 0 takes any free one.", ge=0, le=65535)] = 5520
    id: Annotated[
        str | None,
        Meta(
            description="Name of this server in state and daemon commands; derived from host and port "
            "when absent."
        ),
    ] = None
    client_keys: Annotated[
        tuple[ClientKeyConfig, ...],
        Meta(description="Keys that clients may present; none means that no key is asked for."),
    ] = ()
    admin_token: Annotated[
        Secret | None,
        Meta(description="Token of the admin API; generated into the user dir when absent."),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Further `Host` names to answer to (a guard against DNS rebinding); loopback names "
            'and `host` always are. `"*"` answers to all.'
        ),
    ] = ()
    max_body_mb: Annotated[int, Meta(description="Largest request body.", ge=1, le=1024)] = 32
    max_header_kb: Annotated[int, Meta(description="Largest request head.", ge=4, le=1024)] = 64
    max_messages: Annotated[int, Meta(description="Most messages in one request.", ge=1)] = 10_000
    max_concurrent: Annotated[
        int, Meta(description="Most requests at the same time; further ones get 503.", ge=1)
    ] = 1000
    client_idle_ms: Annotated[
        int,
        Meta(
            description="A client that takes this long to send its request, or to take any of its answer, "
            "is cut off.",
            ge=1000,
            le=DAY_MS,
        ),
    ] = 60_000
    keepalive_ms: Annotated[
        int,
        Meta(
            description="Silence on a stream after which a keep-alive comment is sent; 0 for none.",
            ge=0,
            le=DAY_MS,
        ),
    ] = 15_000
    drain_seconds: Annotated[
        int,
        Meta(
            description="How long streams may go on after SIGTERM before the gateway exits.",
            ge=0,
            le=DAY_SECONDS,
        ),
    ] = 30

    @property
    def identity(self) -> str:
        """The server's name: `id`, or one derived from host and port that is safe as a directory name."""
        return self.id or re.sub(r"[^A-Za-z0-9.-]", "_", f"{self.host}-{self.port}")


class StoreConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where state that outlives a request is kept."""

    url: Annotated[
        str,
        Meta(
            description="`file:` (the session dir), `file:/path` or `memory:` (gone when the gateway stops)."
        ),
    ] = "file:"
    responses_ttl_hours: Annotated[
        float,
        Meta(
            description="How long an answer of the Responses API can be continued from.", gt=0, le=YEAR_HOURS
        ),
    ] = 72
    responses_max_entries: Annotated[
        int, Meta(description="Most answers of the Responses API kept; the oldest go first.", ge=0)
    ] = 10_000
    responses_max_mb: Annotated[
        int, Meta(description="Most room for answers of the Responses API; the oldest go first.", ge=0)
    ] = 256


class LoggingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is logged, and how."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severity that is logged.")
    ] = "info"
    format: Annotated[
        Literal["auto", "human", "json"],
        Meta(description="`auto` is `human` on a terminal and `json` elsewhere."),
    ] = "auto"
    finish_trace: Annotated[
        bool,
        Meta(description="Log every mapping of a finish reason: what the upstream said, what was sent."),
    ] = False
    requests: Annotated[
        bool,
        Meta(
            description="Keep a line per request in `requests.jsonl` of the session dir; never what was said."
        ),
    ] = True
    requests_max_mb: Annotated[
        int,
        Meta(
            description="Size at which the file of requests is set aside; two old ones are kept beside it.",
            ge=1,
            le=1024,
        ),
    ] = 8


class MessagesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choices of the Anthropic Messages protocol."""

    tool_turn_message_stop: Annotated[
        Literal["auto", "never", "always"],
        Meta(
            description="Whether a turn that ends in tool calls ends with `message_stop`. `never`: it ends "
            "with `message_delta` and the body closes. `always`: as Anthropic's published protocol. `auto`: "
            "`never`, except for clients known to lose something without it."
        ),
    ] = "auto"


class ProtocolsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choices of single protocols."""

    messages: Annotated[MessagesConfig, Meta(description="The Anthropic Messages protocol.")] = (
        MessagesConfig()
    )


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
