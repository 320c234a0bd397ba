"""Limits over HTTP: what they count, how they refuse, and the headers of every answer."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.limit_gateway import COST, KEY, OTHER_KEY, answering, client, limited
from tests.kit import answers, asking
from tests.kit.raw_client import call
from tests.kit.steps import Hang, Json, Send, Sse, Steps

PROTOCOLS = ("chat", "responses", "messages", "gemini")
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))


def tomorrow() -> str:
    day = datetime.now(UTC).date() + timedelta(days=1)
    return f"{day.isoformat()}T00:00:00Z"


@protocols
@streams
async def test_every_unit_counts_what_the_provider_reported(protocol: str, stream: bool) -> None:
    rows = [
        "$5/day",
        "9 requests/day",
        "10k tokens/day",
        "10k input/day",
        "10k output/day",
        "10k uncached/day",
    ]
    async with limited(client("laptop", f"limits = {rows}"), protocol=protocol) as gateway:
        gateway.upstream.answer_with(answering(protocol, counts=answers.Counts(cached=5)))
        asking.check(protocol, await gateway.ask(stream=stream), stream=stream)
        assert gateway.used() == [COST, 1, 30, 21, 9, 25]


@protocols
@streams
async def test_a_used_budget_refuses_with_the_envelope_of_the_protocol(protocol: str, stream: bool) -> None:
    async with limited(client("laptop", 'limits = ["1 requests/day"]'), protocol=protocol) as gateway:
        assert (await gateway.ask(stream=stream)).status == 200
        refused = await gateway.ask(stream=stream)
        assert len(gateway.upstream.requests) == 1
        assert gateway.used() == [1]
    assert refused.status == 429
    body = refused.json
    message = f"client 'laptop' is at its limit of 1 requests/day: 1 used; it resets at {tomorrow()}"
    errors = {
        "chat": {
            "message": message,
            "type": "insufficient_quota",
            "param": None,
            "code": "insufficient_quota",
        },
        "responses": {
            "message": message,
            "type": "usage_limit_reached",
            "param": None,
            "code": "insufficient_quota",
            "resets_at": int(datetime.fromisoformat(tomorrow()).timestamp()),
        },
        "messages": {"type": "rate_limit_error", "message": message},
        "gemini": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED"},
    }
    body["error"].pop("details", None)
    assert body["error"] == errors[protocol]
    assert body["code"] == "budget_exceeded"
    assert body["details"] == {
        "owner": "client:laptop",
        "limit": "1 requests/day",
        "unit": "requests",
        "used": 1,
        "max": 1,
        "resets_at": tomorrow(),
    }
    assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("60", "false")
    assert refused.headers.get("x-codex-promo-message") == (message if protocol == "responses" else None)


@pytest.mark.parametrize(
    ("limit", "kind"),
    [("1 requests/60s", "requests"), ("31 tokens/60s", "tokens")],
    ids=["requests", "tokens"],
)
async def test_a_used_rate_refuses_until_its_oldest_use_leaves(limit: str, kind: str) -> None:
    async with limited(client("laptop", f'limits = ["{limit}"]')) as gateway:
        gateway.bodies["max_tokens"] = 1
        assert (await gateway.ask(text="")).status == 200
        refused = await gateway.ask(text="")
    assert refused.status == 429
    assert refused.json["code"] == "rate_limit_exceeded"
    assert (refused.json["error"]["type"], refused.json["error"]["code"]) == (kind, "rate_limit_exceeded")
    assert 59 <= int(refused.headers["retry-after"]) <= 60


async def test_requests_at_the_same_time_are_limited() -> None:
    async with limited(client("laptop", "concurrent = 1")) as gateway:
        going_on = asyncio.Event()
        canned = answers.text("chat", "hi", True)
        assert isinstance(canned, Sse)
        gateway.upstream.answer_with(lambda _: Sse(canned.frames, pace={2: going_on}))
        first = await gateway.begin(stream=True)
        await first.head()
        refused = await gateway.ask(stream=True)
        going_on.set()
        await first.rest()
        await first.close()
        assert (await gateway.ask(stream=True)).status == 200
    assert refused.status == 429
    assert refused.json["code"] == "concurrency_exceeded"
    assert refused.json["details"] == {
        "owner": "client:laptop",
        "limit": "1 concurrent",
        "unit": "concurrent",
        "used": 1,
        "max": 1,
        "resets_at": None,
    }
    assert refused.headers["retry-after"] == "1"
    assert "x-should-retry" not in refused.headers
    assert (
        refused.json["error"]["message"]
        == "client 'laptop' is at its limit of 1 concurrent: 1 request is running"
    )


@streams
async def test_a_client_that_asks_one_after_the_other_is_never_refused(stream: bool) -> None:
    async with limited(client("laptop", "concurrent = 1")) as gateway:
        for _ in range(20):
            assert (await gateway.ask(stream=stream)).status == 200


async def test_members_of_a_team_share_its_budget() -> None:
    team = '[teams.core]\nlimits = ["3 requests/day"]\n'
    members = client("laptop", 'team = "core"\nlimits = ["2 requests/day"]') + client("ci", 'team = "core"')
    async with limited(team + members) as gateway:
        statuses = [(await gateway.ask(key=key)).status for key in (KEY, KEY, KEY, OTHER_KEY, OTHER_KEY)]
        refused = await gateway.ask(key=OTHER_KEY)
        assert gateway.used() == [2, 3]
    assert statuses == [200, 200, 429, 200, 429]
    assert refused.json["details"]["owner"] == "team:core"


@streams
async def test_headers_of_openai_clients_show_the_tightest_limit_of_each_kind(stream: bool) -> None:
    rows = ["100 requests/day", "60 requests/60s", "10k tokens/60s", "$20/day", "$1/hour"]
    async with limited(client("laptop", f"limits = {rows}")) as gateway:
        gateway.bodies["max_tokens"] = 20
        answer = await gateway.ask(stream=stream)
        used = await gateway.ask(stream=stream)
    headers = answer.headers
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert headers["x-ratelimit-remaining-requests"] == "59"
    assert re.fullmatch(r"1m[01]s", headers["x-ratelimit-reset-requests"])
    assert headers["x-ratelimit-limit-tokens"] == "10000"
    if not stream:
        assert headers["x-ratelimit-remaining-tokens"] == "9970"
        hour = r"\$1/hour; used=0\.03; remaining=0\.97; resets=20..-..-..T..:00:00Z"
        assert re.fullmatch(hour, headers["x-routecodex-budget"])
    assert used.headers["x-ratelimit-remaining-requests"] == "58"
    assert not [name for name in headers if name.startswith("anthropic-")]


@streams
async def test_headers_of_messages_clients_are_those_of_anthropic(stream: bool) -> None:
    rows = ["60 requests/hour", "10k tokens/60s", "20k input/60s", "30k output/day"]
    async with limited(client("laptop", f"limits = {rows}"), protocol="messages") as gateway:
        headers = (await gateway.ask(stream=stream)).headers
    found = {name: value for name, value in headers.items() if name.startswith("anthropic-ratelimit-")}
    resets = {name: value for name, value in found.items() if name.endswith("-reset")}
    assert {name: value for name, value in found.items() if name.endswith("-limit")} == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-tokens-limit": "10000",
        "anthropic-ratelimit-input-tokens-limit": "20000",
        "anthropic-ratelimit-output-tokens-limit": "30000",
    }
    assert found["anthropic-ratelimit-requests-remaining"] == "59"
    assert len(resets) == 4
    assert all(re.fullmatch(r"20..-..-..T..:..:..Z", value) for value in resets.values())
    assert resets["anthropic-ratelimit-output-tokens-reset"] == tomorrow()
    assert not [name for name in headers if name.startswith("x-ratelimit-")]


async def test_refusals_and_errors_have_the_headers_of_limits() -> None:
    async with limited(client("laptop", 'limits = ["2 requests/day"]')) as gateway:
        gateway.upstream.answer_with(lambda _: answers.error("chat", 400))
        failed = await gateway.ask()
        gateway.upstream.answer_with(answering("chat"))
        await gateway.ask()
        refused = await gateway.ask()
    assert (failed.status, failed.headers["x-ratelimit-remaining-requests"]) == (400, "1")
    assert (refused.status, refused.headers["x-ratelimit-remaining-requests"]) == (429, "0")


async def test_clients_without_limits_have_no_headers_of_limits() -> None:
    async with limited(client("laptop", 'limits = ["2 requests/day"]') + client("ci", "")) as gateway:
        headers = (await gateway.ask(key=OTHER_KEY)).headers
    assert not [name for name in headers if "ratelimit" in name or name == "x-routecodex-budget"]


async def test_what_reaches_no_provider_is_not_counted() -> None:
    async with limited(client("laptop", 'limits = ["9 requests/day"]'), protocol="messages") as gateway:
        port = gateway.gateway.port
        wrong = await call(port, "/v1/messages", {"model": "up.m"}, headers=KEY)
        listed = await call(port, "/v1/models", method="GET", headers=KEY)
        counted = await call(port, "/v1/messages/count_tokens", gateway.body(), headers=KEY)
        status = await gateway.ask(text="<**status**>")
        assert gateway.used() == [0]
    assert (wrong.status, listed.status, status.status) == (400, 200, 200)
    for answer in (wrong, counted, status):
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == "9"
    assert listed.headers["x-ratelimit-remaining-requests"] == "9"


async def test_upstream_failures_count_as_a_request_and_cost_what_they_produced() -> None:
    async with limited(client("laptop", 'limits = ["9 requests/day", "$5/day"]')) as gateway:
        gateway.upstream.answer_with(lambda _: answers.error("chat", 500))
        assert (await gateway.ask()).status == 502
        assert gateway.used() == [1, 0]


async def test_a_stream_that_breaks_is_charged_for_what_was_seen() -> None:
    async with limited(client("laptop", 'limits = ["9 requests/day", "10k tokens/day"]')) as gateway:
        gateway.upstream.answer_with(lambda _: answers.cut_off("chat", "some text of an answer"))
        await gateway.ask(stream=True)
        requests, tokens = gateway.used()
    assert requests == 1
    assert tokens > 5


async def test_a_client_that_leaves_is_charged_for_what_was_seen_and_holds_nothing() -> None:
    rows = 'concurrent = 1\nlimits = ["9 requests/day", "10k tokens/day"]'
    async with limited(client("laptop", rows)) as gateway:
        canned = answers.text("chat", "some text of an answer", True)
        gateway.upstream.answer_with(lambda _: Steps([Send(canned.data[:900]), Hang()]))
        request = await gateway.begin(stream=True)
        await request.head()
        await request.piece()
        await request.leave()
        await gateway.upstream.requests[0].gone.wait()
        gateway.upstream.answer_with(answering("chat"))
        assert (await gateway.ask()).status == 200
        requests, tokens = gateway.used()
    assert requests == 2
    assert tokens > 35


async def test_embeddings_count() -> None:
    async with limited(client("laptop", 'limits = ["1 requests/day", "$5/day"]')) as gateway:
        found = {"object": "list", "data": [], "model": "m", "usage": {"prompt_tokens": 7, "total_tokens": 7}}
        gateway.upstream.answer_with(lambda _: Json(200, found))
        port, body = gateway.gateway.port, {"model": "up.m", "input": "text"}
        answer = await call(port, "/v1/embeddings", body, headers=KEY)
        refused = await call(port, "/v1/embeddings", body, headers=KEY)
        assert gateway.used() == [1, 0.007]
    assert (answer.status, refused.status) == (200, 429)
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.json["code"] == "budget_exceeded"


async def test_requests_without_a_key_have_the_limits_of_the_anonymous_client() -> None:
    rows = '[clients.anonymous]\nlimits = ["1 requests/day"]\n' + client("laptop", "")
    async with limited(rows) as gateway:
        found = [await gateway.ask(key=key) for key in ({}, {}, KEY)]
    assert [answer.status for answer in found] == [200, 429, 200]
    assert found[1].json["details"]["owner"] == "client:anonymous"


async def test_stored_responses_are_read_uncounted_and_show_what_is_left() -> None:
    async with limited(client("laptop", 'limits = ["9 requests/day"]'), protocol="responses") as gateway:
        made = (await gateway.ask()).json["id"]
        port = gateway.gateway.port
        found = [
            await call(port, f"/v1/responses/{made}{rest}", method=method, headers=KEY)
            for method, rest in (("GET", ""), ("GET", "/input_items"), ("DELETE", ""))
        ]
        assert gateway.used() == [1]
    assert [answer.status for answer in found] == [200, 200, 200]
    assert {answer.headers["x-ratelimit-remaining-requests"] for answer in found} == {"8"}


async def test_status_shows_what_is_left() -> None:
    rows = 'team = "core"\nlimits = ["$20/day", "5 requests/60s"]'
    team = '[teams.core]\nlimits = ["$200/month"]\n'
    async with limited(team + client("laptop", rows), protocol="messages") as gateway:
        await gateway.ask()
        text = (await gateway.ask(text="<**status**>")).json["content"][0]["text"]
    lines = [line for line in text.splitlines() if line.startswith("- limit: ")]
    assert lines[0] == f"- limit: client laptop $20/day: $0.0300 used, $19.97 left, resets {tomorrow()}"
    assert lines[1].startswith("- limit: client laptop 5 requests/60s: 1 used, 4 left, resets 20")
    assert lines[2].startswith("- limit: team core $200/month: $0.0300 used, $199.97 left, resets 20")
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("protocol", "fields"),
    [
        ("chat", {"max_tokens": 1000, "n": 5}),
        ("chat", {"max_tokens": 5000}),
        ("gemini", {"generationConfig": {"maxOutputTokens": 1000, "candidateCount": 5}}),
    ],
)
async def test_all_choices_and_all_tokens_that_are_asked_for_are_reserved(
    protocol: str, fields: dict[str, Any]
) -> None:
    # The model is configured for 4096 tokens, but a provider may send what it is asked for.
    rows = client("laptop", 'limits = ["$5/day"]')
    async with limited(rows, protocol=protocol, more='[usage]\nreserve = "max"\n') as gateway:
        gateway.bodies.update(fields)
        refused = await gateway.ask()
        assert gateway.upstream.requests == []
    assert refused.status == 429
    assert re.search(r"this request may need \$5\.\d+, ", refused.json["error"]["message"])
    assert refused.headers["x-should-retry"] == "false"


@protocols
async def test_reservations_of_running_requests_hold_back_others(protocol: str) -> None:
    config = '[usage]\nreserve = "max"\n'
    # Each may need up to 4.1 dollars: a small input, and 4096 tokens of output.
    async with limited(client("laptop", 'limits = ["$5/day"]'), protocol=protocol, more=config) as gateway:
        release = asyncio.Event()
        canned = answers.text(protocol, "hi", True)
        assert isinstance(canned, Sse)
        if protocol == "messages":
            gateway.bodies["max_tokens"] = 4000
        gateway.upstream.answer_with(lambda _: Sse(canned.frames, pace={0: release}))
        first = await gateway.begin(stream=True)
        while not gateway.upstream.requests:
            await asyncio.sleep(0.01)
        refused = await gateway.ask(stream=True)
        release.set()
        await first.rest()
        await first.close()
        assert gateway.used() == [COST]
        assert (await gateway.ask(stream=True)).status == 200
    assert refused.status == 429
    assert re.search(
        r"\$0 used, \$4\.\d+ reserved by running requests, this request may need \$4\.\d+",
        refused.json["error"]["message"],
    )


async def test_a_request_that_needs_more_than_the_whole_limit_is_told_so() -> None:
    more = '[usage]\nreserve = "max"\n'
    async with limited(client("laptop", 'limits = ["100 tokens/day"]'), more=more) as gateway:
        gateway.bodies["max_tokens"] = 5000
        refused = await gateway.ask()
    assert refused.status == 429
    assert refused.headers["x-should-retry"] == "false"
    assert re.fullmatch(
        r"client 'laptop' has a limit of 100 tokens/day: 0 used, this request may need 50\d\d, "
        r"which is more than the whole limit; raise the limit, or send a lower max_tokens",
        refused.json["error"]["message"],
    )
