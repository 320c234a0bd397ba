"""`POST /admin/explain`: the plan of a request, of a past one too, and by another configuration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.accounting import ledger_requests
from routecodex.canon.errors import BadRequest, ClientError, NotFound
from routecodex.config import Config
from routecodex.gateway import explain
from routecodex.gateway.config_text import examine_text, stand_ins
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.request import ClientRequest, new_request_id
from routecodex.gateway.what_if import planning_gateway
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.routing.request_role import RequestRole
from routecodex.routing.route_plan import RouteQuery
from routecodex.server import paths
from routecodex.server.http import HttpRequest
from routecodex.server.request_rows import Row, read_detail
from routecodex.server.request_source import RequestSource
from routecodex.server.session_scopes import scope_of
from routecodex.wire import json

_MOST_SHOWN = 5


class ExplainRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request as a client would send it; `body` is the JSON object itself or its text.

    `request` is the id of a past one, in place of the rest. `config` is the text of another configuration.
    """

    protocol: Literal["chat", "responses", "messages", "gemini"] | None = None
    body: Raw = json.ABSENT
    headers: dict[str, str] = {}
    path: str = ""
    client: str | None = None
    request: str | None = None
    config: str | None = None


_explain_requests = Decoder(ExplainRequest)
_texts = Decoder(str)


async def explain_request(
    gateway: Callable[[], Gateway], source: RequestSource, request: HttpRequest
) -> dict[str, Any]:
    """Explain the plan of a request; nothing is sent and no state changes."""
    asked = json.read(request.body or b"{}", _explain_requests)
    if asked.config is None:
        return await _explain(gateway(), source, asked)
    config = await asyncio.to_thread(_read_config, asked.config)
    async with planning_gateway(gateway(), config) as planning:
        return await _explain(planning, source, asked)


def _read_config(text: str) -> Config:
    config, problems = examine_text(text, environ=stand_ins(), stored_clients=True)
    if config is None:
        errors = [problem for problem in problems if problem.severity == "error"]
        shown = "; ".join(" ".join(str(problem).split()) for problem in errors[:_MOST_SHOWN])
        raise BadRequest(f"config: {shown}", param="config", code="invalid_config")
    return config


async def _explain(gateway: Gateway, source: RequestSource, asked: ExplainRequest) -> dict[str, Any]:
    if asked.request is not None:
        if asked.protocol is not None or bytes(asked.body):
            raise BadRequest("request: stands in place of protocol and body; leave them out", param="request")
        return await _explain_past(gateway, source, asked.request)
    if asked.protocol is None:
        raise BadRequest("protocol: is missing; name the protocol of the body", param="protocol")
    client = None if asked.client is None else gateway.clients.client(asked.client)
    explained = ClientRequest(
        id=new_request_id(),
        codec=CODECS[asked.protocol],
        wire=_wire_request(asked),
        headers={name.lower(): value for name, value in asked.headers.items()},
        arrived=time.monotonic(),
        created=int(time.time()),
        query=asked.path.partition("?")[2],
        client=client,
        owner="" if client is None else client.owner,
    )
    return await gateway.explain(explained)


def _wire_request(asked: ExplainRequest) -> WireRequest:
    body = bytes(asked.body)
    if not body:
        raise BadRequest("body: is missing", param="body")
    if body.startswith(b'"'):
        body = json.read(body, _texts, at="body").encode()
    assert asked.protocol is not None
    codec = CODECS[asked.protocol]
    if asked.protocol != "gemini":
        return codec.validate(body)
    endpoint = paths.find(asked.path.partition("?")[0])
    if endpoint is None or endpoint.protocol != "gemini" or not endpoint.argument:
        raise BadRequest(
            "path: must name the Gemini model, as in /v1beta/models/NAME:generateContent", param="path"
        )
    return codec.validate(body, model=endpoint.argument, stream=endpoint.verb == "streamGenerateContent")


async def _explain_past(gateway: Gateway, source: RequestSource, id: str) -> dict[str, Any]:
    """Plan a past request again, by the facts that were kept of it: model, size, class, role and session."""
    row = await source.read(partial(_find, id=id))
    if row is None:
        raise NotFound(f"no request {id[:80]!r} is known", code="unknown_request")
    plan = read_detail(row["detail"]).plan
    if plan is None:
        raise ClientError(
            f"the plan of request {id[:80]!r} is not kept; see console.detail_days",
            status=409,
            code="plan_not_kept",
        )
    client = gateway.clients.table.clients.get(row["client"])
    scope = None
    if plan["session"]:
        scope = scope_of(plan["session"], "" if client is None else client.owner)
    query = RouteQuery(
        model=plan["model"],
        tokens=plan["tokens"],
        route=plan["class"]["route"],
        why=plan["class"]["reason"],
        max_wait=gateway.services.max_wait,
    )
    return await explain.explain_again(
        gateway,
        query,
        scope=scope,
        role=RequestRole(plan["role"], plan["role_signal"] or ""),
        client=client,
    )


def _find(connection: Any, *, id: str) -> Row | None:
    return ledger_requests.find(connection, id)
