"""`routecodex explain` with a running server, or by the configuration without one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from routecodex.cli.explain import guess_protocol
from tests.cli.admin_server import AdminServer, admin_server

HELLO = {"model": "some-model", "messages": [{"role": "user", "content": "hello"}]}
CONFIG = """
[providers.one]
protocol = "chat"
base_url = "http://127.0.0.1:9/v1"
auth = [{ alias = "a", value = "secret-of-one" }, { alias = "b", value = "secret-of-one-too" }]
models = { "m" = {} }
[routing]
default = ["one.m"]
"""
TOLD = {
    "route": "thinking",
    "reason": "sticky glm.glm-4.7",
    "class": {"route": "thinking", "reason": "the newest message is the user's"},
    "session": "s1",
    "steps": [
        {"target": "glm.a.glm-4.7", "reason": "sticky", "route": "thinking"},
        {"target": "glm.b.glm-4.7", "reason": "sticky", "route": "thinking"},
    ],
    "removed": [{"target": "openai.1.gpt-5", "reason": "disabled by the operator"}],
    "cooling": [{"target": "claude.a.sonnet", "until": 0.0, "reason": "429"}],
    "clears_sticky": False,
    "notices": ["claude does not fit"],
}


def explain(*arguments: str, body: Any = HELLO) -> Result:
    text = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return CliRunner().invoke(
        main, ["explain", "--file", "-", *arguments], input=text, prog_name="routecodex"
    )


def received_call(server: AdminServer) -> dict[str, Any]:
    """Return the body of the only call of the server."""
    ((method, path, body),) = server.received()
    assert (method, path) == ("POST", "/admin/explain")
    return dict(body)


@pytest.fixture
def config(user: Path) -> Path:
    user.mkdir()
    (user / "config.toml").write_text(CONFIG)
    return user / "config.toml"


def test_the_plan_is_told_with_every_reason(user: Path) -> None:
    cooling = {"target": "claude.a.sonnet", "until": time.time() + 90.5, "reason": "429"}
    with admin_server("alpha", user) as alpha:
        alpha.answers["POST /admin/explain"] = (200, {**TOLD, "cooling": [cooling]})
        result = explain()
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "route    thinking",
        "class    thinking (the newest message is the user's)",
        "reason   sticky glm.glm-4.7",
        "session  s1",
        "",
        "#  TARGET         ROUTE     WHY",
        "1  glm.a.glm-4.7  thinking  sticky",
        "2  glm.b.glm-4.7  thinking  sticky",
        "",
        "removed",
        "TARGET          WHY",
        "openai.1.gpt-5  disabled by the operator",
        "",
        "cooling",
        "TARGET             FOR  WHY",
        "claude.a.sonnet  1m30s  429",
        "",
        "notices",
        "NOTICE",
        "claude does not fit",
    ]
    assert received_call(alpha) == {"protocol": "chat", "body": HELLO, "headers": {}}


def test_scripts_get_what_the_server_said(user: Path) -> None:
    with admin_server("alpha", user) as alpha:
        alpha.answers["POST /admin/explain"] = (200, TOLD)
        result = explain("--json")
    assert msgspec.json.decode(result.stdout) == TOLD


def test_session_headers_and_model_are_part_of_the_question(user: Path) -> None:
    with admin_server("alpha", user) as alpha:
        alpha.answers["POST /admin/explain"] = (200, TOLD)
        explain("--session", "s1", "--header", "X-Thing: a:b", "--model", "glm.m", "--protocol", "messages")
    assert received_call(alpha) == {
        "protocol": "messages",
        "body": {**HELLO, "model": "glm.m"},
        "headers": {"x-session-id": "s1", "x-thing": "a:b"},
    }


def test_another_kind_of_session_has_another_header(user: Path) -> None:
    with admin_server("alpha", user) as alpha:
        alpha.answers["POST /admin/explain"] = (200, TOLD)
        explain("--session", "conversation:c1")
    assert received_call(alpha)["headers"] == {"x-conversation-id": "c1"}


@pytest.mark.parametrize(
    ("session", "headers"),
    [
        ("session:conversation:c1", {"x-session-id": "conversation:c1"}),
        ("a:b", {"x-session-id": "a:b"}),
        ("é", {"x-session-id": "é".encode().decode("latin-1")}),
        ("会话", {"x-session-id": "会话".encode().decode("latin-1")}),
    ],
)
def test_a_session_is_named_as_it_is_shown(user: Path, session: str, headers: dict[str, str]) -> None:
    with admin_server("alpha", user) as alpha:
        alpha.answers["POST /admin/explain"] = (200, TOLD)
        explain("--session", session)
    assert received_call(alpha)["headers"] == headers


@pytest.mark.parametrize("session", ["", "chain:req_1"])
def test_a_session_that_no_header_can_name_is_wrong_usage(user: Path, session: str) -> None:
    with admin_server("alpha", user) as alpha:
        assert explain("--session", session).exit_code == 2
    assert alpha.calls == []


def test_gemini_names_its_model_in_the_path(user: Path) -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    with admin_server("alpha", user) as alpha:
        alpha.answers["POST /admin/explain"] = (200, TOLD)
        assert explain(body=body).exit_code == 2
        assert explain("--model", "gemini-2.5-pro", body=body).exit_code == 0
    path = "/v1beta/models/gemini-2.5-pro:generateContent"
    assert received_call(alpha) == {"protocol": "gemini", "body": body, "headers": {}, "path": path}


def test_a_server_that_refuses_is_exit_code_1(user: Path) -> None:
    with admin_server("alpha", user) as alpha:
        alpha.answers["POST /admin/explain"] = (403, {"error": {"message": "glm is disabled", "code": "X"}})
        result = explain()
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: glm is disabled\n")


def test_of_several_servers_one_has_to_be_named(user: Path) -> None:
    with admin_server("alpha", user) as alpha, admin_server("beta", user) as beta:
        beta.answers["POST /admin/explain"] = (200, TOLD)
        result = explain()
        assert result.exit_code == 2
        assert "choose one with --server: alpha, beta" in result.stderr
        assert explain("--server", "beta").exit_code == 0
    assert alpha.received() == []


def test_with_no_server_the_configuration_decides(config: Path) -> None:
    result = explain("--json", body={**HELLO, "model": "one.m"})
    assert result.exit_code == 0
    assert result.stderr == f"no server is running; explained by {config} only\n"
    plan = msgspec.json.decode(result.stdout)
    assert plan["route"] == "direct"
    assert sorted(step["target"] for step in plan["steps"]) == ["one.a.m", "one.b.m"]
    assert "secret-of-one" not in result.output


BODIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "chat": (HELLO, []),
    "messages": ({**HELLO, "max_tokens": 5}, ["--protocol", "messages"]),
    "responses": ({"model": "x", "input": "hi"}, []),
    "gemini": ({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}, ["--model", "x"]),
}


@pytest.mark.parametrize(("body", "more"), BODIES.values(), ids=BODIES)
def test_every_protocol_is_explained_by_a_named_configuration(
    user: Path, tmp_path: Path, body: dict[str, Any], more: list[str]
) -> None:
    (tmp_path / "new.toml").write_text(CONFIG)
    with admin_server("alpha", user) as alpha:
        result = explain("--config", str(tmp_path / "new.toml"), *more, body=body)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "one.a.m" in result.stdout
    assert alpha.calls == []


def test_an_unknown_target_in_the_text_is_told_without_a_server(config: Path) -> None:
    body = {"model": "x", "messages": [{"role": "user", "content": "<**nobody.m**> hello"}]}
    result = explain(body=body)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nobody.m not found" in result.stderr


def test_a_named_server_that_does_not_run_is_exit_code_3(config: Path) -> None:
    assert explain("--server", "alpha").exit_code == 3


def test_a_bad_configuration_is_exit_code_2(config: Path) -> None:
    config.write_text("[server]\nprot = 1\n")
    result = explain()
    assert result.exit_code == 2
    assert "server.prot" in result.stderr


@pytest.mark.parametrize("body", [b"{", b"[]", b'"text"', b"\xff"])
def test_a_file_that_is_no_request_is_wrong_usage(user: Path, body: bytes) -> None:
    result = explain(body=body)
    assert result.exit_code == 2
    assert "--file" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["--header", "nonsense"], ["--header", ": x"], ["--config", "x.toml", "--server", "alpha"]]
)
def test_wrong_arguments_are_exit_code_2(user: Path, arguments: list[str]) -> None:
    assert explain(*arguments).exit_code == 2


def message(content: Any, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": content}]


GUESSES: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"model": "m", "messages": message("hi")}),
    ("chat", {"model": "m", "messages": message("be nice", "system")}),
    ("chat", {"model": "claude-x", "max_tokens": 5, "stop": ["x"], "messages": message("hi")}),
    ("chat", {"messages": message([{"type": "image_url", "image_url": {"url": "x"}}])}),
    ("chat", {"messages": message("hi"), "tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("chat", {"messages": "nonsense"}),
    ("chat", {}),
    ("messages", {"model": "claude-x", "max_tokens": 5, "messages": message("hi")}),
    ("messages", {"model": "m", "max_tokens": 5, "system": "be nice", "messages": message("hi")}),
    ("messages", {"messages": message([{"type": "tool_result", "tool_use_id": "t"}])}),
    ("messages", {"messages": message("hi"), "tools": [{"name": "f", "input_schema": {}}]}),
    ("messages", {"messages": message([{"type": "text", "text": "x", "cache_control": {}}])}),
    ("responses", {"model": "m", "input": "hi"}),
    ("responses", {"model": "m", "previous_response_id": "resp_1"}),
    ("gemini", {"contents": []}),
]


@pytest.mark.parametrize(("protocol", "body"), GUESSES)
def test_the_protocol_is_seen_from_the_body(protocol: str, body: dict[str, Any]) -> None:
    assert guess_protocol(body) == protocol
