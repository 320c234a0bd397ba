"""Checks clients, their keys, teams, and the usage ledger."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from fnmatch import fnmatchcase

from routecodex.config.limit_text import LIMIT_FIX, parse_limit
from routecodex.config.model import Config
from routecodex.config.problems import ConfigPath, Problem, choices, nearest, quoted, warning
from routecodex.config.teams import (
    ANONYMOUS,
    CLIENT_NAME,
    NAME_FIX,
    RESERVED_NAMES,
    TEAM_PREFIX,
    AllowConfig,
    ClientConfig,
    LimitConfig,
    TeamConfig,
    key_digest,
    parse_time,
)

_DIGEST = re.compile(r"[0-9A-Fa-f]{64}\Z")
_EXPIRES_FIX = 'write a time with its zone, as in "2027-01-31T00:00:00Z"'


def check_teams(config: Config, is_url: Callable[[str], bool]) -> Iterator[Problem]:
    """Check the clients of the file, their teams, and the usage ledger."""
    yield from _client_keys(config)
    yield from _keys(config)
    for name, client in config.clients.items():
        yield from _client(config, name, client)
    for name, team in config.teams.items():
        yield from _team(config, name, team)
    yield from _time_zone(config.usage.timezone, ("usage", "timezone"))
    if config.usage.webhook and not is_url(config.usage.webhook):
        yield Problem(("usage", "webhook"), "is not a URL", "write https:// or http:// and a host")


def name_problem(name: str) -> tuple[str, str] | None:
    """Return message and fix if this cannot be the name of a client or team."""
    if not CLIENT_NAME.match(name):
        return f"{quoted(name[:80])} is not a valid name", NAME_FIX
    if name in RESERVED_NAMES:
        return f"{quoted(name)} stands for {RESERVED_NAMES[name]}", "use another name"
    return None


def _client_keys(config: Config) -> Iterator[Problem]:
    """Check the names of the list in `[server]`; names that were valid before there were tables stay so."""
    names = Counter(row.name for row in config.server.client_keys)
    for index, row in enumerate(config.server.client_keys):
        place = ("server", "client_keys", index, "name")
        if names[row.name] > 1:
            yield Problem(place, f"{quoted(row.name)} is used more than once", "give each key its own name")
        elif row.name in config.clients:
            message = f"{quoted(row.name)} is also a table [clients.{row.name}]"
            yield Problem(place, message, "keep one of the two")
        elif row.name == ANONYMOUS:
            yield Problem(place, f"{quoted(row.name)} stands for requests without a key", "use another name")
        elif row.name.startswith(TEAM_PREFIX):
            yield Problem(place, f"{quoted(row.name)} stands for a team", "use another name")
        elif row.name in RESERVED_NAMES:
            message = f"{quoted(row.name)} stands for {RESERVED_NAMES[row.name]}"
            yield Problem(place, message, "use another name")


def _keys(config: Config) -> Iterator[Problem]:
    """Check that every client has one key, and that no key belongs to two."""
    owners: dict[str, str] = {}
    for index, row in enumerate(config.server.client_keys):
        place: ConfigPath = ("server", "client_keys", index, "key")
        if not row.key:
            yield Problem(place, "is empty", "set the key")
        else:
            yield from _owner(key_digest(row.key.reveal()), row.name, place, owners)
    for name, client in config.clients.items():
        place = ("clients", name, "key_sha256" if client.key_sha256 else "key")
        if client.digest and name != ANONYMOUS:
            yield from _owner(client.digest, name, place, owners)


def _owner(digest: str, name: str, place: ConfigPath, owners: dict[str, str]) -> Iterator[Problem]:
    if digest in owners:
        message = f"is also the key of {quoted(owners[digest])}: the two cannot be told apart"
        yield Problem(place, message, "give each its own key")
    owners.setdefault(digest, name)


def _client(config: Config, name: str, client: ClientConfig) -> Iterator[Problem]:
    place = ("clients", name)
    yield from _name(name, place)
    yield from _key(name, client, place)
    if client.team and client.team not in config.teams:
        message = f"names the team {quoted(client.team)}, which is not configured"
        yield Problem((*place, "team"), message, _team_fix(client.team, config.teams))
    if client.expires and parse_time(client.expires) is None:
        yield Problem((*place, "expires"), f"{quoted(client.expires[:80])} is not a time", _EXPIRES_FIX)
    yield from _allow(config, client.allow, (*place, "allow"))
    yield from limit_problems(config, client.limits, (*place, "limits"))
    yield from _limit_models(config, client.limits, (*place, "limits"))


def _key(name: str, client: ClientConfig, place: ConfigPath) -> Iterator[Problem]:
    given = [field for field in ("key", "key_sha256") if getattr(client, field)]
    if name == ANONYMOUS:
        if given:
            fix = "remove it, or use another name"
            yield Problem((*place, given[0]), "stands for requests without a key, and has one", fix)
        return
    if not given:
        fix = 'set key = "${NAME}", or key_sha256'
        yield Problem((*place, "key"), "has no key", fix, absent=True)
    elif len(given) > 1:
        yield Problem((*place, "key_sha256"), "is given beside key", "keep one of the two")
    if client.key_sha256 and not _DIGEST.match(client.key_sha256):
        fix = "write the output of: printf %s KEY | sha256sum"
        yield Problem((*place, "key_sha256"), "is not a SHA-256 of 64 hex digits", fix)


def _team_fix(name: str, teams: Collection[str]) -> str:
    near = nearest(name, teams)
    if near is not None:
        return f"did you mean {quoted(near)}?"
    known = f"; teams: {choices(teams)}" if teams else ""
    return f"add [teams.{name}]{known}"


def _name(name: str, place: ConfigPath) -> Iterator[Problem]:
    found = name_problem(name)
    if found is not None:
        yield Problem(place, *found)


def _team(config: Config, name: str, team: TeamConfig) -> Iterator[Problem]:
    place = ("teams", name)
    yield from _name(name, place)
    if name == ANONYMOUS:
        yield Problem(place, f"{quoted(name)} stands for requests without a key", "use another name")
    yield from _allow(config, team.allow, (*place, "allow"))
    yield from limit_problems(config, team.limits, (*place, "limits"))
    yield from _limit_models(config, team.limits, (*place, "limits"))
    listed = {row.name for row in config.server.client_keys}
    for index, member in enumerate(team.shared_sessions):
        client = config.clients.get(member)
        if member in listed or (client is not None and client.team != name):
            message = f"{quoted(member)} is not a member of this team"
            fix = f"set team = {quoted(name)} under [clients.{member}], or remove it"
            yield Problem((*place, "shared_sessions", index), message, fix)


def _allow(config: Config, allow: AllowConfig, place: ConfigPath) -> Iterator[Problem]:
    """Warn about patterns that match nothing: a misspelt one would refuse what was meant to be allowed."""
    known: dict[str, Iterable[str]] = {
        "providers": config.providers,
        "models": _model_names(config),
        "routes": config.routing,
    }
    for field, names in known.items():
        patterns: tuple[str, ...] = getattr(allow, field)
        if not patterns:
            message = "is empty, so nothing is allowed"
            yield warning((*place, field), message, 'write ["*"] for all, or set blocked = true')
        yield from _unmatched(config, field, patterns, names, place)


def _limit_models(
    config: Config, limits: tuple[str | LimitConfig, ...], place: ConfigPath
) -> Iterator[Problem]:
    """Warn about models of a limit that match nothing: it would never count."""
    for index, limit in enumerate(limits):
        if isinstance(limit, LimitConfig):
            names = _model_names(config)
            yield from _unmatched(config, "models", limit.models, names, (*place, index))


def _model_names(config: Config) -> set[str]:
    """Return all models as patterns name them: alone, and with their provider."""
    return {
        text
        for name, row in config.providers.items()
        for model in row.models
        for text in (model, f"{name}.{model}")
    }


def _unmatched(
    config: Config, field: str, patterns: tuple[str, ...], names: Iterable[str], place: ConfigPath
) -> Iterator[Problem]:
    if field == "models" and any(row.discovers for row in config.providers.values()):
        return  # Any name may be a model of a provider that names them itself.
    for index, pattern in enumerate(patterns):
        if not any(fnmatchcase(name, pattern) for name in names):
            message = f"{quoted(pattern)} matches none of the configured {field}"
            near = nearest(pattern, names)
            fix = f"did you mean {quoted(near)}?" if near else "correct or remove it"
            yield warning((*place, field, index), message, fix)


def limit_problems(
    config: Config, limits: tuple[str | LimitConfig, ...], place: ConfigPath
) -> Iterator[Problem]:
    """Yield what is wrong with limits, of the file or of a client that is made at run time."""
    for index, limit in enumerate(limits):
        if isinstance(limit, LimitConfig):
            yield from _limit_text(limit.limit, (*place, index, "limit"))
            yield from _limit(config, limit, (*place, index))
        else:
            yield from _limit_text(limit, (*place, index))


def _limit_text(text: str, place: ConfigPath) -> Iterator[Problem]:
    found = parse_limit(text)
    if isinstance(found, str):
        yield Problem(place, f"{quoted(text[:80])} {found}", LIMIT_FIX)


def _limit(config: Config, limit: LimitConfig, place: ConfigPath) -> Iterator[Problem]:
    kind, colon, route = limit.on_exceeded.partition(":")
    at = (*place, "on_exceeded")
    if limit.on_exceeded not in ("refuse", "wait") and not (kind == "route" and colon):
        message = f"{quoted(limit.on_exceeded[:80])} is not a way to deal with a used limit"
        yield Problem(at, message, 'write "refuse", "wait" or "route:NAME"')
    elif colon and route not in config.routing:
        near = nearest(route, config.routing)
        fix = f"did you mean {quoted(f'route:{near}')}?" if near else f"add {quoted(route)} under [routing]"
        yield Problem(at, f"names the route {quoted(route)}, which is not configured", fix)
    if limit.timezone:
        yield from _time_zone(limit.timezone, (*place, "timezone"))


def _time_zone(name: str, place: ConfigPath) -> Iterator[Problem]:
    if name != "UTC" and not _is_time_zone(name):
        message = f"{quoted(name[:80])} is not a time zone of this machine"
        yield Problem(place, message, 'write a name such as "UTC" or "Europe/Berlin"')


def _is_time_zone(name: str) -> bool:
    import zoneinfo  # rarely needed

    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
