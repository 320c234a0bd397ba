"""Sessions of several clients, as operators see and change them: client and session apart."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from tests.cli.process import serve, until
from tests.gateway.clock_gateway import command, now_ms, task_item
from tests.gateway.continuation_gateway import GatewayHarness
from tests.gateway.test_client_scope import ALICE, BOB, CLOCK, HOUR, TWO, configuration, say
from tests.kit import answers
from tests.kit.upstream import Request, Upstream

LOG = '[logging]\nlevel = "error"\nrequests = true\n'
NOTHING: dict[str, Any] = {"force": None, "sticky": None, "allow": [], "disable": [], "stop_message": None}


@contextlib.asynccontextmanager
async def clients_of(
    folder: Path, clients: tuple[str, ...] = TWO, *, workers: str = "2"
) -> AsyncIterator[GatewayHarness]:
    """Run a gateway with these clients and a clock in its own process; an upstream that obeys `schedule`."""
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", folder / "state", upstream)

        def answer(request: Request) -> Any:
            if request.json["messages"][-1]["content"] != "schedule":
                return harness.text_answer("ok", request)
            scheduled = command("schedule", task_item(now_ms() + HOUR))
            return answers.tool_call("chat", "clock", scheduled, "call_0", stream=False)

        upstream.answer_with(answer)
        config = configuration("chat", upstream, harness.folder, clients=clients, more=CLOCK + LOG)
        async with serve(folder, config, "--workers", workers) as process:
            harness.port = await process.port()
            yield harness


def daemon(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["daemon", *arguments], prog_name="routecodex")


def sessions(*arguments: str) -> list[dict[str, Any]]:
    """Return the rows of the only server that a command shows."""
    result = daemon(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    (server,) = msgspec.json.decode(result.stdout)["servers"]
    return list(server["sessions"])


def settings(*rows: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(row.get("client"), row["id"], row["sticky"]) for row in rows]


async def test_a_session_is_found_by_its_plain_id_and_shown_with_its_client(
    tmp_path: Path, user: Path
) -> None:
    async with clients_of(tmp_path) as harness:
        await say(harness, ALICE, "<**!up.m**>")
        alice = {"client": "alice", "id": "s-1", **NOTHING, "sticky": "up.m"}
        for arguments in (("routing",), ("sessions",)):
            for selected in ((), ("--session", "s-1"), ("--session", "s-1", "--client", "alice")):
                (row,) = sessions("status", *arguments, *selected)
                assert {name: row[name] for name in alice} == alice
        assert sessions("status", "routing", "--session", "s-1", "--client", "bob") == [
            {"client": "bob", "id": "s-1", **NOTHING}
        ]
        assert sessions("status", "routing", "--session", "s-2") == [{"id": "s-2", **NOTHING}]
        await say(harness, BOB, "<**!up.m**>")
        found = sessions("status", "routing", "--session", "s-1")
        assert settings(*found) == [("alice", "s-1", "up.m"), ("bob", "s-1", "up.m")]
        table = daemon("status", "sessions").stdout.splitlines()
        assert [line.split()[:2] for line in table[1:]] == [
            ["CLIENT", "SESSION"],
            ["bob", "s-1"],
            ["alice", "s-1"],
        ]


async def test_an_operator_changes_the_session_of_one_client(tmp_path: Path, user: Path) -> None:
    async with clients_of(tmp_path) as harness:
        change = ("set", "routing", "--disable", "up", "--session", "s-1")
        unclear = daemon(*change)
        assert unclear.exit_code == 1
        assert (
            "client: session 's-1' may be that of several clients; name one of alice, bob" in unclear.stderr
        )
        (row,) = sessions(*change, "--client", "bob")
        assert (row["client"], row["disable"]) == ("bob", ["up"])
        assert "disable" in await say(harness, BOB, "<**status**>")
        assert "nothing is set" in await say(harness, ALICE, "<**status**>")
        # Only bob's has something set now: the id alone is enough.
        (row,) = sessions("set", "routing", "--clear", "--session", "s-1")
        assert (row["client"], row["disable"]) == ("bob", [])
        unknown = daemon(*change, "--client", "carol")
        assert unknown.exit_code == 1
        assert "no client is called 'carol'; clients: alice, bob" in unknown.stderr
        assert daemon("set", "routing", "--clear", "--client", "bob").exit_code == 2


async def test_clock_tasks_are_shown_with_their_client(tmp_path: Path, user: Path) -> None:
    async with clients_of(tmp_path) as harness:
        await say(harness, ALICE, "schedule")
        await say(harness, BOB, "schedule")
        rows = sessions("status", "clock")
        assert sorted((row["client"], row["id"], len(row["tasks"])) for row in rows) == [
            ("alice", "s-1", 1),
            ("bob", "s-1", 1),
        ]
        both = sessions("status", "clock", "--session", "s-1")
        assert [(row["client"], row["id"]) for row in both] == [("alice", "s-1"), ("bob", "s-1")]
        (bob,) = sessions("status", "clock", "--session", "s-1", "--client", "bob")
        assert bob == next(row for row in rows if row["client"] == "bob")
        assert sessions("status", "clock", "--session", "other") == []
        assert daemon("set", "clock", "--cancel", bob["tasks"][0]["taskId"]).exit_code == 0
        assert [row["client"] for row in sessions("status", "clock")] == ["alice"]


async def test_requests_are_logged_with_the_plain_session_and_their_client(
    tmp_path: Path, user: Path
) -> None:
    async with clients_of(tmp_path) as harness:
        for client in (ALICE, BOB):
            await say(harness, client, "Hello")
        found: list[tuple[str, str]] = []

        def are_logged() -> bool:
            (server,) = msgspec.json.decode(daemon("status", "requests", "--json").stdout)["servers"]
            found[:] = [(row["client"], row["session"]) for row in server["requests"]]
            return len(found) == 2

        await until(are_logged, "both requests are logged")
    assert sorted(found) == [("alice", "s-1"), ("bob", "s-1")]


async def test_explain_uses_the_session_of_the_client(tmp_path: Path, user: Path) -> None:
    body = tmp_path / "request.json"
    body.write_text('{"model": "auto", "messages": [{"role": "user", "content": "hi"}]}')
    async with clients_of(tmp_path) as harness:
        await say(harness, ALICE, "<**!up.m**>")
        explain = ["explain", "--file", str(body), "--protocol", "chat", "--session", "s-1", "--json"]
        plans = [
            msgspec.json.decode(CliRunner().invoke(main, [*explain, "--client", client]).stdout)
            for client in TWO
        ]
    assert [plan["session"] for plan in plans] == ["session:s-1"] * 2
    assert ["sticky" in plan["reason"] for plan in plans] == [True, False]


@pytest.mark.parametrize("clients", [(), ("alice",)], ids=["no-client", "one-client"])
async def test_without_several_clients_rows_have_no_client(
    tmp_path: Path, user: Path, clients: tuple[str, ...]
) -> None:
    async with clients_of(tmp_path, clients, workers="1") as harness:
        await say(harness, ALICE, "<**!up.m**>")
        await say(harness, ALICE, "schedule")
        row = {"id": "s-1", **NOTHING, "sticky": "up.m"}
        assert sessions("status", "routing") == sessions("status", "routing", "--session", "s-1") == [row]
        (clock,) = sessions("status", "clock")
        assert list(clock) == ["id", "tasks"]
        (changed,) = sessions("set", "routing", "--clear", "--session", "s-1")
        assert changed == {"id": "s-1", **NOTHING}
