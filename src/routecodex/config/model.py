"""Types of the configuration file: `Config` and the tables of server, store, logging and routing."""

from __future__ import annotations

import re
import socket
from typing import Annotated, Literal

from msgspec import Meta, Struct, field, structs

from routecodex.canon.store_url import is_redis_url
from routecodex.config.capture import CaptureConfig
from routecodex.config.console import ConsoleConfig
from routecodex.config.providers import ProviderConfig
from routecodex.config.server_tools import ServerToolsConfig
from routecodex.config.teams import ClientConfig, TeamConfig, UsageConfig
from routecodex.config.telemetry import TelemetryConfig
from routecodex.config.values import DAY_MS, DAY_SECONDS, YEAR_HOURS, Secret


class PoolConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of targets inside a route."""

    id: Annotated[str, Meta(description="Name of the pool; `pool1`, `pool2`, … when absent.")] = ""
    mode: Annotated[
        Literal["round-robin", "weighted", "priority"],
        Meta(
            description="Selection of a target: in turn, by `weights`, or always the first that works. "
            "`weighted` if `weights` are set."
        ),
    ] = "round-robin"
    targets: Annotated[
        tuple[str, ...],
        Meta(description="`provider.model` (with every key of it) or `provider.key.model`."),
    ] = ()
    backup: Annotated[bool, Meta(description="Used only when all other pools failed.")] = False
    weights: Annotated[
        dict[str, Annotated[float, Meta(gt=0)]],
        Meta(description="Share of each target; 1 by default."),
    ] = field(default_factory=dict)


class RoutingOptionsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retries, waiting and cooldowns."""

    affinity: Annotated[
        bool, Meta(description="A session keeps its key within a pool, so that prompt caches stay warm.")
    ] = True
    max_attempts: Annotated[int, Meta(description="Most targets tried for one request.", ge=1, le=100)] = 6
    max_wait_ms: Annotated[
        int, Meta(description="Longest wait for a target when all are cooling down.", ge=0, le=DAY_MS)
    ] = 10_000
    health: Annotated[
        bool, Meta(description="Keys that fail go into cooldown; `false` tries every key every time.")
    ] = True
    retry_after_max_ms: Annotated[
        int,
        Meta(description="Longest cooldown by an upstream's `Retry-After`.", ge=0, le=DAY_MS),
    ] = 900_000


class InstructionsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instructions `<**…**>` in user messages."""

    where: Annotated[
        Literal["anywhere", "first_line", "own_message", "off"],
        Meta(
            description="Where tags count: `anywhere` in the user's text, on its `first_line`, in a message "
            "of tags alone (`own_message`), or nowhere (`off`). They are removed in any case."
        ),
    ] = "anywhere"


class ClassifierConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Signals that decide the route of a request."""

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
            description="Further starts of system texts or messages with which clients request titles "
            "and summaries; those of common agents are built in."
        ),
    ] = ()
    search_phrases: Annotated[
        tuple[str, ...],
        Meta(
            description="Further phrases that request a web search, if a search tool is declared; common "
            "ones in several languages are built in."
        ),
    ] = ()


class ClientKeyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that a client of this gateway may present."""

    name: Annotated[
        str,
        Meta(
            description="Owner of the key; logs show it instead of the key.",
            min_length=1,
            extra={"fix": 'name its owner: name = "laptop"'},
        ),
    ]
    key: Annotated[
        Secret,
        Meta(
            description="The key, as Bearer, `x-api-key`, `x-goog-api-key` or `?key=`.",
            extra={"fix": 'set the key: key = "${ROUTECODEX_KEY}"'},
        ),
    ]


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address, client keys and limits of the gateway."""

    host: Annotated[
        str,
        Meta(description="Address to listen on. Anything but loopback needs `client_keys`.", min_length=1),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(description="Port to listen on; 0 takes any free one.", ge=0, le=65535)] = 5520
    id: Annotated[
        str | None,
        Meta(
            description="Name of this server in state and daemon commands; also `ROUTECODEX_SERVER_ID`. When "
            "absent: host and port; with a Redis store the name of the machine and the port."
        ),
    ] = None
    advertise_url: Annotated[
        str | None,
        Meta(
            description="How other machines reach this server, for commands that find it in a Redis store; "
            "also `ROUTECODEX_ADVERTISE_URL`. When absent: from host and port."
        ),
    ] = None
    client_keys: Annotated[
        tuple[ClientKeyConfig, ...],
        Meta(
            description="Keys that clients may present; without any, no key is required. With several, each "
            "client has its own sessions, clock tasks and stored responses."
        ),
    ] = ()
    admin_token: Annotated[
        Secret | None,
        Meta(description="Token of the admin API; generated into the user directory when absent."),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Further accepted `Host` names (protection against DNS rebinding); loopback names "
            'and `host` are always accepted, `"*"` accepts all.'
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Web pages that may call the gateway from a browser, by origin: "
            '`"https://chat.example.com"`, `"http://localhost:*"` (any port), `"app://*"` (any host), '
            '`"null"` (local files and sandboxed frames), `"*"` (all). Other pages get 403, except those of '
            "the gateway itself. Clients that are not browsers need no entry."
        ),
    ] = ()
    max_body_mb: Annotated[int, Meta(description="Largest request body.", ge=1, le=1024)] = 32
    max_header_kb: Annotated[int, Meta(description="Largest request head.", ge=4, le=1024)] = 64
    max_messages: Annotated[int, Meta(description="Most messages in one request.", ge=1)] = 10_000
    max_concurrent: Annotated[
        int, Meta(description="Most requests at the same time; further ones wait in the queue.", ge=1)
    ] = 1000
    max_queued: Annotated[
        int,
        Meta(
            description="Most requests that wait for a place, each client in its turn; further ones get 503.",
            ge=0,
        ),
    ] = 200
    queue_wait_ms: Annotated[
        int, Meta(description="Longest wait for a place; then 503.", ge=1, le=DAY_MS)
    ] = 10_000
    client_idle_ms: Annotated[
        int,
        Meta(
            description="Longest time without progress of a client that sends its request or reads its "
            "response; then it is disconnected.",
            ge=1000,
            le=DAY_MS,
        ),
    ] = 60_000
    max_body_seconds: Annotated[
        int,
        Meta(
            description="Longest time for sending a request body, besides one second for every 32 KB of it; "
            "then the client gets 408.",
            ge=1,
            le=DAY_SECONDS,
        ),
    ] = 120
    keepalive_ms: Annotated[
        int,
        Meta(
            description="Silence on a stream after which a keep-alive comment is sent; 0 disables it.",
            ge=0,
            le=DAY_MS,
        ),
    ] = 15_000
    drain_seconds: Annotated[
        int,
        Meta(
            description="Longest time that streams may continue after SIGTERM before the gateway exits.",
            ge=0,
            le=DAY_SECONDS,
        ),
    ] = 30
    drain_notice_ms: Annotated[
        int,
        Meta(
            description="Time after SIGTERM in which `/health/ready` says `draining` while new requests are "
            "still accepted, so that a balancer stops sending them first.",
            ge=0,
            le=DAY_MS,
        ),
    ] = 0

    worker_timeout_ms: Annotated[
        int,
        Meta(
            description="With several workers: one that shows no sign of life for this long is killed and "
            "replaced; 0 disables this.",
            ge=0,
            le=DAY_MS,
        ),
    ] = 30_000

    @property
    def identity(self) -> str:
        """Name of the server: `id`, or one derived from host and port that is safe as a directory name."""
        return self.id or _safe_name(f"{self.host}-{self.port}")


def _safe_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", text)


