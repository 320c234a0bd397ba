"""Access to the admin API over a real socket: roles, pages, CSRF, Host, other machines, errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routecodex.server.admin_calls import ADMIN_CALLS, RANKS, AdminEndpoint, find_call, is_listed
from tests.kit.addresses import other_address
from tests.kit.gateway import Running, serving
from tests.kit.raw_client import Answer, Call, call
from tests.server.console_client import (
    BEARER,
    CLIENTS,
    PAGE,
    TOKEN,
    ConsoleClient,
    code_of,
    config,
    logged_in,
)

KEYS = {"viewer": "k-reader", "operator": "k-steerer"}
FOREIGN: list[dict[str, str]] = [
    {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:9"},
    {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": ""},
    {"sec-fetch-site": "cross-site"},
]


def path_of(row: AdminEndpoint) -> str:
    return "/admin/" + row.path.replace("{id}", "req_1").replace("{name}", "reader")


async def test_every_call_that_a_server_has_is_in_the_table() -> None:
    async with serving(config()) as running:
        admin = running.service.admin
        assert admin is not None
        calls = admin.calls
    assert [one for one in calls if not is_listed(*one)] == []
    assert ("GET", "status") in calls
    assert ("POST", "clients/{name}/rotate") in calls
    assert ("POST", "login") in calls


async def test_a_call_without_a_row_is_for_the_admin_alone() -> None:
    assert find_call("POST", "something/new").role == "admin"
    assert not is_listed("POST", "something/new")
    async with serving(config(more=CLIENTS)) as running:
        for key in KEYS.values():
            page = await logged_in(running.port, key=key)
            assert code_of(await page.get("/admin/nothing")) == (403, "role")
        page = await logged_in(running.port)
        assert code_of(await page.get("/admin/nothing")) == (404, "not_found")


def test_no_two_rows_fit_the_same_call() -> None:
    seen = [(row.method, row.path) for row in ADMIN_CALLS]
    assert len(set(seen)) == len(seen)
    assert [one for one in ADMIN_CALLS if find_call(one.method, one.path) is not one] == []


ROLES = {
    "GET": "viewer",
    "POST routing": "operator",
    "POST health/reset": "operator",
    "POST sessions/stop_message": "operator",
    "POST clock/add": "operator",
    "POST clock/cancel": "operator",
    "POST providers/test": "operator",
    "POST playground": "operator",
    "POST explain": "viewer",
    "POST config/check": "viewer",
    "POST login": "viewer",
    "POST logout": "viewer",
    "GET requests/{id}/capture": "admin",
    "POST requests/{id}/replay": "admin",
    "POST clients": "admin",
    "POST clients/{name}": "admin",
    "POST clients/{name}/rotate": "admin",
    "POST clients/{name}/revoke": "admin",
    "POST clients/{name}/reset": "admin",
    "POST prices": "admin",
    "POST reload": "admin",
    "POST login/code": "admin",
}


def test_every_call_has_the_role_of_the_rules() -> None:
    for row in ADMIN_CALLS:
        expected = ROLES.get(f"{row.method} {row.path}") or ROLES.get(row.method, "admin")
        assert row.role == expected, row


async def test_each_role_reaches_its_calls_and_no_other() -> None:
    async with serving(config(more=CLIENTS)) as running:
        for role, key in KEYS.items():
            page = await logged_in(running.port, key=key)
            for row in ADMIN_CALLS:
                if row.is_open or row.bearer_only or row.path == "events":
                    continue
                answer = await _try(page, row)
                refused = answer.status == 403 and answer.json["code"] == "role"
                assert refused == (RANKS[row.role] > RANKS[role]), (role, row)


async def _try(page: ConsoleClient, row: AdminEndpoint) -> Answer:
    """Make the call with arguments that change nothing."""
    if row.method == "GET":
        return await page.get(path_of(row))
    return await page.post(path_of(row), b"not json")


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_login_counts_for_our_own_page_only(headers: dict[str, str]) -> None:
    async with serving(config(server='allowed_origins = ["*"]')) as running:
        page = await logged_in(running.port)
        assert code_of(await page.get("/admin/status", **headers)) == (403, "cross_site")
        assert code_of(await page.post("/admin/routing", {"clear": True}, **headers)) == (403, "cross_site")
        assert code_of(await ConsoleClient(running.port, more=headers).log_in(token=TOKEN)) == (
            403,
            "cross_site",
        )


@pytest.mark.parametrize(
    ("origin", "counts"),
    [
        ("http://127.0.0.1:{port}", True),
        ("https://gate.example", True),
        ("HTTPS://GATE.example", True),
        ("http://gate.example", False),
        ("https://gate.example:8443", False),
        ("http://127.0.0.1:1", False),
        ("http://localhost:{port}", False),
        ("null", False),
        ("", False),
        (None, False),
    ],
)
async def test_without_fetch_metadata_the_origin_must_be_ours(origin: str | None, counts: bool) -> None:
    async with serving(config(console='public_url = "https://gate.example"')) as running:
        page = await logged_in(running.port)
        fields = {"cookie": page.cookie, "x-routecodex-csrf": page.csrf}
        if origin is not None:
            fields["origin"] = origin.format(port=running.port)
        answer = await call(running.port, "/admin/health/reset", {}, headers=fields)
    assert answer.status == (200 if counts else 403), answer.body
    if not counts:
        assert code_of(answer) == (403, "cross_site")


async def test_a_write_needs_the_csrf_value_of_its_login() -> None:
    async with serving(config()) as running:
        page, other = await logged_in(running.port), await logged_in(running.port)
        for wrong in ("", "x", other.csrf):
            answer = await page.post("/admin/health/reset", **{"x-routecodex-csrf": wrong})
            assert code_of(answer) == (403, "csrf")
        assert (await page.post("/admin/health/reset")).status == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_a_write_with_a_login_must_be_json(kind: str) -> None:
    async with serving(config()) as running:
        page = await logged_in(running.port)
        answer = await page.post("/admin/health/reset", **{"content-type": kind})
    assert code_of(answer) == (415, "unsupported_content_type")


async def test_with_the_token_nothing_of_this_is_asked() -> None:
    async with serving(config()) as running:
        fields = {**BEARER, "content-type": "text/plain"}
        assert (await call(running.port, "/admin/health/reset", {}, headers=fields)).status == 200
        me = await call(running.port, "/admin/me", method="GET", headers=BEARER)
    assert (me.json["name"], me.json["role"], me.json["csrf"]) == ("admin", "admin", "")


async def test_who_sends_nothing_is_told_what_to_send() -> None:
    async with serving(config()) as running:
        found = [
            code_of(await call(running.port, path, method="GET", headers=headers))
            for path, headers in (("/admin/status", {}), ("/admin/me", {}), ("/admin/status", PAGE))
        ]
    assert found == [(401, "invalid_admin_token"), (401, "login_required"), (401, "login_required")]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "gate.example"]
)
async def test_a_foreign_host_reaches_nothing(host: str) -> None:
    async with serving(config()) as running:
        page = await logged_in(running.port)
        for path in ("/admin/me", "/admin/status", "/ui/"):
            assert (await page.get(path, host=host)).status in (400, 403)


async def test_the_name_of_the_proxy_in_front_is_accepted_when_others_may_call() -> None:
    settings = 'remote = true\npublic_url = "https://gate.example:8443"'
    async with serving(config(console=settings)) as running:
        for host in ("gate.example", "gate.example:8443", "GATE.example"):
            assert (await call(running.port, "/ui/", method="GET", headers={"host": host})).status == 200
        page = ConsoleClient(running.port, more={"host": "gate.example:8443"})
        assert (await page.log_in(token=TOKEN)).status == 204
        assert (await page.post("/admin/health/reset")).status == 200
        other = await call(running.port, "/ui/", method="GET", headers={"host": "evil.example"})
        assert code_of(other) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/admin/nothing", BEARER, 404),
        ("/admin/status?x=1", BEARER, 400),
        ("/admin/me?x=1", BEARER, 400),
        ("/admin/login", BEARER, 405),
        ("/admin/reload", BEARER, 405),
        ("/admin/status", {"authorization": "Bearer x", "anthropic-version": "2023-06-01"}, 401),
        ("/admin/status", {"authorization": "Bearer x", "x-goog-api-client": "genai"}, 401),
        ("/admin/status", {**BEARER, "origin": "https://evil.example"}, 403),
        ("/admin/status", {**BEARER, "host": "evil.example"}, 403),
    ],
)
async def test_errors_have_one_form_and_are_not_stored(
    path: str, headers: dict[str, str], status: int
) -> None:
    async with serving(config()) as running:
        answer = await call(running.port, path, method="GET", headers=headers)
    assert code_of(answer)[0] == status
    assert answer.headers["cache-control"] == "no-store"


async def test_answers_are_not_stored() -> None:
    async with serving(config()) as running:
        for path in ("/admin/status", "/admin/me", "/admin/openapi.json", "/admin/servers", "/admin/health"):
            answer = await call(running.port, path, method="GET", headers=BEARER)
            assert (answer.status, answer.headers["cache-control"]) == (200, "no-store"), path


async def from_elsewhere(running: Running, path: str) -> Answer:
    address = other_address()
    reader, writer = await asyncio.open_connection(address, running.port)
    fields = f"host: {address}:{running.port}\r\nauthorization: Bearer {TOKEN}\r\n"
    writer.write(f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode())
    under_way = Call(reader, writer)
    try:
        return await under_way.rest()
    finally:
        await under_way.close()


@pytest.mark.parametrize(("console", "status"), [("", 403), ("remote = true\ninsecure_http = true", 200)])
async def test_other_machines_are_answered_by_setting_only(console: str, status: int) -> None:
    server = 'host = "0.0.0.0"\nclient_keys = [{ name = "laptop", key = "k-1" }]'
    async with serving(config(console=console, server=server)) as running:
        for path in ("/ui/", "/admin/status"):
            answer = await from_elsewhere(running, path)
            assert answer.status == status, path
            if status == 403:
                assert code_of(answer) == (403, "admin_not_local")


async def test_the_description_has_every_call_with_its_role() -> None:
    async with serving(config()) as running:
        found = (await call(running.port, "/admin/openapi.json", method="GET", headers=BEARER)).json
    assert found["openapi"] == "3.1.0"
    described = {
        (method.upper(), path.removeprefix("/admin/")): operation["x-routecodex-role"]
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    }
    assert described == {(row.method, row.path): row.role for row in ADMIN_CALLS}
    ids = [one["operationId"] for methods in found["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)
    rotate: dict[str, Any] = found["paths"]["/admin/clients/{name}/rotate"]["post"]
    assert rotate["parameters"] == [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "server", "in": "query", "required": False, "schema": {"type": "string"}},
    ]
    # A login is one of the server that is asked.
    assert found["paths"]["/admin/me"]["get"]["parameters"] == []
    assert rotate["security"] == [{"bearer": []}, {"cookie": [], "csrf": []}]
    assert found["paths"]["/admin/login"]["post"]["security"] == []
