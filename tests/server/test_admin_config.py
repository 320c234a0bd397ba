"""`/admin/config` and `/admin/config/check` in a real process, with a real file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import serve
from tests.kit.raw_client import call
from tests.server.admin_gateway import BEARER, SERVER, asked, gateway, get, post

SECRET = "plain-hidden-word"
CONFIG = (
    SERVER
    + f"""\
[providers.demo]
protocol = "demo"
pace = 0
[providers.demo.models.demo-1]
[providers.glm]
auth = [{{ alias = "primary", value = "{SECRET}" }}]
headers = {{ x-extra = "{SECRET}-2" }}
[providers.own]
protocol = "chat"
base_url = "${{OWN_URL:-http://127.0.0.1:9/v1}}"
auth = [{{ alias = "a", value = "${{OWN_KEY:-{SECRET}-3}}" }}]
[providers.own.models.m]
[routing]
default = ["demo.demo-1"]
[clients.laptop]
key = "{SECRET}-4"
[usage]
webhook = "http://127.0.0.1:9/{SECRET}"
"""
)


def value_of(found: dict[str, Any], key: str) -> dict[str, Any]:
    (row,) = [row for row in found["effective"] if row["key"] == key]
    return {name: row[name] for name in ("value", "source", "line")}


async def test_the_file_is_shown_without_secrets_and_every_value_with_its_source(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG) as command:
        port = await command.port()
        answer = await call(port, "/admin/config", method="GET", headers=BEARER)
        checked = await post(port, "config/check", {"text": answer.json["text"]})
        command.signal()
        assert await command.ended() == 0
    assert answer.status == 200, answer.body
    found = answer.json
    assert checked.json == {"problems": found["problems"]}
    assert SECRET not in answer.body.decode()
    assert "operator" not in answer.body.decode()
    lines = CONFIG.splitlines()
    assert len(found["text"].splitlines()) == len(lines)
    assert found["path"].endswith("gateway.toml")
    assert (found["changed"], found["changes"]) == (False, [])
    assert 'protocol = "demo"' in found["text"]
    at = {name: lines.index(name) + 1 for name in ("port = 0", "pace = 0")}
    assert value_of(found, "server.port") == {"value": port, "source": "file", "line": at["port = 0"]}
    assert value_of(found, "providers.demo.pace") == {"value": 0, "source": "file", "line": at["pace = 0"]}
    assert value_of(found, "server.max_body_mb") == {"value": 32, "source": "default", "line": None}
    own = value_of(found, "providers.own.base_url")
    assert (own["value"], own["source"]) == ("${OWN_URL:-http://127.0.0.1:9/v1}", "env")
    assert value_of(found, "providers.glm.base_url")["source"] == "preset"
    assert value_of(found, "providers.glm.auth[0].value")["value"] == "…"
    assert value_of(found, "providers.glm.headers.x-extra")["value"] == "…"


async def test_settings_of_opentelemetry_variables_are_shown_as_their_variables(tmp_path: Path) -> None:
    variables = f"export OTEL_SERVICE_NAME=gw OTEL_EXPORTER_OTLP_HEADERS=x-key={SECRET}-5"
    async with serve(tmp_path, CONFIG, shell=variables) as command:
        answer = await call(await command.port(), "/admin/config", method="GET", headers=BEARER)
        command.signal()
        assert await command.ended() == 0
    assert SECRET not in answer.body.decode()
    for key, variable in (
        ("service_name", "${OTEL_SERVICE_NAME}"),
        ("headers.x-key", "${OTEL_EXPORTER_OTLP_HEADERS}"),
    ):
        shown = value_of(answer.json, f"telemetry.{key}")
        assert shown == {"value": variable, "source": "env", "line": None}
    assert (answer.json["changed"], answer.json["changes"]) == (False, [])


async def test_a_broken_file_is_shown_with_its_problems_and_without_secrets(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG) as command:
        port = await command.port()
        (tmp_path / "gateway.toml").write_text(CONFIG + f'[broken\nadmin_token = "{SECRET}-9"\n')
        answer = await call(port, "/admin/config", method="GET", headers=BEARER)
        command.signal()
        assert await command.ended() == 0
    assert answer.status == 200, answer.body
    assert SECRET not in answer.body.decode()
    assert answer.json["changed"] is True
    (problem,) = answer.json["problems"]
    assert (problem["severity"], problem["line"]) == ("error", len(CONFIG.splitlines()) + 1)
    assert answer.json["effective"]


async def test_a_setting_that_needs_a_restart_is_a_change(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG) as command:
        port = await command.port()
        changed = CONFIG.replace('id = "main"', 'id = "other"')
        (tmp_path / "gateway.toml").write_text(changed)
        answer = await call(port, "/admin/reload", {}, headers=BEARER)
        found = await get(port, "config")
        command.signal()
        assert await command.ended() == 0
    assert answer.json["reloaded"] is True
    assert found["changed"] is True
    assert {"key": "server.id", "running": "main", "file": "other"} in found["changes"]
    assert not any("alias" in row["key"] or "admin_token" in row["key"] for row in found["changes"])
    assert any("restart" in problem["message"] for problem in found["problems"])


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", ["routing.default"]),
        ("port = [", [""]),
        ('[server]\nport = "x"\n[providers.demo]\nprotocol = "demo"\n', ["server.port"]),
        ("a = " + "[" * 5000, [""]),
        ("\x00", [""]),
    ],
)
async def test_a_text_is_checked_and_its_problems_named(tmp_path: Path, text: str, paths: list[str]) -> None:
    async with gateway(tmp_path) as (_, port):
        answer = await post(port, "config/check", {"text": text})
        await asked(port)
    assert answer.status == 200, answer.body
    found = [problem["path"] for problem in answer.json["problems"] if problem["severity"] == "error"]
    assert found, answer.body
    assert set(paths) & set(found), found
    assert all(
        problem.keys() == {"severity", "path", "line", "message", "fix"}
        for problem in answer.json["problems"]
    )


async def test_a_valid_text_has_no_problems(tmp_path: Path) -> None:
    text = '[providers.demo]\nprotocol = "demo"\n[providers.demo.models.m]\n[routing]\ndefault = ["demo.m"]\n'
    async with gateway(tmp_path) as (_, port):
        answer = await post(port, "config/check", {"text": text})
    assert answer.json == {"problems": []}


@pytest.mark.parametrize("body", [{}, {"text": 5}, {"text": "", "more": 1}])
async def test_a_wrong_body_is_a_400(tmp_path: Path, body: dict[str, object]) -> None:
    async with gateway(tmp_path) as (_, port):
        assert (await post(port, "config/check", body)).status == 400


async def test_the_environment_stays_hidden_in_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN_VALUE", SECRET)
    text = '[server]\nport = "${HIDDEN_VALUE}"\n[models]\na = "${HIDDEN_VALUE}"\n'
    text += '[routing]\ndefault = ["${HIDDEN_VALUE}"]\n'
    async with gateway(tmp_path) as (_, port):
        answer = await post(port, "config/check", {"text": text})
    assert answer.json["problems"]
    assert SECRET not in answer.body.decode()


async def test_a_server_without_a_file_shows_what_is_in_force(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        found = await get(port, "config")
    assert (found["path"], found["text"], found["problems"], found["changed"]) == (None, "", [], False)
    assert value_of(found, "providers.up.auth[0].value")["value"] == "…"
