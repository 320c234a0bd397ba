"""`routecodex daemon …` against fake servers: all, one, dead, rejecting, another program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from tests.cli.admin_server import EMPTY, REQUEST, AdminServer, admin_server, announce

UNKNOWN = {"error": {"message": "Requested provider nobody not found", "code": "PROVIDER_NOT_AVAILABLE"}}
SESSION = {
    "id": "会话-1",
    "force": None,
    "sticky": "glm.glm-4.7",
    "allow": [],
    "disable": ["openai.1"],
    "stop_message": {"text": "go on", "max_repeats": 10, "used": 2, "updated_at": 1.0, "last_used_at": None},
}


@pytest.fixture
def two(user: Path) -> Iterator[tuple[AdminServer, AdminServer]]:
    with admin_server("alpha", user) as alpha, admin_server("beta", user) as beta:
        yield alpha, beta


def gone() -> int:
    """Return the pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def dead(user: Path, name: str = "dead", **more: Any) -> None:
    row = {"id": name, "url": "http://127.0.0.1:9", "token": "t", "pid": gone(), **more}
    announce(user, row)


def daemon(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["daemon", *arguments], prog_name="routecodex")


def servers(result: Result) -> list[dict[str, Any]]:
    value = msgspec.json.decode(result.stdout)
    assert list(value) == ["servers"]
    return list(value["servers"])


def row(server: AdminServer, *sessions: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "id": server.id,
        "url": server.url,
        "alive": True,
        "routing": {**EMPTY, **changed},
        "sessions": list(sessions),
    }


def test_status_as_json_has_exactly_the_promised_shape(two: tuple[AdminServer, AdminServer]) -> None:
    alpha, beta = two
    reply = alpha.routing({**SESSION, "updated_at": 5.0}, sticky="glm.glm-4.7", disable=["openai.1"])
    alpha.answers["GET /admin/routing"] = (200, {**reply, "news": 1})
    result = daemon("status", "routing", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert servers(result) == [row(alpha, SESSION, sticky="glm.glm-4.7", disable=["openai.1"]), row(beta)]
    assert list(servers(result)[0]) == ["id", "url", "alive", "routing", "sessions"]


def test_status_for_people_tells_servers_and_sessions(two: tuple[AdminServer, AdminServer]) -> None:
    alpha, beta = two
    alpha.answers["GET /admin/routing"] = (200, alpha.routing(SESSION, allow=["glm", "openai"]))
    result = daemon("status", "routing")
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        f"alpha  {alpha.url}",
        "sticky   -",
        "allow    glm, openai",
        "disable  -",
        "",
        "SESSION  FORCE  STICKY       ALLOW  DISABLE   STOP MESSAGE",
        "会话-1          glm.glm-4.7         openai.1  2/10 “go on”",
        "",
        f"beta  {beta.url}",
        "sticky   -",
        "allow    -",
        "disable  -",
    ]


def test_one_server_and_one_session_can_be_asked_for(two: tuple[AdminServer, AdminServer]) -> None:
    alpha, beta = two
    result = daemon("status", "routing", "--server", "beta", "--session", "a b&c", "--json")
    assert [one["id"] for one in servers(result)] == ["beta"]
    assert beta.received() == [("GET", "/admin/routing?session=a+b%26c", None)]
    assert alpha.calls == []


def test_a_server_nobody_knows_is_wrong_usage_with_a_hint(two: tuple[AdminServer, AdminServer]) -> None:
    result = daemon("status", "routing", "--server", "alpa")
    assert result.exit_code == 2
    assert "no server is called 'alpa'; did you mean 'alpha'?" in result.stderr
    result = daemon("reload", "--server", "zzz")
    assert result.exit_code == 2
    assert 'known: "alpha", "beta"' in result.stderr


def test_with_no_server_running_the_exit_code_is_3(user: Path) -> None:
    result = daemon("status", "routing")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "no server is running; `routecodex start` starts one\n"
    as_json = daemon("status", "routing", "--json")
    assert (as_json.exit_code, servers(as_json)) == (3, [])


