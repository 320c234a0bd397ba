"""With two workers every call of the admin API gives the same answer, whichever worker is asked."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from tests.cli.process import serve
from tests.kit import answers, asking
from tests.kit.gateway import provider
from tests.kit.raw_client import Call
from tests.kit.steps import Hang, Steps
from tests.kit.upstream import Upstream
from tests.server.admin_gateway import SERVER, TOKEN
from tests.server.test_workers import Line, lines_to_all

BODY = asking.body("chat", "hi", stream=False, model="auto")


async def ask(line: Line, method: str, path: str, body: object = None, **headers: str) -> Any:
    """Send a request to the worker at the other end of a connection."""
    payload = b"" if body is None else msgspec.json.encode(body)
    named = {"authorization": f"Bearer {TOKEN}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(payload)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in named.items())
    line.writer.write(head.encode() + b"\r\n" + payload)
    return (await Call(line.reader, line.writer).rest()).json


@contextlib.asynccontextmanager
async def two_workers(home: Path, up: Upstream) -> AsyncIterator[tuple[Line, Line]]:
    text = SERVER + provider("up", "chat", up) + provider("other", "chat", up)
    text += '[routing]\ndefault = [{ id = "all", mode = "priority", targets = ["up.m", "other.m"] }]\n'
    async with serve(home, text, "--workers", "2") as command:
        lines = await lines_to_all(await command.port(), 2)
        yield lines["0"], lines["1"]
        for line in lines.values():
            await line.close()
        command.signal()
        assert await command.ended() == 0


async def test_health_that_one_worker_learned_is_shown_by_the_other_at_once(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        two_workers(tmp_path, up) as (a, b),
    ):
        up.queue(answers.error("chat", 401, "no"))
        await ask(a, "POST", "/v1/chat/completions", BODY)
        for _ in range(5):
            for line in (a, b):
                (row,) = (await ask(line, "GET", "/admin/health"))["health"]
                assert (row["name"], row["state"]) == ("up.primary", "refused")
                providers = (await ask(line, "GET", "/admin/providers"))["providers"]
                assert [one["keys"][0]["state"] for one in providers] == ["out", "ok"]
                routes = (await ask(line, "GET", "/admin/routes"))["routes"]
                assert [one["state"] for one in routes[0]["pools"][0]["targets"]] == ["out", "ok"]
        assert await ask(b, "POST", "/admin/health/reset", {}) == {"reset": 1}
        assert (await ask(a, "GET", "/admin/health"))["health"] == []


async def test_requests_and_sessions_of_one_worker_are_shown_by_the_other(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        two_workers(tmp_path, up) as (a, b),
    ):
        for line, session in ((a, "s-1"), (b, "s-2"), (a, "s-1")):
            await ask(line, "POST", "/v1/chat/completions", BODY, x_session_id=session)
        for path in (
            "/admin/requests",
            "/admin/requests?group=session",
            "/admin/sessions",
            "/admin/sessions?id=s-1",
            "/admin/providers",
            "/admin/routes",
            "/admin/series?since=2026-01-01&until=2030-01-01&by=provider",
        ):
            one, other = await ask(a, "GET", path), await ask(b, "GET", path)
            assert one == other, path
        rows = (await ask(b, "GET", "/admin/requests"))["requests"]
        assert [row["session"] for row in rows] == ["s-1", "s-2", "s-1"]
        detail = await ask(b, "GET", f"/admin/requests/{rows[0]['request']}")
        assert detail["request"]["plan"]["route"] == "default"


async def test_a_request_under_way_in_one_worker_is_shown_by_the_other(tmp_path: Path) -> None:
    async with Upstream() as up, two_workers(tmp_path, up) as (a, b):
        up.queue(Steps([Hang()]))
        payload = msgspec.json.encode(BODY)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(payload)}\r\n\r\n"
        )
        a.writer.write(head.encode() + payload)
        await up.received()
        (row,) = (await ask(b, "GET", "/admin/requests"))["requests"]
        detail = (await ask(b, "GET", f"/admin/requests/{row['request']}"))["request"]
    assert (row["status"], row["target"]) == (None, "up.primary.m")
    assert (detail["status"], detail["plan"]["route"]) == (None, "default")


async def test_a_reload_answers_when_every_worker_has_the_new_configuration(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        two_workers(tmp_path, up) as lines,
    ):
        (file,) = tmp_path.rglob("*.toml")
        text = file.read_text("utf-8")
        for number in range(6):
            file.write_text(f"{text}[models]\n'alias-{number}' = 'up.m'\n", "utf-8")
            asked, other = lines[number % 2], lines[1 - number % 2]
            assert (await ask(asked, "POST", "/admin/reload"))["reloaded"]
            shown = [(await ask(line, "GET", "/admin/routes"))["models"] for line in (other, asked)]
            assert [[one["pattern"] for one in found] for found in shown] == [[f"alias-{number}"]] * 2
