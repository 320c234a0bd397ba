"""`routecodex keys …`: on the store without a server, and on running servers with several workers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from routecodex.config import key_digest
from tests.cli.process import running, serve
from tests.kit import asking
from tests.kit.raw_client import call

DEMO = """
[providers.demo]
protocol = "demo"
pace = 0
models = { "m" = {}, "n" = {} }
[routing]
default = ["demo.m"]
"""
CONFIG = f"""
[server]
id = "main"
drain_seconds = 1
admin_token = "operator"
[teams.core]
limits = ["$200/month"]
[clients.laptop]
key = "key-of-the-laptop"
{DEMO}"""
KEY = re.compile(r"rcx-[A-Za-z0-9_-]{43}\Z")


@pytest.fixture
def config(user: Path) -> Path:
    """The default configuration file."""
    return written(user, CONFIG)


def written(user: Path, text: str) -> Path:
    user.mkdir(exist_ok=True)
    file = user / "config.toml"
    file.write_text(text)
    file.chmod(0o600)
    return file


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments])


def done(*arguments: str) -> Any:
    result = keys(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def names(*arguments: str) -> list[str]:
    return [row["name"] for row in done("list", *arguments)["clients"]]


def test_a_key_is_made_without_a_server_and_printed_alone_on_stdout(config: Path) -> None:
    result = keys("add", "ci")
    assert result.exit_code == 0
    assert KEY.match(result.stdout.strip())
    assert result.stderr == "client ci is added; its key, shown this once:\n"
    stored = b"".join(file.read_bytes() for file in config.parent.rglob("*.json"))
    assert result.stdout.strip().encode() not in stored
    assert key_digest(result.stdout.strip()).encode() in stored


def test_every_option_of_add_is_a_setting_of_the_client(config: Path) -> None:
    added = done(
        *("add", "ci", "--team", "core", "--limit", "2M tokens/week", "--budget", "20/month"),
        *("--rpm", "60", "--tpm", "1000", "--concurrent", "8", "--providers", "demo", "--models", "m"),
        *("--models", "demo.n", "--routes", "default", "--instructions", "routing,status"),
        *("--role", "viewer", "--mcp", "github.*", "--expires", "30d"),
    )
    assert set(added) == {"client", "key"}
    row = added["client"]
    assert [limit["limit"] for limit in row["limits"]] == [
        *("60 requests/60s", "1000 tokens/60s", "2M tokens/week", "$20/month", "$200/month"),
    ]
    assert (row["team"], row["concurrent"], row["role"], row["mcp"]) == ("core", 8, "viewer", ["github.*"])
    assert row["allow"] == {"providers": ["demo"], "models": ["m", "demo.n"], "routes": ["default"]}
    assert row["instructions"] == ["routing", "status"]
    assert row["expires_at"].endswith("Z")


def test_clients_are_listed_and_shown_for_people(config: Path) -> None:
    done("add", "ci", "--team", "core", "--rpm", "60", "--concurrent", "4")
    lines = keys("list").stdout.splitlines()
    assert lines[0].split() == [
        *("CLIENT", "TEAM", "SOURCE", "KEY", "STATE", "EXPIRES", "LAST", "USED", "LIMITS"),
    ]
    assert re.fullmatch(
        r"ci +core +store +rcx-\S{4} +valid +never +never +4 concurrent, 60 requests/60s, \$200/month",
        lines[1],
    )
    assert re.fullmatch(r"laptop +- +file +key-of-t +valid +never +never +-", lines[2])
    shown = keys("show", "ci").stdout
    resets = r"resets 20..-..-01T00:00:00Z"
    used = rf"^limit +\$200/month of team:core, \$0.00 used, \$200.00 left, {resets}$"
    assert re.search(used, shown, re.MULTILINE)
    assert done("show", "ci") == {"client": done("list")["clients"][0]}


def test_without_clients_the_list_says_how_to_make_one(user: Path) -> None:
    written(user, DEMO)
    assert keys("list").stdout == "there are no clients; `routecodex keys add NAME` makes one\n"


def test_settings_change_and_limits_are_replaced_or_cleared(config: Path) -> None:
    done("add", "ci", "--limit", "$20/day", "--rpm", "60", "--role", "viewer")
    row = done("set", "ci", "--limit", "$5/day", "--expires", "1d")["client"]
    assert [limit["limit"] for limit in row["limits"]] == ["60 requests/60s", "$5/day"]
    assert (row["role"], row["expires_at"] is None) == ("viewer", False)
    assert done("set", "ci", "--clear-limits")["client"]["limits"] == []
    row = done("set", "ci", "--clear-limits", "--budget", "$3/month")["client"]
    assert [limit["limit"] for limit in row["limits"]] == ["$3/month"]


def test_block_unblock_rotate_reset_and_revoke(config: Path) -> None:
    old = done("add", "ci")["key"]
    assert done("block", "ci")["client"]["blocked"] is True
    assert done("unblock", "ci")["client"]["blocked"] is False
    rotated = done("rotate", "ci", "--overlap", "1h")
    assert KEY.match(rotated["key"])
    assert [key["prefix"] for key in rotated["client"]["keys"]] == [old[:8], rotated["key"][:8]]
    assert set(done("reset", "ci")) == {"client"}
    assert done("revoke", "ci") == {"revoked": True}
    assert names() == ["laptop"]


FAILS = [
    (("add", "laptop"), 1, "client 'laptop' exists"),
    (("show", "nobody"), 1, "no client is called 'nobody'; clients: laptop"),
    (("revoke", "nobody"), 1, "no client is called 'nobody'"),
    (("add", "a b"), 2, '"a b" is not a valid name'),
    (("add", "gateway"), 2, "stands for the gateway's own calls"),
    (("add", "anonymous"), 2, "stands for requests without a key"),
    (("add", "x", "--limit", "$-1/day"), 2, '"$-1/day" is negative'),
    (("add", "x", "--budget", "lots"), 2, '"$lots" is not a limit'),
    (("add", "x", "--rpm", "-5"), 2, "rpm: must be a whole number from 1"),
    (("add", "x", "--rpm", "many"), 2, "is not a valid integer"),
    (("add", "x", "--team", "nobody"), 2, "'nobody' is not configured; teams: core"),
    (("add", "x", "--expires", "soon"), 2, "'soon' is neither a duration"),
    (("add", "x", "--instructions", "sing"), 2, "'sing' is not one of routing"),
    (("add", "x", "--role", "root"), 2, "'root' is not one of"),
    (("set", "laptop"), 2, "nothing to change"),
    (("rotate", "laptop", "--overlap", "long"), 2, "'long' is not a duration"),
    (("list", "--server", "main", "--config", "x.toml"), 2, "not both"),
    (("list", "--config", "missing.toml"), 2, "does not exist"),
    (("list", "--server", "nobody"), 3, "no server is running"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), FAILS)
def test_what_cannot_be_done_is_told_with_its_exit_code(
    config: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    result = keys(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert text in result.stderr
    assert names() == ["laptop"]


@pytest.mark.parametrize(
    "command", [("set", "laptop", "--rpm", "1"), ("rotate", "laptop"), ("revoke", "laptop")]
)
def test_a_client_of_the_file_is_changed_there(config: Path, command: tuple[str, ...]) -> None:
    result = keys(*command)
    assert result.exit_code == 1
    assert f"is in the configuration file; change it there: {config}" in result.stderr


def test_values_in_memory_cannot_be_reached_without_a_server(user: Path) -> None:
    written(user, '[store]\nurl = "memory:"\n' + DEMO)
    result = keys("add", "ci")
    assert (result.exit_code, 'set url = "file:"' in result.stderr) == (1, True)


def test_a_server_without_a_fixed_port_needs_an_id(user: Path) -> None:
    written(user, "[server]\nport = 0\n" + DEMO)
    result = keys("add", "ci")
    assert (result.exit_code, "set server.id" in result.stderr) == (1, True)


def test_config_check_warns_about_a_client_in_two_places_and_a_missing_team(config: Path) -> None:
    done("add", "ci", "--team", "core")
    done("add", "twice")
    written(config.parent, CONFIG.replace("[teams.core]", "[teams.cord]") + '[clients.twice]\nkey = "k"\n')
    result = CliRunner().invoke(main, ["config", "check"])
    assert result.exit_code == 0
    assert '"twice" is also a client of the store; the file wins' in result.stderr
    assert '"core", the team of client "ci" of the store, is missing' in result.stderr


OPEN = f'[server]\nid = "open"\nhost = "0.0.0.0"\ndrain_seconds = 1\n{DEMO}'


async def test_an_open_address_is_given_its_first_key_before_it_starts(user: Path, tmp_path: Path) -> None:
    file = written(user, OPEN)
    check = await asyncio.to_thread(CliRunner().invoke, main, ["config", "check"])
    assert (check.exit_code, "routecodex keys add NAME" in check.stderr) == (2, True)
    async with running(tmp_path, "serve", "--config", str(file), "--port", "0") as refused:
        assert await refused.ended() == 2
    key = (await asyncio.to_thread(done, "add", "phone"))["key"]
    check = await asyncio.to_thread(CliRunner().invoke, main, ["config", "check"])
    assert check.exit_code == 0, check.stderr
    async with running(tmp_path, "serve", "--config", str(file), "--port", "0") as server:
        port = await server.port()
        assert [await status(port, one) for one in (key, "", "wrong")] == [200, 401, 401]


async def status(port: int, key: str, model: str = "demo.m") -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = asking.body("chat", stream=False, model=model)
    return (await call(port, asking.path("chat", stream=False), body, headers=headers)).status


async def on_every_worker(ask: Callable[[], Awaitable[int]], expected: int) -> None:
    """Wait until 20 answers in a row are as expected: each connection may be another worker's."""
    deadline = asyncio.get_running_loop().time() + 1.0
    in_a_row = 0
    while in_a_row < 20:
        in_a_row = in_a_row + 1 if await ask() == expected else 0
        assert in_a_row or asyncio.get_running_loop().time() < deadline, f"not {expected} within a second"