def test_a_dead_server_is_told_and_skipped(user: Path, two: tuple[AdminServer, AdminServer]) -> None:
    dead(user)
    result = daemon("status", "routing", "--json")
    assert result.exit_code == 0
    assert "warning: dead is dead, skipped: process" in result.stderr
    alive, skipped = servers(result)[0], servers(result)[2]
    assert alive["alive"] is True
    assert skipped == {
        "id": "dead",
        "url": "http://127.0.0.1:9",
        "alive": False,
        "routing": EMPTY,
        "sessions": [],
    }


def test_only_dead_servers_is_no_server_running(user: Path) -> None:
    dead(user)
    result = daemon("status", "routing", "--server", "dead", "--json")
    assert (result.exit_code, [one["alive"] for one in servers(result)]) == (3, [False])
    assert "no server is running" in result.stderr


def test_an_address_that_another_server_has_taken_over_is_not_asked(user: Path) -> None:
    with admin_server("newcomer") as newcomer:
        row = {"id": "old", "url": newcomer.url, "token": newcomer.token, "pid": os.getpid()}
        announce(user, row)
        result = daemon("set", "routing", "--clear")
    assert result.exit_code == 3
    assert "is now server 'newcomer'" in result.stderr
    assert newcomer.received() == []


@pytest.mark.parametrize("content", [b"<html>", b'{"some": "thing"}', b"[]"])
def test_a_stranger_on_the_port_is_a_dead_server(user: Path, content: bytes) -> None:
    with admin_server("alpha", user) as alpha:
        alpha.answers["GET /admin/status"] = (200, content)
        result = daemon("status", "health")
    assert result.exit_code == 3
    assert "warning: alpha is dead, skipped" in result.stderr


def test_files_that_are_no_announcements_are_passed_over(user: Path) -> None:
    (user / "servers").mkdir(parents=True)
    for name, content in {"a": b"{", "b": b"[]", "c": b'{"id": 1}', "d": b"\xff"}.items():
        (user / "servers" / f"{name}.json").write_bytes(content)
    (user / "servers" / "e.json").mkdir()
    assert daemon("status", "routing").exit_code == 3


def test_a_wrong_token_is_the_servers_refusal(user: Path) -> None:
    with admin_server("alpha") as alpha:
        announce(user, {"id": "alpha", "url": alpha.url, "token": "old", "pid": os.getpid()})
        result = daemon("status", "routing", "--json")
    assert result.exit_code == 1
    assert result.stderr == "error: alpha: the admin token is missing or wrong\n"
    assert servers(result)[0]["error"]["code"] == "invalid_token"


def test_what_is_set_goes_to_every_server_and_the_new_state_is_shown(
    two: tuple[AdminServer, AdminServer],
) -> None:
    alpha, beta = two
    for server in two:
        server.answers["POST /admin/routing"] = (200, server.routing(sticky="glm.glm-4.7"))
    result = daemon("set", "routing", "--sticky", "!glm.glm-4.7", "--json")
    assert result.exit_code == 0
    assert servers(result) == [row(alpha, sticky="glm.glm-4.7"), row(beta, sticky="glm.glm-4.7")]
    order = ("POST", "/admin/routing", {"sticky": "!glm.glm-4.7"})
    assert (alpha.received(), beta.received()) == ([order], [order])
    assert "sticky   glm.glm-4.7" in daemon("set", "routing", "--sticky", "glm.glm-4.7").stdout


def test_flags_repeat_and_hold_lists(user: Path) -> None:
    flags = "--disable openai.1 --disable glm,openai.1 --enable a,b --allow glm,openai --clear --session s1"
    with admin_server("alpha", user) as alpha:
        alpha.answers["POST /admin/routing"] = (200, alpha.routing(SESSION))
        result = daemon("set", "routing", *flags.split())
    assert result.exit_code == 0
    assert "会话-1" in result.stdout
    body = {
        "allow": ["glm", "openai"],
        "disable": ["openai.1", "glm"],
        "enable": ["a", "b"],
        "clear": True,
        "session": "s1",
    }
    assert alpha.received() == [("POST", "/admin/routing", body)]


