"""Calls with `server=ID` over real sockets: two servers of one user dir, each with a token of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from tests.cli.process import Command
from tests.cli.process import running as command
from tests.kit import asking
from tests.kit.raw_client import Answer, call
from tests.server.admin_gateway import running
from tests.server.console_client import BEARER, CLIENTS, PAGE, code_of, config, logged_in
from tests.server.events.event_stream import subscribe

OTHER = "token-of-second"


def second(**settings: str) -> str:
    """Return the configuration of the other server: it shares nothing with the first but the user dir."""
    text = config(**settings).replace('id = "main"', 'id = "second"')
    return text.replace("operator-token", OTHER)


@contextlib.asynccontextmanager
async def two_servers(home: Path, *, more: str = "") -> AsyncIterator[tuple[int, int]]:
    """Run two servers on this machine; return their ports."""
    async with running(config(more=more), home) as one, running(second(), home) as two:
        yield one.port, two.port


@contextlib.asynccontextmanager
async def serve(folder: Path, text: str, *, home: Path) -> AsyncIterator[Command]:
    """Run a server in a process of its own, in its own folder."""
    folder.mkdir()
    file = folder / "gateway.toml"
    file.write_text(text, "utf-8")
    file.chmod(0o600)
    environ = {"ROUTECODEX_USER_DIR": str(home)}
    async with command(folder, "serve", "--config", str(file), environ=environ) as found:
        yield found


async def get(port: int, path: str, **headers: str) -> Answer:
    return await call(port, path, method="GET", headers={**BEARER, **headers})


async def test_a_call_is_answered_by_the_server_that_it_names(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        for name, port in (("second", two), ("main", one)):
            answer = await get(one, f"/admin/status?server={name}")
            assert (answer.status, answer.json["id"]) == (200, name)
            assert answer.json["url"] == f"http://127.0.0.1:{port}"
            assert answer.headers["cache-control"] == "no-store"
        assert (await get(one, "/admin/status?server=")).json["id"] == "main"


async def test_a_write_changes_the_named_server_alone(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        page = await logged_in(one)
        changed = await page.post("/admin/routing?server=second", {"disable": ["demo"]})
        assert (changed.status, changed.json["id"]) == (200, "second")
        found = [
            (await page.get(f"/admin/routing?server={name}")).json["routing"]["disable"]
            for name in ("main", "second")
        ]
        assert found == [[], ["demo"]]


async def test_parameters_and_refusals_pass_through(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        answer = await get(one, "/admin/requests?limit=x&server=second")
        assert code_of(answer) == (400, "invalid_request")
        assert answer.json["error"]["param"] == "limit"
        assert code_of(await get(one, "/admin/requests?nonsense=1&server=second"))[0] == 400
        unknown = await get(one, "/admin/requests/none%252F%20known?server=second")
        assert code_of(unknown) == (404, "unknown_request")
        assert "none/ known" in unknown.json["error"]["message"]


async def test_the_role_of_the_login_counts_at_both_servers(tmp_path: Path) -> None:
    async with two_servers(tmp_path, more=CLIENTS) as (one, two):
        reader = await logged_in(one, key="k-reader")
        assert (await reader.get("/admin/status?server=second")).json["id"] == "second"
        refused = await reader.post("/admin/routing?server=second", {"disable": ["demo"]})
        assert code_of(refused) == (403, "role")
        steerer = await logged_in(one, key="k-steerer")
        changed = await steerer.post("/admin/routing?server=second", {"disable": ["demo"]})
        assert changed.status == 200
        # What one server sends to the other: the token opens no more than the role in the headers.
        sent = {"authorization": f"Bearer {OTHER}", "x-routecodex-via": "main"}
        for caller, status in (("viewer reader", 403), ("operator steerer", 200), ("king x", 400), ("", 400)):
            answer = await call(
                two, "/admin/routing", {"clear": True}, headers={**sent, "x-routecodex-caller": caller}
            )
            assert answer.status == status, (caller, answer.body)


async def test_the_headers_of_a_sent_on_call_open_nothing_without_the_token(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        sent = {"x-routecodex-via": "second", "x-routecodex-caller": "admin admin"}
        answer = await call(one, "/admin/status", method="GET", headers=sent)
        assert code_of(answer) == (401, "invalid_admin_token")


async def test_a_name_that_no_server_has_is_unknown(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        for name in ("nobody", "..%2Fmain", "SECOND", "second%00", "a" * 3000):
            answer = await get(one, f"/admin/status?server={name}")
            assert code_of(answer) == (404, "unknown_server"), name
            assert "there are main, second" in answer.json["error"]["message"]


async def test_a_call_that_was_sent_on_goes_no_further(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        sent = {"authorization": f"Bearer {OTHER}", "x-routecodex-via": "main"}
        sent["x-routecodex-caller"] = "admin admin"
        for name in ("main", "all", "nobody"):
            answer = await call(two, f"/admin/status?server={name}", method="GET", headers=sent)
            assert code_of(answer) == (404, "unknown_server")
            assert "this is server 'second'" in answer.json["error"]["message"]
        assert (await call(two, "/admin/status?server=second", method="GET", headers=sent)).status == 200
        assert one != two


async def test_a_server_that_took_the_address_of_another_does_not_answer_for_it(tmp_path: Path) -> None:
    async with running(config(), tmp_path) as one:
        row = msgspec.json.decode((tmp_path / "servers" / "main.json").read_bytes())
        ghost = tmp_path / "servers" / "ghost.json"
        ghost.write_bytes(msgspec.json.encode({**row, "id": "ghost"}))
        answer = await get(one.port, "/admin/status?server=ghost")
        assert code_of(answer) == (404, "unknown_server")
        assert "this is server 'main', not 'ghost'" in answer.json["error"]["message"]


async def test_another_token_is_an_error_between_servers_and_ends_no_login(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        file = tmp_path / "servers" / "second.json"
        file.write_bytes(file.read_bytes().replace(OTHER.encode(), b"stale"))
        page = await logged_in(one)
        answer = await page.get("/admin/status?server=second")
        assert code_of(answer) == (502, "server_refused")
        assert "server.admin_token" in answer.json["error"]["message"]
        assert "stale" not in answer.body.decode()
        assert (await page.get("/admin/me")).status == 200


async def test_logins_and_the_list_of_servers_stay_here(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        page = await logged_in(one)
        for path in ("/admin/me", "/admin/servers", "/admin/openapi.json"):
            for name in ("second", "nobody", "all"):
                assert (await page.get(f"{path}?server={name}")).status == 200
        assert (await page.get("/admin/me?server=second")).json["server"]["id"] == "main"
        login = await call(one, "/admin/login?server=second", {"token": "operator-token"}, headers=PAGE)
        assert login.status == 204


async def test_the_playground_of_another_server_streams_through(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        page = await logged_in(one)
        for stream in (True, False):
            body = asking.body("chat", "hi", stream=stream, model="demo-1")
            sent = {"protocol": "chat", "path": "/v1/chat/completions", "body": body}
            answer = await page.post("/admin/playground?server=second", sent)
            assert (answer.status, answer.complete) == (200, True), answer.body
            assert answer.headers["x-routecodex-target"] == "demo.key1.demo-1"
            asking.check("chat", answer, stream=stream)
            id = answer.headers["x-request-id"]
            found = await page.get(f"/admin/requests/{id}?server=second")
            assert (found.status, found.json["request"]["client"]) == (200, "console")
            assert code_of(await page.get(f"/admin/requests/{id}")) == (404, "unknown_request")
        assert one != two


async def test_events_of_another_server_stream_through_and_resume(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        stream = await subscribe(one, query="?server=second")
        assert stream.head is not None
        assert stream.head.headers["content-type"] == "text/event-stream; charset=utf-8"
        hello = await stream.next()
        assert (hello.event, hello.data["server"]) == ("hello", "second")
        body = asking.body("chat", "hi", stream=False, model="demo-1")
        id = (await call(two, "/v1/chat/completions", body)).headers["x-request-id"]
        await stream.finished(id)
        await stream.close()
        again = await subscribe(one, query=f"?server=second&last_event_id={hello.id}")
        assert (await again.next()).data["resumed"] is True
        assert await again.finished(id)
        await again.close()


async def test_an_event_stream_of_another_server_takes_no_place_of_a_request(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        stream = await subscribe(one, query="?server=second")
        await stream.next()
        assert (await get(one, "/admin/status")).json["active"] == 0
        await stream.close()


async def test_an_event_stream_of_another_server_ends_with_this_one(tmp_path: Path) -> None:
    async with running(second(), tmp_path), running(config(), tmp_path) as one:
        stream = await subscribe(one.port, query="?server=second")
        await stream.next()
        assert await one.service.drain()
        assert [event.event for event in await stream.to_end()][-1] == "bye"
        await stream.close()


async def test_a_server_that_dies_is_named_and_the_stream_breaks_off(tmp_path: Path) -> None:
    async with (
        running(config(), tmp_path) as one,
        serve(tmp_path / "second", second(), home=tmp_path) as two,
    ):
        await two.port()
        stream = await subscribe(one.port, query="?server=second")
        await stream.next()
        assert (await get(one.port, "/admin/status?server=second")).status == 200
        await two.kill()
        await stream.to_end()
        assert not stream.call.answer.complete
        await stream.close()
        gone = await get(one.port, "/admin/status?server=second")
        assert code_of(gone) == (503, "server_unreachable")
        assert "server 'second' at http://127.0.0.1" in gone.json["error"]["message"]
        # The process of another program has its pid now, and nothing listens at its address.
        file = tmp_path / "servers" / "second.json"
        row = msgspec.json.decode(file.read_bytes())
        file.write_bytes(msgspec.json.encode({**row, "pid": 1}))
        assert code_of(await get(one.port, "/admin/status?server=second")) == (502, "server_unreachable")


async def test_writes_are_logged_at_both_servers_with_who(tmp_path: Path) -> None:
    async with (
        serve(tmp_path / "one", config(more=CLIENTS), home=tmp_path / "user") as one,
        serve(tmp_path / "two", second(), home=tmp_path / "user") as two,
    ):
        port = await one.port()
        await two.port()
        page = await logged_in(port, key="k-steerer")
        assert (await page.post("/admin/routing?server=second", {"disable": ["demo"]})).status == 200
        await one.wait_for(
            r"POST /admin/routing of server 'second' by operator 'steerer' from .*: 200 .*demo"
        )
        await two.wait_for(r"POST /admin/routing by operator 'steerer' via server 'main' from .*: 200 .*demo")
        assert OTHER not in one.text + two.text
