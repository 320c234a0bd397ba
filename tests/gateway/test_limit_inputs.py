"""Limits and nonsense: requests, usage, clocks and files that make no sense neither break nor free them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from routecodex.wire import json
from tests.gateway.limit_gateway import KEY, answering, client, limited
from tests.kit import answers
from tests.kit.raw_client import call
from tests.kit.steps import Json

HUGE = [10**15, 2**63, 10**30]
LEDGER = '[usage]\nfile = "usage.sqlite"\n'
SHADOW = 'limits = [{ limit = "$5/day", mode = "shadow" }, { limit = "90k tokens/60s", mode = "shadow" }]'


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))


@pytest.mark.parametrize("reserve", ["typical", "max"])
async def test_a_request_for_absurdly_many_tokens_is_refused_or_counts_what_it_used(reserve: str) -> None:
    more = f'[usage]\nreserve = "{reserve}"\n'
    async with limited(client("laptop", SHADOW), more=more) as gateway:
        for most in HUGE:
            gateway.bodies["max_tokens"] = most
            assert (await gateway.ask()).status == 200
        assert gateway.used() == [0.09, 90]
    async with limited(client("ci", 'limits = ["$5/day"]'), more='[usage]\nreserve = "max"\n') as gateway:
        gateway.bodies["max_tokens"] = 10**30
        refused = await gateway.ask(key={"authorization": "Bearer key-ci"})
        assert (refused.status, gateway.used("ci")) == (429, [0])


def reporting(usage: Any) -> Json:
    canned = answers.text("chat", "hi", False)
    return Json(200, {**json.decode(canned.data), "usage": usage})


async def test_usage_that_is_absurdly_large_uses_the_limit_up_and_does_not_wrap_around() -> None:
    most = 10**12
    rows = client("laptop", 'limits = ["$5/day", "9k tokens/60s", "9 requests/day"]')
    # At the highest price that can be configured one such answer costs more than a counter can hold.
    price = "price = { input = 100000, output = 100000 }\n"
    shadow = rows.replace('"$5/day"', '{ limit = "$5/day", mode = "shadow" }').replace(
        '"9k tokens/60s"', '{ limit = "9k tokens/60s", mode = "shadow" }'
    )
    async with limited(shadow, model=price) as gateway:
        gateway.upstream.answer_with(
            lambda _: reporting({"prompt_tokens": most, "completion_tokens": most, "total_tokens": 2 * most})
        )
        for _ in range(3):
            assert (await gateway.ask()).status == 200
        money, tokens, requests = gateway.figures()
        assert (money["used"] > 10**9, tokens["used"], requests["used"]) == (True, 6 * most, 3)
        assert (await gateway.ask()).status == 200
        assert gateway.figures()[0]["used"] == money["used"]


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5, "completion_tokens": -9, "total_tokens": -14},
        {"prompt_tokens": "many", "completion_tokens": [], "total_tokens": {}},
        {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 7}},
        {"prompt_tokens": 1e308, "completion_tokens": 10**40},
        "nonsense",
        None,
    ],
    ids=["negative", "types", "cached", "huge", "text", "none"],
)
async def test_usage_that_makes_no_sense_frees_nothing(usage: Any) -> None:
    rows = ["$5/day", "90k tokens/60s", "90k uncached/day", "9 requests/day"]
    async with limited(client("laptop", f"limits = {rows}")) as gateway:
        assert (await gateway.ask()).status == 200
        before = gateway.used()
        gateway.upstream.answer_with(lambda _: reporting(usage))
        assert (await gateway.ask()).status == 200
        after = gateway.used()
    assert before == [0.03, 30, 30, 1]
    assert all(new >= old for new, old in zip(after, before, strict=True))
    assert (after[3], after[0] < 1) == (2, True)


async def test_a_deleted_or_damaged_file_of_counters_is_made_again_from_the_ledger(tmp_path: Path) -> None:
    rows = client("laptop", 'limits = ["3 requests/day"]')
    for damage in ("delete", "overwrite"):
        async with limited(rows, more=LEDGER) as gateway:
            await gateway.ask()
            [file] = (tmp_path / "usage").glob("*.limits")
        if damage == "delete":
            file.unlink()
        else:
            file.write_bytes(os.urandom(5000))
    async with limited(rows, more=LEDGER) as gateway:
        assert gateway.used() == [2]
        assert [(await gateway.ask()).status for _ in range(2)] == [200, 429]


async def test_a_file_of_counters_that_vanishes_while_the_gateway_runs_is_replaced(tmp_path: Path) -> None:
    async with limited(client("laptop", 'limits = ["9 requests/day"]'), more=LEDGER) as gateway:
        await gateway.ask()
        [file] = (tmp_path / "usage").glob("*.limits")
        file.unlink()
        gateway.gateway.service.gateway.limiter.counters.beat()
        assert (await gateway.ask()).status == 200
        assert file.exists()
        [used] = gateway.used()
    # The ledger knows of the first one a moment after its answer.
    assert used in (1, 2)


async def test_an_answer_without_usage_is_estimated_and_counted() -> None:
    async with limited(client("laptop", 'limits = ["90k tokens/day"]')) as gateway:
        gateway.upstream.answer_with(lambda _: reporting(None))
        await gateway.ask(text="How are you today?")
        [tokens] = gateway.used()
    assert 0 < tokens < 100


async def test_the_same_text_twice_is_one_limit_with_two_counters() -> None:
    async with limited(client("laptop", 'limits = ["2 requests/day", "2 requests/day"]')) as gateway:
        statuses = [(await gateway.ask()).status for _ in range(3)]
        assert (statuses, gateway.used()) == ([200, 200, 429], [2, 2])


async def test_a_client_and_a_team_of_the_same_name_count_apart() -> None:
    rows = '[teams.laptop]\nlimits = ["9 requests/day"]\n' + client(
        "laptop", 'team = "laptop"\nlimits = ["9 requests/day"]'
    )
    other = client("ci", 'team = "laptop"')
    async with limited(rows + other) as gateway:
        await gateway.ask()
        await gateway.ask(key={"authorization": "Bearer key-ci"})
        assert gateway.used() == [1, 2]


async def test_a_wrong_key_is_not_counted_and_shows_no_limits() -> None:
    async with limited(client("laptop", 'limits = ["9 requests/day"]')) as gateway:
        body = gateway.body()
        wrong = await call(
            gateway.gateway.port, "/v1/chat/completions", body, headers={"authorization": "Bearer nobody"}
        )
        assert gateway.used() == [0]
    assert (wrong.status, wrong.json["code"]) == (401, "invalid_api_key")
    assert not [name for name in wrong.headers if "ratelimit" in name]


async def test_a_streamed_answer_of_another_protocol_counts_the_same() -> None:
    rows = client("laptop", 'limits = ["$5/day", "90k tokens/day"]')
    async with limited(rows, protocol="messages", upstream_protocol="chat") as gateway:
        gateway.upstream.answer_with(answering("chat"))
        assert (await gateway.ask(stream=True, key=KEY)).status == 200
        assert gateway.used() == [0.03, 30]
