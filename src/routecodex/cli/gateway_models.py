"""The models of a gateway as `routecodex run` needs them: from a running server, or from a configuration."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Struct

from routecodex.cli.admin_client import (
    TIMEOUT_SECONDS,
    AdminClient,
    AdminRefused,
    AnnouncedServer,
    Unreachable,
)
from routecodex.cli.agents.agent import Agent, ModelFacts
from routecodex.config import Config

MOST_MODELS = 100
"""Most models that an agent is given: the system limits the size of a variable, which holds the list for some
agents, and each row of Codex's catalogue repeats the whole prompt."""


class GatewayModels(Struct, frozen=True, kw_only=True):
    """Every model that the gateway lists, the targets of the route `default`, and the models asked for.

    `asked` has the names that exist, listed or not; `codex_rows` is its catalogue for Codex, if any.
    """

    models: tuple[ModelFacts, ...]
    default: tuple[str, ...] = ()
    asked: dict[str, ModelFacts] = {}
    codex_rows: tuple[dict[str, Any], ...] = ()


class _Described(Struct, frozen=True):
    """The answer of `GET /admin/models`."""

    models: tuple[ModelFacts, ...]
    default: tuple[str, ...]
    asked: ModelFacts | None = None


def check_key(server: AnnouncedServer, key: str | None) -> None:
    """Raise a usage error if the gateway wants a client key and this is not one."""
    status, _ = _get(server, "/v1/models", key)
    if status != 401:
        return
    fix = "give one with --key, or set ROUTECODEX_KEY"
    problem = "wants a client key" if key is None else "does not know this client key"
    raise click.UsageError(f"{server.id} at {server.url} {problem}; {fix}")


def fetch_models(server: AnnouncedServer, key: str | None, names: tuple[str, ...]) -> GatewayModels:
    """Return the models of a running server; raises Unreachable."""
    admin = AdminClient(server)
    try:
        answers = [admin.get("/admin/models", model=name) for name in (*names, None)]
    except AdminRefused as exc:
        problem = f"{server.id} does not describe its models: {exc.message}"
        raise Unreachable(f"{problem}; is it of an older version? `routecodex restart`") from exc
    described = [msgspec.convert(answer, type=_Described) for answer in answers]
    return GatewayModels(
        models=described[-1].models,
        default=described[-1].default,
        asked={row.asked.id: row.asked for row in described if row.asked is not None},
        codex_rows=_codex_rows(server, key),
    )


def configured_models(config: Config, names: tuple[str, ...]) -> GatewayModels:
    """Return the models that a gateway with this configuration would have."""
    from routecodex.gateway import build
    from routecodex.gateway.model_descriptions import describe_models

    registry = build.registry(config)
    described = [msgspec.convert(describe_models(registry, name), type=_Described) for name in (*names, None)]
    return GatewayModels(
        models=described[-1].models,
        default=described[-1].default,
        asked={row.asked.id: row.asked for row in described if row.asked is not None},
    )


def _codex_rows(server: AnnouncedServer, key: str | None) -> tuple[dict[str, Any], ...]:
    status, body = _get(server, "/v1/models?client_version=0.0.0", key)
    try:
        rows = msgspec.json.decode(body).get("models", ()) if status == 200 else ()
    except (msgspec.DecodeError, AttributeError):
        rows = ()
    return tuple(row for row in rows if isinstance(row, dict) and "slug" in row)


def _get(server: AnnouncedServer, path: str, key: str | None) -> tuple[int, bytes]:
    address = urlsplit(server.url)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    connection = HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, None, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, HTTPException) as exc:
        raise Unreachable(f"{server.url} does not answer: {exc or type(exc).__name__}") from exc
    finally:
        connection.close()


def choose_model(agent: Agent, models: GatewayModels, name: str | None) -> str | None:
    """Return the model to start with: that asked for, the first of `default`, or none if it keeps its own."""
    if name is not None:
        return checked_model(models, name)
    if agent.keeps_models:
        return None
    every = (*models.default, *(row.id for row in models.models))
    if not every:
        raise click.UsageError("the gateway has no models; add a provider with models to its configuration")
    return every[0]


def checked_model(models: GatewayModels, name: str) -> str:
    """Return the name; a usage error with near names if the gateway does not have it."""
    from routecodex.config.problems import choices, nearest

    listed = [row.id for row in models.models]
    if name in models.asked or name in listed:
        return name
    near = nearest(name, listed)
    hint = f"did you mean {near!r}?" if near else f"it has {choices(listed)}"
    raise click.UsageError(f"the gateway has no model {name!r}; {hint}")


def models_for_agent(models: GatewayModels, *chosen: str | None) -> tuple[ModelFacts, ...]:
    """Return the models that an agent is given: the chosen ones first, then the route `default`."""
    facts = {row.id: row for row in models.models} | models.asked
    order = dict.fromkeys((*filter(None, chosen), *models.default, *facts))
    return tuple(facts[name] for name in order if name in facts)[:MOST_MODELS]
