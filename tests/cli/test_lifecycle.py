"""Starting and stopping servers with real processes: they outlive the command, others are not stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from routecodex.cli.admin_client import is_gateway_command, is_gateway_since, is_running
from tests.cli.admin_server import admin_server, announce
from tests.cli.process import ROOT, Command, running, until
from tests.gateway.installed_tool import install
from tests.kit import asking
from tests.kit.raw_client import call

DEMO = (
    "[server]\nport = 0\ndrain_seconds = 20\n"
    '[providers.demo]\nprotocol = "demo"\npace = {pace}\n[providers.demo.models.demo-1]\n'
    '[routing]\ndefault = ["demo.demo-1"]\n'
)


@pytest.fixture
def servers(tmp_path: Path, user: Path) -> Iterator[Path]:
    """A directory to start servers in; announced servers are stopped at the end."""
    (tmp_path / "gateway.toml").write_text(DEMO.format(pace=0))
    yield tmp_path
    for file in (user / "servers").glob("*.json"):
        pid = msgspec.json.decode(file.read_bytes())["pid"]
        with contextlib.suppress(ProcessLookupError):
            # What `start` started leads a group of its own; a test that announced a stranger ends it itself.
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)


async def run(folder: Path, *arguments: str) -> Command:
    """Run a command to its end."""
    async with running(folder, *arguments) as command:
        await command.ended()
    return command


async def started(folder: Path, *more: str) -> dict[str, Any]:
    """Return the JSON output of `start`."""
    command = await run(folder, "start", "--config", "gateway.toml", "--json", *more)
    assert command.process.returncode == 0, command.text
    return dict(msgspec.json.decode("\n".join(command.out)))


def port_of(server: dict[str, Any]) -> int:
    return int(urlsplit(str(server["url"])).port or 0)


def here(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, arguments, prog_name="routecodex")


async def test_a_server_is_started_used_and_stopped(servers: Path, user: Path) -> None:
    server = await started(servers)
    port = port_of(server)
    assert (server["id"], Path(server["log"]).parent) == (f"127.0.0.1-{port}", user / "logs")
    assert f"listens on {server['url']}" in Path(server["log"]).read_text()
    answer = await call(port, "/v1/messages", asking.body("messages", stream=False, model="demo.demo-1"))
    asking.check("messages", answer, stream=False)

    head, row = here("status").stdout.splitlines()
    assert head.split()[:3] == ["ID", "URL", "PID"]
    assert row.split()[:3] == [server["id"], server["url"], str(server["pid"])]
    assert msgspec.json.decode(here("status", "--json").stdout)["servers"][0]["alive"] is True
    assert "demo.key1.demo-1" in here("daemon", "status", "requests").stdout
    # The log is written in batches.
    await until(lambda: "demo.key1.demo-1" in here("logs").stdout, "the request in the log")

    stopped = here("stop")
    assert (stopped.exit_code, stopped.stdout) == (0, f"{server['id']} has stopped\n")
    assert not is_running(server["pid"])
    assert list((user / "servers").iterdir()) == []
    assert [here(name).exit_code for name in ("status", "stop", "restart")] == [3, 3, 3]


async def test_what_the_daemon_sets_works_at_once_and_survives_a_restart(servers: Path) -> None:
    server = await started(servers)
    unknown = here("daemon", "set", "routing", "--disable", "nobody")
    assert unknown.exit_code == 1
    assert "nobody" in unknown.stderr
    assert here("daemon", "set", "routing", "--disable", "demo.1").exit_code == 0
    body = asking.body("chat", stream=False, model="demo.demo-1")
    assert (await call(port_of(server), "/v1/chat/completions", body)).status == 403

    again = await run(servers, "restart", server["id"], "--json")
    assert again.process.returncode == 0, again.text
    restarted = msgspec.json.decode("\n".join(again.out))
    assert (restarted["id"], restarted["url"]) == (server["id"], server["url"])
    assert restarted["pid"] != server["pid"]
    shown = msgspec.json.decode(here("daemon", "status", "routing", "--json").stdout)["servers"][0]["routing"]
    assert shown["disable"] == ["demo.1"]
    assert here("daemon", "set", "routing", "--clear").exit_code == 0
    set_ = here("daemon", "set", "routing", "--sticky", "!demo.demo-1", "--session", "会话", "--json")
    (session,) = msgspec.json.decode(set_.stdout)["servers"][0]["sessions"]
    assert (session["id"], session["sticky"], session["stop_message"]) == ("会话", "demo.demo-1", None)
    assert "会话" in here("daemon", "status", "sessions").stdout
    assert "every key is healthy" in here("daemon", "status", "health").stdout
    assert here("daemon", "reset", "health").stdout == f"{server['id']}: nothing to reset\n"
    (servers / "request.json").write_bytes(msgspec.json.encode(body))
    explained = here("explain", "--file", str(servers / "request.json"), "--session", "会话")
    assert (explained.exit_code, "sticky" in explained.stdout) == (0, True), explained.output
    assert (await call(port_of(server), "/v1/chat/completions", body)).status == 200
    assert here("daemon", "reload").stdout == f"{server['id']}: reloaded\n"
    assert here("stop").exit_code == 0


async def test_a_server_in_the_foreground_is_restarted_in_the_background(servers: Path) -> None:
    arguments = ("--config", "gateway.toml", "--host", "localhost", "--workers", "2")
    async with running(servers, "serve", *arguments) as command:
        url = (await command.wait_for(r"listens on (http://\S+)"))[1]
        again = await run(servers, "restart", "--json")
        assert again.process.returncode == 0, again.text
        assert await command.ended() == 0
    assert msgspec.json.decode("\n".join(again.out))["url"] == url
    assert msgspec.json.decode(here("status", "--json").stdout)["servers"][0]["workers"] == 2
    assert here("stop").exit_code == 0


async def test_several_servers_live_side_by_side(servers: Path) -> None:
    one, two = await asyncio.gather(started(servers), started(servers, "--workers", "2"))
    rows = msgspec.json.decode(here("status", "--json").stdout)["servers"]
    assert {row["id"]: row["workers"] for row in rows} == {one["id"]: 1, two["id"]: 2}
    assert here("stop").exit_code == 2
    again = await run(servers, "restart", two["id"], "--json")
    assert msgspec.json.decode("\n".join(again.out))["url"] == two["url"]
    rows = msgspec.json.decode(here("status", "--json").stdout)["servers"]
    assert {row["id"]: row["workers"] for row in rows} == {one["id"]: 1, two["id"]: 2}
    assert [here("stop", server["id"]).exit_code for server in (two, one)] == [0, 0]


async def test_a_name_that_is_taken_is_not_started_twice(servers: Path) -> None:
    text = (servers / "gateway.toml").read_text().replace("[server]", '[server]\nid = "mine"')
    (servers / "gateway.toml").write_text(text)
    server = await started(servers)
    assert server["id"] == "mine"
    second = await run(servers, "start", "--config", "gateway.toml")
    assert second.process.returncode == 1
    assert f"mine is already running at {server['url']} (pid {server['pid']})" in second.text
    assert here("stop", "mine", "--json").exit_code == 0


async def test_a_server_that_was_killed_is_dead_and_can_be_started_again(servers: Path, user: Path) -> None:
    server = await started(servers)
    os.kill(server["pid"], signal.SIGKILL)
    await until(lambda: not is_running(server["pid"]), "the end of the server")
    status = here("status", "--json")
    assert (status.exit_code, msgspec.json.decode(status.stdout)["servers"][0]["alive"]) == (3, False)
    again = await run(servers, "restart", "--json")
    assert again.process.returncode == 0, again.text
    assert here("status").exit_code == 0
    assert here("stop").exit_code == 0


async def test_one_that_cannot_start_tells_the_end_of_its_log(servers: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = await run(servers, "start", "--config", "gateway.toml", "--port", str(port))
    assert (command.process.returncode, command.out) == (1, [])
    assert f"127.0.0.1-{port} exited with code 1 before it was ready" in command.err[0]
    assert command.err[-2] == f"    error: cannot listen on 127.0.0.1:{port}: Address already in use"


async def test_a_user_dir_that_cannot_be_made_is_told_with_the_way_out(
    servers: Path, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (servers / "plain").write_text("")
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(servers / "plain" / "user"))
    monkeypatch.setenv("ROUTECODEX_CONFIG_PATH", str(servers / "gateway.toml"))
    result = here("start")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: cannot write {servers}/plain/user/logs/127.0.0.1-0.log: Not a directory; "
        "set ROUTECODEX_USER_DIR to a writable directory\n"
    )


async def test_the_requests_of_a_server_are_found_where_its_state_was(servers: Path, user: Path) -> None:
    elsewhere = {"ROUTECODEX_SESSION_DIR": str(servers / "elsewhere")}
    async with running(servers, "start", "-c", "gateway.toml", "--json", environ=elsewhere) as command:
        assert await command.ended() == 0
    server = msgspec.json.decode("\n".join(command.out))
    body = asking.body("chat", stream=False, model="demo.demo-1")
    assert (await call(port_of(server), "/v1/chat/completions", body)).status == 200
    assert here("stop").exit_code == 0
    assert (servers / "elsewhere" / "requests.jsonl").exists()
    assert "demo.key1.demo-1" in here("logs", server["id"]).stdout


async def test_a_server_that_ended_before_any_request_has_nothing_logged(servers: Path, user: Path) -> None:
    server = await started(servers)
    assert here("stop").exit_code == 0
    result = here("logs", server["id"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "the log is empty" in result.stderr
    assert here("logs", f"{server['id']}x").exit_code == 2


async def test_a_bad_configuration_is_exit_code_2_and_starts_nothing(servers: Path, user: Path) -> None:
    (servers / "gateway.toml").write_text("[server]\nprot = 1\n")
    command = await run(servers, "start", "--config", "gateway.toml")
    assert command.process.returncode == 2
    assert "server.prot" in command.text
    assert not (user / "logs").exists()


async def test_stopping_waits_for_what_is_in_flight_and_a_second_time_cuts_it_off(servers: Path) -> None:
    (servers / "gateway.toml").write_text(DEMO.format(pace=100))
    server = await started(servers)
    body = asking.body("chat", stream=False, model="demo.demo-1")

    def in_flight() -> int:
        return int(msgspec.json.decode(here("status", "--json").stdout)["servers"][0]["active"])

    idle = in_flight()
    request = asyncio.ensure_future(call(port_of(server), "/v1/chat/completions", body))
    while await asyncio.to_thread(in_flight) == idle:
        await asyncio.sleep(0.02)
    first = await asyncio.to_thread(here, "stop", "--timeout", "0.2")
    assert first.exit_code == 1
    assert "is still running after 0.2 s; run `routecodex stop` again to abort its requests" in first.stderr
    assert (await asyncio.to_thread(here, "stop")).exit_code == 0
    await asyncio.gather(request, return_exceptions=True)
    assert "cut off" in Path(server["log"]).read_text()


@contextlib.contextmanager
def stranger(
    code: str = "import time; time.sleep(60)", *, script: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run another program; wait until it runs, because its command line is unknown before."""
    code = f"import os; os.write(1, b'.'); {code}"
    if script is not None:
        script.write_text(code)
    started = [sys.executable, "-c", code] if script is None else [sys.executable, str(script)]
    with subprocess.Popen(started, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        try:
            yield process
        finally:
            process.kill()


def test_a_stranger_who_has_the_number_now_is_never_touched(user: Path) -> None:
    with stranger() as process:
        row = {"id": "alpha", "url": "http://127.0.0.1:9", "token": "t", "pid": process.pid}
        announce(user, {**row, "started_at": time.time()})
        result = here("stop")
        assert result.exit_code == 1
        assert "it was not stopped" in result.stderr
        assert process.poll() is None
    assert here("stop").exit_code == 3, "now it is gone"
    assert list((user / "servers").iterdir()) == []


def test_another_server_on_the_old_address_does_not_vouch_for_the_number(user: Path) -> None:
    with stranger() as process, admin_server("alpha") as server:
        announce(user, {"id": "alpha", "url": server.url, "token": server.token, "pid": process.pid})
        assert here("stop").exit_code == 1
        assert process.poll() is None


def test_an_unknown_name_is_wrong_usage(user: Path) -> None:
    with admin_server("alpha", user):
        result = here("stop", "alpah")
    assert result.exit_code == 2
    assert "did you mean 'alpha'?" in result.stderr


OURS = [
    ["/opt/venv/bin/python", "/opt/venv/bin/routecodex", "serve"],
    ["/usr/bin/python3", "-sP", "/usr/bin/routecodex", "serve"],
    ["python3.11", "-m", "routecodex", "serve"],
    ["python", "-X", "dev", "-m", "routecodex", "start"],
    ["/usr/local/bin/routecodex", "serve"],
]
OTHERS: list[list[str]] = [
    [],
    ["/src/routecodex/.venv/bin/python", "-m", "pytest"],
    ["/src/routecodex/.venv/bin/python", "-c", "import time; time.sleep(60)"],
    ["python", "/src/routecodex/bench/mock.py"],
    ["vim", "/src/routecodex"],
    ["tail", "-f", "routecodex.log"],
]


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_a_gateway_is_known_by_its_command_line(words: list[str]) -> None:
    assert is_gateway_command(words)


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_a_path_that_holds_the_name_does_not_make_a_gateway(words: list[str]) -> None:
    assert not is_gateway_command(words)


def test_a_process_is_known_by_when_it_began(tmp_path: Path) -> None:
    with stranger(script=tmp_path / "routecodex") as process:
        assert is_running(process.pid)
        assert is_gateway_since(process.pid, time.time())
        assert not is_gateway_since(process.pid, time.time() - 60)
    with stranger() as process:
        assert not is_gateway_since(process.pid, time.time())
    assert not is_running(process.pid)
    assert not is_gateway_since(process.pid, time.time())


def test_what_has_ended_but_was_not_collected_does_not_run() -> None:
    with stranger("") as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(process.pid)
    assert not is_running(0)


async def test_status_names_a_server_tool_that_cannot_be_loaded(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "lame = no_such_package:Tool")
    environ = {"PYTHONPATH": f"{ROOT / 'src'}:{site}"}
    file = tmp_path / "gateway.toml"
    file.write_text(DEMO.format(pace=0))
    async with running(tmp_path, "serve", "--config", str(file), "--port", "0", environ=environ) as command:
        await command.port()
        async with running(tmp_path, "status") as status:
            assert await status.ended() == 0
    assert "server tool 'lame' (no_such_package:Tool) cannot be loaded and is left out" in command.text
    assert re.fullmatch(
        r"warning: \S+: server tool 'lame' \(no_such_package:Tool\) cannot be loaded: ModuleNotFoundError: "
        r"No module named 'no_such_package'",
        status.text,
    )
