"""Two real servers under the commands of one operator."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from tests.cli.process import Command, running, until
from tests.kit import answers, asking
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Request, Upstream

pytestmark = pytest.mark.usefixtures("user")
SPEAKING = partial(answers.text, "chat", "hi", False)
NOTHING: dict[str, Any] = {"sticky": None, "allow": [], "disable": []}


def config(name: str, up: Upstream) -> str:
    """Run a server with that id: provider `up` with two keys, then `spare`."""
    auth = '[{ alias = "a", value = "a" }, { alias = "b", value = "b" }]'
    return (
        f'[server]\nport = 0\nid = "{name}"\ndrain_seconds = 1\n'
        f'[providers.up]\nprotocol = "chat"\nbase_url = "{up.url}/v1"\nauth = {auth}\n'
        f'[providers.up.models.m]\n[providers.spare]\nprotocol = "chat"\nbase_url = "{up.url}/v1"\n'
        'auth = [{ value = "s" }]\n[providers.spare.models.m]\n[routing_options]\nmax_wait_ms = 0\n'
        '[logging]\nformat = "human"\n'
        '[routing]\ndefault = [{ mode = "priority", targets = ["up.m", "spare.m"] }]\n'
    )


@contextlib.asynccontextmanager
async def server(folder: Path, name: str, up: Upstream) -> AsyncIterator[tuple[Command, int]]:
    file = folder / f"{name}.toml"
    file.write_text(config(name, up), "utf-8")
    async with running(folder, "serve", "--config", str(file)) as command:
        yield command, await command.port()


def upstream_text() -> Upstream:
    return Upstream(lambda _: SPEAKING())


def here(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def daemon(*arguments: str) -> list[dict[str, Any]]:
    """Return the JSON output of a command."""
    done = here("daemon", *arguments, "--json")
    assert done.exit_code == 0, done.output
    servers: list[dict[str, Any]] = msgspec.json.decode(done.stdout)["servers"]
    return servers


def routing(*arguments: str) -> dict[str, tuple[bool, Any]]:
    rows = daemon("status", "routing", *arguments)
    return {row["id"]: (row["alive"], row["routing"]) for row in rows}


async def chat(port: int, text: str = "hi", *, session: str = "") -> Answer:
    headers = {"x-session-id": session} if session else {}
    body = asking.body("chat", text, stream=False, model="auto")
    return await call(port, "/v1/chat/completions", body, headers=headers)


async def targets(port: int, times: int = 2, *, session: str = "") -> set[str]:
    """Send requests and return their targets."""
    replies = [await chat(port, session=session) for _ in range(times)]
    return {one.headers.get("x-routecodex-target", str(one.status)) for one in replies}


async def test_one_command_reaches_both_at_once_and_a_dead_one_is_reported_and_skipped(
    tmp_path: Path,
) -> None:
    async with upstream_text() as up, server(tmp_path, "one", up) as (_, one):
        async with server(tmp_path, "two", up) as (command, two):
            assert here("daemon", "set", "routing", "--disable", "up.1").exit_code == 0
            assert (await targets(one), await targets(two)) == ({"up.b.m"}, {"up.b.m"})
            command.signal(signal.SIGKILL)
            await command.ended()

            skipped = here("daemon", "set", "routing", "--disable", "spare")
            assert skipped.exit_code == 0
            assert "two is dead, skipped" in skipped.stderr
            assert routing() == {
                "one": (True, {**NOTHING, "disable": ["up.1", "spare"]}),
                "two": (False, NOTHING),
            }
        async with server(tmp_path, "two", up) as (_, two):
            assert routing() == {
                "one": (True, {**NOTHING, "disable": ["up.1", "spare"]}),
                "two": (True, {**NOTHING, "disable": ["up.1"]}),
            }
            assert await targets(two) == {"up.b.m"}
            assert here("daemon", "set", "routing", "--enable", "up").exit_code == 0
            assert (await targets(one), await targets(two)) == ({"up.a.m", "up.b.m"},) * 2


async def test_each_flag_does_what_it_says_and_only_to_the_server_that_is_named(tmp_path: Path) -> None:
    async with (
        upstream_text() as up,
        server(tmp_path, "one", up) as (_, one),
        server(tmp_path, "two", up) as (_, two),
    ):
        set_ = partial(daemon, "set", "routing", "--server", "one")
        assert set_("--sticky", "!up.b.m")[0]["routing"] == {**NOTHING, "sticky": "up.b.m"}
        assert (await targets(one), await targets(two)) == ({"up.b.m"}, {"up.a.m", "up.b.m"})
        assert set_("--clear", "--allow", "spare")[0]["routing"] == {**NOTHING, "allow": ["spare"]}
        assert await targets(one) == {"spare.key1.m"}
        told = set_("--allow", "spare,up", "--disable", "up.a", "--disable", "spare")[0]["routing"]
        assert told == {"sticky": None, "allow": ["spare", "up"], "disable": ["up.a", "spare"]}
        assert await targets(one) == {"up.b.m"}
        assert set_("--clear")[0]["routing"] == NOTHING
        assert await targets(one) == {"up.a.m", "up.b.m"}
        wrong = here("daemon", "set", "routing", "--disable", "nobody")
        assert (wrong.exit_code, wrong.stderr.count("nobody")) == (1, 2)
        assert routing() == {"one": (True, NOTHING), "two": (True, NOTHING)}


async def test_a_session_is_set_alone_at_once_and_for_good(tmp_path: Path) -> None:
    async with upstream_text() as up:
        async with server(tmp_path, "one", up) as (command, one):
            (row,) = daemon("set", "routing", "--sticky", "spare.m", "--session", "mine")
            assert [(told["id"], told["sticky"]) for told in row["sessions"]] == [("mine", "spare.m")]
            assert await targets(one, session="mine") == {"spare.key1.m"}
            assert "spare.key1.m" not in await targets(one, session="yours") | await targets(one)
            command.signal(signal.SIGKILL)
            await command.ended()
        async with server(tmp_path, "one", up) as (_, one):
            assert await targets(one, session="mine") == {"spare.key1.m"}
            said = await chat(one, "<**#spare**><**clear**>", session="mine")
            assert said.status == 200
            daemon("set", "routing", "--disable", "up", "--session", "mine")
            (row,) = daemon("status", "routing", "--session", "mine")
            (told,) = row["sessions"]
    assert (row["routing"], told["sticky"], told["disable"]) == (NOTHING, None, ["up"])


async def test_a_session_cannot_lift_what_the_operator_disabled(tmp_path: Path) -> None:
    async with upstream_text() as up, server(tmp_path, "one", up) as (_, one):
        daemon("set", "routing", "--disable", "up")
        assert (await chat(one, "hi <**@up**>", session="s")).headers["x-routecodex-target"] == "spare.key1.m"
        forced = await chat(one, "hi <**up.m**>", session="s")
    assert (forced.status, forced.json["code"], forced.json["details"]) == (
        403,
        "PROVIDER_NOT_AVAILABLE",
        {"provider": "up", "reason": "disabled"},
    )


def limited_under_a(request: Request) -> Any:
    if request.headers["authorization"] == "Bearer a":
        return answers.error("chat", 429, "slow down", retry_after="300")
    return SPEAKING()


async def test_explain_tells_what_the_running_server_would_do_and_asks_nobody(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_bytes(msgspec.json.encode(asking.body("chat", stream=False, model="auto")))
    async with (
        Upstream(limited_under_a) as up,
        server(tmp_path, "one", up) as (_, one),
        server(tmp_path, "two", up),
    ):
        await chat(one)
        daemon("set", "routing", "--disable", "spare", "--server", "one")
        before = len(up.requests)
        told = [
            msgspec.json.decode(here("explain", "--file", str(file), "--server", name, "--json").stdout)
            for name in ("one", "two")
        ]
        shown = here("explain", "--file", str(file), "--server", "one").stdout
        assert here("explain", "--file", str(file)).exit_code == 2, "which of the two is meant?"
        assert len(up.requests) == before
    assert [[row["target"] for row in one["steps"]] for one in told] == [
        ["up.b.m"],
        ["up.a.m", "up.b.m", "spare.key1.m"],
    ]
    assert [(row["target"], row["reason"]) for row in told[0]["removed"]] == [("spare.key1.m", "disabled")]
    assert [row["target"] for row in told[0]["cooling"]] == ["up.a.m"]
    assert "slow down" in told[0]["cooling"][0]["reason"]
    assert all(word in shown for word in ("up.b.m", "spare.key1.m", "disabled", "slow down"))


async def test_logs_show_requests_and_what_failed_before_they_were_answered(tmp_path: Path) -> None:
    async with Upstream(limited_under_a) as up, server(tmp_path, "one", up) as (command, one):
        await chat(one)
        await chat(one, "hi <**nobody.m**> <**stopMessage**>")
        await chat(one, "hi <**up.a.m**>", session="mine")
        file = tmp_path / "user" / "sessions" / "one" / "requests.jsonl"
        await until(lambda: file.exists() and file.read_bytes().count(b"\n") == 3, "three lines are logged")
        rows = [msgspec.json.decode(line) for line in here("logs", "--json").stdout.splitlines()]
        table = here("logs").stdout
        listed = daemon("status", "requests", "--limit", "2")[0]["requests"]
        await command.wait_for(r"  stop  after up\.a\.m: HTTP 429: slow down$")
        command.signal()
        assert await command.ended() == 0
    assert [(row["status"], row.get("target"), row.get("session")) for row in rows] == [
        (200, "up.b.m", None),
        (404, None, None),
        (503, None, "mine"),
    ]
    assert (rows[0]["attempts"], rows[0]["failures"]) == (2, ["up.a.m: HTTP 429: slow down"])
    assert rows[1]["notices"][0].startswith("instruction ignored: <**stopMessage**>")
    assert "slow down" in rows[2]["notices"][0]
    assert listed == rows[1:]
    head, first, *rest = table.splitlines()
    assert head.split()[:4] == ["TIME", "STATUS", "PROTOCOL", "SESSION"]
    assert all(word in first for word in ("200", "auto → up.b.m", "stop (after up.a.m: HTTP 429: slow down)"))
    assert [line.split()[1] for line in rest] == ["404", "503"]
    assert here("logs", "one").stdout == table, "also when it has ended"


async def test_health_is_shown_and_reset_for_all_servers(tmp_path: Path) -> None:
    async with (
        Upstream(limited_under_a) as up,
        server(tmp_path, "one", up) as (_, one),
        server(tmp_path, "two", up) as (_, two),
    ):
        assert (await targets(one), await targets(two)) == ({"up.b.m"}, {"up.b.m"})
        rows = daemon("status", "health")
        assert [(row["id"], [key["name"] for key in row["health"]]) for row in rows] == [
            ("one", ["up.a"]),
            ("two", ["up.a"]),
        ]
        shown = here("daemon", "status", "health").stdout
        assert (shown.count("cooling"), shown.count("limited: slow down")) == (2, 2)
        up.answer_with(lambda _: SPEAKING())
        assert [row["reset"] for row in daemon("reset", "health", "up.a")] == [1, 1]
        assert (await targets(one, 4), await targets(two, 4)) == ({"up.a.m", "up.b.m"},) * 2
        told = msgspec.json.decode(here("status", "--json").stdout)["servers"]
        assert [row["active"] for row in told] == [0, 0], "the question itself is not counted"
