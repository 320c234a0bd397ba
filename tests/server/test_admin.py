"""The admin API over a real socket: access, answers, changes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from routecodex.config import loads
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from routecodex.server.access import is_local
from routecodex.server.serve import Service
from tests.cli.process import serve
from tests.gateway.clock_gateway import iso, now_ms, store_tasks, stored_tasks
from tests.kit import answers, asking
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, Call, begin, call
from tests.kit.steps import Hang, Json, Sse, Steps
from tests.kit.upstream import Request, Upstream
from tests.server.test_workers import DEMO, Line, lines_to_all

TOKEN = "operator"
SECRET = "secret-"
BEARER = {"authorization": f"Bearer {TOKEN}"}
NOBODY: dict[str, Any] = {"sticky": None, "allow": [], "disable": []}
EMPTY: dict[str, Any] = {"force": None, **NOBODY, "stop_message": None}


def text(up: Upstream, *, server: str = "") -> str:
    return (
        f'[server]\nport = 0\nid = "main"\ndrain_seconds = 1\nadmin_token = "{TOKEN}"\n{server}\n'
        + provider("up", "chat", up)
        + provider("other", "chat", up)
        + '[routing]\ndefault = [{ id = "all", mode = "priority", targets = ["up.m", "other.m"] }]\n'
    )


@contextlib.asynccontextmanager
async def gateway(*, server: str = "") -> AsyncIterator[tuple[Upstream, Running]]:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        serving(text(up, server=server)) as running,
    ):
        yield up, running


async def get(port: int, path: str) -> Any:
    answer = await call(port, path, method="GET", headers=BEARER)
    assert answer.status == 200, answer.body
    return answer.json


async def post(port: int, path: str, body: object) -> Answer:
    return await call(port, path, body, headers=BEARER)


async def done(port: int, path: str, body: object) -> Any:
    answer = await post(port, path, body)
    assert answer.status == 200, answer.body
    return answer.json


async def chat(port: int, text: str = "hi", **headers: str) -> Answer:
    return await call(
        port, "/v1/chat/completions", asking.body("chat", text, stream=False, model="auto"), headers=headers
    )


def target(answer: Answer) -> str:
    return answer.headers["x-routecodex-target"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"x-api-key": TOKEN},
        {"authorization": "Bearer "},
    ],
)
@pytest.mark.parametrize("path", ["/admin/status", "/admin/nothing", "/admin"])
async def test_without_the_token_nothing_is_told(headers: dict[str, str], path: str) -> None:
    async with gateway() as (_, running):
        answer = await call(running.port, path, method="GET", headers=headers)
    assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_admin_token")
    assert TOKEN not in answer.body.decode()


async def test_client_keys_do_not_open_it_and_are_not_asked_for() -> None:
    keys = 'client_keys = [{ name = "laptop", key = "k-1" }]'
    async with gateway(server=keys) as (_, running):
        answer = await call(
            running.port, "/admin/status", method="GET", headers={"authorization": "Bearer k-1"}
        )
        assert answer.status == 401
        assert (await get(running.port, "/admin/status"))["id"] == "main"


async def test_a_page_that_rebinds_its_name_to_us_gets_a_403() -> None:
    async with gateway() as (_, running):
        answer = await call(
            running.port, "/admin/status", method="GET", headers={**BEARER, "host": "evil.example"}
        )
    assert answer.status == 403


async def test_without_a_token_and_a_user_dir_there_is_no_admin_api() -> None:
    async with Upstream() as up, serving(text(up).replace(f'admin_token = "{TOKEN}"', "")) as running:
        assert (await call(running.port, "/admin/status", method="GET", headers=BEARER)).status == 404


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        ("127.0.0.1", None),
        ("127.8.8.8", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("192.0.2.7", None),
        ("192.0.2.8", 403),
        ("::ffff:192.0.2.8", 403),
        ("fe80::1%eth0", 403),
        (None, 403),
    ],
)
def test_only_this_machine_is_let_in(peer: str | None, status: int | None) -> None:
    client = None if peer is None else (peer, 1234)
    assert is_local(client, "192.0.2.7") == (status is None)


async def test_what_there_is_not_and_wrong_methods_are_named() -> None:
    async with gateway() as (_, running):
        unknown = await call(running.port, "/admin/nothing", method="GET", headers=BEARER)
        wrong = await call(running.port, "/admin/reload", method="GET", headers=BEARER)
        odd = await call(running.port, "/admin/reload", method="DELETE", headers=BEARER)
        no_file = await post(running.port, "/admin/reload", None)
    assert (unknown.status, wrong.status, odd.status) == (404, 405, 405)
    assert "health/reset" in unknown.json["error"]["message"]
    assert wrong.json["error"]["message"] == "/admin/reload accepts POST, not GET"
    assert (no_file.status, no_file.json["error"]["code"]) == (409, "no_config_file")


async def test_it_is_answered_under_any_load() -> None:
    async with gateway(server="max_concurrent = 1\nmax_queued = 0") as (up, running):
        up.queue(Steps((Hang(),)))
        holding = await begin(running.port, "/v1/chat/completions", asking.body("chat", stream=False))
        await up.received(1)
        assert (await chat(running.port)).status == 503
        assert (await get(running.port, "/admin/status"))["active"] == 1
        await holding.leave()
        assert len(up.requests) == 1


async def test_status_tells_what_is_running() -> None:
    async with gateway() as (_, running):
        reply = await get(running.port, "/admin/status")
    assert reply.pop("pid") > 0
    assert reply.pop("started_at") > 1_700_000_000
    assert reply.pop("version")
    assert reply == {
        "id": "main",
        "url": running.url,
        "workers": 1,
        "config": None,
        "active": 0,
        "server_tools": [],
    }


async def test_what_is_set_for_the_server_routes_the_next_request() -> None:
    async with gateway() as (_, running):
        port = running.port
        assert target(await chat(port)) == "up.primary.m"
        empty = {"id": "main", "url": running.url, "alive": True, "routing": NOBODY, "sessions": []}
        assert await get(port, "/admin/routing") == empty
        reply = await done(port, "/admin/routing", {"disable": ["up"]})
        assert reply == {**empty, "routing": {**NOBODY, "disable": ["up"]}}
        assert target(await chat(port)) == "other.primary.m"
        reply = await done(port, "/admin/routing", {"enable": ["up"]})
        assert reply["routing"] == NOBODY
        assert target(await chat(port)) == "up.primary.m"
        reply = await done(port, "/admin/routing", {"sticky": "!other.m", "allow": ["other"]})
        assert reply["routing"]["allow"] == ["other"]
        assert reply["routing"]["sticky"].removeprefix("!") == "other.m"
        assert target(await chat(port)) == "other.primary.m"
        assert await done(port, "/admin/routing", {"clear": True}) == empty
        assert target(await chat(port)) == "up.primary.m"


async def test_what_is_set_for_a_session_is_for_it_alone() -> None:
    async with gateway() as (_, running):
        port = running.port
        reply = await done(port, "/admin/routing", {"session": "s-1", "sticky": "other.m"})
        assert reply["routing"] == NOBODY
        assert reply["sessions"] == [{**EMPTY, "id": "s-1", "sticky": "other.m"}]
        assert target(await chat(port, **{"x-session-id": "s-1"})) == "other.primary.m"
        assert target(await chat(port, **{"x-session-id": "s-2"})) == "up.primary.m"
        await done(port, "/admin/routing", {"session": "s-2", "disable": ["up.primary"]})
        listed = await get(port, "/admin/routing")
        assert [row["id"] for row in listed["sessions"]] == ["s-2", "s-1"]
        one = await get(port, "/admin/routing?session=s-2")
        assert one["sessions"] == [{**EMPTY, "id": "s-2", "disable": ["up.primary"]}]
        unknown = await get(port, "/admin/routing?session=nobody")
        assert unknown["sessions"] == [{**EMPTY, "id": "nobody"}]
        reply = await done(port, "/admin/routing", {"session": "s-1", "clear": True})
        assert reply["sessions"] == [{**EMPTY, "id": "s-1"}]
        rows = (await get(port, "/admin/sessions"))["sessions"]
        assert [row["id"] for row in rows] == ["s-2"]
        assert rows[0]["updated_at"] > 1_700_000_000


@pytest.mark.parametrize("name", ["conversation:c 1/ü", "chain:req_1", "session:chain:x", "a:b", "chain"])
async def test_ids_of_every_kind_are_accepted_as_they_are_shown(name: str) -> None:
    async with gateway() as (_, running):
        reply = await done(running.port, "/admin/routing", {"session": name, "disable": ["up"]})
        listed = await get(running.port, "/admin/sessions")
    assert [row["id"] for row in reply["sessions"]] == [name]
    assert [row["id"] for row in listed["sessions"]] == [name]


async def test_an_instruction_in_a_message_is_seen() -> None:
    async with gateway() as (_, running):
        await chat(running.port, "<**!other.m**> hello", **{"x-conversation-id": "c-1"})
        (row,) = (await get(running.port, "/admin/routing"))["sessions"]
    assert (row["id"], row["sticky"].removeprefix("!")) == ("conversation:c-1", "other.m")


@pytest.mark.parametrize("session", [None, "s-1"])
@pytest.mark.parametrize(
    "change",
    [
        {"sticky": "nobody.m"},
        {"disable": ["up", "nobody"]},
        {"allow": ["up", "nobody"]},
        {"disable": ["other"], "sticky": "up.nothing"},
    ],
)
async def test_an_unknown_name_changes_nothing(change: dict[str, Any], session: str | None) -> None:
    async with gateway() as (_, running):
        body = change if session is None else {**change, "session": session}
        answer = await post(running.port, "/admin/routing", body)
        reply = await get(running.port, "/admin/routing")
    assert (answer.status, answer.json["error"]["code"]) == (404, "PROVIDER_NOT_AVAILABLE")
    assert (reply["routing"], reply["sessions"]) == (NOBODY, [])


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("routing", {"stiky": "up.m"}, "stiky"),
        ("routing", {"disable": "up"}, "disable"),
        ("routing", {"sticky": 1}, "sticky"),
        ("routing", {}, "no change was sent"),
        ("routing", {"session": "s"}, "no change was sent"),
        ("routing", {"session": "s", "client": "c"}, "no change was sent"),
        ("routing", {"clear": True, "client": "c"}, "client: needs a session beside it"),
        ("routing", {"clear": True, "session": ""}, "session: is empty"),
        ("routing", {"clear": True, "session": " "}, "session: is empty"),
        ("routing", b"{", "not valid JSON"),
        ("routing", [], "object"),
        ("health/reset", {"targt": "up"}, "targt"),
        ("reload", {"now": True}, "now"),
        ("explain", {"body": {}}, "protocol"),
        ("explain", {"protocol": "grpc", "body": {}}, "grpc"),
        ("explain", {"protocol": "chat", "body": "{"}, "not valid JSON"),
        ("explain", {"protocol": "chat", "body": 5}, "object"),
        ("explain", {"protocol": "gemini", "body": {"contents": []}}, "path"),
    ],
)
async def test_a_body_that_is_wrong_is_told_where(path: str, body: object, text: str) -> None:
    async with gateway() as (_, running):
        answer = await post(running.port, f"/admin/{path}", body)
    assert answer.status == 400, answer.body
    assert text in answer.json["error"]["message"]


async def test_a_key_that_was_refused_is_reported_and_reset() -> None:
    def answer(request: Request) -> Json | Sse:
        if request.headers["authorization"] == "Bearer secret-up":
            return Json(401, {"error": {"message": "Incorrect API key provided: secret-up"}})
        return answers.text("chat", "hi", False)

    async with Upstream(answer) as up, serving(text(up)) as running:
        port = running.port
        assert (await get(port, "/admin/health")) == {"health": []}
        assert target(await chat(port)) == "other.primary.m"
        shown = await call(port, "/admin/health", method="GET", headers=BEARER)
        (row,) = shown.json["health"]
        assert (row["name"], row["state"]) == ("up.primary", "refused")
        assert "secret-up" not in shown.body.decode()
        unknown = await post(port, "/admin/health/reset", {"target": "nobody.x"})
        assert (unknown.status, unknown.json["error"]["code"]) == (404, "PROVIDER_NOT_AVAILABLE")
        assert await done(port, "/admin/health/reset", {"target": "other"}) == {"reset": 0}
        assert await done(port, "/admin/health/reset", {"target": "up.primary"}) == {"reset": 1}
        assert (await get(port, "/admin/health")) == {"health": []}
        await chat(port)
        assert await done(port, "/admin/health/reset", {}) == {"reset": 1}


async def test_explain_tells_the_plan_and_sends_nothing() -> None:
    async with gateway() as (up, running):
        port = running.port
        await done(port, "/admin/routing", {"disable": ["up"]})
        body = asking.body("chat", stream=False, model="auto")
        reply = await done(port, "/admin/explain", {"protocol": "chat", "body": body})
        as_text = await done(
            port, "/admin/explain", {"protocol": "chat", "body": msgspec.json.encode(body).decode()}
        )
        named = await done(
            port, "/admin/explain", {"protocol": "chat", "body": body, "headers": {"X-Session-Id": "s-1"}}
        )
        other = await done(
            port,
            "/admin/explain",
            {
                "protocol": "gemini",
                "body": asking.body("gemini", stream=False),
                "path": "/v1beta/models/other.m:generateContent",
            },
        )
        assert up.requests == []
        assert (await get(port, "/admin/sessions"))["sessions"] == []
    assert [step["target"] for step in reply["steps"]] == ["other.primary.m"]
    assert all(step["reason"] for step in reply["steps"])
    assert [row["target"] for row in reply["removed"]] == ["up.primary.m"]
    assert reply["route"] == "default"
    assert as_text == reply
    assert "s-1" in named["session"]
    assert [step["target"] for step in other["steps"]] == ["other.primary.m"]


async def test_explain_plans_nothing_for_a_message_to_the_gateway_itself() -> None:
    async with gateway() as (up, running):
        body = asking.body("chat", "<**#up,other**>", stream=False, model="auto")
        reply = await done(running.port, "/admin/explain", {"protocol": "chat", "body": body})
        assert up.requests == []
    assert (reply["route"], reply["steps"], reply["removed"]) == ("gateway", [], [])


async def test_no_answer_holds_a_secret_of_a_provider() -> None:
    async with gateway() as (_, running):
        port = running.port
        await chat(port)
        shown = [
            (await call(port, f"/admin/{path}", method="GET", headers=BEARER)).body.decode()
            for path in ("status", "routing", "health", "sessions")
        ]
        body = asking.body("chat", stream=False)
        shown.append((await post(port, "/admin/explain", {"protocol": "chat", "body": body})).body.decode())
    assert not any(SECRET in one for one in shown)


@contextlib.asynccontextmanager
async def with_request_log(home: Path) -> AsyncIterator[Running]:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        head = '[store]\nurl = "memory:"\n[logging]\nlevel = "error"\n'
        config = loads(head + text(up), environ={}, presets=PRESETS, dialect_type=Dialect)
        service = Service(config, home=home)
        _, port = await service.start()
        try:
            yield Running(port, service)
        finally:
            await service.stop()


async def test_the_latest_requests_are_told_newest_last(tmp_path: Path) -> None:
    async with with_request_log(tmp_path) as running:
        port = running.port
        ids = [(await chat(port, "keep this to yourself")).headers["x-request-id"] for _ in range(3)]
        reply = (await get(port, "/admin/requests"))["requests"]
        two = (await get(port, "/admin/requests?limit=2"))["requests"]
        bad = await call(port, "/admin/requests?limit=x", method="GET", headers=BEARER)
    assert [row["request"] for row in reply] == ids
    assert [row["request"] for row in two] == ids[1:]
    assert {(row["target"], row["status"], row["route"]) for row in reply} == {
        ("up.primary.m", 200, "default")
    }
    assert "keep this" not in str(reply)
    assert (bad.status, bad.json["error"]["param"]) == (400, "limit")


async def test_without_a_request_log_there_are_none_to_tell() -> None:
    async with gateway() as (_, running):
        answer = await call(running.port, "/admin/requests", method="GET", headers=BEARER)
    assert (answer.status, answer.json["error"]["code"]) == (409, "no_request_log")


async def order(line: Line, body: object) -> Answer:
    """Set routing through the worker at the other end of this connection."""
    payload = msgspec.json.encode(body)
    head = "POST /admin/routing HTTP/1.1\r\nhost: localhost\r\n"
    head += f"authorization: Bearer {TOKEN}\r\ncontent-length: {len(payload)}\r\n\r\n"
    line.writer.write(head.encode() + payload)
    return await Call(line.reader, line.writer).rest()


async def test_what_is_set_through_one_worker_holds_in_the_other_and_after_a_restart(tmp_path: Path) -> None:
    config = DEMO.replace("port = 0", f'port = 0\nid = "main"\nadmin_token = "{TOKEN}"') + (
        '[providers.second]\nprotocol = "demo"\npace = 0\n[providers.second.models.demo-1]\n'
    )
    config = config.replace('default = ["demo.demo-1"]', 'default = ["demo.demo-1", "second.demo-1"]')
    explain_body = asking.body("chat", stream=False, model="auto")
    targets: list[str] = []
    async with serve(tmp_path, config, "--workers", "2") as command:
        lines = await lines_to_all(await command.port(), 2)
        for one, other, name in (("0", "1", "demo"), ("1", "0", "second")):
            assert (await order(lines[one], {"clear": True, "disable": [name]})).status == 200
            targets += [
                target(await lines[worker].send("POST", "/v1/chat/completions", explain_body))
                for worker in (one, other)
            ]
        for line in lines.values():
            await line.close()
        command.signal()
        assert await command.ended() == 0
    assert targets == ["second.key1.demo-1"] * 2 + ["demo.key1.demo-1"] * 2
    async with serve(tmp_path, config) as command:
        port = await command.port()
        assert (await get(port, "/admin/routing"))["routing"]["disable"] == ["second"]
        command.signal()
        assert await command.ended() == 0


CLOCK = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n"


async def test_the_clock_is_shown_and_a_task_can_be_cancelled(tmp_path: Path) -> None:
    due = now_ms() + 3_600_000
    store_tasks(tmp_path, due, due, session="conversation:c-1")
    store_tasks(tmp_path, due + 1, session="s-1")
    state = f'[store]\nurl = "file:{tmp_path}"\n'
    async with Upstream() as up, serving(state + CLOCK + text(up)) as running:
        shown = await get(running.port, "/admin/clock")
        assert shown["clock"] == {"enabled": True, "ntp": {"status": "off", "offsetMs": 0}}
        assert {one["id"]: [task["taskId"] for task in one["tasks"]] for one in shown["sessions"]} == {
            "conversation:c-1": ["t1", "t2"],
            "s-1": ["t1"],
        }
        assert next(one["tasks"] for one in shown["sessions"] if one["id"] == "s-1") == [
            {
                "taskId": "t1",
                "dueAt": iso(due + 1),
                "task": "water the plants",
                "deliveredAt": None,
                "deliveryCount": 0,
                "repeat": None,
            }
        ]
        assert await done(running.port, "/admin/clock/cancel", {"taskId": "t2"}) == {"removed": "t2"}
        unknown = await post(running.port, "/admin/clock/cancel", {"taskId": "t2"})
        wrong = await post(running.port, "/admin/clock/cancel", {"task": "t2"})
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "unknown_task")
    assert wrong.status == 400
    assert [task["taskId"] for task in stored_tasks(tmp_path, "conversation:c-1")] == ["t1"]


async def test_a_task_that_cannot_be_cancelled_stays(tmp_path: Path) -> None:
    store_tasks(tmp_path, now_ms() + 3_600_000)
    (tmp_path / "clock" / ".lock").mkdir()
    state = f'[store]\nurl = "file:{tmp_path}"\n'
    async with Upstream() as up, serving(state + CLOCK + text(up)) as running:
        answer = await post(running.port, "/admin/clock/cancel", {"taskId": "t1"})
        assert (answer.status, answer.json["error"]["code"]) == (503, "state_not_saved")
        assert str(tmp_path) not in answer.body.decode()
    assert len(stored_tasks(tmp_path)) == 1
    (tmp_path / "clock" / ".lock").rmdir()


async def test_without_a_clock_that_is_what_is_told() -> None:
    async with gateway() as (_, running):
        shown = await get(running.port, "/admin/clock")
    assert shown == {"clock": {"enabled": False, "ntp": {"status": "off", "offsetMs": 0}}, "sessions": []}


async def test_a_session_whose_name_was_left_empty_is_not_the_whole_server() -> None:
    async with gateway() as (_, running):
        await done(running.port, "/admin/routing", {"disable": ["up"]})
        refused = await post(running.port, "/admin/routing", {"clear": True, "session": ""})
        explain_body = await call(running.port, "/admin/routing?session=", method="GET", headers=BEARER)
        reply = await get(running.port, "/admin/routing")
    assert (refused.status, explain_body.status, reply["routing"]["disable"]) == (400, 400, ["up"])


async def test_a_session_with_a_very_long_id_is_found_by_it_and_by_its_shown_name() -> None:
    long = "x" * 6000
    async with gateway() as (_, running):
        await done(running.port, "/admin/routing", {"disable": ["up"], "session": long})
        (listed,) = (await get(running.port, "/admin/sessions"))["sessions"]
        assert target(await chat(running.port, **{"x-session-id": long})) == "other.primary.m"
        assert len(listed["id"]) < 100
        reply = await done(running.port, "/admin/routing", {"clear": True, "session": listed["id"]})
    assert [row["disable"] for row in reply["sessions"]] == [[]]


async def test_explain_says_that_the_gateway_answers_by_itself_and_what_it_passes_over() -> None:
    async with gateway() as (_, running):
        body = asking.body("chat", "<**!up**><**status**>", stream=False, model="auto")
        own = await done(running.port, "/admin/explain", {"protocol": "chat", "body": body})
        body = asking.body("chat", "<**up,other**> hi", stream=False, model="auto")
        odd = await done(running.port, "/admin/explain", {"protocol": "chat", "body": body})
    assert (own["route"], own["reason"], own["steps"], own["removed"]) == (
        "gateway",
        "the message is for the gateway itself",
        [],
        [],
    )
    assert [notice.split(": ")[:2] for notice in odd["notices"]] == [
        ["instruction ignored", "<**up,other**>"]
    ]


async def test_sessions_come_in_pages() -> None:
    async with gateway() as (_, running):
        for number in range(5):
            await done(running.port, "/admin/routing", {"session": f"s-{number}", "sticky": "up.m"})
        first = await get(running.port, "/admin/sessions?limit=3")
        second = await get(running.port, f"/admin/sessions?limit=3&cursor={first['next']}")
    assert [row["id"] for row in first["sessions"]] == ["s-4", "s-3", "s-2"]
    assert [row["id"] for row in second["sessions"]] == ["s-1", "s-0"]
    assert second["next"] is None


@pytest.mark.parametrize(
    "cursor",
    ["x", "", "5", ".", "5.*", "5.w", "5._w", "x.YQ", "5.Yę", "9" * 21 + ".YQ", "--5.YQ", "5.YQ==", "05.YQ"],
)
async def test_a_cursor_that_no_page_named_is_a_400(cursor: str) -> None:
    async with gateway() as (_, running):
        bad = await call(
            running.port, f"/admin/sessions?cursor={quote(cursor)}", method="GET", headers=BEARER
        )
    assert (bad.status, bad.json["error"]["param"]) == (400, "cursor")


async def test_every_session_is_listed_once_when_files_share_one_time(tmp_path: Path) -> None:
    async with gateway(server=f'[store]\nurl = "file:{tmp_path}"\n') as (_, running):
        names = ["s-1", "S-1", "ü/?&", "conversation:c", "x" * 300]
        for name in names:
            await done(running.port, "/admin/routing", {"session": name, "sticky": "up.m"})
        for path in (tmp_path / "sessions").glob("*.json"):
            os.utime(path, ns=(5000, 5000))
        shown = [row["id"] for row in (await get(running.port, "/admin/sessions"))["sessions"]]
        paged, page = [], await get(running.port, "/admin/sessions?limit=2")
        while page["sessions"]:
            paged += [row["id"] for row in page["sessions"]]
            if page["next"] is None:
                break
            page = await get(running.port, f"/admin/sessions?limit=2&cursor={page['next']}")
    assert (len(shown), paged) == (len(names), shown)


async def test_the_list_of_sessions_keeps_the_settings_of_a_damaged_file(tmp_path: Path) -> None:
    async with gateway(server=f'[store]\nurl = "file:{tmp_path}"\n') as (_, running):
        session = {"x-session-id": "T"}
        await chat(running.port, '<**stopMessage:"go",2**>', **session)
        (tmp_path / "sessions" / "session%3a%54.json").write_text('{"broken')
        (row,) = (await get(running.port, "/admin/sessions"))["sessions"]
        status = await chat(running.port, "<**status**>", **session)
    assert (row["id"], row["stop_message"]["text"]) == ("T", "go")
    assert "nothing is set" not in status.body.decode()
    assert b'"go"' in (tmp_path / "sessions" / "session%3a%54.json").read_bytes()


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "sessions?after=5", "after"),
        ("GET", "sessions?limit=5&%61fter", "after"),
        ("GET", "routing?sesion=s-1", "sesion"),
        ("GET", "clock?limit=5", "limit"),
        ("GET", "requests?sesion=s-1", "sesion"),
        ("GET", "status?x=", "x"),
        ("POST", "routing?session=s-1", "session"),
    ],
)
async def test_an_unknown_parameter_is_a_400_that_names_it(method: str, path: str, name: str) -> None:
    async with gateway() as (_, running):
        bad = await call(running.port, f"/admin/{path}", {"clear": True}, method=method, headers=BEARER)
    error = bad.json["error"]
    assert (bad.status, error["param"], name in error["message"]) == (400, name, True)


async def test_models_have_their_sizes_and_the_default_route_its_order() -> None:
    async with gateway() as (_, running):
        described = await get(running.port, "/admin/models")
        listed = (await call(running.port, "/v1/models", method="GET")).json["data"]
    assert [row["id"] for row in described["models"]] == [row["id"] for row in listed]
    assert set(described["models"][0]) == {
        "id",
        "context_tokens",
        "max_output_tokens",
        "vision",
        "reasoning",
    }
    assert described["default"]
    assert described["default"][0] in {row["id"] for row in listed}
    assert described["asked"] is None


async def test_a_model_that_is_asked_for_is_described_if_a_target_has_it() -> None:
    async with gateway() as (_, running):
        first = (await get(running.port, "/admin/models"))["models"][0]
        known = await get(running.port, f"/admin/models?model={first['id']}")
        unknown = await get(running.port, "/admin/models?model=nobody.nothing")
    assert (known["asked"], unknown["asked"]) == (first, None)
