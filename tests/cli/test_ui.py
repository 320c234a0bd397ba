"""`routecodex ui` and the demo's own address: the printed URL logs in once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from routecodex.cli.demo_traffic import CLIENTS, SCRIPT, request_of
from tests.cli.process import running, serve
from tests.kit.raw_client import call
from tests.server.console_client import ConsoleClient, config, logged_in

PROTOCOLS = {"chat", "messages", "responses", "gemini"}
URL = r"http://127\.0\.0\.1:(\d+)/ui/#login=([A-Za-z0-9_-]{20,})"


async def test_the_address_is_printed_alone_and_logs_in_once(tmp_path: Path) -> None:
    async with serve(tmp_path, config()) as gateway:
        port = await gateway.port()
        for arguments in (("ui", "--print"), ("ui", "--server", "main", "--print")):
            async with running(tmp_path, *arguments) as command:
                assert await command.ended() == 0
            assert (len(command.out), command.err) == (1, [])
            found = re.fullmatch(URL, command.out[0])
            assert found is not None, command.out
            assert int(found[1]) == port
            page = await logged_in(port, code=found[2])
            assert (await page.get("/admin/me")).json["role"] == "admin"
            assert (await ConsoleClient(port).log_in(code=found[2])).status == 401


async def test_without_a_browser_the_address_is_printed(tmp_path: Path) -> None:
    async with serve(tmp_path, config()) as gateway:
        await gateway.port()
        async with running(tmp_path, "ui", environ={"BROWSER": "false", "DISPLAY": ""}) as command:
            assert await command.ended() == 0
    assert command.err == ["no browser could be opened; open this address:"]
    assert re.fullmatch(URL, "\n".join(command.out))


async def test_the_browser_gets_the_address(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    browser.chmod(0o700)
    async with serve(tmp_path, config()) as gateway:
        port = await gateway.port()
        async with running(tmp_path, "ui", environ={"BROWSER": f"{browser} %s"}) as command:
            assert await command.ended() == 0
    assert command.err == [f"opened http://127.0.0.1:{port}/ui/"]
    assert re.fullmatch(URL, (tmp_path / "opened").read_text())


async def test_without_a_server_it_is_exit_code_3(tmp_path: Path) -> None:
    async with running(tmp_path, "ui", "--print") as command:
        assert await command.ended() == 3
    assert (command.out, command.err) == ([], ["no server is running; `routecodex start` starts one"])


async def test_a_server_that_was_killed_is_exit_code_3(tmp_path: Path) -> None:
    async with serve(tmp_path, config()) as gateway:
        await gateway.port()
    async with running(tmp_path, "ui", "--print") as command:
        assert await command.ended() == 3
    assert "main is dead" in command.text


async def test_a_console_that_is_off_is_an_error(tmp_path: Path) -> None:
    async with serve(tmp_path, config(console="enabled = false")) as gateway:
        await gateway.port()
        async with running(tmp_path, "ui", "--print") as command:
            assert await command.ended() == 1
    assert command.err == ["error: main: the console is off; set console.enabled"]


async def test_the_demo_prints_the_same_address(tmp_path: Path) -> None:
    async with running(tmp_path, "demo", "--port", "0") as demo:
        found = await demo.wait_for(URL)
        page = await logged_in(int(found[1]), code=found[2])
        assert (await page.get("/admin/me")).json["server"]["id"] == f"demo-{found[1]}"
        demo.signal()
        assert await demo.ended() == 0


async def rows_with(
    port: int, token: str, has: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """Return the rows of requests, as soon as they have what is awaited."""
    async with asyncio.timeout(40):
        while True:
            headers = {"authorization": f"Bearer {token}"}
            answer = await call(port, "/admin/requests", method="GET", headers=headers)
            rows: list[dict[str, Any]] = answer.json["requests"]
            if has(rows):
                return rows
            await asyncio.sleep(0.2)


async def test_the_traffic_of_the_demo_has_clients_protocols_sessions_and_errors(tmp_path: Path) -> None:
    async with running(tmp_path, "demo", "--port", "0", "--traffic") as demo:
        port = int((await demo.wait_for(URL))[1])
        # The examples work without a key.
        body = {"model": "x", "messages": [{"role": "user", "content": "hi"}]}
        assert (await call(port, "/v1/chat/completions", body)).status == 200
        token = (tmp_path / "user" / "admin-token").read_text().strip()
        rows = await rows_with(
            port,
            token,
            lambda rows: (
                {row["client"] for row in rows} >= {*CLIENTS, "anonymous"}
                and {row["protocol"] for row in rows} == PROTOCOLS
                and any(row["status"] >= 400 for row in rows)
            ),
        )
        demo.signal()
        assert await demo.ended() == 0
    assert len({row["session"] for row in rows if "session" in row}) >= 3
    assert {row["stream"] for row in rows} == {True, False}
    assert "Traceback" not in demo.text


def test_the_script_speaks_every_protocol() -> None:
    paths = {request_of(one)[0].partition("models/")[0] for one in SCRIPT}
    assert paths == {"/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1beta/"}
