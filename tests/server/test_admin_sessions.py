"""`/admin/sessions` over a real socket: rows with figures, one with its turns, stop messages and tasks."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.kit import answers, asking
from tests.kit.answers.model_answer import Counts
from tests.kit.raw_client import begin, call
from tests.kit.steps import Hang, Steps
from tests.server.admin_gateway import (
    BEARER,
    CI,
    CLIENTS,
    LAPTOP,
    asked,
    done,
    gateway,
    get,
    post,
    refusal,
    refused,
)

COUNTS = Counts(input=100, output=20, cached=40)
CLOCK = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n"
DUE = "2099-01-01T00:00:00Z"


async def test_sessions_with_settings_come_before_those_with_requests_only(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        up.answer_with(lambda _: answers.text("chat", "hi", False, counts=COUNTS))
        for session in ("old", "set", "new", "new"):
            await asked(port, session=session)
        await done(port, "routing", {"session": "set", "sticky": "other.m"})
        await done(port, "routing", {"session": "quiet", "disable": ["other"]})
        found = await get(port, "sessions")
    rows = {row["id"]: row for row in found["sessions"]}
    assert [*rows] == ["quiet", "set", "new", "old"]
    assert found["next"] is None
    assert (rows["set"]["sticky"], rows["set"]["requests"]) == ("other.m", 1)
    assert {name: rows["new"][name] for name in ("requests", "cache_hit_rate", "tasks", "sticky")} == {
        "requests": 2,
        "cache_hit_rate": 0.4,
        "tasks": [],
        "sticky": None,
    }
    assert rows["new"]["cost"] == pytest.approx(2 * 340 / 1e6)
    assert rows["old"]["last_at"] < rows["new"]["last_at"]
    assert (rows["quiet"]["requests"], rows["quiet"]["last_at"]) == (0, None)


async def test_pages_pass_every_session_once(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        for number in range(4):
            await asked(port, session=f"r-{number}")
        for number in range(3):
            await done(port, "routing", {"session": f"s-{number}", "sticky": "up.m"})
        await done(port, "routing", {"session": "r-2", "sticky": "up.m"})
        seen: list[str] = []
        page = await get(port, "sessions?limit=2")
        while True:
            seen += [row["id"] for row in page["sessions"]]
            if page["next"] is None:
                break
            page = await get(port, f"sessions?limit=2&before={quote(page['next'])}")
    assert seen == ["r-2", "s-2", "s-1", "s-0", "r-3", "r-1", "r-0"]


async def test_a_text_selects_sessions_by_id_and_client(tmp_path: Path) -> None:
    async with gateway(tmp_path, more=CLIENTS) as (_, port):
        await asked(port, session="alpha", **LAPTOP)
        await asked(port, session="beta", **CI)
        await done(port, "routing", {"session": "alphabet", "client": "ci", "sticky": "up.m"})
        found = {
            text: [(row["id"], row["client"]) for row in (await get(port, f"sessions?q={text}"))["sessions"]]
            for text in ("ALPHA", "laptop", "ci", "nothing", "%25", "_")
        }
    assert found == {
        "ALPHA": [("alphabet", "ci"), ("alpha", "laptop")],
        "laptop": [("alpha", "laptop")],
        "ci": [("alphabet", "ci"), ("beta", "ci")],
        "nothing": [],
        "%25": [],
        "_": [],
    }


async def test_one_session_has_its_turns_in_order_and_those_under_way(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        first = await asked(port, session="s-1")
        await asked(port, session="s-2")
        up.queue(answers.error("chat", 400))
        second = await asked(port, session="s-1")
        up.queue(Steps([Hang()]))
        body = asking.body("chat", "hi", stream=False, model="auto")
        under_way = await begin(port, "/v1/chat/completions", body, headers={"x-session-id": "s-1"})
        for _ in range(4):
            await up.received()
        shown = (await get(port, "sessions?id=s-1"))["session"]
        await under_way.leave()
    assert [(turn["request"], turn["status"], turn["role"]) for turn in shown["turns"][:2]] == [
        (first, 200, "main"),
        (second, 400, "main"),
    ]
    last = shown["turns"][2]
    assert (last["status"], last["end"], last["tools"]) == (None, None, [])
    assert all(turn["start"] <= turn["end"] for turn in shown["turns"][:2])
    assert (shown["id"], shown["requests"]) == ("s-1", 2)


async def test_one_session_of_two_clients_is_that_of_the_client(tmp_path: Path) -> None:
    async with gateway(tmp_path, more=CLIENTS) as (_, port):
        mine = await asked(port, session="s", **LAPTOP)
        other = await asked(port, session="s", **CI)
        await done(port, "routing", {"session": "s", "client": "ci", "sticky": "up.m"})
        laptop = (await get(port, "sessions?id=s&client=laptop"))["session"]
        ci = (await get(port, "sessions?id=s&client=ci"))["session"]
        rows = (await get(port, "sessions"))["sessions"]
    assert ([turn["request"] for turn in laptop["turns"]], laptop["sticky"]) == ([mine], None)
    assert ([turn["request"] for turn in ci["turns"]], ci["sticky"]) == ([other], "up.m")
    assert [(row["id"], row["client"], row["requests"]) for row in rows] == [
        ("s", "ci", 1),
        ("s", "laptop", 1),
    ]


@pytest.mark.parametrize("id", ["nothing", "%", "' OR 1=1", "é", "x" * 3000])
async def test_an_unknown_session_is_a_404(tmp_path: Path, id: str) -> None:
    async with gateway(tmp_path) as (_, port):
        await asked(port, session="s")
        answer = await call(port, f"/admin/sessions?id={quote(id)}", method="GET", headers=BEARER)
    assert refusal(answer)[:2] == (404, "unknown_session")


@pytest.mark.parametrize("query", ["before=x", "before=active.req_unknown", "cursor=x", "before=5.%00"])
async def test_a_bad_page_is_a_400(tmp_path: Path, query: str) -> None:
    async with gateway(tmp_path) as (_, port):
        status, _, param = await refused(port, f"sessions?{query}")
    assert (status, param) == (400, query.partition("=")[0])


async def test_a_stop_message_is_set_used_and_cleared(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        shown = await done(
            port, "sessions/stop_message", {"session": "s-1", "text": "go on <b>", "max_repeats": 2}
        )
        await asked(port, session="s-1")
        sent = up.requests[-1].json["messages"][-1]
        used = (await get(port, "sessions?id=s-1"))["session"]["stop_message"]
        cleared = await done(port, "sessions/stop_message", {"session": "s-1", "clear": True})
    stop = shown["session"]["stop_message"]
    assert (stop["text"], stop["max_repeats"], stop["used"]) == ("go on <b>", 2, 0)
    assert "go on <b>" in str(sent)
    assert used["used"] == 2
    assert cleared["session"]["stop_message"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"session": "s", "text": "  "}, "text"),
        ({"session": "s"}, "text"),
        ({"session": "", "text": "x"}, "session"),
        ({"session": "s", "text": "x", "max_repeats": 0}, "max_repeats"),
        ({"session": "s", "text": "x", "max_repeats": "ten"}, "max_repeats"),
        ({"text": "x"}, "session"),
        ({"session": "s", "text": "x", "repeat": 1}, "repeat"),
        ({"session": "s", "text": "x" * 200_000}, "text"),
    ],
)
async def test_a_wrong_stop_message_is_a_400(tmp_path: Path, body: dict[str, object], param: str) -> None:
    async with gateway(tmp_path) as (_, port):
        answer = await post(port, "sessions/stop_message", body)
        assert (await get(port, "sessions"))["sessions"] == []
    assert answer.status == 400
    assert param in answer.json["error"]["message"]


async def test_a_session_of_several_clients_needs_the_client(tmp_path: Path) -> None:
    async with gateway(tmp_path, more=CLIENTS) as (_, port):
        answer = await post(port, "sessions/stop_message", {"session": "s", "text": "x"})
        named = await done(port, "sessions/stop_message", {"session": "s", "client": "ci", "text": "x"})
        unknown = await post(port, "sessions/stop_message", {"session": "s", "client": "no", "text": "x"})
    assert refusal(answer) == (400, "client_required", "client")
    assert named["session"]["client"] == "ci"
    assert refusal(unknown)[:2] == (404, "unknown_client")


async def test_a_session_that_one_client_uses_needs_no_client(tmp_path: Path) -> None:
    async with gateway(tmp_path, more=CLIENTS + CLOCK) as (_, port):
        for session, client in (("mine", LAPTOP), ("ours", LAPTOP), ("ours", CI)):
            await asked(port, session=session, **client)
        stop = await done(port, "sessions/stop_message", {"session": "mine", "text": "x"})
        assert stop["session"]["client"] == "laptop"
        await done(port, "sessions/stop_message", {"session": "mine", "clear": True})
        await done(port, "clock/add", {"session": "mine", "task": "t", "dueAt": DUE})
        changed = await done(port, "routing", {"session": "mine", "sticky": "up.m"})
        assert [(row["id"], row["client"]) for row in changed["sessions"]] == [("mine", "laptop")]
        for path, body in (
            ("sessions/stop_message", {"text": "x"}),
            ("clock/add", {"task": "t", "dueAt": DUE}),
            ("routing", {"sticky": "up.m"}),
        ):
            answer = await post(port, path, {"session": "ours", **body})
            assert refusal(answer) == (400, "client_required", "client")


async def test_a_task_is_added_shown_and_cancelled(tmp_path: Path) -> None:
    async with gateway(tmp_path, more=CLOCK) as (_, port):
        added = await done(port, "clock/add", {"session": "s-1", "task": "water <i>", "dueAt": DUE})
        clock = await get(port, "clock?session=s-1")
        shown = (await get(port, "sessions?id=s-1"))["session"]
        await done(port, "clock/cancel", {"taskId": added["taskId"]})
        gone = await refused(port, "sessions?id=s-1")
    task = shown["tasks"][0]
    assert (task["taskId"], task["task"]) == (added["taskId"], "water <i>")
    assert task["dueAt"].startswith("2099-01-01T00:00:00")
    assert clock["sessions"][0]["tasks"][0]["taskId"] == added["taskId"]
    assert gone[:2] == (404, "unknown_session")


@pytest.mark.parametrize(
    "body",
    [
        {"session": "s", "task": "x", "dueAt": "tomorrow"},
        {"session": "s", "task": "", "dueAt": DUE},
        {"session": "s", "task": "x", "dueAt": "2001-01-01T00:00:00Z"},
        {"session": " ", "task": "x", "dueAt": DUE},
        {"session": "s", "task": "x"},
    ],
)
async def test_a_wrong_task_is_a_400(tmp_path: Path, body: dict[str, object]) -> None:
    async with gateway(tmp_path, more=CLOCK) as (_, port):
        answer = await post(port, "clock/add", body)
        assert (await get(port, "clock"))["sessions"] == []
    assert answer.status == 400, answer.body


async def test_without_the_clock_no_task_is_added(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        answer = await post(port, "clock/add", {"session": "s", "task": "x", "dueAt": DUE})
    assert refusal(answer)[:2] == (409, "clock_disabled")


async def test_without_a_ledger_sessions_have_no_figures(tmp_path: Path) -> None:
    async with gateway(tmp_path, more="[usage]\nenabled = false\n") as (_, port):
        await asked(port, session="s-1")
        await done(port, "routing", {"session": "s-2", "sticky": "up.m"})
        found = await get(port, "sessions")
        shown = (await get(port, "sessions?id=s-2"))["session"]
    (row,) = found["sessions"]
    assert (row["id"], row["requests"], row["cost"], row["last_at"]) == ("s-2", None, None, None)
    assert (shown["id"], shown["turns"]) == ("s-2", [])