USELESS: tuple[list[str], ...] = (
    *([], ["--session", "x"], ["--allow", ""], ["--disable", "a,,b"]),
    *(["--clear", "--session", ""], ["--clear", "--session", " "], ["--sticky", ""], ["--sticky", "!"]),
)


@pytest.mark.parametrize("flags", USELESS)
def test_nothing_to_set_is_wrong_usage(two: tuple[AdminServer, AdminServer], flags: list[str]) -> None:
    result = daemon("set", "routing", *flags)
    assert result.exit_code == 2
    assert [server.calls for server in two] == [[], []]


def test_one_server_that_refuses_does_not_keep_the_others_from_it(
    two: tuple[AdminServer, AdminServer],
) -> None:
    alpha, beta = two
    alpha.answers["POST /admin/routing"] = (404, UNKNOWN)
    alpha.answers["GET /admin/routing"] = (200, alpha.routing(disable=["x"]))
    beta.answers["POST /admin/routing"] = (200, beta.routing(disable=["nobody"]))
    result = daemon("set", "routing", "--disable", "nobody", "--json")
    assert result.exit_code == 1
    assert result.stderr == "error: alpha: Requested provider nobody not found\n"
    assert servers(result) == [
        {**row(alpha, disable=["x"]), "error": UNKNOWN["error"]},
        row(beta, disable=["nobody"]),
    ]
    for_people = daemon("set", "routing", "--disable", "nobody")
    assert (for_people.exit_code, for_people.stdout.splitlines()[0]) == (1, f"beta  {beta.url}")


HEALTH = {
    "name": "glm.primary",
    "state": "cooling",
    "seconds": 12.5,
    "until": 2e9,
    "reason": "limited",
    "strikes": 2,
    "error": "slow down",
    "status": 429,
}
NOTHING = {
    "health": "every key is healthy",
    "sessions": "no session has routing settings",
    "requests": "no requests yet",
}


@pytest.mark.parametrize(
    ("name", "row", "shown"),
    [
        ("health", HEALTH, ["glm.primary  cooling  12.5s        2  limited: slow down"]),
        ("sessions", {**SESSION, "updated_at": 1.0}, ["会话-1", "glm.glm-4.7", "openai.1", "1970-01-01"]),
        ("requests", REQUEST, ["200", "claude → glm.primary.glm-4.7", "fresh question", "0.50s", "2.25s"]),
    ],
)
def test_what_a_server_sees_is_listed(user: Path, name: str, row: dict[str, Any], shown: list[str]) -> None:
    with admin_server("alpha", user) as alpha:
        alpha.answers[f"GET /admin/{name}"] = (200, {name: [row]})
        as_json = daemon("status", name, "--json")
        for_people = daemon("status", name)
        alpha.answers[f"GET /admin/{name}"] = (200, {name: []})
        empty = daemon("status", name)
    assert servers(as_json) == [{"id": "alpha", "url": alpha.url, "alive": True, name: [row]}]
    assert for_people.exit_code == 0
    for text in shown:
        assert text in for_people.stdout
    assert empty.stdout.splitlines()[1:] == [NOTHING[name]]


def test_what_the_gateway_answered_by_itself_is_told_so(user: Path) -> None:
    own = {**REQUEST, "target": None, "route": "gateway"}
    with admin_server("alpha", user) as alpha:
        alpha.answers["GET /admin/requests"] = (200, {"requests": [own]})
        assert "claude → gateway" in daemon("status", "requests").stdout


def test_the_limit_is_passed_on_and_kept(user: Path) -> None:
    rows = [{**SESSION, "id": str(number)} for number in range(5)]
    with admin_server("alpha", user) as alpha:
        alpha.answers["GET /admin/requests"] = (200, {"requests": [REQUEST]})
        alpha.answers["GET /admin/sessions"] = (200, {"sessions": rows})
        daemon("status", "requests", "--limit", "7")
        few = daemon("status", "sessions", "--limit", "2", "--json")
    assert ("GET", "/admin/requests?limit=7", None) in alpha.received()
    assert [session["id"] for session in servers(few)[0]["sessions"]] == ["0", "1"]


