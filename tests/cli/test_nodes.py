"""Nodes that share a Redis store under the commands of one operator, on any machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from bench.ports import free_port
from routecodex.cli import main
from tests.cli.process import Command, running
from tests.kit import answers, asking
from tests.kit.addresses import other_address
from tests.kit.gateway import provider
from tests.kit.raw_client import call
from tests.kit.redis_server import RedisServer
from tests.kit.steps import Sse
from tests.kit.upstream import Upstream
from tests.server.test_workers import lines_to_all
from tests.stores.redis.nodes import eventually

pytestmark = pytest.mark.usefixtures("user")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    process = RedisServer(tmp_path / "redis")
    yield process
    process.kill()


def config(server: RedisServer, up: Upstream, more: str = "") -> str:
    return (
        '[server]\nport = 0\ndrain_seconds = 1\nadmin_token = "operator"\n'
        f'[store]\nurl = "{server.url}"\ntimeout_ms = 2000\n[logging]\nformat = "human"\n'
        + provider("up", "chat", up)
        + provider("spare", "chat", up)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["up.m", "spare.m"] }]\n'
        + more
    )


@contextlib.asynccontextmanager
async def node(folder: Path, name: str, file: Path, *more: str) -> AsyncIterator[tuple[Command, int]]:
    """Run a node in a user dir of its own: as if it were on another machine."""
    home = folder / name
    home.mkdir()
    environ = {"ROUTECODEX_SERVER_ID": name}
    async with running(home, "serve", "--config", str(file), *more, environ=environ) as command:
        yield command, await command.port()


def daemon(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["daemon", *arguments])


def rows(file: Path) -> list[dict[str, Any]]:
    done = daemon("status", "nodes", "--config", str(file), "--json")
    found: list[dict[str, Any]] = msgspec.json.decode(done.stdout)["nodes"]
    return found


def alive(file: Path) -> list[str]:
    return [row["id"] for row in rows(file) if row["alive"]]


async def test_nodes_are_found_in_the_store_and_obey_from_anywhere(
    tmp_path: Path, server: RedisServer
) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        file.write_text(config(server, up))
        async with node(tmp_path, "gw-1", file) as (_, port), node(tmp_path, "gw-2", file) as (other, _):
            await eventually(lambda: alive(file) == ["gw-1", "gw-2"])
            row = rows(file)[0]
            assert row.keys() == {
                *("id", "url", "alive", "version", "started_at", "workers", "store", "draining", "config"),
            }
            assert (row["url"], row["store"], row["workers"]) == (f"http://127.0.0.1:{port}", "redis", 1)
            table = daemon("status", "nodes", "--config", str(file))
            assert (table.exit_code, "gw-1" in table.stdout, table.stderr) == (0, True, "")
            done = daemon("set", "routing", "--disable", "up", "--server", "gw-1", "--config", str(file))
            assert done.exit_code == 0, done.output + done.stderr
            shown = daemon("status", "routing", "--config", str(file), "--json")
            servers = msgspec.json.decode(shown.stdout)["servers"]
            assert [one["routing"]["disable"] for one in servers] == [["up"], ["up"]]
            other.signal(signal.SIGTERM)
            await other.ended()
            await eventually(lambda: [row["id"] for row in rows(file)] == ["gw-1"])


async def test_nodes_are_found_by_a_url_in_capitals(tmp_path: Path, server: RedisServer) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        file.write_text(config(server, up).replace("redis://", "REDIS://"))
        async with node(tmp_path, "gw-1", file):
            await eventually(lambda: alive(file) == ["gw-1"])
            done = daemon("set", "routing", "--disable", "up", "--config", str(file))
    assert (done.exit_code, done.stderr) == (0, "")


async def test_a_dead_node_is_named_and_does_not_fail_the_command(
    tmp_path: Path, server: RedisServer
) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        file.write_text(config(server, up))
        async with node(tmp_path, "gw-1", file), node(tmp_path, "gw-2", file) as (other, _):
            await eventually(lambda: alive(file) == ["gw-1", "gw-2"])
            await other.kill()
            await eventually(lambda: alive(file) == ["gw-1"])
            assert [row["id"] for row in rows(file)] == ["gw-1", "gw-2"]
            done = daemon("set", "routing", "--disable", "up", "--config", str(file))
            assert done.exit_code == 0, done.output + done.stderr
            assert "gw-2 is dead, skipped: it shows no sign of life; it obeys when it starts" in done.stderr
        assert daemon("status", "nodes", "--config", str(file), "--json").exit_code in (0, 3)


@pytest.mark.parametrize("is_reused", [False, True], ids=["ended", "pid reused"])
async def test_what_a_killed_server_left_behind_hides_no_node_that_runs(
    tmp_path: Path, server: RedisServer, user: Path, is_reused: bool
) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        file.write_text(config(server, up))
        async with node(tmp_path, "gw-1", file):
            await eventually(lambda: alive(file) == ["gw-1"])
            with subprocess.Popen(["sleep", "60"]) as other:
                if not is_reused:
                    other.kill()
                    other.wait()
                leave_announcement(user, "gw-1", other.pid)
                for words in ((), ("--server", "gw-1")):
                    done = daemon("set", "routing", "--disable", "up", *words, "--config", str(file))
                    assert (done.exit_code, done.stderr) == (0, ""), done.output
                other.kill()


def leave_announcement(user: Path, id: str, pid: int) -> None:
    """Leave what a server announces in the user dir, as if it had been killed."""
    left = {"id": id, "url": "http://127.0.0.1:1", "pid": pid, "token": "old", "started_at": 1.0}
    (user / "servers").mkdir(parents=True)
    (user / "servers" / f"{id}.json").write_bytes(msgspec.json.encode(left))


async def test_a_node_that_runs_and_cannot_be_reached_is_not_dead(
    tmp_path: Path, server: RedisServer
) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        url = f"http://127.0.0.1:{free_port()}"
        file.write_text(config(server, up).replace("port = 0\n", f'port = 0\nadvertise_url = "{url}"\n'))
        async with node(tmp_path, "gw-1", file):
            await eventually(lambda: alive(file) == ["gw-1"])
            done = daemon("set", "routing", "--disable", "up", "--config", str(file))
    assert done.exit_code == 1
    assert f"gw-1 is alive, but cannot be reached at {url}; see server.advertise_url" in done.stderr
    assert "dead" not in done.stderr


async def test_a_node_at_all_addresses_of_ipv4_is_reached_though_the_store_has_ipv6(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", host="::1")
    try:
        async with Upstream() as up:
            file = tmp_path / "gateway.toml"
            text = config(server, up, '[clients.ann]\nkey = "k-1"\n').replace(server.host, f"[{server.host}]")
            file.write_text(text.replace("port = 0\n", 'port = 0\nhost = "0.0.0.0"\n'))
            async with node(tmp_path, "gw-1", file):
                await eventually(lambda: alive(file) == ["gw-1"])
                done = daemon("set", "routing", "--disable", "up", "--config", str(file))
        assert (done.exit_code, done.stderr) == (0, "")
    finally:
        server.kill()


async def test_nodes_are_asked_themselves_while_the_store_takes_no_signs_of_life(
    tmp_path: Path, server: RedisServer
) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        file.write_text(config(server, up))
        async with node(tmp_path, "gw-1", file), node(tmp_path, "gw-2", file) as (other, _):
            await eventually(lambda: alive(file) == ["gw-1", "gw-2"])
            await other.kill()
            let_signs_of_life_end(server, "gw-1", "gw-2")
            shown = daemon("status", "nodes", "--config", str(file), "--json")
            done = daemon("set", "routing", "--disable", "up", "--config", str(file))
    assert shown.exit_code == 0
    assert [row["alive"] for row in msgspec.json.decode(shown.stdout)["nodes"]] == [True, False]
    assert done.exit_code == 1
    for text in ("the store takes no writes", "gw-2 is dead", "gw-1: the routing state could not be saved"):
        assert text in done.stderr


def let_signs_of_life_end(server: RedisServer, *ids: str) -> None:
    """Let the store take no writes, and the signs of life in it be of long ago."""
    with server.client() as client:
        keys = [f"routecodex:{{servers.0}}:v:{id}" for id in ids]
        old = [msgspec.json.decode(client.hget(key, "d")) | {"beat_ms": 1} for key in keys]
        steps = client.pipeline(transaction=True)
        for key, row in zip(keys, old, strict=True):
            steps.hset(key, "d", msgspec.json.encode(row))
        steps.config_set("maxmemory", "1")
        steps.execute()


@pytest.mark.parametrize("console", ["", "[console]\nremote = true\ninsecure_http = true\n"])
async def test_a_node_of_another_machine_obeys_only_if_it_may(
    tmp_path: Path, server: RedisServer, console: str
) -> None:
    address, port = other_address(), free_port()
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        text = config(server, up, '[clients.ann]\nkey = "k-1"\n' + console)
        bound = f'host = "0.0.0.0"\nport = {port}\nadvertise_url = "http://{address}:{port}"\n'
        file.write_text(text.replace("port = 0\n", bound))
        async with node(tmp_path, "gw-1", file):
            await eventually(lambda: alive(file) == ["gw-1"])
            done = daemon("set", "routing", "--disable", "up", "--config", str(file))
    refusal = "gw-1 answers its own machine only; set remote = true under [console]"
    assert (done.exit_code, refusal in done.stderr) == ((0, False) if console else (1, True))


async def test_a_node_with_another_admin_token_is_named_with_that_setting(
    tmp_path: Path, server: RedisServer
) -> None:
    async with Upstream() as up:
        file, theirs = tmp_path / "gateway.toml", tmp_path / "theirs.toml"
        file.write_text(config(server, up))
        theirs.write_text(config(server, up).replace('admin_token = "operator"\n', ""))
        async with node(tmp_path, "gw-1", theirs):
            await eventually(lambda: alive(file) == ["gw-1"])
            done = daemon("set", "routing", "--disable", "up", "--config", str(file))
    assert done.exit_code == 1
    assert "gw-1 has another admin token; set the same server.admin_token on all nodes" in done.stderr


async def test_other_configurations_are_warned_of(tmp_path: Path, server: RedisServer) -> None:
    async with Upstream() as up:
        file, different = tmp_path / "gateway.toml", tmp_path / "other.toml"
        file.write_text(config(server, up))
        different.write_text(config(server, up, "[usage]\nkeep_days = 7\n"))
        async with node(tmp_path, "gw-1", file), node(tmp_path, "gw-2", different):
            await eventually(lambda: alive(file) == ["gw-1", "gw-2"])
            done = daemon("status", "nodes", "--config", str(file))
            assert done.exit_code == 0
            assert "the configurations of the nodes differ" in done.stderr


async def test_a_draining_node_says_so_while_it_still_accepts(tmp_path: Path, server: RedisServer) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        text = config(server, up).replace(
            "drain_seconds = 1\n", "drain_seconds = 1\ndrain_notice_ms = 3000\n"
        )
        file.write_text(text)
        async with node(tmp_path, "gw-1", file) as (command, port):
            await eventually(lambda: alive(file) == ["gw-1"])
            command.signal(signal.SIGTERM)

            async def is_draining() -> bool:
                ready = await call(port, "/health/ready", method="GET")
                return (ready.status, ready.json) == (503, {"status": "draining"})

            await eventually(is_draining)
            await eventually(lambda: [row["draining"] for row in rows(file)] == [True])
            assert (await call(port, "/v1/models", method="GET")).status == 200
            assert await command.ended() == 0
            assert rows(file) == []


async def test_a_node_is_listed_while_one_of_its_workers_still_answers(
    tmp_path: Path, server: RedisServer
) -> None:
    goes_on = asyncio.Event()
    whole = answers.text("chat", "hi", True)
    assert isinstance(whole, Sse)
    async with Upstream(lambda _: Sse(whole.frames, pace={1: goes_on})) as up:
        file = tmp_path / "gateway.toml"
        file.write_text(config(server, up).replace("drain_seconds = 1\n", "drain_seconds = 30\n"))
        async with node(tmp_path, "gw-1", file, "--workers", "2") as (command, port):
            lines = await lines_to_all(port, 2)
            # The row is kept by the first worker, which has nothing to do.
            body = asking.body("chat", stream=True, model="auto")
            asked = asyncio.ensure_future(lines["1"].send("POST", "/v1/chat/completions", body))
            await up.received()
            command.signal(signal.SIGTERM)
            await eventually(lambda: [row["draining"] for row in rows(file)] == [True])
            forgotten = asyncio.ensure_future(eventually(lambda: rows(file) == []))
            await asyncio.wait({forgotten}, timeout=2)
            assert not forgotten.done()
            goes_on.set()
            assert b"[DONE]" in (await asked).body
            for line in lines.values():
                await line.close()
            assert await command.ended() == 0
            await forgotten


async def test_the_nodes_of_a_store_that_is_down_are_not_silently_forgotten(
    tmp_path: Path, server: RedisServer
) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        file.write_text(config(server, up))
        server.kill()
        for words in (("status", "nodes"), ("set", "routing", "--disable", "up")):
            done = daemon(*words, "--config", str(file))
            assert done.exit_code == 1
            assert "the nodes in the store cannot be listed" in done.stderr


@pytest.mark.parametrize("text", [None, "[store]\nurl = 'redis://'\n"], ids=["missing", "invalid"])
async def test_an_invalid_file_that_is_named_does_not_make_local_servers_obey(
    tmp_path: Path, user: Path, text: str | None
) -> None:
    async with Upstream() as up:
        file, named = tmp_path / "gateway.toml", tmp_path / "named.toml"
        file.write_text(
            '[server]\nport = 0\nid = "alone"\n'
            + provider("up", "chat", up)
            + "[routing]\ndefault = ['up.m']\n"
        )
        if text is not None:
            named.write_text(text)
        environ = {"ROUTECODEX_USER_DIR": os.environ["ROUTECODEX_USER_DIR"]}
        async with running(tmp_path, "serve", "--config", str(file), environ=environ) as command:
            await command.port()
            done = daemon("set", "routing", "--disable", "up", "--config", str(named))
            shown = msgspec.json.decode(daemon("status", "routing", "--json").stdout)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"nothing was done: {named}" in done.stderr
    assert shown["servers"][0]["routing"]["disable"] == []


async def test_a_server_without_redis_is_a_node_of_its_own(tmp_path: Path, user: Path) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        text = '[server]\nport = 0\nid = "alone"\n' + provider("up", "chat", up)
        file.write_text(text + '[routing]\ndefault = ["up.m"]\n')
        environ = {"ROUTECODEX_USER_DIR": os.environ["ROUTECODEX_USER_DIR"]}
        async with running(tmp_path, "serve", "--config", str(file), environ=environ) as command:
            await command.port()
            done = daemon("status", "nodes", "--json")
            [row] = msgspec.json.decode(done.stdout)["nodes"]
            assert (row["id"], row["alive"], row["store"], row["config"]) == ("alone", True, "file", None)


async def test_keys_are_made_in_the_store_without_a_server_and_shown_with_what_is_used(
    tmp_path: Path, server: RedisServer
) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        file.write_text(config(server, up))
        made = keys(file, "add", "ann", "--limit", "5 requests/day")
        async with node(tmp_path, "gw-1", file) as (command, port):
            up.answer_with(lambda request: answers.text("chat", "hi", False))
            body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
            headers = {"authorization": f"Bearer {made['key']}"}
            for _ in range(2):
                assert (await call(port, "/v1/chat/completions", body, headers=headers)).status == 200
            # A node that is killed may leave the last use as a reservation, which ends by itself.
            command.signal()
            assert await command.ended() == 0
        [limit] = keys(file, "show", "ann")["client"]["limits"]
        assert (limit["used"], limit["remaining"]) == (2, 3)


@pytest.mark.parametrize("command", [("list",), ("show", "ann"), ("block", "ann")], ids=" ".join)
async def test_clients_that_cannot_be_read_are_not_no_clients(
    tmp_path: Path, server: RedisServer, command: tuple[str, ...]
) -> None:
    async with Upstream() as up:
        file = tmp_path / "gateway.toml"
        file.write_text(config(server, up))
        keys(file, "add", "ann")
        server.kill()
        done = CliRunner().invoke(main, ["keys", *command, "--config", str(file)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the clients of the store are not known" in done.stderr


def keys(file: Path, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["keys", *arguments, "--config", str(file), "--json"])
    assert done.exit_code == 0, done.output + done.stderr
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found