async def command(folder: Path, *arguments: str) -> Any:
    """Run the command in a process of its own, next to the server of the folder."""
    async with running(folder, "keys", *arguments, "--json") as process:
        assert await process.ended() == 0, process.text
        return json.loads("\n".join(process.out))


@pytest.mark.parametrize("direct", [False, True], ids=["by the server", "in the store"])
async def test_changes_reach_every_worker_within_a_second(tmp_path: Path, direct: bool) -> None:
    async with serve(tmp_path, CONFIG, "--workers", "2") as server:
        port = await server.port()
        # Another file of the same server id is not known to run: its store is the same.
        other = tmp_path / "other.toml"
        other.write_text((tmp_path / "gateway.toml").read_text())
        where = ("--config", str(other)) if direct else ()
        key = (await command(tmp_path, "add", "ci", *where))["key"]
        await on_every_worker(lambda: status(port, key), 200)
        await command(tmp_path, "block", "ci", *where)
        await on_every_worker(lambda: status(port, key), 403)
        await command(tmp_path, "unblock", "ci", *where)
        await on_every_worker(lambda: status(port, key), 200)
        await command(tmp_path, "set", "ci", "--models", "demo.n", *where)
        await on_every_worker(lambda: status(port, key), 403)
        await on_every_worker(lambda: status(port, key, "demo.n"), 200)
        await command(tmp_path, "set", "ci", "--models", "*", *where)
        new = (await command(tmp_path, "rotate", "ci", "--overlap", "0s", *where))["key"]
        await on_every_worker(lambda: status(port, key), 401)
        await on_every_worker(lambda: status(port, new), 200)
        await command(tmp_path, "revoke", "ci", *where)
        await on_every_worker(lambda: status(port, new), 401)
        assert [row["name"] for row in (await command(tmp_path, "list"))["clients"]] == ["laptop"]


