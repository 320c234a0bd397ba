"""Follow-up rounds and notices in the request log and in the output of the CLI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.process import running, serve
from tests.gateway.clock_gateway import admin_call
from tests.gateway.continuation_gateway import SET_STOP_MESSAGE, GatewayHarness, configuration
from tests.kit.steps import Json
from tests.kit.upstream import Request, Upstream

TARGET = "up.primary.m"
AT_ONCE = "[routing_options]\nmax_wait_ms = 0\nhealth = false\n"
FOLLOW_UP = {"serverToolFollowup": True}


def file_of(harness: GatewayHarness) -> str:
    text = configuration(harness, more=AT_ONCE)
    return text.replace("[server]\n", '[server]\nadmin_token = "operator"\n')


async def row_of(
    harness: GatewayHarness, *, stream: bool, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the line of the only request in the log and the JSON output of the CLI."""
    async with serve(folder, file_of(harness)) as process:
        harness.port = await process.port()
        answer = await harness.send(SET_STOP_MESSAGE.format(2), stream=stream)
        assert b"serverToolFollowup" not in answer.body
        (row,) = (await admin_call(harness, "requests"))["requests"]
        async with running(folder, "daemon", "status", "requests", "--json") as command:
            assert await command.ended() == 0, command.text
            cli_output = msgspec.json.decode("\n".join(command.out))
    assert not any(b"serverToolFollowup" in request.body for request in harness.upstream.requests)
    return row, cli_output


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_follow_up_rounds_are_logged_as_such(tmp_path: Path, stream: bool) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        harness.script_texts("one", "two", "three")
        row, cli_output = await row_of(harness, stream=stream, folder=tmp_path)
    usage = {"input_tokens": 21, "output_tokens": 9}
    followed = {
        "request": f"{row['request']}:stop_followup",
        "metadata": FOLLOW_UP,
        "target": TARGET,
        "finish": "stop",
        **usage,
    }
    assert row["followups"] == [followed, followed]
    assert {name: row[name] for name in usage} == {name: 3 * count for name, count in usage.items()}
    assert row["rounds"] == 3
    assert [server["requests"] for server in cli_output["servers"]] == [[row]]


async def test_a_failed_round_is_logged_with_its_error(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)

        def answer(request: Request, number: int) -> Any:
            return (
                Json(500, {"error": {"message": "it broke"}})
                if number
                else harness.text_answer("one", request)
            )

        harness.script(answer)
        row, _ = await row_of(harness, stream=False, folder=tmp_path)
    (followed,) = row["followups"]
    assert (followed["metadata"], "finish" in followed) == (FOLLOW_UP, False)
    assert "it broke" in followed["error"]
    assert (row["status"], row["rounds"]) == (200, 1)


async def test_a_request_of_one_round_logs_no_follow_ups(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        harness.script_texts("one")
        async with serve(tmp_path, file_of(harness)) as process:
            harness.port = await process.port()
            await harness.send()
            (row,) = (await admin_call(harness, "requests"))["requests"]
    assert "followups" not in row
    assert row["rounds"] == 1


async def test_a_notice_is_plain_text_in_the_log(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        harness.script_texts("one")
        async with serve(tmp_path, file_of(harness)) as process:
            harness.port = await process.port()
            await harness.send("<**转到 glm**> hi")
            await harness.send("<**转到 glm**><**nobody.m**> hi")
            rows = (await admin_call(harness, "requests"))["requests"]
    notice = "instruction ignored: <**转到 glm**>: '转到 glm' is not a valid name: it contains white space"
    assert [(row["status"], row["notices"]) for row in rows] == [(200, [notice]), (404, [notice])]
