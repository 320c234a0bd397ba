"""`routecodex usage`: from a file, from running servers, and what it says when there is nothing."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from routecodex.accounting.ledger_file import ledger_path, reading
from routecodex.cli import main
from routecodex.config import loads
from tests.accounting.ledger_rows import batch, call, ledger_file, request
from tests.cli.process import ROOT, serve
from tests.kit.raw_client import call as send

CONFIG = """
[server]
id = "main"
admin_token = "operator"
[usage]
timezone = "Europe/Oslo"
[providers.demo]
protocol = "demo"
models = { "demo" = { price = { input = 1, output = 2 } } }
[routing]
default = ["demo.demo"]
"""
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
NOW = time.time()
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@pytest.fixture
def ledger(user: Path) -> Path:
    """A configuration, and a ledger with requests of two clients on two days."""
    user.mkdir()
    (user / "config.toml").write_text(CONFIG)
    path = ledger_path(loads(CONFIG, environ={}), user)
    assert path == user / "usage" / "main.sqlite"
    file = ledger_file(path)
    rows = [
        request("req_1", NOW - 2, client="laptop"),
        request("req_2", NOW - 1, client="laptop", session="s2", status=502, error="no_answer"),
        request("req_3", NOW - 1, client="ci", cost=None, provider="claude", target_model="opus"),
        request("req_4", NOW - 3 * 86_400, client="ci", cost_kind="observed", cost=0.25),
    ]
    calls = [call(row) for row in rows]
    tokens = {name: 0 for name in calls[0] if name.endswith("_tokens")}
    calls.append(call(rows[0], 2, kind="internal", provider="claude", model="haiku", **tokens, cost=0.125))
    rows[0]["cost"] = rows[0]["cost_known"] = 0.625
    file.write(batch(rows, calls))
    file.close()
    return path


def usage(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["usage", *arguments])


def answer(*arguments: str) -> dict[str, Any]:
    result = usage(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def figures(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_figures_are_shown_as_a_table(ledger: Path) -> None:
    result = usage("--by", "client", "--since", "1h")
    assert (result.exit_code, result.stderr) == (0, "")
    _, *lines = result.stdout.splitlines()
    assert lines == [
        "CLIENT  REQUESTS  ERRORS  INPUT  CACHED  OUTPUT   COST  NO PRICE",
        "laptop         2       1    200     80%      20  $1.12",
        "ci             1       0    100     80%      10      —         1",
        "total          3       1    300     80%      30  $1.12         1",
    ]


def test_json_has_every_figure(ledger: Path) -> None:
    found = answer("--by", "client", "--since", "7d")
    assert set(found) == {"since", "until", "by", "rows", "total"}
    assert found["by"] == ["client"]
    names = ("client", "requests", "cost", "cost_unknown", "cost_estimated", "cache_hit_rate")
    assert figures(found["rows"], *names) == [
        ("laptop", 2, 1.125, 0, 0, 0.8),
        ("ci", 2, 0.25, 1, 0.25, 0.8),
    ]
    assert found["total"] == {
        "requests": 4,
        "errors": 1,
        "input_tokens": 400,
        "output_tokens": 40,
        "cache_read_tokens": 320,
        "cache_write_tokens": 20,
        "reasoning_tokens": 12,
        "cost": 1.375,
        "cost_unknown": 1,
        "cost_estimated": 0.25,
        "cache_hit_rate": 0.8,
    }


def test_models_count_calls_where_they_went(ledger: Path) -> None:
    found = answer("--by", "model", "--since", "7d")
    assert sorted(figures(found["rows"], "model", "requests", "cost")) == [
        ("glm-4.7", 3, 1.25),
        ("haiku", 1, 0.125),
        ("opus", 1, 0),
    ]


def test_several_names_and_filters(ledger: Path) -> None:
    found = answer("--by", "session", "--by", "client", "--client", "laptop", "--since", "1h")
    assert sorted(figures(found["rows"], "session", "client", "requests")) == [
        ("s1", "laptop", 1),
        ("s2", "laptop", 1),
    ]
    assert answer("--provider", "claude", "--since", "1h")["total"]["requests"] == 2
    assert answer("--session", "s2", "--since", "1h")["total"]["requests"] == 1
    assert answer("--team", "core", "--model", "opus", "--since", "1h")["total"]["requests"] == 1
    assert answer("--client", "nobody")["rows"] == []


def test_csv_has_a_line_for_each_row(ledger: Path) -> None:
    result = usage("--by", "client", "--since", "7d", "--csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["client"], row["requests"], row["cost"]) for row in rows] == [
        ("laptop", "2", "1.125"),
        ("ci", "2", "0.25"),
    ]
    (total,) = csv.DictReader(io.StringIO(usage("--csv", "--since", "1h").stdout))
    assert total["requests"] == "3"


def test_the_ledger_is_that_of_the_server_or_the_file(ledger: Path, user: Path) -> None:
    other = user / "usage" / "other.sqlite"
    file = ledger_file(other)
    file.write(batch([request("req_9", NOW - 1)]))
    file.close()
    assert answer("--since", "1h")["total"]["requests"] == 3
    assert answer("--server", "other", "--since", "1h")["total"]["requests"] == 1
    elsewhere = user / "elsewhere.toml"
    elsewhere.write_text(CONFIG.replace('"main"', '"other"'))
    assert answer("--config", str(elsewhere), "--since", "1h")["total"]["requests"] == 1


def test_without_a_configuration_all_ledgers_are_read(ledger: Path, user: Path) -> None:
    (user / "config.toml").unlink()
    assert answer("--since", "1h")["total"]["requests"] == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--by", "colour"), 2, "'colour' is not one of"),
        (("--since", "yesterday"), 2, "--since: 'yesterday' is not a time"),
        (("--since", "1d", "--until", "2d"), 2, "--until: is before since"),
        (("--server", "mian"), 2, "did you mean 'main'?"),
        (("--server", "main", "--config", "x.toml"), 2, "give one of them"),
        (("--json", "--csv"), 2, "give one of them"),
        (("--all", "--server", "main"), 2, "leave out --server"),
        (("--all",), 3, "no server is running"),
    ],
)
def test_wrong_arguments_are_named(ledger: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = usage(*arguments)
    assert result.exit_code == code
    assert message in result.stderr


def test_no_requests_yet_is_said(user: Path) -> None:
    user.mkdir()
    (user / "config.toml").write_text(CONFIG)
    result = usage()
    assert result.exit_code == 0
    assert "no request has been counted yet" in result.stderr


def test_a_ledger_that_is_turned_off_is_said(user: Path) -> None:
    user.mkdir()
    (user / "config.toml").write_text(CONFIG.replace("[usage]", "[usage]\nenabled = false"))
    result = usage()
    assert (result.exit_code, result.stderr) == (1, "error: there is no usage ledger; set usage.enabled\n")


def test_a_damaged_ledger_is_named(ledger: Path) -> None:
    ledger.write_bytes(b"this is not a database, " * 100)
    result = usage()
    assert result.exit_code == 1
    assert "main.sqlite cannot be read" in result.stderr


async def run_here(*arguments: str) -> dict[str, Any]:
    return await asyncio.to_thread(answer, *arguments)


async def test_a_running_server_is_read_asked_and_read_after_its_end(tmp_path: Path, user: Path) -> None:
    async with serve(tmp_path, CONFIG, "--workers", "2") as command:
        port = await command.port()
        for _ in range(4):
            assert (await send(port, "/v1/chat/completions", BODY)).status == 200
        async with asyncio.timeout(10):
            while (await run_here())["total"]["requests"] < 4:
                await asyncio.sleep(0.05)
        read = await run_here("--by", "provider")
        asked = await run_here("--by", "provider", "--all")
        assert read["rows"] == asked["rows"]
        assert figures(read["rows"], "provider", "requests") == [("demo", 4)]
        bearer = {"authorization": "Bearer operator"}
        path = "/admin/usage?by=provider&by=model&since=1d&client="
        shown = (await send(port, path, method="GET", headers=bearer)).json
        assert figures(shown["rows"], "provider", "model", "requests") == [("demo", "demo", 4)]
        refused = await send(port, "/admin/usage?by=colour", method="GET", headers=bearer)
        assert (refused.status, refused.json["error"]["param"]) == (400, "by")
        command.signal()
        assert await command.ended() == 0
    found = await run_here("--server", "main")
    assert found["total"]["requests"] == 4
    assert found["total"]["cost"] == pytest.approx(read["total"]["cost"])


async def test_a_server_without_a_ledger_says_so(tmp_path: Path, user: Path) -> None:
    async with serve(tmp_path, CONFIG.replace("[usage]", "[usage]\nenabled = false")) as command:
        port = await command.port()
        assert (await send(port, "/v1/chat/completions", BODY)).status == 200
        bearer = {"authorization": "Bearer operator"}
        refused = await send(port, "/admin/usage", method="GET", headers=bearer)
        assert (refused.status, refused.json["error"]["code"]) == (409, "no_ledger")
        result = await asyncio.to_thread(usage)
        assert (result.exit_code, result.stderr) == (
            1,
            "error: the running servers keep no usage ledger; set usage.enabled\n",
        )
    assert not (user / "usage").exists()


def test_the_command_does_not_load_the_server() -> None:
    script = "import sys, routecodex.cli.usage; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=ENVIRON
    )
    loaded = done.stdout.split()
    assert "routecodex.accounting.ledger_query" in loaded
    assert not [
        name for name in loaded if name.startswith(("uvloop", "routecodex.server", "routecodex.gateway"))
    ]


async def test_a_reload_moves_the_ledger_and_turns_it_off_and_on(tmp_path: Path, user: Path) -> None:
    async with serve(tmp_path, CONFIG) as command:
        port = await command.port()
        file = tmp_path / "gateway.toml"
        bearer = {"authorization": "Bearer operator"}

        async def counted(changed: str) -> dict[str, int]:
            """Reload with another [usage] table, send a request, and return the rows of each ledger."""
            file.write_text(CONFIG.replace("[usage]", f"[usage]\n{changed}"))
            reloaded = await send(port, "/admin/reload", {}, headers=bearer)
            assert reloaded.json["reloaded"] is True
            assert (await send(port, "/v1/chat/completions", BODY)).status == 200
            if "false" not in changed:
                await send(port, "/admin/usage", method="GET", headers=bearer)
            found = {path.stem: path for path in (user / "usage").glob("*.sqlite")}
            return {name: await asyncio.to_thread(rows_of, path) for name, path in sorted(found.items())}

        assert await counted("") == {"main": 1}
        assert await counted("enabled = false") == {"main": 1}
        assert await counted("keep_days = 30") == {"main": 2}
        assert await counted('file = "usage/other.sqlite"') == {"main": 2, "other": 1}


def rows_of(path: Path) -> int:
    with reading(path) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM requests").fetchone()[0])
