"""A store that is down or read-only, row by row: what goes on, what is refused, and what people are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from routecodex.protocols import grammar
from routecodex.protocols.grammar.frames import read
from tests.gateway.clock_gateway import (
    clock_gateway,
    command,
    now_ms,
    script_tool_calls,
    store_tasks,
    stored_tasks,
    task_item,
    tool_results,
)
from tests.gateway.continuation_gateway import (
    PROTOCOLS,
    SET_STOP_MESSAGE,
    file_store_gateway,
    stored_sessions,
    stored_uses,
)
from tests.gateway.store_outage import OUTAGES, SPACES, down, read_only
from tests.kit import answers, asking
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.upstream import Request, Upstream

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
outages = pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
OPERATOR = {"authorization": "Bearer operator"}
UNKNOWN_SESSION = "the settings of this session are not known now: the store is unavailable"
UNSTORED = "this response cannot be continued: the store is unavailable"


def config(up: Upstream, folder: Path, *, protocol: str = "chat", on_down: str = "continue") -> str:
    """Two targets with one model each; `first` comes first."""
    return (
        '[server]\nport = 0\ndrain_seconds = 1\nadmin_token = "operator"\n'
        f'[store]\nurl = "file:{folder}"\non_down = "{on_down}"\n'
        + provider("first", protocol, up)
        + provider("second", protocol, up)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "second.m"] }]\n'
        + "[routing_options]\nmax_wait_ms = 0\n"
    )


@contextlib.asynccontextmanager
async def gateway(
    folder: Path, *, protocol: str = "chat", on_down: str = "continue"
) -> AsyncIterator[Running]:
    async with (
        Upstream(lambda request: answers.text(protocol, "hi", answers.wants_stream(request))) as up,
        serving(config(up, folder, protocol=protocol, on_down=on_down)) as running,
    ):
        yield running


async def ask(
    running: Running, text: str = "hi", *, protocol: str = "chat", stream: bool = False, session: str = "s"
) -> Answer:
    body = asking.body(protocol, text, stream=stream, model="auto")
    path = asking.path(protocol, stream=stream, model="auto")
    return await call(running.port, path, body, headers={"x-session-id": session} if session else {})


async def admin(running: Running, path: str, body: object = None) -> Answer:
    method = "GET" if body is None else "POST"
    return await call(running.port, f"/admin/{path}", body, method=method, headers=OPERATOR)


async def ready(running: Running) -> tuple[int, Any]:
    answer = await call(running.port, "/health/ready", method="GET")
    return answer.status, answer.json


async def until_ready(running: Running) -> None:
    async with asyncio.timeout(20):
        while (await ready(running))[1]["status"] != "ok":
            await asyncio.sleep(0.01)


def target(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.headers["x-routecodex-target"]


def notices(answer: Answer) -> list[str]:
    return list(filter(None, unquote(answer.headers.get("x-routecodex-notice", "")).split("; ")))


@outages
async def test_a_known_session_goes_on_with_its_last_known_state(tmp_path: Path, outage: Any) -> None:
    async with gateway(tmp_path / "store") as running:
        assert target(await ask(running, "hi <**!second.m**>")) == (200, "second.primary.m")
        assert (await ask(running)).status == 200
        with outage(tmp_path / "store"):
            for _ in range(3):
                answer = await ask(running)
                assert (target(answer), notices(answer)) == ((200, "second.primary.m"), [])
            assert target(await ask(running, session="")) == (200, "first.primary.m")


@protocols
async def test_an_unknown_session_goes_on_as_if_nothing_were_set_with_a_notice(
    tmp_path: Path, protocol: str
) -> None:
    folder = tmp_path / "store"
    async with gateway(folder, protocol=protocol) as running:
        assert target(await ask(running, "hi <**!second.m**>", protocol=protocol)) == (
            200,
            "second.primary.m",
        )
    async with gateway(folder, protocol=protocol) as running:
        with down(folder):
            answer = await ask(running, protocol=protocol)
            assert (target(answer), UNKNOWN_SESSION in notices(answer)) == ((200, "first.primary.m"), True)
            assert UNKNOWN_SESSION not in notices(await ask(running, protocol=protocol, session=""))
        await until_ready(running)
        answer = await ask(running, protocol=protocol)
        assert (target(answer), notices(answer)) == ((200, "second.primary.m"), [])


@protocols
async def test_an_unknown_session_is_refused_where_the_configuration_says_so(
    tmp_path: Path, protocol: str
) -> None:
    folder = tmp_path / "store"
    async with gateway(folder, protocol=protocol) as running:
        assert (await ask(running, "hi <**!second.m**>", protocol=protocol)).status == 200
    async with gateway(folder, protocol=protocol, on_down="refuse") as running:
        with down(folder):
            refused = await ask(running, protocol=protocol)
            others = [await ask(running, protocol=protocol, session="") for _ in range(2)]
        await until_ready(running)
        after = await ask(running, protocol=protocol)
    grammar.check_error(protocol, refused.status, refused.body)
    assert refused.status in ((503, 529) if protocol == "messages" else (503,))
    assert b'"store_unavailable"' in refused.body
    assert [target(one) for one in others] == [(200, "first.primary.m")] * 2
    assert target(after) == (200, "second.primary.m")


async def test_reads_go_on_while_only_writes_fail(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with gateway(folder) as running:
        assert target(await ask(running, "hi <**!second.m**>")) == (200, "second.primary.m")
    async with gateway(folder) as running:
        with read_only(folder):
            answer = await ask(running)
    assert (target(answer), notices(answer)) == ((200, "second.primary.m"), [])


@outages
@protocols
async def test_an_instruction_is_refused_in_the_protocol_of_the_client_and_nothing_is_applied(
    tmp_path: Path, protocol: str, outage: Any
) -> None:
    folder = tmp_path / "store"
    async with gateway(folder, protocol=protocol) as running:
        await ask(running, "hi", protocol=protocol)
        with outage(folder):
            refused = await ask(running, "hi <**!second.m**> <**clock:clear**>", protocol=protocol)
        await until_ready(running)
        after = await ask(running, "again", protocol=protocol)
    grammar.check_error(protocol, refused.status, refused.body)
    # Anthropic's own status for an overload is 529.
    assert refused.status in ((503, 529) if protocol == "messages" else (503,))
    assert b'"state_not_saved"' in refused.body
    assert target(after) == (200, "first.primary.m")


@pytest.mark.parametrize("space", ["sessions", "clock"])
async def test_an_instruction_is_applied_as_a_whole_or_not_at_all(tmp_path: Path, space: str) -> None:
    """Settings and tasks are in two spaces, of which one may fail alone."""
    folder = tmp_path / "store"
    store_tasks(folder, now_ms() + 3_600_000)
    async with clock_gateway("chat", folder) as harness:
        harness.script_texts(then="part ")
        assert (await harness.send("hi <**!up.m**>")).status == 200
        before = stored_sessions(folder)
        with read_only(folder, space):
            refused = await harness.send("hi <**#up**> <**clock:clear**>")
        assert (refused.status, refused.json["error"]["code"]) == (503, "state_not_saved")
        assert len(stored_tasks(folder)) == 1
        settings = [{**one, "updated_at": 0, "applied": ""} for one in (*stored_sessions(folder), *before)]
        assert settings[0] == settings[1]
        again = await harness.send("hi <**clock:clear**>")
        assert (again.status, stored_tasks(folder)) == (200, [])


@outages
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("routing", {"disable": ["first"]}),
        ("routing", {"sticky": "second.m", "session": "s"}),
        ("health/reset", {}),
    ],
    ids=["server", "session", "health"],
)
async def test_an_operator_is_told_that_nothing_was_changed(
    tmp_path: Path, outage: Any, path: str, body: Any
) -> None:
    folder = tmp_path / "store"
    async with (
        Upstream(lambda _: answers.error("chat", 429, "slow down", retry_after="60")) as up,
        serving(config(up, folder)) as running,
    ):
        assert (await ask(running)).status == 429
        before = await cooling(running)
        with outage(folder):
            refused = await admin(running, path, body)
            assert (refused.status, refused.json["error"]["code"]) == (503, "state_not_saved")
            assert await cooling(running) == before
        await until_ready(running)
        routing = (await admin(running, "routing?session=s")).json
        assert (routing["routing"]["disable"], routing["sessions"][0]["sticky"]) == ([], None)
        assert await cooling(running) == before
        assert (await admin(running, path, body)).status == 200


async def cooling(running: Running) -> list[str]:
    return [row["name"] for row in (await admin(running, "health")).json["health"]]


@outages
@streaming
@protocols
async def test_stop_message_pauses(tmp_path: Path, protocol: str, stream: bool, outage: Any) -> None:
    folder = tmp_path / "store"
    async with file_store_gateway(protocol, folder) as harness:
        with contextlib.ExitStack() as stack:

            def answer(request: Request) -> UpstreamAnswer:
                stack.enter_context(outage(folder))
                return harness.text_answer("the only part", request)

            harness.upstream.answer_with(answer)
            reply = await harness.send(SET_STOP_MESSAGE.format(3), stream=stream)
        assert harness.answer_text(reply, stream=stream) == "the only part"
        assert len(harness.upstream_texts) == 1
        assert stored_uses(folder) == 0
    if not stream:
        assert "stopMessage paused: store unavailable" in notices(reply)


@outages
async def test_the_clock_tool_reports_that_the_store_is_unavailable(tmp_path: Path, outage: Any) -> None:
    folder = tmp_path / "store"
    async with clock_gateway("chat", folder) as harness:
        orders = (command("schedule", task_item(now_ms() + 60_000)), command("clear"))
        script_tool_calls(harness, *orders)
        with outage(folder):
            answer = await harness.send()
        assert harness.answer_text(answer, stream=False) == "done"
        results = tool_results(harness, len(orders))
    assert [result["ok"] for result in results] == [False, False]
    assert [result["error"]["code"] for result in results] == ["store_unavailable"] * 2


async def stored_response(running: Running) -> str:
    answer = await ask(running, protocol="responses", session="")
    assert (answer.status, answer.json["store"]) == (200, True)
    return str(answer.json["id"])


UPSTREAMS = pytest.mark.parametrize("upstream", ["chat", "responses"])


@UPSTREAMS
async def test_stored_responses_are_unavailable_and_never_not_found(tmp_path: Path, upstream: str) -> None:
    folder = tmp_path / "store"
    async with gateway(folder, protocol=upstream) as running:
        response_id = await stored_response(running)
        path = f"/v1/responses/{response_id}"
        following = {"model": "auto", "input": "go on", "previous_response_id": response_id}
        calls = {
            "get": ("GET", path, None),
            "get another": ("GET", "/v1/responses/resp_unknown", None),
            "items": ("GET", f"{path}/input_items", None),
            "delete": ("DELETE", path, None),
            "continue": ("POST", "/v1/responses", following),
            "continue another": ("POST", "/v1/responses", {**following, "previous_response_id": "resp_x"}),
        }
        with down(folder):
            found = {
                name: await call(running.port, row[1], row[2], method=row[0]) for name, row in calls.items()
            }
        assert {
            name: (one.status, one.json["error"]["code"]) for name, one in found.items()
        } == dict.fromkeys(calls, (503, "store_unavailable"))
        await until_ready(running)
        assert (await call(running.port, path, method="GET")).status == 200
        with read_only(folder):
            assert (await call(running.port, path, method="GET")).status == 200
            refused = await call(running.port, path, method="DELETE")
            continued = await call(running.port, "/v1/responses", following)
        assert (refused.status, refused.json["error"]["code"]) == (503, "store_unavailable")
        assert (continued.status, continued.json["store"]) == (200, False)
        await until_ready(running)
        assert (await call(running.port, path, method="DELETE")).status == 200


def response_objects(answer: Answer, *, stream: bool) -> list[Any]:
    if not stream:
        return [answer.json]
    events = [frame.json for frame in read(answer.body)]
    return [event["response"] for event in events if "response" in event]


@UPSTREAMS
@outages
@streaming
async def test_a_response_that_cannot_be_stored_says_so(
    tmp_path: Path, upstream: str, stream: bool, outage: Any
) -> None:
    folder = tmp_path / "store"
    async with gateway(folder, protocol=upstream) as running:
        with outage(folder):
            # The first answer meets the outage only when it is stored, after its beginning was sent.
            first = await ask(running, protocol="responses", stream=stream, session="")
            later = await ask(running, protocol="responses", stream=stream, session="")
        await until_ready(running)
        after = await ask(running, protocol="responses", stream=stream, session="")
    for answer in (first, later, after):
        asking.check("responses", answer, stream=stream)
    assert response_objects(first, stream=stream)[-1]["store"] is False
    assert {one["store"] for one in response_objects(later, stream=stream)} == {False}
    assert notices(later) == [UNSTORED]
    assert {one["store"] for one in response_objects(after, stream=stream)} == {True}
    assert notices(after) == []
    if not stream:
        assert notices(first) == [UNSTORED]


async def test_a_client_that_wants_nothing_stored_gets_no_notice(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with gateway(folder) as running:
        with down(folder):
            for _ in range(2):
                body = {**asking.body("responses", stream=False, model="auto"), "store": False}
                answer = await call(running.port, "/v1/responses", body)
                assert (answer.status, answer.json["store"], notices(answer)) == (200, False, [])


@pytest.mark.parametrize(("outage", "status"), [(down, "down"), (read_only, "read_only")])
async def test_readiness_and_the_log_tell_when_the_store_goes_and_when_it_is_back(
    tmp_path: Path, outage: Any, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    async with gateway(folder) as running:
        await ask(running, "hi <**!second.m**>")
        code, before = await ready(running)
        assert (code, before["status"], before["store"]["kind"], before["store"]["status"]) == (
            200,
            "ok",
            "file",
            "up",
        )
        with caplog.at_level(logging.DEBUG, "routecodex"), outage(folder):
            for number in range(3):
                assert (await ask(running, f"hi <**!first.m**> {number}")).status == 503
                await ask(running, session=f"other {number}")
                await ask(running, protocol="responses")
            code, during = await ready(running)
            assert (code, during["status"], during["store"]["kind"], during["store"]["status"]) == (
                200,
                "degraded",
                "file",
                status,
            )
            assert during["store"]["since"] >= before["store"]["since"]
            assert (await call(running.port, "/health/live", method="GET")).json == {"status": "ok"}
        await until_ready(running)
        _, after = await ready(running)
        assert after["store"]["since"] > during["store"]["since"]
    shown = [(row.levelname, row.getMessage()) for row in caplog.records if row.levelno >= logging.WARNING]
    assert [level for level, _ in shown] == ["ERROR", "WARNING"], shown
    gone = {"down": "the file store is down, ", "read_only": "the file store cannot be written, "}[status]
    assert shown[0][1].startswith(gone)
    assert shown[1][1].startswith("the file store works again after ")


async def test_a_gateway_starts_without_its_store_degraded(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    for space in SPACES:
        (folder / space).write_text("in the way")
    async with asyncio.timeout(5), gateway(folder) as running:
        assert (await ask(running, session="")).status == 200
        code, state = await ready(running)
    assert (code, state["status"], state["store"]["status"]) == (200, "degraded", "down")


DAMAGES = {
    "cut off": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "another shape": lambda content: content.partition(b'"value":')[0] + b'"value": [7]}',
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("first", ["known", "unknown"])
async def test_a_damaged_file_of_the_operator_changes_nothing_for_those_who_knew_it(
    tmp_path: Path, damage: Any, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the same when another process that never knew the settings finds the damage first."""
    folder = tmp_path / "store"
    async with gateway(folder) as running:
        assert (await admin(running, "routing", {"disable": ["first"]})).status == 200
        assert target(await ask(running, session="")) == (200, "second.primary.m")
        (file,) = (folder / "server").glob("*.json")
        content = file.read_bytes()
        file.write_bytes(damage(content))
        async with gateway(folder) as other:
            if first == "unknown":
                await ask(other, session="")
            for _ in range(3):
                assert target(await ask(running, session="")) == (200, "second.primary.m")
                await asyncio.sleep(0.02)
            assert (await admin(running, "routing")).json["routing"]["disable"] == ["first"]
            await asyncio.sleep(0.02)
            assert target(await ask(other, session="")) == (200, "second.primary.m")
    assert msgspec.json.decode(file.read_bytes())["value"] == msgspec.json.decode(content)["value"]
    assert damage(content) in {one.read_bytes() for one in folder.rglob("*corrupt*") if one.is_file()} or (
        any(b"[7]" in one.read_bytes() for one in (folder / "server.corrupt").iterdir())
    )
    assert any("the last known value stays" in message for message in caplog.messages)


async def test_a_damaged_file_of_a_session_changes_nothing_for_the_process_that_knew_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "store"
    async with gateway(folder) as running:
        assert target(await ask(running, "hi <**!second.m**>")) == (200, "second.primary.m")
        assert target(await ask(running)) == (200, "second.primary.m")
        (file,) = (folder / "sessions").glob("*.json")
        file.write_bytes(b"{")
        assert target(await ask(running)) == (200, "second.primary.m")
    async with gateway(folder) as running:
        assert target(await ask(running)) == (200, "second.primary.m"), "it was written back"
