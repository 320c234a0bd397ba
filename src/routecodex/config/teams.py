"""[usage], [teams.*] and [clients.*]: what is counted, who may ask for what, and how much of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from routecodex.config.values import Secret

InstructionKind = Literal["routing", "stop_message", "clock", "status", "agents", "approve"]
ConsoleRole = Literal["", "viewer", "operator"]

CLIENT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
NAME_FIX = "use 1 to 64 letters, digits, _ . and -"
ANONYMOUS = "anonymous"
"""Name of the client that requests without a key belong to."""
TEAM_PREFIX = "team:"
"""Prefix of a team's name where it stands beside names of clients."""
RESERVED_NAMES = {"console": "the playground of the console", "gateway": "the gateway's own calls"}
"""Names that stand for something else in records and figures."""

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
_EVERYTHING = ("*",)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")


class LimitConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One limit; a string in its place is `limit` alone."""

    limit: Annotated[
        str,
        Meta(
            description="Amount and window: `$20/day`, `60 requests/60s`, `2M tokens/week`. "
            "A word (`minute`, `hour`, `day`, `week`, `month`) is a calendar period, a number "
            "(`60s`, `5h`, `7d`) a rolling window.",
            min_length=1,
            extra={"fix": 'set the limit, as in limit = "$20/day"'},
        ),
    ]
    warn_at: Annotated[
        float, Meta(description="Share of the limit from which the client is warned.", gt=0, le=1)
    ] = 0.8
    on_exceeded: Annotated[
        str,
        Meta(
            description="At the limit: `refuse` the request, `wait` up to `routing_options.max_wait_ms` for "
            "the window, or `route:NAME`."
        ),
    ] = "refuse"
    mode: Annotated[
        Literal["enforce", "shadow"],
        Meta(description="`shadow` counts and shows the limit, and never refuses."),
    ] = "enforce"
    models: Annotated[
        tuple[str, ...],
        Meta(
            description="Targets that it counts and stops, as globs over `provider.model` or the model; all "
            "when empty."
        ),
    ] = ()
    timezone: Annotated[
        str, Meta(description="Time zone of its calendar window; `usage.timezone` when empty.")
    ] = ""


class AllowConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Providers, models and routes that may be used, as globs; a target must match all three."""

    providers: Annotated[tuple[str, ...], Meta(description="Names of providers.")] = _EVERYTHING
    models: Annotated[tuple[str, ...], Meta(description="`provider.model`, or the model alone.")] = (
        _EVERYTHING
    )
    routes: Annotated[
        tuple[str, ...],
        Meta(description="Routes; a model that is requested by name must be a target of one of them."),
    ] = _EVERYTHING


class ClientKeySource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client's key; a string in its place is `value`. After loading it has its value."""

    value: Annotated[Secret | None, Meta(description="The key itself, best as `${NAME}`.")] = None
    env: Annotated[str | None, Meta(description="Environment variable that holds the key.")] = None
    file: Annotated[
        str | None,
        Meta(description="File that holds the key; relative to the configuration file, `~` allowed."),
    ] = None


class UsageConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The usage ledger, and rules that all limits share."""

    enabled: Annotated[bool, Meta(description="Keep a ledger of requests, tokens and costs.")] = True
    file: Annotated[
        str,
        Meta(description="Its SQLite file; `usage/<server id>.sqlite` in the user dir when empty."),
    ] = ""
    keep_days: Annotated[
        int, Meta(description="Days after which rows are deleted; hourly totals stay.", ge=1, le=36_500)
    ] = 90
    max_mb: Annotated[
        int, Meta(description="Size above which the oldest rows are deleted.", ge=1, le=1_048_576)
    ] = 1024
    timezone: Annotated[
        str,
        Meta(description="Time zone of calendar windows and days, such as `Europe/Berlin`.", min_length=1),
    ] = "UTC"
    reserve: Annotated[
        Literal["typical", "max"],
        Meta(
            description="Output that a request reserves: `max` its `max_tokens`, so that budgets are never "
            "overspent; `typical` twice the mean of the target's answers, if that is less."
        ),
    ] = "typical"
    unknown_price: Annotated[
        Literal["refuse", "allow"],
        Meta(
            description="Models without a price, for clients with a money limit; `allow` does not count them."
        ),
    ] = "refuse"
    on_store_down: Annotated[
        Literal["refuse", "allow"],
        Meta(description="Requests of limited clients while the store of the windows is down."),
    ] = "refuse"
    webhook: Annotated[
        str, Meta(description="URL that gets a POST when a limit is nearly or fully used.")
    ] = ""


_Limits = Annotated[
    tuple[str | LimitConfig, ...],
    Meta(description='Limits that hold together: `"$20/day"`, or a table with `limit` and more.'),
]
_Instructions = Annotated[
    Literal["all", "none"] | tuple[InstructionKind, ...],
    Meta(
        description="Kinds of instructions `<**…**>` that act: `routing` (force, sticky, allow, disable, "
        "clear), `stop_message`, `clock`, `status` (and help), `agents`, `approve` (and refuse). Others are "
        "removed with a notice."
    ),
]


class TeamConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of clients: their use adds up, and none may do more than the team."""

    limits: _Limits = ()
    allow: Annotated[
        AllowConfig, Meta(description="What its members may use; a member's own `allow` narrows it.")
    ] = AllowConfig()
    instructions: _Instructions = "all"
    shared_sessions: Annotated[
        tuple[str, ...],
        Meta(description="Members that share sessions, clock tasks and stored responses with each other."),
    ] = ()

    @property
    def limit_rows(self) -> tuple[LimitConfig, ...]:
        """Its limits, each as a table."""
        return limit_rows(self.limits)


class ClientConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client of this gateway; `anonymous` stands for requests without a key."""

    key: Annotated[
        ClientKeySource | None,
        Meta(
            description="Its key, as Bearer, `x-api-key`, `x-goog-api-key` or `?key=`: a string, "
            '`{ env = "…" }` or `{ file = "…" }`.',
            extra={"type": "string or table"},
        ),
    ] = None
    key_sha256: Annotated[str, Meta(description="SHA-256 of its key in 64 hex digits, instead of `key`.")] = (
        ""
    )
    team: Annotated[str, Meta(description="Its team; none when empty.")] = ""
    rpm: Annotated[Count | None, Meta(description="Requests in 60 seconds: `N requests/60s`.")] = None
    tpm: Annotated[Count | None, Meta(description="Tokens in 60 seconds: `N tokens/60s`.")] = None
    concurrent: Annotated[Count | None, Meta(description="Most requests at the same time.")] = None
    limits: _Limits = ()
    allow: Annotated[AllowConfig, Meta(description="What it may use.")] = AllowConfig()
    instructions: _Instructions = "all"
    expires: Annotated[
        str, Meta(description="Time from which its key is refused, such as `2027-01-31T00:00:00Z`.")
    ] = ""
    role: Annotated[
        ConsoleRole,
        Meta(description="What its key may do in the console: nothing when empty, `viewer` or `operator`."),
    ] = ""
    mcp: Annotated[
        tuple[str, ...], Meta(description="MCP servers and tools that it is offered, as globs.")
    ] = _EVERYTHING
    blocked: Annotated[bool, Meta(description="Refuse its requests with 403.")] = False

    @property
    def limit_rows(self) -> tuple[LimitConfig, ...]:
        """Its limits, each as a table; `rpm` and `tpm` come first."""
        return (*rate_limits(self.rpm, self.tpm), *limit_rows(self.limits))

    @property
    def digest(self) -> str:
        """SHA-256 of its key in hex digits; empty without a key."""
        if self.key_sha256:
            return self.key_sha256.lower()
        value = self.key.value if self.key is not None else None
        return key_digest(value.reveal()) if value else ""


def limit_rows(limits: Iterable[str | LimitConfig]) -> tuple[LimitConfig, ...]:
    """Return the limits, each as a table."""
    return tuple(LimitConfig(limit=one) if isinstance(one, str) else one for one in limits)


def rate_limits(rpm: int | None, tpm: int | None) -> tuple[LimitConfig, ...]:
    """Return the limits that `rpm` and `tpm` stand for."""
    rates = ((rpm, "requests"), (tpm, "tokens"))
    return tuple(LimitConfig(limit=f"{count} {unit}/60s") for count, unit in rates if count is not None)


def key_digest(key: str) -> str:
    """Return the SHA-256 of a client's key in hex digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def parse_time(text: str) -> float | None:
    """Return the seconds since the epoch of an ISO 8601 time with a time zone; a date alone is midnight UTC.

    None if the text is neither, or before 1970.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            if not _DATE.match(text.strip()):
                return None
            moment = moment.replace(tzinfo=UTC)
        seconds = moment.timestamp()
        return seconds if seconds >= 0 else None
    except (ValueError, OverflowError):
        return None
