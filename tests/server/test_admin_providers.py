"""`/admin/providers`, `/admin/providers/test` and `/admin/routes` over a real socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit import answers
from tests.kit.answers.model_answer import Counts
from tests.kit.gateway import provider
from tests.kit.steps import Json
from tests.kit.upstream import Upstream
from tests.server.admin_gateway import SERVER, asked, done, gateway, get, post, refusal, running

COUNTS = Counts(input=100, output=20)


async def keys(port: int) -> dict[str, dict[str, Any]]:
    found = await get(port, "providers")
    return {key["name"]: key for one in found["providers"] for key in one["keys"]}


async def test_every_key_is_shown_with_its_last_hour(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        up.answer_with(lambda _: answers.text("chat", "hi", False, counts=COUNTS))
        await asked(port)
        up.queue(answers.error("chat", 503))
        await asked(port)
        found = (await get(port, "providers"))["providers"]
    assert [(one["name"], one["protocol"], one["models"]) for one in found] == [
        ("up", "chat", ["m"]),
        ("other", "chat", ["m"]),
    ]
    first, second = found[0]["keys"][0], found[1]["keys"][0]
    assert {
        name: first[name] for name in ("name", "state", "requests", "errors", "quota", "disabled_by")
    } == {
        "name": "up.primary",
        "state": "ok",
        "requests": 2,
        "errors": 1,
        "quota": [],
        "disabled_by": None,
    }
    assert first["cost"] == second["cost"] == pytest.approx(400e-6)
    assert (second["requests"], second["errors"], second["reason"], second["until"]) == (1, 0, None, None)
    assert first["first_byte_p50"] > 0


@pytest.mark.parametrize(
    ("answer", "state", "reason", "status"),
    [
        (answers.error("chat", 429, "slow down", retry_after="30"), "cooling", "limited", 429),
        (answers.error("chat", 401, "bad <key>"), "out", "key refused", 401),
        (Json(402, {"error": {"message": "pay"}}), "cooling", "quota", 402),
    ],
)
async def test_a_key_that_is_not_well_shows_why(
    tmp_path: Path, answer: Json, state: str, reason: str, status: int
) -> None:
    async with gateway(tmp_path) as (up, port):
        up.queue(answer)
        await asked(port)
        key = (await keys(port))["up.primary"]
        route = (await get(port, "routes"))["routes"][0]
    assert (key["state"], key["reason"], key["status"]) == (state, reason, status)
    assert key["error"]
    assert key["until"] > "2026"
    assert [one["state"] for one in route["pools"][0]["targets"]] == [state, "ok"]


async def test_three_failures_open_the_breaker_of_a_key(tmp_path: Path) -> None:
    async with gateway(tmp_path, more="[routing_options]\nmax_wait_ms = 0\n") as (up, port):
        up.answer_with(lambda _: answers.error("chat", 500))
        for _ in range(3):
            await asked(port, model="up.m")
        assert (await keys(port))["up.primary"]["state"] == "open"
        await done(port, "health/reset", {"target": "up.primary"})
        assert (await keys(port))["up.primary"]["state"] == "ok"


async def test_a_key_is_disabled_and_enabled_by_the_routing_call(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        await done(port, "routing", {"disable": ["up.primary"]})
        off = (await keys(port))["up.primary"]
        answered = (await get(port, f"requests/{await asked(port)}"))["request"]["target"]
        route = (await get(port, "routes"))["routes"][0]
        await done(port, "routing", {"enable": ["up.primary"]})
        on = (await keys(port))["up.primary"]
    assert (off["state"], off["disabled_by"]) == ("disabled", "operator")
    assert (on["state"], on["disabled_by"]) == ("ok", None)
    assert answered == "other.primary.m"
    assert [one["state"] for one in route["pools"][0]["targets"]] == ["disabled", "ok"]


async def test_a_test_sends_one_real_request_to_the_key(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        found = await done(port, "providers/test", {"target": "other.primary"})
        sent = up.requests
        (row,) = (await get(port, "requests"))["requests"]
    assert len(sent) == 1
    assert sent[0].headers["authorization"] == "Bearer secret-other"
    assert (found["ok"], found["status"], found["error"]) == (True, 200, None)
    assert 0 < found["first_byte_ms"] <= found["total_ms"]
    assert (row["client"], row["route"], row["target"]) == ("console", "test", "other.primary.m")


async def test_a_test_that_works_ends_the_cooldown_and_one_that_fails_begins_it(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        up.queue(answers.error("chat", 401, "wrong key"))
        failed = await done(port, "providers/test", {"target": "up.primary.m"})
        out = (await keys(port))["up.primary"]["state"]
        worked = await done(port, "providers/test", {"target": "up"})
        ok = (await keys(port))["up.primary"]["state"]
    assert (failed["ok"], failed["status"], failed["first_byte_ms"] is None) == (False, 401, False)
    assert "wrong key" in failed["error"]
    assert (out, worked["ok"], ok) == ("out", True, "ok")


async def test_a_test_of_a_provider_that_is_not_there_says_so(tmp_path: Path) -> None:
    text = (
        SERVER + '[providers.gone]\nprotocol = "chat"\nbase_url = "http://127.0.0.1:9/v1"\n'
        'auth = [{ alias = "a", value = "k" }]\n[providers.gone.models.m]\n[routing]\ndefault = ["gone.m"]\n'
    )
    async with running(text, tmp_path) as found:
        result = await done(found.port, "providers/test", {"target": "gone.a"})
    assert (result["ok"], result["status"], result["first_byte_ms"]) == (False, None, None)
    assert result["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"target": "nobody"}, 404),
        ({}, 400),
        ({"target": 5}, 400),
        ({"target": ""}, 404),
        ({"targets": "up"}, 400),
    ],
)
async def test_a_wrong_target_is_refused(tmp_path: Path, body: dict[str, Any], status: int) -> None:
    async with gateway(tmp_path) as (up, port):
        answer = await post(port, "providers/test", body)
    assert 400 <= answer.status < 500, answer.body
    assert refusal(answer)[1]
    assert up.requests == []
    assert status in (400, 404)


async def test_routes_show_pools_weights_shares_rules_and_aliases(tmp_path: Path) -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        text = (
            SERVER
            + provider("up", "chat", up)
            + provider("other", "chat", up)
            + '[routing]\ndefault = [{ id = "main", targets = ["up.m"], weights = { "up.m" = 3 } },'
            '{ id = "spare", backup = true, mode = "priority", targets = ["other.m"] }]\n'
            '[models]\n"gpt-*" = "other.m"\n[classifier]\nlongcontext_tokens = 5000\n'
        )
        async with running(text, tmp_path) as found:
            before = await get(found.port, "routes")
            await asked(found.port)
            after = await get(found.port, "routes")
    assert before["routes"][0]["name"] == "default"
    main, spare = before["routes"][0]["pools"]
    assert (main["id"], main["backup"], spare["id"], spare["mode"], spare["backup"]) == (
        "main",
        False,
        "spare",
        "priority",
        True,
    )
    assert main["targets"] == [{"target": "up.primary.m", "weight": 3.0, "share": None, "state": "ok"}]
    shares = [one["share"] for pool in after["routes"][0]["pools"] for one in pool["targets"]]
    assert shares == [1.0, 0.0]
    assert before["models"] == [{"pattern": "gpt-*", "to": "other.m"}]
    rules = [rule["route"] for rule in before["classifier"]]
    assert (rules[0], rules[-1]) == ("vision", "default")
    assert any("5000" in rule["rule"] for rule in before["classifier"])


async def test_quota_is_what_the_provider_said_last(tmp_path: Path) -> None:
    headers = {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "60",
        "x-ratelimit-reset-requests": "6m0s",
        "x-ratelimit-limit-tokens": "5000",
        "x-ratelimit-remaining-tokens": "4000",
        "x-ratelimit-reset-tokens": "1h",
        "x-ratelimit-limit-junk": "<b>",
    }
    whole = answers.text("chat", "hi", False)
    assert isinstance(whole, Json)
    async with gateway(tmp_path) as (up, port):
        up.queue(Json(200, whole.body, headers))
        await asked(port)
        found = await keys(port)
    requests, tokens = found["up.primary"]["quota"]
    assert (requests["kind"], requests["limit"], requests["remaining"]) == ("requests", 100.0, 60.0)
    assert (tokens["kind"], tokens["limit"], tokens["remaining"]) == ("tokens", 5000.0, 4000.0)
    assert requests["resets_at"] < tokens["resets_at"]
    assert found["other.primary"]["quota"] == []


async def test_a_key_of_which_nothing_is_left_is_limited(tmp_path: Path) -> None:
    headers = {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "5m0s",
    }
    whole = answers.text("chat", "hi", False)
    assert isinstance(whole, Json)
    async with gateway(tmp_path) as (up, port):
        up.queue(Json(200, whole.body, headers))
        await asked(port)
        key = (await keys(port))["up.primary"]
    assert (key["state"], key["reason"], key["quota"][0]["remaining"]) == ("limited", "limited", 0.0)
