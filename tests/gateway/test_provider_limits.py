"""Rate-limit headers of providers: keys rest before their 429, and clients of the same protocol get them."""

from __future__ import annotations

from pathlib import Path

import pytest

from routecodex.wire import json
from tests.gateway.limit_gateway import KEY, OTHER_KEY, answering, client, limited
from tests.kit import answers
from tests.kit.gateway import serving
from tests.kit.raw_client import call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream

streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
LEFT = {
    "x-ratelimit-limit-requests": "100",
    "x-ratelimit-remaining-requests": "50",
    "x-ratelimit-reset-requests": "20s",
    "x-ratelimit-limit-tokens": "1000",
    "x-ratelimit-remaining-tokens": "900",
    "x-ratelimit-reset-tokens": "20s",
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))


def with_headers(request: Request, headers: dict[str, str]) -> Json | Sse:
    canned = answering("chat")(request)
    if isinstance(canned, Sse):
        return Sse(canned.frames, headers=headers)
    return Json(200, json.decode(canned.data), headers)


def limits_in(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if "ratelimit" in name}


@streams
async def test_a_client_gets_the_providers_headers_of_kinds_that_it_has_no_limit_of(stream: bool) -> None:
    rows = client("laptop", 'limits = ["7 requests/day"]') + client("ci", "")
    async with limited(rows) as gateway:
        gateway.upstream.answer_with(lambda request: with_headers(request, LEFT))
        own = await gateway.ask(stream=stream, key=KEY)
        unlimited = await gateway.ask(stream=stream, key=OTHER_KEY)
    assert limits_in(unlimited.headers) == LEFT
    found = limits_in(own.headers)
    assert found.pop("x-ratelimit-reset-requests") != "20s"
    assert found == {
        "x-ratelimit-limit-requests": "7",
        "x-ratelimit-remaining-requests": "6",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "900",
        "x-ratelimit-reset-tokens": "20s",
    }


@streams
async def test_a_client_of_another_protocol_does_not_get_them(stream: bool) -> None:
    async with limited(client("laptop", ""), protocol="messages", upstream_protocol="chat") as gateway:
        gateway.upstream.answer_with(lambda request: with_headers(request, LEFT))
        answer = await gateway.ask(stream=stream)
    assert (answer.status, limits_in(answer.headers)) == (200, {})


def two_keys(upstream: Upstream) -> str:
    keys = 'auth = [{ alias = "a", value = "key-a" }, { alias = "b", value = "key-b" }]'
    return (
        f"[server]\nport = 0\n[routing_options]\naffinity = false\nmax_wait_ms = 0\n[providers.up]\n"
        f'protocol = "chat"\nbase_url = "http://127.0.0.1:{upstream.port}/v1"\n{keys}\n'
        f'[providers.up.models.m]\n[routing]\ndefault = ["up.m"]\n'
    )


async def used_keys(left: dict[str, str]) -> list[str]:
    """Return the keys that six requests use, if the provider says this of key `a`."""

    def answer(request: Request) -> Json | Sse:
        scarce = request.headers["authorization"] == "Bearer key-a"
        return with_headers(request, left if scarce else LEFT)

    body = {"model": "up.m", "messages": [{"role": "user", "content": "x"}]}
    async with Upstream(answer) as upstream, serving(two_keys(upstream)) as gateway:
        for _ in range(6):
            assert (await call(gateway.port, "/v1/chat/completions", body)).status == 200
    return [request.headers["authorization"].removeprefix("Bearer key-") for request in upstream.requests]


async def test_a_key_without_any_left_rests_before_its_429() -> None:
    left = {**LEFT, "x-ratelimit-remaining-tokens": "0"}
    assert (await used_keys(left)).count("a") == 1


async def test_a_scarce_key_comes_after_one_with_more_left() -> None:
    left = {**LEFT, "x-ratelimit-remaining-tokens": "100"}
    assert (await used_keys(left)).count("a") == 1


async def test_keys_with_enough_left_take_turns() -> None:
    assert (await used_keys(LEFT)).count("a") == 3


async def test_a_resting_key_is_shown_with_its_reason() -> None:
    left = {**LEFT, "x-ratelimit-remaining-requests": "0"}
    body = {"model": "up.m", "messages": [{"role": "user", "content": "x"}]}
    async with (
        Upstream(lambda request: with_headers(request, left)) as upstream,
        serving(two_keys(upstream)) as gateway,
    ):
        found = [await call(gateway.port, "/v1/chat/completions", body) for _ in range(3)]
    assert [answer.status for answer in found] == [200, 200, 429]
    assert "the provider says that no requests are left" in found[2].json["error"]["message"]
    assert 15 <= int(found[2].headers["retry-after"]) <= 20


async def test_headers_of_an_error_are_not_passed_on() -> None:
    async with limited(client("laptop", "")) as gateway:
        gateway.upstream.answer_with(lambda _: Json(400, json.decode(answers.error("chat", 400).data), LEFT))
        answer = await gateway.ask()
    assert (answer.status, limits_in(answer.headers)) == (400, {})