class StoreSecret(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The password of a store; a string in its place is `value`. After loading it has its value."""

    value: Annotated[Secret | None, Meta(description="The password itself, best as `${NAME}`.")] = None
    env: Annotated[str | None, Meta(description="Environment variable that holds the password.")] = None
    file: Annotated[
        str | None,
        Meta(description="File that holds the password; relative to the configuration file, `~` allowed."),
    ] = None


class StoreConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Storage of state that outlives a request."""

    url: Annotated[
        str,
        Meta(
            description="`file:` (the session directory), `file:/path`, `memory:` (not persistent), or a "
            "Redis or Valkey that several nodes share: `redis://[user[:password]@]host[:6379][/db]`, "
            "`redis+sentinel://h1:26379,h2:26379/<master>[/db]`, `redis+cluster://h1:6379,h2:6379`; "
            "`rediss` in place of `redis` uses TLS."
        ),
    ] = "file:"
    prefix: Annotated[
        str,
        Meta(
            description="Beginning of every key in Redis; nodes with the same URL and prefix are one cluster."
        ),
    ] = "routecodex"
    username: Annotated[str, Meta(description="User of Redis, if the URL does not name one.")] = ""
    password: Annotated[
        StoreSecret | None, Meta(description="Password of Redis, if it is not in the URL.")
    ] = None
    sentinel_username: Annotated[
        str, Meta(description="User of the sentinels, if they ask for one; `username` is that of the data.")
    ] = ""
    sentinel_password: Annotated[
        StoreSecret | None,
        Meta(description="Password of the sentinels, if they have one; `password` is that of the data."),
    ] = None
    ca_file: Annotated[
        str | None,
        Meta(description="PEM file of the authorities that sign the certificate of Redis (`rediss`)."),
    ] = None
    cert_file: Annotated[
        str | None, Meta(description="PEM file of the certificate that the gateway presents to Redis.")
    ] = None
    key_file: Annotated[
        str | None, Meta(description="PEM file of its key; when absent, the key is in `cert_file`.")
    ] = None
    verify: Annotated[bool, Meta(description="Check the certificate of Redis; `false` only for tests.")] = (
        True
    )
    timeout_ms: Annotated[
        int,
        Meta(description="Longest time that a request waits for one call of Redis.", ge=10, le=60_000),
    ] = 250
    wait_replicas: Annotated[
        int,
        Meta(
            description="Replicas that must have a count or a reservation before it is used (`WAIT`).",
            ge=0,
            le=16,
        ),
    ] = 0
    on_down: Annotated[
        Literal["continue", "refuse"],
        Meta(
            description="Requests of a session whose settings cannot be read while the store is down: "
            "`continue` as if nothing were set, with a notice, or `refuse` with 503 `store_unavailable`."
        ),
    ] = "continue"
    responses_ttl_hours: Annotated[
        float,
        Meta(description="Lifetime of stored answers of the Responses API.", gt=0, le=YEAR_HOURS),
    ] = 72
    responses_max_entries: Annotated[
        int, Meta(description="Most stored answers of the Responses API; the oldest are deleted first.", ge=0)
    ] = 10_000
    responses_max_mb: Annotated[
        int,
        Meta(
            description="Largest size of stored answers of the Responses API; the oldest are deleted first.",
            ge=0,
        ),
    ] = 256


class LoggingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Level and format of logs; the request log."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest severity that is logged.")
    ] = "info"
    format: Annotated[
        Literal["auto", "human", "json"],
        Meta(description="`auto` is `human` on a terminal and `json` elsewhere."),
    ] = "auto"
    finish_trace: Annotated[
        bool,
        Meta(description="Log every mapping of a finish reason: the upstream's value, and the value sent."),
    ] = False
    requests: Annotated[
        bool,
        Meta(description="Log a line per request to `requests.jsonl` in the session directory; no content."),
    ] = True
    requests_max_mb: Annotated[
        int,
        Meta(
            description="Size at which the request log is rotated; two old files are kept.",
            ge=1,
            le=1024,
        ),
    ] = 8


class MessagesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the Anthropic Messages protocol."""

    tool_turn_message_stop: Annotated[
        Literal["auto", "never", "always"],
        Meta(
            description="Whether a turn that ends in tool calls ends with `message_stop`. `never`: it ends "
            "with `message_delta` and the body closes. `always`: as Anthropic documents. `auto`: "
            "`never`, except for clients known to depend on it."
        ),
    ] = "auto"


class ProtocolsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of single protocols."""

    messages: Annotated[MessagesConfig, Meta(description="The Anthropic Messages protocol.")] = (
        MessagesConfig()
    )


class CodexConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The catalog of models that Codex reads from the gateway."""

    instructions_file: Annotated[
        str | None,
        Meta(
            description="File with the system prompt of Codex for the models of this gateway; relative to "
            "the configuration file, `~` allowed. When absent, a text that comes with the gateway."
        ),
    ] = None


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file, with defaults and presets filled in."""

    server: Annotated[ServerConfig, Meta(description="Address, client keys and limits of the gateway.")] = (
        ServerConfig()
    )
    store: Annotated[StoreConfig, Meta(description="Storage of state.")] = StoreConfig()
    logging: Annotated[LoggingConfig, Meta(description="Level and format of logs; the request log.")] = (
        LoggingConfig()
    )
    telemetry: Annotated[TelemetryConfig, Meta(description="OpenTelemetry traces.")] = TelemetryConfig()
    protocols: Annotated[ProtocolsConfig, Meta(description="Settings of single protocols.")] = (
        ProtocolsConfig()
    )
    usage: Annotated[UsageConfig, Meta(description="The usage ledger, and rules that all limits share.")] = (
        UsageConfig()
    )
    teams: Annotated[dict[str, TeamConfig], Meta(description="The teams, by name.")] = field(
        default_factory=dict
    )
    clients: Annotated[
        dict[str, ClientConfig],
        Meta(
            description="The clients, by name. As soon as there is one, every request needs a key, unless "
            "there is a client `anonymous`."
        ),
    ] = field(default_factory=dict)
    console: Annotated[ConsoleConfig, Meta(description="The console at `/ui/`.")] = ConsoleConfig()
    capture: Annotated[CaptureConfig, Meta(description="Captures of whole requests.")] = CaptureConfig()
    providers: Annotated[dict[str, ProviderConfig], Meta(description="The upstreams, by name.")] = field(
        default_factory=dict
    )
    models: Annotated[
        dict[str, str],
        Meta(
            description="Aliases: names that clients may send, globs allowed, each with its target: "
            "`provider.model`, `provider.key.model` or `route:name`. The first match counts."
        ),
    ] = field(default_factory=dict)
    routing: Annotated[
        dict[str, tuple[str | PoolConfig, ...]],
        Meta(description="The routes, by name: each a list of targets, or a list of pools."),
    ] = field(default_factory=dict)
    routing_options: Annotated[RoutingOptionsConfig, Meta(description="Retries, waiting and cooldowns.")] = (
        RoutingOptionsConfig()
    )
    classifier: Annotated[
        ClassifierConfig, Meta(description="Signals that decide the route of a request.")
    ] = ClassifierConfig()
    instructions: Annotated[
        InstructionsConfig, Meta(description="Instructions `<**…**>` in user messages.")
    ] = InstructionsConfig()
    codex: Annotated[CodexConfig, Meta(description="The catalog of models that Codex reads.")] = CodexConfig()
    server_tools: Annotated[
        ServerToolsConfig, Meta(description="Tools that the gateway runs itself, between model calls.")
    ] = ServerToolsConfig()

    @property
    def identity(self) -> str:
        """Name of the server: its `id`, or one that no other node has, if several share a Redis store."""
        if self.server.id is None and is_redis_url(self.store.url):
            return _safe_name(f"{socket.gethostname()}-{self.server.port}")
        return self.server.identity

    @property
    def has_clients(self) -> bool:
        """Whether the file names clients; those of the store are not among them."""
        return bool(self.server.client_keys or self.clients)

    def pools(self, route: str) -> tuple[PoolConfig, ...]:
        """Return the pools of a route; a plain list of targets is one round-robin pool."""
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
