"""Describes the admin API in OpenAPI 3.1, for `/admin/openapi.json`, from the table of its calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from routecodex import __version__
from routecodex.server.admin_calls import ADMIN_CALLS, OWN_CALLS, AdminEndpoint

_JSON = "application/json"
_STEP = re.compile(r"\{(\w+)\}")
_ERROR = {"$ref": "#/components/responses/Error"}


def describe_api(calls: Iterable[AdminEndpoint] = ADMIN_CALLS) -> dict[str, Any]:
    """Return the OpenAPI document of these calls."""
    paths: dict[str, dict[str, Any]] = {}
    for row in calls:
        paths.setdefault(f"/admin/{row.path}", {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "RouteCodex admin API",
            "version": __version__,
            "description": "Shows and changes the state of a running gateway. Times are ISO 8601 in UTC, "
            "durations in seconds, or in milliseconds where a name ends in `_ms`.",
        },
        "paths": paths,
        "components": _COMPONENTS,
    }


def _operation(row: AdminEndpoint) -> dict[str, Any]:
    steps = [{"name": name, "in": "path", "required": True} for name in _STEP.findall(row.path)]
    names = (*row.query, *(() if row.path in OWN_CALLS else ("server",)))
    query = [{"name": name, "in": "query", "required": False} for name in names]
    operation: dict[str, Any] = {
        "operationId": _operation_id(row),
        "summary": row.summary,
        "parameters": [{**one, "schema": {"type": "string"}} for one in (*steps, *query)],
        "responses": {_status(row): _answer(row), "default": _ERROR},
        "x-routecodex-role": row.role,
        "security": _security(row),
    }
    if row.is_write:
        operation["requestBody"] = {"content": {_JSON: {"schema": _object(row.body)}}}
    return operation


def _operation_id(row: AdminEndpoint) -> str:
    words = [word for word in re.split(r"[^A-Za-z0-9]+", row.path) if word]
    return "_".join((row.method.lower(), *words))


def _status(row: AdminEndpoint) -> str:
    if row.path in ("login", "logout"):
        return "204"
    return "201" if (row.method, row.path) == ("POST", "clients") else "200"


def _answer(row: AdminEndpoint) -> dict[str, Any]:
    if _status(row) == "204":
        return {"description": "Done; there is no body."}
    if row.path == "events":
        return {"description": row.summary, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    if row.streams:
        return {"description": "The answer as a client gets it, streamed or not."}
    return {"description": row.summary, "content": {_JSON: {"schema": _object(row.answer)}}}


def _object(names: Iterable[str]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {} for name in names}}


def _security(row: AdminEndpoint) -> list[dict[str, list[str]]]:
    if row.is_open:
        return []
    bearer: dict[str, list[str]] = {"bearer": []}
    if row.bearer_only:
        return [bearer]
    cookie: dict[str, list[str]] = {"cookie": [], "csrf": []} if row.is_write else {"cookie": []}
    return [bearer, cookie]


_COMPONENTS: dict[str, Any] = {
    "securitySchemes": {
        "bearer": {"type": "http", "scheme": "bearer", "description": "The admin token."},
        "cookie": {
            "type": "apiKey",
            "in": "cookie",
            "name": "routecodex_admin_PORT",
            "description": "Set by POST /admin/login; its role must reach that of the call.",
        },
        "csrf": {
            "type": "apiKey",
            "in": "header",
            "name": "x-routecodex-csrf",
            "description": "The value of `csrf` of GET /admin/me, for writes with the cookie.",
        },
    },
    "responses": {
        "Error": {
            "description": "What is wrong, and what to do.",
            "content": {
                _JSON: {
                    "schema": {
                        "type": "object",
                        "required": ["error", "code"],
                        "properties": {
                            "error": {
                                "type": "object",
                                "required": ["message", "code"],
                                "properties": {"message": {"type": "string"}, "code": {"type": "string"}},
                            },
                            "code": {"type": "string"},
                        },
                    }
                }
            },
        }
    },
}
