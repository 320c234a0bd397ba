"""Rules of limits: wait, another route, shadow, models, prices that are not known, counters that are down."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.gateway.limit_gateway import COST, KEY, OTHER_KEY, answering, client, limited
from tests.kit import answers
from tests.kit.gateway import provider, serving
from tests.kit.raw_client import call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Upstream

streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))


@streams
async def test_wait_holds_a_request_until_the_window_frees(stream: bool) -> None:
    rows = 'limits = [{ limit = "1 requests/1s", on_exceeded = "wait" }]'
    async with limited(client("laptop", rows), more="[routing_options]\nmax_wait_ms = 5000\n") as gateway:
        loop = asyncio.get_running_loop()
        await gateway.ask(stream=stream)
        began = loop.time()
        answer = await gateway.ask(stream=stream)
        waited = loop.time() - began
    assert answer.status == 200
    assert waited >= 0.9


async def test_wait_refuses_at_once_if_the_window_frees_too_late() -> None:
    rows = 'limits = [{ limit = "1 requests/day", on_exceeded = "wait" }]'
    async with limited(client("laptop", rows), more="[routing_options]\nmax_wait_ms = 5000\n") as gateway:
        await gateway.ask()
        assert (await gateway.ask()).status == 429


async def test_wait_holds_a_request_until_a_running_one_has_settled() -> None:
    rows = 'limits = [{ limit = "140 tokens/day", on_exceeded = "wait" }]'
    more = '[usage]\nreserve = "max"\n[routing_options]\nmax_wait_ms = 20000\n'
    async with limited(client("laptop", rows), more=more) as gateway:
        gateway.bodies["max_tokens"] = 40
        release = asyncio.Event()
        canned = answers.text("chat", "hi", True)
        assert isinstance(canned, Sse)
        gateway.upstream.answer_with(lambda _: Sse(canned.frames, pace={0: release}))
        first = await gateway.begin(stream=True)
        while not gateway.upstream.requests:
            await asyncio.sleep(0.01)
        second = asyncio.ensure_future(gateway.ask(stream=True))
        await asyncio.sleep(0.2)
        assert len(gateway.upstream.requests) == 1
        release.set()
        await first.rest()
        await first.close()
        assert (await second).status == 200
        assert gateway.used() == [60]


@streams
async def test_a_used_limit_sends_requests_to_its_route_and_goes_on_counting(stream: bool) -> None:
    rows = 'limits = [{ limit = "1 requests/day", on_exceeded = "route:cheap" }]'
    async with Upstream(answering("chat", "dear")) as dear, Upstream(answering("chat", "cheap")) as cheap:
        text = (
            "[server]\nport = 0\n"
            + client("laptop", rows)
            + provider("up", "chat", dear)
            + provider("low", "chat", cheap)
            + '[routing]\ndefault = ["up.m"]\ncheap = ["low.m"]\n'
        )
        async with serving(text) as gateway:
            body = {"model": "up.m", "messages": [{"role": "user", "content": "x"}], "stream": stream}
            for _ in range(3):
                answer = await call(gateway.port, "/v1/chat/completions", body, headers=KEY)
                assert answer.status == 200
            used = gateway.service.gateway.limiter.use.of_client(
                gateway.service.gateway.clients.table.clients["laptop"]
            )[0].used
    assert (len(dear.requests), len(cheap.requests), used) == (1, 2, 3)
    assert answer.headers["x-routecodex-route"] == "cheap"
    assert answer.headers["x-routecodex-reason"] == "a limit is used and names route cheap"


async def test_a_used_limit_whose_route_fails_says_why_it_failed() -> None:
    rows = 'limits = [{ limit = "1 requests/day", on_exceeded = "route:cheap" }]'
    more = "[routing_options]\nmax_wait_ms = 0\n"
    async with Upstream(answering("chat")) as dear, Upstream(lambda _: Json(401, {})) as cheap:
        text = (
            "[server]\nport = 0\n"
            + more
            + client("laptop", rows)
            + provider("up", "chat", dear)
            + provider("low", "chat", cheap)
            + '[routing]\ndefault = ["up.m"]\ncheap = ["low.m"]\n'
        )
        async with serving(text) as gateway:
            body = {"model": "up.m", "messages": [{"role": "user", "content": "x"}]}
            statuses = [
                (await call(gateway.port, "/v1/chat/completions", body, headers=KEY)).status for _ in range(3)
            ]
    assert statuses == [200, 424, 424]


async def test_shadow_counts_and_logs_and_never_refuses(caplog: pytest.LogCaptureFixture) -> None:
    rows = 'limits = [{ limit = "2 requests/day", mode = "shadow" }]'
    with caplog.at_level(logging.WARNING, logger="routecodex.limits"):
        async with limited(client("laptop", rows)) as gateway:
            found = [await gateway.ask() for _ in range(4)]
            assert gateway.used() == [4]
    assert [answer.status for answer in found] == [200] * 4
    assert "x-ratelimit-limit-requests" not in found[0].headers
    logged = [record.getMessage().partition(": ")[0] for record in caplog.records]
    assert logged == ["a limit is nearly used", "a limit has no room for a request"]


def two_models(clients: str, first: Upstream, second: Upstream, *, more: str = "") -> str:
    return (
        f"[server]\nport = 0\n{more}{clients}"
        + provider("opus", "chat", first)
        + provider("sonnet", "chat", second)
        + '[routing]\ndefault = [{ id = "all", targets = ["opus.m", "sonnet.m"], mode = "priority" }]\n'
    )


async def test_a_limit_on_models_skips_their_targets_and_others_serve() -> None:
    rows = 'limits = [{ limit = "1 requests/day", models = ["opus.*"] }, "5 requests/day"]'
    body = {"model": "auto", "messages": [{"role": "user", "content": "x"}]}
    async with (
        Upstream(answering("chat")) as opus,
        Upstream(answering("chat")) as sonnet,
        serving(two_models(client("laptop", rows), opus, sonnet)) as gateway,
    ):
        answer = None
        for _ in range(3):
            answer = await call(gateway.port, "/v1/chat/completions", body, headers=KEY)
            assert answer.status == 200
        named = await call(gateway.port, "/v1/chat/completions", {**body, "model": "opus.m"}, headers=KEY)
    assert (len(opus.requests), len(sonnet.requests)) == (1, 2)
    assert answer is not None
    notice = "opus.primary.m skipped: client laptop 1 requests/day for opus.* is used"
    assert notice in answer.headers["x-routecodex-notice"]
    assert (named.status, named.json["code"]) == (429, "budget_exceeded")
    assert named.json["details"]["limit"] == "1 requests/day"
    assert "'laptop' is at its limit of 1 requests/day for opus.*: 1 used" in named.json["error"]["message"]
    assert named.headers["x-ratelimit-limit-requests"] == "1"


async def test_a_limit_on_models_may_name_a_route_too() -> None:
    rows = 'limits = [{ limit = "1 requests/day", models = ["opus.*"], on_exceeded = "route:cheap" }]'
    body = {"model": "auto", "messages": [{"role": "user", "content": "x"}]}
    async with (
        Upstream(answering("chat")) as opus,
        Upstream(answering("chat")) as sonnet,
        Upstream(answering("chat")) as cheap,
    ):
        text = two_models(client("laptop", rows), opus, sonnet)
        text = text.replace("[routing]\n", provider("low", "chat", cheap) + '[routing]\ncheap = ["low.m"]\n')
        async with serving(text) as gateway:
            for _ in range(3):
                answer = await call(gateway.port, "/v1/chat/completions", body, headers=KEY)
                assert answer.status == 200
    assert [len(one.requests) for one in (opus, sonnet, cheap)] == [1, 0, 2]


async def test_a_limit_on_models_may_be_waited_for() -> None:
    rows = 'limits = [{ limit = "1 requests/1s", models = ["opus.*"], on_exceeded = "wait" }]'
    body = {"model": "auto", "messages": [{"role": "user", "content": "x"}]}
    more = "[routing_options]\nmax_wait_ms = 30000\n"
    async with (
        Upstream(answering("chat")) as opus,
        Upstream(answering("chat")) as sonnet,
        serving(two_models(client("laptop", rows), opus, sonnet, more=more)) as gateway,
    ):
        for _ in range(2):
            answer = await call(gateway.port, "/v1/chat/completions", body, headers=KEY)
            assert answer.status == 200
    assert (len(opus.requests), len(sonnet.requests)) == (2, 0)


async def test_a_limit_on_models_counts_where_each_attempt_went() -> None:
    by_model = ", ".join(
        f'{{ limit = "9 requests/day", models = ["{name}.*"] }}' for name in ("opus", "sonnet")
    )
    rows = f'limits = [{by_model}, "9k tokens/day"]'
    body = {"model": "auto", "messages": [{"role": "user", "content": "x"}]}
    async with (
        Upstream(lambda _: Json(500, {})) as opus,
        Upstream(answering("chat")) as sonnet,
        serving(two_models(client("laptop", rows), opus, sonnet)) as gateway,
    ):
        assert (await call(gateway.port, "/v1/chat/completions", body, headers=KEY)).status == 200
        inner = gateway.service.gateway
        figures = inner.limiter.use.of_client(inner.clients.table.clients["laptop"])
    assert [(row.used, row.reserved) for row in figures] == [(1, 0), (1, 0), (30, 0)]


async def test_a_target_without_a_price_is_skipped_for_a_money_limit() -> None:
    async with Upstream(answering("chat")) as opus, Upstream(answering("chat")) as sonnet:
        text = two_models(client("laptop", 'limits = ["$5/day"]') + client("ci", ""), opus, sonnet)
        text = text.replace("[providers.sonnet.models.m]", '[providers.sonnet.models.m]\nprice = "free"')
        body = {"model": "auto", "messages": [{"role": "user", "content": "x"}]}
        async with serving(text) as gateway:
            answer = await call(gateway.port, "/v1/chat/completions", body, headers=KEY)
            await call(gateway.port, "/v1/chat/completions", body, headers=OTHER_KEY)
            named = await call(gateway.port, "/v1/chat/completions", {**body, "model": "opus.m"}, headers=KEY)
    assert (answer.status, len(opus.requests), len(sonnet.requests)) == (200, 1, 1)
    assert "opus.primary.m skipped: no price" in answer.headers["x-routecodex-notice"]
    assert (named.status, named.json["code"]) == (403, "price_unknown")
    assert named.headers["x-should-retry"] == "false"
    assert named.json["error"]["message"] == (
        "no price is known for opus.m, and the client has a money limit; "
        "set providers.opus.models.'m'.price, or usage.unknown_price = \"allow\""
    )


async def test_unknown_prices_can_pass_uncounted() -> None:
    more = '[usage]\nunknown_price = "allow"\n'
    rows = client("laptop", 'limits = ["$5/day", "9 requests/day"]')
    async with limited(rows, model="", more=more) as gateway:
        assert (await gateway.ask()).status == 200
        assert gateway.used() == [0, 1]


@pytest.mark.parametrize(("rule", "status"), [("refuse", 503), ("allow", 200)])
async def test_limits_that_cannot_be_counted_refuse_or_pass_as_configured(
    rule: str, status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "usage").write_text("in the way")
    rows = client("laptop", 'limits = ["5 requests/day"]') + client("ci", "")
    async with limited(rows, more=f'[usage]\nenabled = false\non_store_down = "{rule}"\n') as gateway:
        answer = await gateway.ask()
        assert (await gateway.ask(key=OTHER_KEY)).status == 200
        await gateway.ask()
        (tmp_path / "usage").unlink()
        assert (await gateway.ask()).status == 200
        assert gateway.used() == [1]
    assert answer.status == status
    if status == 503:
        assert answer.json["code"] == "store_unavailable"
        # Files of the gateway are not the client's business.
        assert str(tmp_path) not in answer.body.decode()
        assert answer.json["error"]["message"] == (
            "the limits of this client cannot be counted now; the log of the gateway has the reason"
        )
    (logged,) = [row.getMessage() for row in caplog.records if "cannot be counted" in row.getMessage()]
    effect = "are refused" if status == 503 else "pass uncounted"
    assert logged.startswith(f"limits cannot be counted, requests of limited clients {effect}: {tmp_path}")


async def test_past_the_warning_answers_have_a_notice_and_one_webhook_is_sent() -> None:
    received = asyncio.Event()

    def take(_: object) -> Json:
        if len(hook.requests) == 2:
            received.set()
        return Json(200, {})

    async with Upstream(take) as hook:
        more = f'[usage]\nwebhook = "http://127.0.0.1:{hook.port}/limits?x=1"\n'
        rows = 'limits = [{ limit = "4 requests/day", warn_at = 0.5 }]'
        async with limited(client("laptop", rows), more=more) as gateway:
            found = [await gateway.ask() for _ in range(6)]
            await asyncio.wait_for(received.wait(), 20)
    notices = [answer.headers.get("x-routecodex-notice", "") for answer in found]
    assert notices == [
        "",
        *(f"client laptop 4 requests/day: {used} of 4 used" for used in (2, 3, 4, 4, 4)),
    ]
    assert [request.path for request in hook.requests] == ["/limits?x=1"] * 2
    bodies = [request.json for request in hook.requests]
    assert [body["event"] for body in bodies] == ["limit_warn", "limit_exceeded"]
    assert {name: bodies[0][name] for name in ("owner", "limit", "used", "max")} == {
        "owner": "client:laptop",
        "limit": "4 requests/day",
        "used": 2,
        "max": 4,
    }
    assert set(bodies[0]) == {"event", "server", "owner", "limit", "used", "max", "resets_at"}


async def test_a_known_limit_of_a_key_skips_it_like_a_cooling_one() -> None:
    async with Upstream(answering("chat")) as upstream:
        keys = (
            'auth = [{ alias = "a", value = "key-a", rpm = 1 }, '
            '{ alias = "b", value = "key-b", rpm = 1, concurrent = 5 }]\n'
        )
        text = (
            '[server]\nport = 0\n[routing_options]\nmax_wait_ms = 0\n[providers.up]\nprotocol = "chat"\n'
            f'base_url = "http://127.0.0.1:{upstream.port}/v1"\n{keys}[providers.up.models.m]\n'
            '[routing]\ndefault = ["up.m"]\n'
        )
        body = {"model": "up.m", "messages": [{"role": "user", "content": "x"}]}
        async with serving(text) as gateway:
            found = [await call(gateway.port, "/v1/chat/completions", body) for _ in range(3)]
    assert [answer.status for answer in found] == [200, 200, 429]
    assert {request.headers["authorization"] for request in upstream.requests} == {
        "Bearer key-a",
        "Bearer key-b",
    }
    assert found[2].json["code"] == "rate_limit_exceeded"
    assert "key up.a 1 requests/60s is used" in found[2].json["error"]["message"]
    assert "x-ratelimit-limit-requests" not in found[0].headers


async def test_running_requests_survive_a_reload_of_the_configuration() -> None:
    async with limited(client("laptop", 'concurrent = 2\nlimits = ["$5/day"]')) as gateway:
        await gateway.ask()
        inner = gateway.gateway.service.gateway
        inner.reconfigured(inner.config)
        assert gateway.used() == [COST]
