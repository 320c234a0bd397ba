"""Clients of this gateway and their teams: who a key belongs to, and what its client may do.

Everything here is a value or a pure function; the time is an argument. Keys are known by their SHA-256 only.
A key is found in a dict by its digest: the duration of the lookup says nothing about a key, because nobody
can choose the digest of a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from msgspec import Struct, field

from routecodex.accounting.timestamps import iso_time
from routecodex.canon.errors import AccessDenied, ClientError, KeyRefused, Overloaded
from routecodex.config import (
    ANONYMOUS,
    TEAM_PREFIX,
    AllowConfig,
    ClientConfig,
    Config,
    ConsoleRole,
    InstructionKind,
    LimitConfig,
    TeamConfig,
    is_loopback,
    key_digest,
    parse_time,
    rate_limits,
)

ClientSource = Literal["file", "store"]
AllowedInstructions = Literal["all", "none"] | tuple[InstructionKind, ...]

PREFIX_LENGTH = 8
_SHORTEST_SHOWN = 2 * PREFIX_LENGTH
"""A shorter key is not shown in part: the prefix would be most of it."""
_EVERYTHING = AllowConfig()


class ClientKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key of a client, by its digest; `expires_at` is set once another key has taken its place."""

    digest: str
    prefix: str | None = None
    created_at: float | None = None
    expires_at: float | None = None


