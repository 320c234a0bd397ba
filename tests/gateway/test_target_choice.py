"""Target selection in a pool over real sockets, by the requests that providers received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from tests.kit import answers, asking
from tests.kit.gateway import Running, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json
from tests.kit.upstream import Request, Upstream

TOKEN = "operator"
TEXT_ANSWER = partial(answers.text, "chat", "hi", False)
NO_WAIT = "max_wait_ms = 0\n"


def config(up: Upstream, routing: str, /, *, options: str = NO_WAIT, **keys: int) -> str:
    """Return a configuration with this many keys (`k1`, `k2`, …) per provider, all at one upstream."""
    text = f'[server]\nport = 0\ndrain_seconds = 1\nadmin_token = "{TOKEN}"\n'
    for name, count in keys.items():
        auth = ", ".join(f'{{ alias = "k{n}", value = "{name}.k{n}" }}' for n in range(1, count + 1))
        text += f'[providers.{name}]\nprotocol = "chat"\nbase_url = "{up.url}/v1"\nauth = [{auth}]\n'
        text += f"[providers.{name}.models.m]\n[providers.{name}.models.big]\ncontext_tokens = 100000\n"
        text += f"[providers.{name}.models.small]\ncontext_tokens = 1000\n"
    return f"{text}[routing_options]\n{options}[routing]\n{routing}\n"


def target_of(request: Request) -> str:
    """Return the provider and key of a request."""
    return request.headers["authorization"].removeprefix("Bearer ")


def reached(up: Upstream) -> list[str]:
    return [target_of(request) for request in up.requests]


def text_upstream() -> Upstream:
    return Upstream(lambda _: TEXT_ANSWER())


def failing(up: Upstream, names: Iterable[str], answer: Json) -> None:
    """Answer with this from now on where one of these keys is used."""
    bad = frozenset(names)
    up.answer_with(lambda request: answer if target_of(request) in bad else TEXT_ANSWER())


LIMITED = answers.error("chat", 429, "slow down", retry_after="300")


async def send(gateway: Running, body: dict[str, Any] | None = None, **headers: str) -> Answer:
    request_body = body or asking.body("chat", stream=False, model="auto")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await call(gateway.port, "/v1/chat/completions", request_body, headers=named)
    assert answer.status == 200, answer.body
    return answer


async def admin(gateway: Running, path: str, body: object) -> Any:
    bearer = {"authorization": f"Bearer {TOKEN}"}
    answer = await call(gateway.port, f"/admin/{path}", body, headers=bearer)
    assert answer.status == 200, answer.body
    return answer.json


async def test_a_plain_list_takes_turns() -> None:
    async with text_upstream() as up:
        text = config(up, 'default = ["one.m", "two.m", "three.m"]', one=1, two=1, three=1)
        async with serving(text) as gateway:
            for _ in range(6):
                await send(gateway)
    assert reached(up) == ["one.k1", "two.k1", "three.k1"] * 2


async def test_weights_are_shares() -> None:
    async with text_upstream() as up:
        pool = '{ targets = ["one.m", "two.m"], weights = { "one.m" = 3, "two.m" = 1 } }'
        async with serving(config(up, f"default = [{pool}]", one=1, two=1)) as gateway:
            for _ in range(40):
                await send(gateway)
    shares = Counter(reached(up))
    assert abs(shares["one.k1"] - 30) <= 1
    assert shares.total() == 40


async def test_priority_stays_with_the_first_that_works() -> None:
    async with text_upstream() as up:
        pool = '{ mode = "priority", targets = ["one.m", "two.m", "three.m"] }'
        async with serving(config(up, f"default = [{pool}]", one=1, two=1, three=1)) as gateway:
            for _ in range(3):
                await send(gateway)
            failing(up, ["one.k1", "two.k1"], LIMITED)
            for _ in range(3):
                await send(gateway)
    assert reached(up) == ["one.k1"] * 3 + ["one.k1", "two.k1"] + ["three.k1"] * 3


async def test_the_last_attempts_go_to_another_provider_when_all_before_failed_at_one() -> None:
    async with text_upstream() as up:
        main, spare = '{ targets = ["one.m"] }', '{ id = "spare", backup = true, targets = ["two.m"] }'
        async with serving(config(up, f"default = [{main}, {spare}]", one=9, two=1)) as gateway:
            failing(up, (f"one.k{n}" for n in range(1, 10)), answers.error("chat", 500, "down"))
            await send(gateway)
    assert reached(up) == ["one.k1", "one.k2", "one.k3", "one.k4", "two.k1"]


async def test_without_another_provider_all_attempts_go_to_the_keys_of_one() -> None:
    async with text_upstream() as up, serving(config(up, 'default = ["one.m"]', one=9)) as gateway:
        failing(up, (f"one.k{n}" for n in range(1, 6)), answers.error("chat", 500, "down"))
        await send(gateway)
    assert reached(up) == [f"one.k{n}" for n in range(1, 7)]


async def test_a_backup_pool_serves_only_while_no_primary_one_can() -> None:
    async with text_upstream() as up:
        main, spare = (
            '{ targets = ["one.m", "two.m"] }',
            '{ id = "spare", backup = true, targets = ["three.m"] }',
        )
        pools = f"{spare}, {main}"
        async with serving(config(up, f"default = [{pools}]", one=1, two=1, three=1)) as gateway:
            for _ in range(4):
                await send(gateway)
            failing(up, ["one.k1", "two.k1"], LIMITED)
            responses = [await send(gateway) for _ in range(3)]
            assert (await admin(gateway, "health/reset", {})) == {"reset": 2}
            failing(up, [], LIMITED)
            await send(gateway)
    assert Counter(reached(up)[:4]) == {"one.k1": 2, "two.k1": 2}
    assert Counter(reached(up)[4:-1]) == {"one.k1": 1, "two.k1": 1, "three.k1": 3}
    assert {one.headers["x-routecodex-target"] for one in responses} == {"three.k1.m"}
    assert reached(up)[-1] != "three.k1"


async def test_a_provider_with_many_keys_gets_no_larger_share() -> None:
    async with text_upstream() as up:
        text = config(up, 'default = ["many.m", "lone.m"]', many=3, lone=1)
        async with serving(text) as gateway:
            for _ in range(12):
                await send(gateway)
    assert Counter(reached(up)) == {"many.k1": 2, "many.k2": 2, "many.k3": 2, "lone.k1": 6}


async def test_reading_the_plan_does_not_advance_the_round_robin() -> None:
    async with text_upstream() as up:
        text = config(up, 'default = ["one.m", "two.m"]', one=1, two=1)
        body = asking.body("messages", stream=False, model="auto")
        async with serving(text) as gateway:
            for _ in range(4):
                explained = await admin(gateway, "explain", {"protocol": "messages", "body": body})
                counted = await call(gateway.port, "/v1/messages/count_tokens", body)
                assert counted.status == 200
                answer = await call(gateway.port, "/v1/messages", body)
                assert explained["steps"][0]["target"] == answer.headers["x-routecodex-target"]
    assert reached(up) == ["one.k1", "two.k1"] * 2


async def test_a_session_leaves_its_key_only_while_the_key_cools_down() -> None:
    async with text_upstream() as up, serving(config(up, 'default = ["up.m"]', up=4)) as gateway:
        for _ in range(5):
            await send(gateway, x_session_id="mine")
        (home,) = set(reached(up))
        failing(up, [home], LIMITED)
        for _ in range(5):
            await send(gateway, x_session_id="mine")
        (spare,) = set(reached(up)[6:])
        failing(up, [], LIMITED)
        await admin(gateway, "health/reset", {"target": home})
        for _ in range(5):
            await send(gateway, x_session_id="mine")
    assert home != spare
    assert reached(up) == [home] * 6 + [spare] * 5 + [home] * 5


async def test_a_cooldown_of_one_key_does_not_move_sessions_of_other_keys() -> None:
    names = [f"session-{number}" for number in range(24)]
    async with text_upstream() as up, serving(config(up, 'default = ["up.m"]', up=4)) as gateway:
        before = {
            name: (await send(gateway, x_session_id=name)).headers["x-routecodex-target"] for name in names
        }
        failing(up, ["up.k2"], LIMITED)
        after = {
            name: (await send(gateway, x_session_id=name)).headers["x-routecodex-target"] for name in names
        }
    assert set(before.values()) == {"up.k1.m", "up.k2.m", "up.k3.m", "up.k4.m"}
    assert "up.k2.m" not in after.values()
    assert {name for name in names if before[name] != after[name]} == {
        name for name in names if before[name] == "up.k2.m"
    }


async def test_sessions_are_spread_by_weight() -> None:
    async with text_upstream() as up:
        pool = '{ targets = ["one.m", "two.m"], weights = { "one.m" = 9, "two.m" = 1 } }'
        async with serving(config(up, f"default = [{pool}]", one=1, two=1)) as gateway:
            for number in range(60):
                await send(gateway, x_session_id=f"session-{number}")
    assert Counter(reached(up)).most_common(1)[0][1] >= 48


def conversation(opening: str, *more: str) -> dict[str, Any]:
    """Return a conversation with earlier turns."""
    messages = [{"role": "user", "content": opening}, {"role": "assistant", "content": "yes?"}]
    messages += [{"role": "user", "content": text} for text in more]
    return {"model": "auto", "messages": messages}


async def test_a_conversation_without_a_session_is_identified_by_its_first_message() -> None:
    async with text_upstream() as up, serving(config(up, 'default = ["up.m"]', up=4)) as gateway:
        for number in range(6):
            await send(gateway, conversation("the first words", f"and then {number}"))
        assert len(set(reached(up))) == 1
        for number in range(24):
            await send(gateway, conversation(f"other words {number}", "and then"))
    assert len(set(reached(up)[6:])) == 4


async def test_without_affinity_a_session_takes_turns() -> None:
    text = "affinity = false\n"
    async with (
        text_upstream() as up,
        serving(config(up, 'default = ["up.m"]', options=text, up=2)) as gateway,
    ):
        for _ in range(4):
            await send(gateway, x_session_id="mine")
    assert reached(up) == ["up.k1", "up.k2", "up.k1", "up.k2"]


LONG = asking.body("chat", "word " * 4000, stream=False, model="auto")


async def test_a_target_that_cannot_hold_the_request_is_skipped_with_the_reason() -> None:
    async with text_upstream() as up:
        pool = '{ mode = "priority", targets = ["one.small", "two.big"] }'
        async with serving(config(up, f"default = [{pool}]", one=1, two=1)) as gateway:
            await send(gateway)
            await send(gateway, LONG)
            explained = await admin(gateway, "explain", {"protocol": "chat", "body": LONG})
    assert reached(up) == ["one.k1", "two.k1"]
    assert [row["target"] for row in explained["steps"]] == ["two.k1.big"]
    assert [(row["target"], row["reason"].partition(",")[0]) for row in explained["removed"]] == [
        ("one.k1.small", "holds 1000 tokens")
    ]


@pytest.mark.parametrize("targets", ['"one.small", "two.small"', '"two.small"'])
async def test_when_all_models_seem_too_small_the_provider_decides(targets: str) -> None:
    async with text_upstream() as up, serving(config(up, f"default = [{targets}]", one=1, two=1)) as gateway:
        await send(gateway, LONG)
    assert len(up.requests) == 1
