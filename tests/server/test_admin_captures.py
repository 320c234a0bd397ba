"""The calls on captured requests: what they answer, by whichever worker, and after a reload."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cli.process import serve, until
from tests.kit import answers, asking
from tests.kit.gateway import serving
from tests.kit.raw_client import Call, begin, call
from tests.kit.steps import Sse
from tests.kit.upstream import Upstream
from tests.server.captured import BEARER, TOKEN, admin, ask, capture_of, capturing, one
from tests.server.test_workers import DEMO, Line, lines_to_all

UNKNOWN = "req_" + "0" * 24


async def test_the_shape_of_a_capture_is_that_of_the_console(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        found = await capture_of(running, await ask(running, "chat"))
    assert {"method", "path", "headers", "body", "response"} <= found["client"].keys()
    assert "owner" not in found
    (attempt,) = found["upstream"]
    assert {"target", "headers", "body", "status", "frames"} <= attempt.keys()
    assert attempt["frames"][0].keys() == {"ms", "data"}
    texts = [found["client"][name] for name in ("method", "path", "body", "response")]
    assert all(isinstance(text, str) for text in (*texts, attempt["body"], attempt["frames"][0]["data"]))


@pytest.mark.parametrize("id", [UNKNOWN, "x", "..", "req_" + "g" * 24, UNKNOWN + "0", "req_%00" + "0" * 20])
@pytest.mark.parametrize("action", ["capture", "replay"])
async def test_a_request_that_never_was_is_unknown(tmp_path: Path, id: str, action: str) -> None:
    async with Upstream() as up, capturing(tmp_path, one("chat", up)) as running:
        found = await admin(
            running, f"requests/{id}/{action}", {"model": "up.m"} if action == "replay" else None
        )
    assert (found.status, found.json["error"]["code"]) == (404, "unknown_request")


@pytest.mark.parametrize("mode", ["off", "errors"])
async def test_a_request_that_was_not_captured_says_how_to_change_that(tmp_path: Path, mode: str) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up, capture=f'mode = "{mode}"')) as running,
    ):
        id = (await ask(running, "chat")).headers["x-request-id"]
        found = await admin(running, f"requests/{id}/capture")
    error = found.json["error"]
    assert (found.status, error["code"]) == (404, "not_captured")
    assert id in error["message"]
    assert f'capture.mode is "{mode}"' in error["message"]


async def test_without_a_user_dir_nothing_is_captured() -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        serving(one("chat", up)) as running,
    ):
        id = (await ask(running, "chat")).headers["x-request-id"]
        found = await admin(running, f"requests/{id}/capture")
    assert (running.service.captures, found.status) == (None, 404)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"requests/{UNKNOWN}/capture", 405),
        ("GET", f"requests/{UNKNOWN}/replay", 405),
        ("GET", "playground", 405),
        ("GET", f"requests/{UNKNOWN}/captures", 404),
        ("GET", f"requests/{UNKNOWN}/capture/x", 404),
        ("GET", f"requests/{UNKNOWN}/capture?limit=5", 400),
    ],
)
async def test_other_methods_paths_and_parameters_are_refused(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async with Upstream() as up, capturing(tmp_path, one("chat", up)) as running:
        found = await call(running.port, f"/admin/{path}", {}, method=method, headers=BEARER)
    assert found.status == status


@pytest.mark.parametrize("path", [f"requests/{UNKNOWN}/capture", f"requests/{UNKNOWN}/replay", "playground"])
async def test_without_the_token_nothing_is_answered(tmp_path: Path, path: str) -> None:
    async with Upstream() as up, capturing(tmp_path, one("chat", up)) as running:
        method = "GET" if path.endswith("capture") else "POST"
        found = await call(running.port, f"/admin/{path}", {}, method=method)
        assert up.requests == []
    assert (found.status, found.json["error"]["code"]) == (401, "invalid_admin_token")


class Operator(Line):
    """A connection to one worker that sends the admin token."""

    async def get(self, path: str) -> object:
        head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
        self.writer.write(head.encode())
        answer = await Call(self.reader, self.writer).rest()
        assert answer.status == 200, answer.body
        return answer.json


async def test_any_worker_shows_the_captures_of_all(tmp_path: Path) -> None:
    text = DEMO.replace("port = 0\n", f'port = 0\nadmin_token = "{TOKEN}"\n', 1) + '[capture]\nmode = "all"\n'
    async with serve(tmp_path, text, "--workers", "2") as command:
        lines = await lines_to_all(await command.port(), 2)
        body = asking.body("chat", stream=False, model="demo.demo-1")
        for name, other in (("0", "1"), ("1", "0")):
            answer = await lines[name].send("POST", "/v1/chat/completions", body)
            reader = lines[other]
            operator = Operator(reader.port, reader=reader.reader, writer=reader.writer)
            id = answer.headers["x-request-id"]
            found = await operator.get(f"/admin/requests/{id}/capture")
            assert isinstance(found, dict)
            assert (found["request"], found["client"]["response"]) == (id, answer.body.decode())
        for line in lines.values():
            await line.close()


async def test_a_reload_switches_captures_on_and_off(tmp_path: Path) -> None:
    text = DEMO.replace("port = 0\n", f'port = 0\nadmin_token = "{TOKEN}"\n', 1)
    body = asking.body("chat", stream=False, model="demo.demo-1")
    async with serve(tmp_path, text + '[capture]\nmode = "off"\n') as command:
        port = await command.port()
        statuses = []
        for mode in ("off", "all", "off"):
            (tmp_path / "gateway.toml").write_text(f'{text}[capture]\nmode = "{mode}"\n')
            reloaded = await call(port, "/admin/reload", {}, headers=BEARER)
            assert reloaded.json == {"reloaded": True, "problems": []}
            id = (await call(port, "/v1/chat/completions", body)).headers["x-request-id"]
            found = await call(port, f"/admin/requests/{id}/capture", method="GET", headers=BEARER)
            statuses.append(found.status)
    assert statuses == [404, 200, 404]


async def test_a_request_under_way_at_a_reload_is_captured_to_its_end(tmp_path: Path) -> None:
    sse = answers.text("chat", "Hello", True)
    assert isinstance(sse, Sse)
    hold = asyncio.Event()
    async with Upstream(lambda _: Sse(sse.frames, pace={len(sse.frames) - 1: hold})) as up:
        text = one("chat", up)
        async with serve(tmp_path, text) as command:
            port = await command.port()
            asked = await begin(port, "/v1/chat/completions", asking.body("chat", stream=True, model="up.m"))
            await asked.head()
            (tmp_path / "gateway.toml").write_text(text.replace('mode = "all"', 'mode = "off"'))
            assert (await call(port, "/admin/reload", {}, headers=BEARER)).json["reloaded"]
            hold.set()
            answer = await asked.rest()
            await asked.close()
            folder = tmp_path / "user" / "sessions" / "main" / "captures"
            id = answer.headers["x-request-id"]
            await until(lambda: list(folder.glob(f"*/{id}.json")), "the capture is written")
            found = await call(port, f"/admin/requests/{id}/capture", method="GET", headers=BEARER)
    assert found.json["client"]["response"].encode() == answer.body


async def test_captures_outlive_a_restart(tmp_path: Path) -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        async with capturing(tmp_path, one("chat", up)) as running:
            answer = await ask(running, "chat")
        async with capturing(tmp_path, one("chat", up)) as running:
            assert (await capture_of(running, answer))["client"]["response"].encode() == answer.body


@pytest.mark.parametrize(("role", "played"), [("viewer", 403), ("operator", 200)])
async def test_captures_are_for_the_admin_and_the_playground_for_operators(
    tmp_path: Path, role: str, played: int
) -> None:
    client = f'[clients.ann]\nkey = "key-of-ann-1"\nrole = "{role}"\n'
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up, more=client)) as running,
    ):
        answer = await ask(running, "chat", authorization="Bearer key-of-ann-1")
        login = await call(running.port, "/admin/login", {"key": "key-of-ann-1"})
        page = {
            "cookie": login.headers["set-cookie"].partition(";")[0],
            "sec-fetch-site": "same-origin",
            "origin": running.url,
        }
        me = await call(running.port, "/admin/me", method="GET", headers=page)
        write = {**page, "x-routecodex-csrf": me.json["csrf"]}
        path = f"/admin/requests/{answer.headers['x-request-id']}"
        shown = await call(running.port, f"{path}/capture", method="GET", headers=page)
        again = await call(running.port, f"{path}/replay", {"target": "up.m"}, headers=write)
        body = {"protocol": "chat", "path": "/v1/chat/completions", "body": asking.body("chat", stream=False)}
        played_answer = await call(running.port, "/admin/playground", body, headers=write)
        unguarded = await call(running.port, "/admin/playground", body, headers=page)
    assert me.json["capture"] == "all"
    assert [(reply.status, reply.json["code"]) for reply in (shown, again)] == [(403, "role")] * 2
    assert (played_answer.status, unguarded.status) == (played, 403)
    assert len(up.requests) == (2 if played == 200 else 1)


@pytest.mark.parametrize("mode", ["off", "errors", "sample", "all"])
async def test_the_console_learns_the_mode(tmp_path: Path, mode: str) -> None:
    async with Upstream() as up, capturing(tmp_path, one("chat", up, capture=f'mode = "{mode}"')) as running:
        me = await admin(running, "me")
    assert me.json["capture"] == mode