class StoredClient(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client that was made at run time, as the store keeps it; the newest key is the last."""

    keys: tuple[ClientKey, ...]
    created_at: float
    team: str = ""
    rpm: int | None = None
    tpm: int | None = None
    concurrent: int | None = None
    limits: tuple[LimitConfig, ...] = ()
    allow: AllowConfig = _EVERYTHING
    instructions: AllowedInstructions = "all"
    expires_at: float | None = None
    role: ConsoleRole = ""
    mcp: tuple[str, ...] = ("*",)
    blocked: bool = False


class StoredClients(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All clients of the store, and the digests of revoked keys with the names they had, the newest last."""

    clients: dict[str, StoredClient] = field(default_factory=dict)
    revoked: dict[str, str] = field(default_factory=dict)


class AllowRules(Struct, frozen=True, cache_hash=True):
    """The rules of a client and of its team; a target must meet all of them."""

    rows: tuple[AllowConfig, ...]

    def admits_provider(self, name: str) -> bool:
        """Return whether the provider is allowed, with any of its models."""
        return all(_matches(name, row.providers) for row in self.rows)

    def admits_target(self, provider: str, model: str) -> bool:
        """Return whether the provider and its model are allowed."""
        full = f"{provider}.{model}"
        return all(
            _matches(provider, row.providers) and (_matches(full, row.models) or _matches(model, row.models))
            for row in self.rows
        )

    def admits_route(self, route: str) -> bool:
        """Return whether the route is allowed."""
        return all(_matches(route, row.routes) for row in self.rows)

    def as_dict(self) -> dict[str, list[str]]:
        """Return the patterns that hold together, for people; of two that overlap the narrower one."""
        merged = self.rows[0]
        shown = {name: list(getattr(merged, name)) for name in ("providers", "models", "routes")}
        for row in self.rows[1:]:
            shown = {name: _narrower(shown[name], getattr(row, name)) for name in shown}
        return shown


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(pattern == "*" or fnmatchcase(name, pattern) for pattern in patterns)


def _narrower(one: Iterable[str], other: Iterable[str]) -> list[str]:
    one, other = list(one), list(other)
    kept = [pattern for pattern in one if _matches(pattern, other)]
    kept += [pattern for pattern in other if _matches(pattern, one) and pattern not in kept]
    # Patterns that only overlap have no common one: both hold.
    return kept or [f"{a} and {b}" for a in one for b in other]


class Team(Struct, frozen=True, kw_only=True):
    """A team, and the names of its members."""

    name: str
    members: tuple[str, ...] = ()
    limits: tuple[LimitConfig, ...] = ()
    allow: AllowConfig = _EVERYTHING


class Client(Struct, frozen=True, kw_only=True):
    """A client of this gateway, with everything that its requests are checked against.

    `allow` and `instructions` are its own; `rules` and `kinds` are those in force, with the team's: None
    allows everything. `owner` is the name that its state is kept under; empty while there is one client.
    `unknown_team`: its team is not configured, so that nobody knows what it may do.
    """

    name: str
    source: ClientSource
    team: str = ""
    keys: tuple[ClientKey, ...] = ()
    created_at: float | None = None
    expires_at: float | None = None
    blocked: bool = False
    allow: AllowConfig = _EVERYTHING
    instructions: AllowedInstructions = "all"
    role: ConsoleRole = ""
    mcp: tuple[str, ...] = ("*",)
    concurrent: int | None = None
    limits: tuple[LimitConfig, ...] = ()
    rules: AllowRules | None = None
    kinds: frozenset[str] | None = None
    owner: str = ""
    unknown_team: bool = False

    def expiry_of(self, key: ClientKey) -> float | None:
        """Return the time from which the key is refused: its own, or the client's if that is earlier."""
        times = [time for time in (key.expires_at, self.expires_at) if time is not None]
        return min(times, default=None)

    def refusal(self, expires_at: float | None, now: float) -> ClientError | None:
        """Return why a request with a key of this expiry is refused; None if it is not."""
        details = {"client": self.name}
        if self.blocked:
            message = f"client {self.name!r} is blocked; ask the operator of this gateway"
            return AccessDenied(message, code="key_blocked", details=details)
        if expires_at is not None and expires_at <= now:
            message = f"the key of client {self.name!r} expired at {iso_time(expires_at)}; ask for a new one"
            return KeyRefused(message, code="key_expired", details=details)
        if self.unknown_team:
            message = f"client {self.name!r} belongs to the team {self.team!r}, which is not configured"
            return AccessDenied(message, code="key_blocked", details=details)
        return None

    def not_allowed(self, what: str) -> AccessDenied:
        """Return the error for something that the client may not use."""
        allow = self.rules.as_dict() if self.rules is not None else AllowRules((self.allow,)).as_dict()
        message = f"client {self.name!r} may not use {what}; GET /v1/models lists what it may use"
        return AccessDenied(message, details={"client": self.name, "allow": allow})

    def may_instruct(self, kind: str) -> bool:
        """Return whether instructions of this kind act."""
        return self.kinds is None or kind in self.kinds


class ClientTable:
    """All clients and teams at one moment.

    `needs_key`: requests are refused even if there is no client, because other machines reach the gateway.
    `incomplete` is the reason why some clients may be missing; then a key that is not found is not wrong. Nor
    is one while the store does not work (`works`): another node may have made it since.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        *,
        teams: Mapping[str, Team],
        revoked: Mapping[str, str],
        needs_key: bool,
        incomplete: str = "",
        works: Callable[[], bool] = lambda: True,
    ) -> None:
        self._works = works
        self.clients = dict(clients)
        self.teams = dict(teams)
        self._revoked = revoked
        self._keys: dict[str, tuple[Client, float | None]] = {}
        for client in self.clients.values():
            for key in client.keys:
                self._keys.setdefault(key.digest, (client, client.expiry_of(key)))
        self._anonymous = self.clients.get(ANONYMOUS)
        self._incomplete = incomplete
        self.is_open: bool = not (self.clients or revoked or needs_key or incomplete)
        """Whether no request needs a key, and none can be wrong."""
        self._requires_key = bool(self.clients) or needs_key

    @property
    def isolates(self) -> bool:
        """Whether there are several clients, so that state belongs to one of them."""
        return len(self.clients) > 1

    @property
    def owners(self) -> tuple[str, ...]:
        """Names that state is kept under; none while there is at most one client."""
        return tuple(dict.fromkeys(client.owner for client in self.clients.values() if client.owner))

    def holder_of(self, digest: str) -> Client | None:
        """Return the client that has a key of this digest."""
        found = self._keys.get(digest)
        return None if found is None else found[0]

    def usable_until(self, key: str) -> float:
        """Return the time from which a key that was authenticated is refused."""
        _, expires_at = self._keys[key_digest(key)]
        return math.inf if expires_at is None else expires_at

    def authenticate(self, key: str, now: float) -> Client | None:
        """Return the client of a key; None if no client is needed. An unusable key raises an error."""
        if not key:
            return self._without_key(now)
        digest = key_digest(key)
        found = self._keys.get(digest)
        if found is None:
            return self._unknown(digest)
        client, expires_at = found
        refusal = client.refusal(expires_at, now)
        if refusal is not None:
            raise refusal
        return client

    def _without_key(self, now: float) -> Client | None:
        client = self._anonymous
        if client is None:
            self._require_complete()
            if not self._requires_key:
                return None
            raise KeyRefused(
                "no key was sent; use Authorization: Bearer, x-api-key, x-goog-api-key or ?key=", details={}
            )
        refusal = client.refusal(client.expires_at, now)
        if refusal is not None:
            raise refusal
        return client

    def _unknown(self, digest: str) -> Client | None:
        name = self._revoked.get(digest)
        if name is not None:
            message = f"the key of client {name!r} was revoked; ask for a new one"
            raise KeyRefused(message, code="key_revoked", details={"client": name})
        self._require_complete()
        if not self._requires_key:
            return None
        if not self._works():
            message = "the key is not known here, and the store of client keys is down; try again later"
            raise Overloaded(message, code="store_unavailable", details={})
        raise KeyRefused("the key is not one of this gateway's client keys", details={})

    def _require_complete(self) -> None:
        if self._incomplete:
            raise Overloaded(
                f"client keys cannot be checked: {self._incomplete}", code="store_unavailable", details={}
            )

    def limits_of(self, client: Client) -> list[tuple[str, LimitConfig]]:
        """Return the limits that hold for a client, its own first, each with its owner."""
        own = [(f"client:{client.name}", limit) for limit in client.limits]
        team = self.teams.get(client.team)
        return own + ([] if team is None else [(f"{TEAM_PREFIX}{team.name}", limit) for limit in team.limits])


NO_CLIENTS = ClientTable({}, teams={}, revoked={}, needs_key=False)
"""The table of a gateway without clients on this machine alone."""


def build_table(
    config: Config,
    stored: StoredClients,
    *,
    incomplete: str = "",
    works: Callable[[], bool] = lambda: True,
) -> ClientTable:
    """Return the clients of file and store; a name or key that is in both belongs to the file.

    `incomplete` is the reason why clients of the store may be missing.
    """
    listed = {
        row.name: ClientConfig(key_sha256=key_digest(row.key.reveal())) for row in config.server.client_keys
    }
    prefixes = {row.name: _prefix(row.key.reveal()) for row in config.server.client_keys}
    rows: dict[str, Client] = {
        name: _from_file(name, row, prefixes.get(name)) for name, row in {**listed, **config.clients}.items()
    }
    for name, row in stored.clients.items():
        rows.setdefault(name, _from_store(name, row))
    several = len(rows) > 1
    clients = {
        name: _in_force(client, config.teams, several=several, listed=name in listed)
        for name, client in rows.items()
    }
    teams = {name: _team(name, row, clients.values()) for name, row in config.teams.items()}
    needs_key = not is_loopback(config.server.host)
    return ClientTable(
        clients,
        teams=teams,
        revoked=stored.revoked,
        needs_key=needs_key,
        incomplete=incomplete,
        works=works,
    )


def _prefix(key: str) -> str | None:
    return key[:PREFIX_LENGTH] if len(key) >= _SHORTEST_SHOWN else None


def _from_file(name: str, row: ClientConfig, prefix: str | None) -> Client:
    if row.key is not None and row.key.value:
        prefix = _prefix(row.key.value.reveal())
    expires_at = parse_time(row.expires) if row.expires else None
    keys = (ClientKey(digest=row.digest, prefix=prefix),) if row.digest else ()
    return Client(
        name=name,
        source="file",
        team=row.team,
        keys=keys,
        expires_at=expires_at,
        blocked=row.blocked,
        allow=row.allow,
        instructions=row.instructions,
        role=row.role,
        mcp=row.mcp,
        concurrent=row.concurrent,
        limits=row.limit_rows,
    )


def _from_store(name: str, row: StoredClient) -> Client:
    return Client(
        name=name,
        source="store",
        team=row.team,
        keys=row.keys,
        created_at=row.created_at,
        expires_at=row.expires_at,
        blocked=row.blocked,
        allow=row.allow,
        instructions=row.instructions,
        role=row.role,
        mcp=row.mcp,
        concurrent=row.concurrent,
        limits=(*rate_limits(row.rpm, row.tpm), *row.limits),
    )


def _in_force(client: Client, teams: Mapping[str, TeamConfig], *, several: bool, listed: bool) -> Client:
    """Return the client with the rules of its team, and the owner of its state."""
    team = teams.get(client.team)
    rows = [client.allow] if team is None else [client.allow, team.allow]
    rows = [row for row in rows if row != _EVERYTHING]
    kinds = _kinds(client.instructions)
    if team is not None:
        of_team = _kinds(team.instructions)
        kinds = of_team if kinds is None else kinds if of_team is None else kinds & of_team
    shares = team is not None and not listed and client.name in team.shared_sessions
    owner = f"{TEAM_PREFIX}{client.team}" if shares else client.name
    fields: dict[str, Any] = {name: getattr(client, name) for name in client.__struct_fields__}
    fields.update(
        rules=AllowRules(tuple(rows)) if rows else None,
        kinds=kinds,
        owner=owner if several else "",
        unknown_team=bool(client.team) and team is None,
    )
    return Client(**fields)


def _kinds(instructions: AllowedInstructions) -> frozenset[str] | None:
    if instructions == "all":
        return None
    return frozenset(() if instructions == "none" else instructions)


def _team(name: str, row: TeamConfig, clients: Iterable[Client]) -> Team:
    members = tuple(client.name for client in clients if client.team == name)
    return Team(name=name, members=members, limits=row.limit_rows, allow=row.allow)