async def test_keys_survive_a_restart_and_a_kill(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG) as server:
        await server.port()
        key = (await command(tmp_path, "add", "ci", "--rpm", "60"))["key"]
        await server.kill()
    async with serve(tmp_path, CONFIG) as server:
        port = await server.port()
        assert [await status(port, one) for one in (key, "key-of-the-laptop", "x")] == [200, 200, 401]
        used = (await command(tmp_path, "show", "ci"))["client"]
        assert used["last_used_at"] is not None


async def test_a_server_is_chosen_by_its_id_or_file(tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    other = CONFIG.replace('id = "main"', 'id = "other"')
    (second / "gateway.toml").write_text(other)
    async with serve(tmp_path, CONFIG) as one:
        await one.port()
        arguments = ("serve", "--config", str(second / "gateway.toml"), "--port", "0")
        async with running(tmp_path, *arguments) as two:
            await two.port()
            async with running(tmp_path, "keys", "list") as unclear:
                assert await unclear.ended() == 2
                assert "several servers are running; give the id of one: main, other" in unclear.text
            await command(tmp_path, "add", "a", "--server", "main")
            await command(tmp_path, "add", "b", "--config", str(second / "gateway.toml"))
            listed = [await listed_names(tmp_path, "--server", id) for id in ("main", "other")]
            assert listed == [["a", "laptop"], ["b", "laptop"]]


async def listed_names(folder: Path, *arguments: str) -> list[str]:
    return [row["name"] for row in (await command(folder, "list", *arguments))["clients"]]


LITELLM: dict[str, Any] = {
    "keys": [
        {
            "token": key_digest("sk-ann"),
            "key_alias": "ann",
            "team_id": "core",
            "max_budget": 20,
            "budget_duration": "30d",
            "rpm_limit": 60,
            "models": ["demo.m"],
        },
        {"token": key_digest("sk-bob"), "key_alias": "bob", "max_budget": 5},
        {"token": key_digest("sk-cy"), "key_alias": "laptop"},
        {"token": key_digest("sk-dee"), "key_alias": "dee", "team_id": "unknown"},
        {"token": key_digest("sk-eve"), "key_alias": "ann"},
        {"token": key_digest("key-of-the-laptop"), "key_alias": "fay"},
    ]
}


@pytest.mark.parametrize("dry_run", [True, False])
def test_keys_of_litellm_are_imported_with_a_reason_for_those_that_are_not(
    config: Path, tmp_path: Path, dry_run: bool
) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(LITELLM))
    result = done("import", "--from", "litellm", str(file), *(["--dry-run"] if dry_run else []))
    assert result["imported"] == ["ann"]
    reasons = {row["name"]: row["reason"].partition(";")[0] for row in result["skipped"]}
    assert reasons == {
        "bob": "its max_budget has no budget_duration",
        "laptop": "client 'laptop' exists in the configuration file",
        "dee": "team: 'unknown' is not configured",
        "ann": "another key of the file has the same name",
        "fay": "the key of 'fay' is that of client 'laptop'",
    }
    assert names() == (["laptop"] if dry_run else ["ann", "laptop"])
    if not dry_run:
        row = done("show", "ann")["client"]
        assert row["keys"] == [{"prefix": None, "created_at": None, "expires_at": None}]
        assert [limit["limit"] for limit in row["limits"]] == [
            *("60 requests/60s", "$20/month", "$200/month"),
        ]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_key_that_is_twice_in_the_file_is_imported_once(
    config: Path, tmp_path: Path, dry_run: bool
) -> None:
    file = tmp_path / "keys.json"
    rows = [{"token": key_digest("sk-ann"), "key_alias": name} for name in ("ann", "again")]
    file.write_text(json.dumps({"keys": rows}))
    result = done("import", "--from", "litellm", str(file), *(["--dry-run"] if dry_run else []))
    assert result["imported"] == ["ann"]
    assert result["skipped"] == [{"name": "again", "reason": "its key is that of 'ann' in the same file"}]


async def test_an_imported_key_is_the_key_that_people_have(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(json.dumps(LITELLM))
    async with serve(tmp_path, CONFIG, "--workers", "2") as server:
        port = await server.port()
        await command(tmp_path, "import", "--from", "litellm", "keys.json")
        await on_every_worker(lambda: status(port, "sk-ann"), 200)
        assert await status(port, "sk-ann", "demo.n") == 403


def test_an_import_for_people(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(LITELLM))
    result = keys("import", "--from", "litellm", str(file), "--dry-run")
    assert result.stdout == "would be imported: ann\n"
    assert "skipped: bob: its max_budget has no budget_duration" in result.stderr


def test_a_file_that_cannot_be_imported_changes_nothing(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text("not json")
    result = keys("import", "--from", "litellm", str(file))
    assert (result.exit_code, "is not JSON" in result.stderr) == (1, True)
    assert keys("import", "--from", "other", str(file)).exit_code == 2
    assert keys("import", "--from", "litellm", "missing.json").exit_code == 2
