"""`routecodex prices …`: by a file, and by a running server that notices imported prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from tests.cli.process import running, serve
from tests.kit.raw_client import call

CONFIG = """
[server]
admin_token = "operator"
[providers.anthropic]
auth = [{ value = "k" }]
[providers.up]
protocol = "chat"
base_url = "http://127.0.0.1:9/v1"
[providers.up.models]
m = { price = { input = 1, output = 2 } }
gift = { price = "free" }
[routing]
default = ["up.m"]
"""
UNPRICED = CONFIG.replace("{ price = { input = 1, output = 2 } }", "{}")
BEARER = {"authorization": "Bearer operator"}
ROW = {"input": 5, "output": 6}


@pytest.fixture
def config(user: Path) -> Path:
    """The default configuration file, with a price for every model."""
    return written(user, CONFIG)


def written(user: Path, text: str) -> Path:
    user.mkdir(exist_ok=True)
    (user / "config.toml").write_text(text)
    return user / "config.toml"


def prices(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["prices", *arguments])


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = prices("show", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return list(json.loads(result.stdout)["prices"])


def price_file(folder: Path, value: Any) -> str:
    file = folder / "import.json"
    file.write_text(json.dumps(value))
    return str(file)


def test_show_prints_a_table(config: Path) -> None:
    result = prices("show", "up.*")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "PROVIDER  MODEL  INPUT  OUTPUT  CACHE READ  WRITE  1 H  TIERS, MODES  SOURCE  DATE",
        "up        m          1       2                                        config  -",
        "up        gift    free                                                config  -",
    ]


def test_show_prints_json_with_the_source_of_every_price(config: Path) -> None:
    result = prices("show", "anthropic.claude-sonnet-5", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["as_of"] == "2026-08-21"
    assert answer["prices"] == [
        {
            "provider": "anthropic",
            "model": "claude-sonnet-5",
            "input": 3.0,
            "output": 15.0,
            "cache_read": 0.3,
            "cache_write": 3.75,
            "cache_write_1h": 6.0,
            "since": "2026-09-01",
            "from": ["genai-prices", "litellm", "models.dev"],
            "free": False,
            "source": "package",
            "date": "2026-08-21",
            "configured": True,
        }
    ]


def test_tiers_modes_and_reasoning_are_shown(user: Path) -> None:
    result = prices("show", "qwen.qwen3-vl-plus")
    assert ">32000: 0.3/2.4, >128000: 0.6/4.8, reasoning: 4.8" in result.stdout
    assert "flex" in prices("show", "openai.gpt-5").stdout


def test_without_a_configuration_the_price_files_are_shown(user: Path) -> None:
    assert len(rows()) > 600
    assert {row["configured"] for row in rows("glm.*")} == {False}


def test_a_pattern_without_a_match_fails(config: Path) -> None:
    result = prices("show", "nobody.*")
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        result.stderr == "error: no model matches 'nobody.*'; write a glob over provider.model, in quotes\n"
    )
    assert rows("nobody.*") == []


def test_imported_prices_go_before_those_of_the_package_until_they_are_reset(
    config: Path, user: Path, tmp_path: Path
) -> None:
    file = price_file(tmp_path, {"as_of": "2026-10-01", "providers": {"anthropic": {"claude-sonnet-5": ROW}}})
    updated = prices("update", "--file", file)
    saved = user / "prices.json"
    assert (updated.exit_code, updated.stderr) == (0, "")
    assert updated.stdout == f"{saved}: 1 price of 1 provider as of 2026-10-01\n"
    (row,) = rows("anthropic.claude-sonnet-5")
    assert (row["input"], row["source"], row["date"]) == (5.0, "file", "2026-10-01")
    assert [row["source"] for row in rows("anthropic.claude-haiku-4-5")] == ["package"]
    reset = prices("reset", "--json")
    assert (reset.exit_code, json.loads(reset.stdout)) == (0, {"file": str(saved), "removed": True})
    assert [row["source"] for row in rows("anthropic.claude-sonnet-5")] == ["package"]
    again = prices("reset")
    assert (again.exit_code, again.stdout) == (0, f"{saved} does not exist; nothing to do\n")


def test_the_table_of_litellm_is_imported(config: Path, user: Path, tmp_path: Path) -> None:
    table = {
        "zai/glm-x": {
            "litellm_provider": "zai",
            "input_cost_per_token": 6e-07,
            "output_cost_per_token": 2.2e-06,
        },
        "image-x": {"litellm_provider": "openai", "input_cost_per_pixel": 1e-08},
    }
    file = price_file(tmp_path, table)
    updated = prices("update", "--file", file, "--format", "litellm")
    assert updated.exit_code == 0
    assert "1 price of 1 provider" in updated.stdout
    assert "left out: 1 row without usable prices per token" in updated.stdout
    (row,) = rows("glm.glm-x")
    assert (row["input"], row["output"], row["source"]) == (0.6, 2.2, "file")
    skipped = json.loads(prices("update", "--file", file, "--format", "litellm", "--json").stdout)["skipped"]
    assert skipped == [{"model": "image-x", "reason": "has no price per token for input and output"}]


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (
            {"providers": {"g": {"m": {"input": -1, "output": 1}}}},
            (),
            "providers.g.m: input: expected a number >= 0.0",
        ),
        ({"currency": "EUR", "providers": {"g": {"m": ROW}}}, (), "currency: must be 'USD', got 'EUR'"),
        ([], (), "expected an object, got a list"),
        ({"providers": {"g": {"m": ROW}}}, ("--format", "litellm"), "has no row of LiteLLM's table"),
    ],
    ids=["negative price", "another currency", "no object", "another format"],
)
def test_a_bad_file_changes_nothing(
    config: Path, user: Path, tmp_path: Path, value: Any, options: tuple[str, ...], message: str
) -> None:
    good = price_file(tmp_path, {"providers": {"up": {"x": ROW}}})
    assert prices("update", "--file", good).exit_code == 0
    before = (user / "prices.json").read_bytes()
    result = prices("update", "--file", price_file(tmp_path, value), *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert result.stderr.endswith("; nothing was changed\n")
    assert (user / "prices.json").read_bytes() == before


def test_a_user_dir_that_cannot_be_written_changes_nothing(config: Path, user: Path, tmp_path: Path) -> None:
    (user / "prices.json").mkdir()
    result = prices("update", "--file", price_file(tmp_path, {"providers": {"up": {"x": ROW}}}))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was changed" in result.stderr
    assert sorted(one.name for one in user.iterdir()) == ["config.toml", "prices.json"]
    assert prices("reset").exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [("update",), ("update", "--file", "absent.json"), ("update", "--file", ".", "--format", "x"), ("shw",)],
)
def test_wrong_arguments_are_code_2(user: Path, arguments: tuple[str, ...]) -> None:
    assert prices(*arguments).exit_code == 2


def test_check_passes_if_every_model_has_a_price(config: Path) -> None:
    result = prices("check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "7 of 7 models have a price; prices as of 2026-08-21\n"


def test_check_fails_at_a_model_without_a_price(user: Path) -> None:
    file = written(user, UNPRICED)
    result = prices("check", "--config", str(file))
    assert result.exit_code == 1
    assert result.stdout == "6 of 7 models have a price; prices as of 2026-08-21\n"
    assert result.stderr == (
        'error: up.m has no price; set providers.up.models."m".price, or "free" if it costs nothing\n'
    )
    found = json.loads(prices("check", "--config", str(file), "--json").stdout)
    assert (found["missing"], found["models"]) == ([{"provider": "up", "model": "m"}], 7)


def test_check_warns_about_old_prices_and_passes(user: Path, tmp_path: Path) -> None:
    written(user, UNPRICED)
    rows_of = {"up": {"m": ROW, "x": ROW, "y": ROW}}
    assert (
        prices(
            "update", "--file", price_file(tmp_path, {"as_of": "2020-01-01", "providers": rows_of})
        ).exit_code
        == 0
    )
    result = prices("check")
    assert result.exit_code == 0
    first, second = result.stderr.splitlines()[:2]
    assert first.startswith("warning: the price of up.m is from 2020-01-01, ")
    assert first.endswith("days ago; `routecodex prices update --file FILE` imports newer prices")
    assert second == "warning: 2 other rows of the price files are older than 180 days"
    old = json.loads(prices("check", "--json").stdout)["old"]
    assert [(row["model"], row["configured"]) for row in old] == [("m", True), ("x", False), ("y", False)]


def test_check_fails_at_a_price_file_that_cannot_be_used(config: Path, user: Path) -> None:
    (user / "prices.json").write_text("{")
    result = prices("check")
    assert result.exit_code == 1
    assert "the file is not used. `routecodex prices reset` removes it" in result.stderr
    shown = prices("show", "up.m")
    assert (shown.exit_code, "is not valid JSON" in shown.stderr) == (0, True)


def test_check_needs_a_configuration(user: Path) -> None:
    result = prices("check")
    assert result.exit_code == 2
    assert "the file does not exist" in result.stderr


async def test_a_running_server_uses_imported_prices_and_is_asked_for_its_configuration(
    tmp_path: Path,
) -> None:
    async def output(*arguments: str) -> Any:
        async with running(tmp_path, "prices", *arguments, "--json") as command:
            code = await command.ended()
            return code, json.loads("\n".join(command.out))

    async def shown_by(port: int) -> Any:
        answer = await call(port, "/admin/prices?pattern=up.m", method="GET", headers=BEARER)
        assert answer.status == 200
        return answer.json["prices"][0]["source"]

    async with serve(tmp_path, UNPRICED, "--workers", "2") as server:
        port = await server.port()
        code, answer = await output("show", "up.*")
        assert (code, [row["source"] for row in answer["prices"]]) == (0, [None, "config"])
        assert (await output("check"))[0] == 1
        file = price_file(tmp_path, {"providers": {"up": {"m": ROW}}})
        assert (await output("update", "--file", file))[0] == 0
        assert [await shown_by(port) for _ in range(8)] == ["file"] * 8
        assert (await output("check"))[0] == 0


async def test_the_admin_api_takes_a_price_file(tmp_path: Path) -> None:
    async with serve(tmp_path, UNPRICED) as server:
        port = await server.port()
        saved = await call(port, "/admin/prices", {"providers": {"up": {"m": ROW}}}, headers=BEARER)
        assert saved.status == 200
        assert (saved.json["prices"], saved.json["file"]) == (1, str(tmp_path / "user" / "prices.json"))
        shown = await call(port, "/admin/prices?pattern=up.m", method="GET", headers=BEARER)
        assert [(row["input"], row["source"]) for row in shown.json["prices"]] == [(5.0, "file")]
        before = (tmp_path / "user" / "prices.json").read_bytes()
        bad = {"providers": {"up": {"m": {"input": -1, "output": 2}}}}
        refused = await call(port, "/admin/prices", bad, headers=BEARER)
        assert (refused.status, refused.json["code"]) == (400, "invalid_prices")
        assert refused.json["error"]["message"].startswith("the request body: providers.up.m: input: ")
        assert (tmp_path / "user" / "prices.json").read_bytes() == before
        unknown = await call(port, "/admin/prices?patern=x", method="GET", headers=BEARER)
        assert unknown.status == 400
        assert (await call(port, "/admin/prices", method="GET")).status == 401


async def test_a_broken_price_file_is_logged_and_the_package_is_used(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "prices.json").write_text("[]")
    async with serve(tmp_path, CONFIG) as server:
        await server.port()
        logged = await server.wait_for("the prices of the package are used: .*prices.json: (.*)")
        assert "expected an object, got a list" in logged[1]
