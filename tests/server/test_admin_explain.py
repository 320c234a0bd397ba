"""`/admin/explain` of past requests, and by another configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit import asking
from tests.kit.upstream import Upstream
from tests.server.admin_gateway import SERVER, asked, done, gateway, get, post, refusal

BODY = asking.body("chat", "hi", stream=False, model="auto")
ASKED = {"protocol": "chat", "body": BODY}
OTHER = (
    '[providers.alone]\nprotocol = "chat"\nbase_url = "http://127.0.0.1:9/v1"\n'
    'auth = [{ alias = "a", value = "k" }]\n[providers.alone.models.m]\n[routing]\ndefault = ["alone.m"]\n'
)


def targets(plan: dict[str, list[dict[str, str]]]) -> list[str]:
    return [step["target"] for step in plan["steps"]]


async def test_a_past_request_is_planned_as_it_would_be_now(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (_, port):
        id = await asked(port, session="s-1")
        before = await done(port, "explain", {"request": id})
        kept = (await get(port, f"requests/{id}"))["request"]["plan"]
        await done(port, "routing", {"session": "s-1", "sticky": "other.m"})
        after = await done(port, "explain", {"request": id})
    assert before == kept
    assert targets(after) == ["other.primary.m"]


async def test_another_configuration_plans_without_changing_anything(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        id = await asked(port)
        what_if = await done(port, "explain", {**ASKED, "config": OTHER})
        past = await done(port, "explain", {"request": id, "config": OTHER})
        now = await done(port, "explain", ASKED)
        await asked(port)
        providers = await get(port, "providers")
        sent = len(up.requests)
    assert targets(what_if) == targets(past) == ["alone.a.m"]
    assert targets(now) == ["up.primary.m", "other.primary.m"]
    assert [one["name"] for one in providers["providers"]] == ["up", "other"]
    assert sent == 2


async def test_another_configuration_sees_health_and_sessions_of_this_server(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (up, port):
        text = (
            SERVER + f'[providers.up]\nprotocol = "chat"\nbase_url = "http://127.0.0.1:{up.port}/v1"\n'
            'auth = [{ alias = "primary", value = "k" }]\n[providers.up.models.m]\n[providers.up.models.n]\n'
            '[routing]\ndefault = ["up.m", "up.n"]\n'
        )
        await done(port, "routing", {"disable": ["up.m"]})
        plan = await done(port, "explain", {**ASKED, "config": text})
    assert targets(plan) == ["up.primary.n"]
    assert [row["target"] for row in plan["removed"]] == ["up.primary.m"]


async def test_values_of_the_environment_do_not_reach_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN_VALUE", "very-secret-word")
    text = OTHER + '[models]\nauto = "alone.${HIDDEN_VALUE}"\n'
    async with gateway(tmp_path) as (_, port):
        answer = await post(port, "explain", {**ASKED, "config": text})
    assert "very-secret-word" not in answer.body.decode()
    assert os.environ["HIDDEN_VALUE"] == "very-secret-word"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"request": "req_unknown"}, 404, "unknown_request"),
        ({"request": "req_x", "protocol": "chat", "body": BODY}, 400, "invalid_request"),
        ({"protocol": "chat"}, 400, "invalid_request"),
        ({"body": BODY}, 400, "invalid_request"),
        ({**ASKED, "config": "port = ["}, 400, "invalid_config"),
        ({**ASKED, "config": "[routing]\ndefault = ['nobody.m']"}, 400, "invalid_config"),
        ({**ASKED, "config": "a = " + "[" * 5000}, 400, "invalid_config"),
        ({**ASKED, "config": 5}, 400, "invalid_type"),
    ],
)
async def test_a_wrong_question_is_refused(
    tmp_path: Path, body: dict[str, object], status: int, code: str
) -> None:
    async with gateway(tmp_path) as (_, port):
        answer = await post(port, "explain", body)
    assert refusal(answer)[:2] == (status, code)


async def test_a_request_without_a_kept_plan_cannot_be_explained(tmp_path: Path) -> None:
    async with gateway(tmp_path, more="[console]\ndetail_days = 0\n") as (_, port):
        id = await asked(port)
        answer = await post(port, "explain", {"request": id})
    assert refusal(answer)[:2] == (409, "plan_not_kept")


async def test_an_upstream_is_never_asked(tmp_path: Path) -> None:
    async with Upstream() as up, gateway(tmp_path) as (_, port):
        text = OTHER.replace("127.0.0.1:9", f"127.0.0.1:{up.port}")
        await done(port, "explain", {**ASKED, "config": text})
        assert up.requests == []
