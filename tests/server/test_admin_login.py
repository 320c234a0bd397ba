"""Logins of the console over a real socket: ways in, the cookie, roles, codes, limits, and the way out."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex import __version__
from routecodex.server.login_tokens import CODE_SECONDS, LoginSigner
from tests.cli.process import serve, until
from tests.kit.gateway import serving
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
from tests.server.test_workers import Line, lines_to_all

COOKIE = r"routecodex_admin_(\d+)=[A-Za-z0-9_.-]+; Path=/admin; Max-Age=(\d+); HttpOnly; SameSite=Strict"


async def make_code(port: int) -> dict[str, Any]:
    answer = await call(port, "/admin/login/code", {}, headers=BEARER)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


async def test_the_admin_token_logs_in_as_admin() -> None:
    async with serving(config()) as running:
        page = ConsoleClient(running.port)
        answer = await page.log_in(token=TOKEN)
        assert (answer.status, answer.body, answer.headers["cache-control"]) == (204, b"", "no-store")
        found = re.fullmatch(COOKIE, page.set_cookie)
        assert found is not None, page.set_cookie
        assert int(found[1]) == running.port
        assert 43_190 <= int(found[2]) <= 43_200
        me = await page.get("/admin/me")
        assert me.status == 200
        value = me.json
        assert (value["name"], value["role"], value["capture"]) == ("admin", "admin", "off")
        status = (await page.get("/admin/status")).json
        assert {**value["server"], "active": 0} == {**status, "active": 0}
        assert TOKEN not in page.set_cookie + me.body.decode()


async def test_a_client_key_logs_in_with_its_role() -> None:
    async with serving(config(more=CLIENTS)) as running:
        for key, name, role in (("k-reader", "reader", "viewer"), ("k-steerer", "steerer", "operator")):
            page = await logged_in(running.port, key=key)
            me = (await page.get("/admin/me")).json
            assert (me["name"], me["role"]) == (name, role)
            assert key not in page.cookie


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"token": "wrong"}, (401, "invalid_admin_token")),
        ({"token": ""}, (401, "invalid_admin_token")),
        ({"token": "k-reader"}, (401, "invalid_admin_token")),
        ({"key": "wrong"}, (401, "invalid_api_key")),
        ({"key": ""}, (401, "invalid_api_key")),
        ({"key": TOKEN}, (401, "invalid_api_key")),
        ({"key": "k-agent"}, (403, "no_role")),
        ({"code": "wrong"}, (401, "invalid_code")),
        ({"code": "A" * 44}, (401, "invalid_code")),
        ({"code": "é"}, (401, "invalid_code")),
        ({}, (400, "invalid_request")),
        ({"token": TOKEN, "key": "k-reader"}, (400, "invalid_request")),
        ({"tokn": TOKEN}, (400, "invalid_type")),
    ],
)
async def test_wrong_logins_get_no_cookie(body: dict[str, str], expected: tuple[int, str]) -> None:
    async with serving(config(more=CLIENTS)) as running:
        answer = await call(running.port, "/admin/login", body, headers=PAGE)
    assert (code_of(answer), "set-cookie" in answer.headers) == (expected, False)


async def test_a_key_of_no_client_is_refused_where_none_is_needed() -> None:
    async with serving(config()) as running:
        answer = await call(running.port, "/admin/login", {"key": "anything"}, headers=PAGE)
    assert code_of(answer) == (401, "invalid_api_key")


async def test_a_code_logs_in_once() -> None:
    async with serving(config()) as running:
        made = await make_code(running.port)
        assert re.fullmatch(r"[A-Za-z0-9_-]{20,}", made["code"])
        assert made["url"] == f"http://127.0.0.1:{running.port}/ui/#login={made['code']}"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["expires_at"])
        page = await logged_in(running.port, code=made["code"])
        assert (await page.get("/admin/me")).json["role"] == "admin"
        again = await call(running.port, "/admin/login", {"code": made["code"]}, headers=PAGE)
        assert code_of(again) == (401, "invalid_code")


async def test_a_code_is_made_for_the_token_alone() -> None:
    async with serving(config()) as running:
        page = await logged_in(running.port)
        assert code_of(await page.post("/admin/login/code")) == (401, "invalid_admin_token")
        nobody = await call(running.port, "/admin/login/code", {})
        assert code_of(nobody) == (401, "invalid_admin_token")


def test_codes_and_logins_end_and_belong_to_their_token() -> None:
    signer, now = LoginSigner(TOKEN), 1_000_000.0
    code, expires_at = signer.new_code(now)
    assert expires_at == now + CODE_SECONDS == now + 600
    assert signer.decode_code(code, now + 599) is not None
    assert signer.decode_code(code, now + 600) is None
    assert LoginSigner("another").decode_code(code, now) is None
    login = signer.new_login(now=now, seconds=60, client="laptop", digest="d" * 64)
    text = signer.encode_login(login)
    assert signer.decode_login(text, now + 59) == login
    assert signer.decode_login(text, now + 60) is None
    assert LoginSigner("another").decode_login(text, now) is None
    payload, _, mac = text.partition(".")
    for forged in (payload, f"{payload}.", f"{payload}x.{mac}", f"{payload}.{mac[:-2]}", "", ".", f".{mac}"):
        assert signer.decode_login(forged, now) is None


async def test_logging_out_ends_the_login_everywhere() -> None:
    async with serving(config()) as running:
        page = await logged_in(running.port)
        other = await logged_in(running.port)
        answer = await page.post("/admin/logout")
        assert answer.status == 204
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert code_of(await page.get("/admin/status")) == (401, "login_required")
        assert (await other.get("/admin/status")).status == 200
        assert (await page.post("/admin/logout")).status == 204


async def test_nobody_can_be_logged_out_by_another_page() -> None:
    async with serving(config()) as running:
        page = await logged_in(running.port)
        foreign = {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"}
        assert code_of(await page.post("/admin/logout", **foreign)) == (403, "cross_site")
        without = await page.post("/admin/logout", **{"x-routecodex-csrf": ""})
        assert code_of(without) == (403, "csrf")
        assert (await page.get("/admin/status")).status == 200


async def test_ten_wrong_logins_a_minute_are_the_limit_even_for_the_right_token() -> None:
    async with serving(config()) as running:
        wrong = [await call(running.port, "/admin/login", {"token": "x"}, headers=PAGE) for _ in range(10)]
        assert {code_of(answer) for answer in wrong} == {(401, "invalid_admin_token")}
        refused = await call(running.port, "/admin/login", {"token": TOKEN}, headers=PAGE)
        assert code_of(refused) == (429, "too_many_logins")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        # The token as Bearer is not concerned.
        assert (await call(running.port, "/admin/status", method="GET", headers=BEARER)).status == 200


async def test_right_logins_do_not_count() -> None:
    async with serving(config()) as running:
        pages = [await logged_in(running.port) for _ in range(12)]
    assert len({page.cookie for page in pages}) == 12


async def test_a_role_that_is_taken_away_ends_the_login() -> None:
    async with serving(config(more=CLIENTS)) as running:
        body = {"name": "guest", "role": "operator"}
        made = await call(running.port, "/admin/clients", body, headers=BEARER)
        page = await logged_in(running.port, key=made.json["key"])
        await call(running.port, "/admin/clients/guest", {"role": "viewer"}, headers=BEARER)
        assert (await page.get("/admin/me")).json["role"] == "viewer"
        assert code_of(await page.post("/admin/health/reset")) == (403, "role")
        await call(running.port, "/admin/clients/guest", {"role": None}, headers=BEARER)
        assert code_of(await page.get("/admin/me")) == (401, "login_required")


@pytest.mark.parametrize(
    ("path", "body"),
    [("revoke", {}), ("rotate", {"overlap": "0"}), ("", {"blocked": True})],
)
async def test_a_key_that_is_refused_has_no_login(path: str, body: dict[str, Any]) -> None:
    async with serving(config(more=CLIENTS)) as running:
        made = await call(running.port, "/admin/clients", {"name": "guest", "role": "viewer"}, headers=BEARER)
        page = await logged_in(running.port, key=made.json["key"])
        changed = await call(running.port, f"/admin/clients/guest/{path}".rstrip("/"), body, headers=BEARER)
        assert changed.status == 200, changed.body
        assert code_of(await page.get("/admin/me")) == (401, "login_required")


async def test_a_login_ends_after_its_hours() -> None:
    async with serving(config(console="session_hours = 0.0003")) as running:
        page = await logged_in(running.port)
        ended = time.time() + 3
        while (answer := await page.get("/admin/me")).status == 200 and time.time() < ended:
            pass
    assert code_of(answer) == (401, "login_required")


async def test_a_console_that_is_off_accepts_no_login() -> None:
    async with serving(config()) as running:
        cookie = (await logged_in(running.port)).cookie.partition("=")[2]
    async with serving(config(console="enabled = false")) as running:
        page = ConsoleClient(running.port, cookie=f"routecodex_admin_{running.port}={cookie}")
        assert code_of(await page.get("/admin/me")) == (401, "login_required")
        assert code_of(await page.log_in(token=TOKEN)) == (404, "console_off")
        assert code_of(await call(running.port, "/admin/login/code", {}, headers=BEARER)) == (
            404,
            "console_off",
        )
        assert (await call(running.port, "/admin/status", method="GET", headers=BEARER)).status == 200


async def test_with_tls_in_front_the_cookie_is_secure() -> None:
    async with serving(config(console='public_url = "https://gate.example"')) as running:
        page = await logged_in(running.port)
    assert page.set_cookie.endswith("; HttpOnly; SameSite=Strict; Secure")


async def test_the_cookie_of_another_port_is_not_ours() -> None:
    async with serving(config()) as running:
        page = await logged_in(running.port)
        value = page.cookie.partition("=")[2]
        page.cookie = f"other=1; routecodex_admin_{running.port + 1}={value}"
        assert code_of(await page.get("/admin/me")) == (401, "login_required")
        page.cookie += f"; routecodex_admin_{running.port}={value}"
        assert (await page.get("/admin/me")).status == 200


async def test_a_wrong_token_is_wrong_whatever_the_cookie() -> None:
    async with serving(config()) as running:
        page = await logged_in(running.port)
        assert code_of(await page.get("/admin/status", authorization="Bearer x")) == (
            401,
            "invalid_admin_token",
        )


async def test_a_login_body_is_small() -> None:
    async with serving(config()) as running:
        answer = await call(running.port, "/admin/login", {"token": "x" * 20_000}, headers=PAGE)
    assert code_of(answer)[0] == 413


async def send(line: Line, path: str, page: ConsoleClient, method: str = "GET") -> Answer:
    """Send a call of the page to the worker of this connection."""
    fields = {**page.headers, "x-routecodex-csrf": page.csrf, "content-type": "application/json"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    body = b"{}" if method == "POST" else b""
    line.writer.write(
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return await Call(line.reader, line.writer).rest()


async def test_a_login_counts_on_every_worker_and_after_a_restart(tmp_path: Path) -> None:
    text = config()
    async with serve(tmp_path, text, "--workers", "2") as command:
        port = await command.port()
        page = await logged_in(port)
        leaving = await logged_in(port)
        lines = await lines_to_all(port, 2)
        for line in lines.values():
            assert (await send(line, "/admin/me", page)).status == 200
        assert (await send(lines["0"], "/admin/logout", leaving, "POST")).status == 204
        assert (await send(lines["1"], "/admin/me", leaving, "GET")).status == 401
        code = (await make_code(port))["code"]
        by_code = ConsoleClient(port)
        assert (await by_code.log_in(code=code)).status == 204
        for _ in range(4):
            assert code_of(await ConsoleClient(port).log_in(code=code)) == (401, "invalid_code")
        for line in lines.values():
            await line.close()
        command.signal()
        assert await command.ended() == 0
    async with serve(tmp_path, text, "--workers", "2", "--port", str(port)) as command:
        assert await command.port() == port
        assert (await page.get("/admin/me")).status == 200
        assert code_of(await leaving.get("/admin/me")) == (401, "login_required")
        assert code_of(await ConsoleClient(port).log_in(code=code)) == (401, "invalid_code")
        command.signal()
        await command.ended()
    other = text.replace(TOKEN, "another-token")
    async with serve(tmp_path, other, "--port", str(port)) as command:
        await command.port()
        assert code_of(await page.get("/admin/me")) == (401, "login_required")


async def test_wrong_logins_are_counted_by_all_workers_together(tmp_path: Path) -> None:
    async with serve(tmp_path, config(), "--workers", "2") as command:
        port = await command.port()
        found = [
            code_of(await call(port, "/admin/login", {"token": "x"}, headers=PAGE))[0] for _ in range(14)
        ]
    assert found == [401] * 10 + [429] * 4


async def test_the_servers_of_this_machine_are_listed(tmp_path: Path) -> None:
    async with serve(tmp_path, config()) as one:
        port = await one.port()
        folder = tmp_path / "other"
        folder.mkdir()
        text = config().replace('id = "main"', 'id = "second"')
        async with serve(tmp_path, text) as two:
            second = await two.port()
            listed = await call(port, "/admin/servers", method="GET", headers=BEARER)
            rows = [
                {"id": "main", "url": f"http://127.0.0.1:{port}", "alive": True, "self": True},
                {"id": "second", "url": f"http://127.0.0.1:{second}", "alive": True, "self": False},
            ]
            assert listed.json == {"servers": [{**row, "version": __version__} for row in rows]}
            await two.kill()
        listed = await call(port, "/admin/servers", method="GET", headers=BEARER)
        assert [(row["id"], row["alive"]) for row in listed.json["servers"]] == [
            ("main", True),
            ("second", False),
        ]


async def test_every_write_is_logged_with_who_from_where_and_what(tmp_path: Path) -> None:
    async with serve(tmp_path, config(more=CLIENTS)) as command:
        port = await command.port()
        page = await logged_in(port, key="k-steerer")
        await page.post("/admin/routing", {"sticky": "demo.demo-1"})
        await call(port, "/admin/clients", {"name": "guest", "key_sha256": "d" * 64}, headers=BEARER)
        await call(port, "/admin/login", {"token": "not-the-token"}, headers=PAGE)
        await page.post("/admin/routing", {"sticky": "nothing.there"})
        await page.post("/admin/reload")
        await until(lambda: "invalid_admin_token" in command.text, "the refused login in the log")
        await until(lambda: "sticky" in command.text, "the write in the log")
        lines = [msgspec.json.decode(line)["message"] for line in command.err if '"routecodex.admin"' in line]
    assert lines == [
        "login of operator 'steerer' from 127.0.0.1",
        'POST /admin/routing by operator \'steerer\' from 127.0.0.1: 200 {"sticky":"demo.demo-1"}',
        'POST /admin/clients by admin from 127.0.0.1: 201 {"name":"guest"}',
        "login from 127.0.0.1 refused: invalid_admin_token",
        'POST /admin/routing by operator \'steerer\' from 127.0.0.1: 404 {"sticky":"nothing.there"}',
    ]
    assert "not-the-token" not in command.text
    assert "k-steerer" not in command.text