def test_sessions_are_read_page_by_page(user: Path) -> None:
    rows = [{**SESSION, "id": str(number)} for number in range(5)]
    with admin_server("alpha", user) as alpha:
        alpha.answers["GET /admin/sessions"] = (200, {"sessions": rows[:2], "next": "77.YS1i"})
        alpha.answers["GET /admin/sessions?limit=1000&cursor=77.YS1i"] = (
            200,
            {"sessions": rows[2:], "next": None},
        )
        shown = daemon("status", "sessions", "--limit", "5000", "--json")
    asked = [path for _, path, _ in alpha.received() if path.startswith("/admin/sessions")]
    assert asked == ["/admin/sessions?limit=1000", "/admin/sessions?limit=1000&cursor=77.YS1i"]
    assert [session["id"] for session in servers(shown)[0]["sessions"]] == ["0", "1", "2", "3", "4"]


def test_health_is_reset_everywhere_or_of_one_target(two: tuple[AdminServer, AdminServer]) -> None:
    alpha, beta = two
    alpha.answers["POST /admin/health/reset"] = (200, {"reset": 2})
    beta.answers["POST /admin/health/reset"] = (404, UNKNOWN)
    result = daemon("reset", "health", "glm.primary")
    assert (result.exit_code, result.stdout) == (1, "alpha: 2 reset\n")
    assert alpha.received() == [("POST", "/admin/health/reset", {"target": "glm.primary"})]
    every = daemon("reset", "health", "--server", "alpha", "--json")
    assert (every.exit_code, servers(every)[0]["reset"]) == (0, 2)
    assert alpha.received()[1] == ("POST", "/admin/health/reset", {})


PROBLEM = {
    "severity": "error",
    "path": "server.prot",
    "line": 2,
    "message": "is not a known key",
    "fix": 'did you mean "port"?',
}


def test_a_reload_tells_what_is_wrong_and_that_the_old_one_goes_on(
    two: tuple[AdminServer, AdminServer], user: Path
) -> None:
    alpha, beta = two
    alpha.announce(user, config="/etc/gateway.toml")
    alpha.answers["POST /admin/reload"] = (200, {"reloaded": False, "problems": [PROBLEM]})
    beta.answers["POST /admin/reload"] = (200, {"reloaded": True, "problems": []})
    result = daemon("reload")
    assert result.exit_code == 1
    assert result.stdout == "alpha: not reloaded, the previous configuration stays in use\nbeta: reloaded\n"
    assert result.stderr == (
        'error: alpha: /etc/gateway.toml:2: server.prot: is not a known key\n    fix: did you mean "port"?\n'
    )
    as_json = daemon("reload", "--json")
    assert (as_json.exit_code, [one["reloaded"] for one in servers(as_json)]) == (1, [False, True])
    assert servers(as_json)[0]["problems"] == [PROBLEM]
    fine = daemon("reload", "--server", "beta")
    assert (fine.exit_code, fine.stdout) == (0, "beta: reloaded\n")


def test_proxies_of_the_environment_are_not_used(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with admin_server("alpha", user):
        assert daemon("status", "routing").exit_code == 0


def test_names_from_clients_cannot_steer_the_terminal(user: Path) -> None:
    with admin_server("alpha", user) as alpha:
        alpha.answers["GET /admin/routing"] = (200, alpha.routing({**SESSION, "id": "\x1b]0;gotcha\x07"}))
        result = daemon("status", "routing")
    assert "\x1b" not in result.stdout
    assert "?]0;gotcha?" in result.stdout


def test_a_command_of_the_daemon_loads_neither_server_nor_configuration() -> None:
    code = (
        "import sys; from routecodex.cli import daemon, lifecycle, logs\n"
        "heavy = ('server', 'gateway', 'config', 'protocols', 'providers')\n"
        "ours = tuple(f'routecodex.{name}' for name in heavy)\n"
        "sys.exit(', '.join(name for name in sys.modules if name.startswith((*ours, 'http.', 'asyncio'))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.strip() == ""
