"""Calls of a request and what they cost: in the header, the log, the metrics and the usage ledger."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gateway.continuation_gateway import SET_STOP_MESSAGE
from tests.gateway.test_vision_auto import HISTORY, blind, describe_image
from tests.gateway.test_vision_auto import send as send_image
from tests.kit import answers, asking
from tests.kit.answers import Counts
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, begin, call
from tests.kit.steps import CutOff, Hang, Json, Send, Sse, Steps
from tests.kit.upstream import Request, Upstream
from tests.protocols.test_usage import answers as answers_with_usage

PROTOCOLS = ("chat", "responses", "messages", "gemini")
HEAD = "[server]\nport = 0\ndrain_seconds = 1\n"
PRICE = "price = { input = 1, output = 2, cache_read = 0.1, cache_write = 1.25 }\n"
COUNTS = Counts(input=1200, output=60, cached=1000, cache_write=0, reasoning=32)
COST = 0.000_42
"""200 × $1 + 1000 × $0.1 + 60 × $2 per million."""
SESSION = {"x-session-id": "s-1"}
TEXT = "The quick brown fox jumps. " * 40

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
pairs = pytest.mark.parametrize(
    ("client", "upstream"),
    [pytest.param(one, other, id=f"{one}-to-{other}") for one in PROTOCOLS for other in PROTOCOLS],
)


class Gateway:
    """A gateway with a ledger, and what is in it after the gateway has stopped."""

    def __init__(self, running: Running, ledger: Path) -> None:
        self.running = running
        self._ledger = ledger

    @property
    def port(self) -> int:
        return self.running.port

    async def send(self, protocol: str, text: str = "Hello", *, stream: bool, model: str = "up.m") -> Answer:
        body = asking.body(protocol, text, stream=stream, model=model)
        return await call(self.port, asking.path(protocol, stream=stream, model=model), body, headers=SESSION)

    def rows(self, table: str) -> list[dict[str, Any]]:
        connection = sqlite3.connect(self._ledger)
        connection.row_factory = sqlite3.Row
        order = "time" if table == "requests" else "n"
        found = [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY {order}")]
        connection.close()
        return found

    def request(self) -> dict[str, Any]:
        (row,) = self.rows("requests")
        return row

    def calls(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in names) for row in self.rows("calls")]


@contextlib.asynccontextmanager
async def gateway(folder: Path, config: str) -> AsyncIterator[Gateway]:
    """Run a gateway with a ledger in this folder; it is complete after the gateway has stopped."""
    ledger = folder / "usage.sqlite"
    async with serving(f'[usage]\nfile = "{ledger}"\n{config}') as running:
        yield Gateway(running, ledger)


def priced(protocol: str, upstream: Upstream, name: str = "up", price: str = PRICE) -> str:
    return provider(name, protocol, upstream) + price


def one_target(protocol: str, upstream: Upstream, *, price: str = PRICE, more: str = "") -> str:
    return HEAD + more + priced(protocol, upstream, price=price) + '[routing]\ndefault = ["up.m"]\n'


@streaming
@pairs
async def test_every_answer_has_its_cost(tmp_path: Path, client: str, upstream: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(answers.text(upstream, "fine", stream, counts=COUNTS))
        async with gateway(tmp_path, one_target(upstream, up)) as running:
            answer = await running.send(client, stream=stream)
    asking.check(client, answer, stream=stream)
    assert answer.headers.get("x-routecodex-cost") == (None if stream else "0.00042")
    row = running.request()
    assert row["id"] == answer.headers["x-request-id"]
    facts = ("protocol", "stream", "session", "provider", "key", "target_model", "status", "finish", "error")
    assert [row[name] for name in facts] == [
        client, int(stream), "s-1", "up", "primary", "m", 200, "stop", None
    ]  # fmt: skip
    for one in (row, *running.rows("calls")):
        tokens = [
            one[f"{name}_tokens"] for name in ("input", "output", "cache_read", "cache_write", "reasoning")
        ]
        # Messages and Responses do not tell cached from written input in the same way; the sums are the same.
        assert tokens[:3] == [1200, 60, 1000]
        assert (one["cost"], one["cost_kind"]) == (COST, "reported")
    assert running.calls("n", "kind", "provider", "model", "status", "price_source") == [
        (1, "round", "up", "m", 200, "config")
    ]


@streaming
@protocols
async def test_all_rounds_count(tmp_path: Path, protocol: str, stream: bool) -> None:
    def answer(request: Request) -> Json | Sse:
        return answers.text(protocol, "part", answers.wants_stream(request), counts=COUNTS)

    async with Upstream(answer) as up, gateway(tmp_path, one_target(protocol, up)) as running:
        sent = await running.send(protocol, SET_STOP_MESSAGE.format(2), stream=stream)
    assert sent.headers.get("x-routecodex-cost") == (None if stream else "0.00126")
    assert running.calls("n", "kind", "cost", "cost_kind") == [
        (number, "round", COST, "reported") for number in (1, 2, 3)
    ]
    row = running.request()
    assert (row["rounds"], row["input_tokens"], row["output_tokens"]) == (3, 3600, 180)
    assert row["cost"] == pytest.approx(3 * COST)


@streaming
@pairs
async def test_an_empty_answer_that_was_retried_counts(
    tmp_path: Path, client: str, upstream: str, stream: bool
) -> None:
    async with Upstream() as up:
        up.queue(
            answers.compose(upstream, stream=stream, counts=COUNTS),
            answers.text(upstream, "fine", stream, counts=COUNTS),
        )
        async with gateway(tmp_path, one_target(upstream, up)) as running:
            await running.send(client, stream=stream)
    assert running.calls("n", "kind", "cost") == [(1, "attempt", COST), (2, "round", COST)]
    row = running.request()
    assert (row["attempts"], row["rounds"], row["input_tokens"]) == (2, 1, 2400)


async def test_an_attempt_that_reported_tokens_before_it_failed_counts(tmp_path: Path) -> None:
    begun = answers.text("messages", "fine", True, counts=COUNTS)
    assert isinstance(begun, Sse)
    failing = Steps([Send(begun.frames[0]), CutOff()])
    async with Upstream(lambda _: failing) as one, Upstream() as other:
        other.queue(answers.text("messages", "fine", True, counts=COUNTS))
        config = HEAD + priced("messages", one) + priced("messages", other, "second")
        config += '[routing]\ndefault = [{ targets = ["up.m", "second.m"], mode = "priority" }]\n'
        async with gateway(tmp_path, config) as running:
            answer = await running.send("messages", stream=True, model="default")
    asking.check("messages", answer, stream=True)
    first, second = running.rows("calls")
    assert [first[name] for name in ("kind", "provider", "input_tokens", "cost_kind")] == [
        "attempt", "up", 1200, "observed"
    ]  # fmt: skip
    assert (second["kind"], second["provider"], second["cost_kind"]) == ("round", "second", "reported")
    row = running.request()
    assert (row["provider"], row["cost_kind"], row["input_tokens"]) == ("second", "observed", 2400)
    assert row["cost_estimated"] == first["cost"]


@streaming
@protocols
async def test_an_attempt_that_produced_nothing_costs_nothing(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with Upstream() as one, Upstream() as other:
        one.queue(answers.error(protocol, 500))
        other.queue(answers.text(protocol, "fine", stream, counts=COUNTS))
        config = HEAD + priced(protocol, one) + priced(protocol, other, "second")
        config += '[routing]\ndefault = [{ targets = ["up.m", "second.m"], mode = "priority" }]\n'
        async with gateway(tmp_path, config) as running:
            await running.send(protocol, stream=stream, model="default")
    assert running.calls("kind", "provider") == [("round", "second")]
    assert running.request()["attempts"] == 2


@streaming
@protocols
async def test_a_request_that_failed_is_a_row_with_no_cost(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with (
        Upstream(lambda _: answers.error(protocol, 500)) as up,
        gateway(tmp_path, one_target(protocol, up)) as running,
    ):
        answer = await running.send(protocol, stream=stream)
    row = running.request()
    assert row["status"] == answer.status >= 500
    assert row["error"]
    assert (row["cost"], row["cost_kind"], running.rows("calls")) == (0.0, "reported", [])


@streaming
@protocols
async def test_a_description_of_an_image_counts_for_the_request_that_has_the_image(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.queue(answers.text(protocol, "it is red", stream, counts=COUNTS))
        config = HEAD + blind(protocol, model) + PRICE + priced("chat", eye, "eye")
        config += '[routing]\ndefault = ["blind.m"]\nvision = ["eye.m"]\n'
        async with gateway(tmp_path, config) as running:
            answer = await send_image(running.running, protocol, *HISTORY, stream=stream)
            metrics = (await call(running.port, "/metrics", method="GET")).body.decode()
    assert running.calls("n", "kind", "provider", "input_tokens") == [
        (1, "internal", "eye", 21),
        (2, "round", "blind", 1200),
    ]
    row = running.request()
    assert (row["input_tokens"], row["rounds"], row["client"]) == (1221, 1, "")
    assert row["cost"] == pytest.approx(COST + 0.000_039)
    if not stream:
        assert answer.headers["x-routecodex-cost"] == "0.000459"
    # Tokens of both are counted once, at their own provider.
    tokens = dict(
        re.findall(r'tokens_total\{kind="input",model="m",provider="(\w+)"[^}]*\} ([\d.]+)', metrics)
    )
    assert tokens == {"eye": "21.0", "blind": "1200.0"}


async def test_a_search_by_a_model_counts_for_the_request_that_searches(tmp_path: Path) -> None:
    def answer(request: Request) -> Json | Sse:
        if request.body.count(b'"role"') > 1 or b"tool" not in request.body:
            return answers.text("chat", "found", False, counts=COUNTS)
        return answers.tool_calls(
            "chat", answers.Call("web_search", {"query": "python"}, "c1"), stream=False, counts=COUNTS
        )

    async with Upstream(answer) as up, Upstream() as search:
        search.queue(answers.text("responses", "3.15", False, counts=COUNTS))
        config = HEAD + '[server_tools.web_search]\nenabled = true\nprovider = "route"\n'
        config += provider("up", "chat", up, more="dialect = { web_search = false }") + PRICE
        config += priced("responses", search, "search")
        config += '[routing]\ndefault = ["up.m"]\nweb_search = ["search.m"]\n'
        async with gateway(tmp_path, config) as running:
            body = asking.body("chat", "what is new?", stream=False) | {"web_search_options": {}}
            sent = await call(running.port, asking.path("chat", stream=False), body)
    assert sent.status == 200, sent.body
    assert running.calls("kind", "provider") == [("round", "up"), ("internal", "search"), ("round", "up")]
    assert running.request()["cost"] == pytest.approx(3 * COST)


def frames_of(protocol: str) -> list[bytes]:
    answer = answers.text(protocol, TEXT, True, counts=Counts(input=1200, output=5))
    assert isinstance(answer, Sse)
    return list(answer.frames)


def assert_observed(row: dict[str, Any], upstream: str, *, status: int) -> None:
    """Check the figures of a stream of which half was seen."""
    assert (row["cost_kind"], row["status"]) == ("observed", status)
    if upstream in ("messages", "gemini"):
        assert row["input_tokens"] == 1200
    else:
        assert 10 < row["input_tokens"] < 100
    assert len(TEXT) / 2 / 6 < row["output_tokens"] < len(TEXT) / 2 / 2.2
    expected = (row["input_tokens"] * 1 + row["output_tokens"] * 2) / 1e6
    assert row["cost"] == pytest.approx(expected)


@pairs
async def test_a_stream_whose_client_left_costs_what_was_seen(
    tmp_path: Path, client: str, upstream: str
) -> None:
    frames = frames_of(upstream)
    half = Sse(frames[: len(frames) // 2], end=Hang())
    async with Upstream(lambda _: half) as up, gateway(tmp_path, one_target(upstream, up)) as running:
        body = asking.body(client, stream=True)
        under_way = await begin(running.port, asking.path(client, stream=True), body)
        await under_way.head()
        seen = b""
        while b"fox" not in seen or len(seen) < 20 * len(half.frames):
            seen += await asyncio.wait_for(under_way.piece(), 10)
        await until_sent(up.requests[0], len(half.frames))
        await under_way.leave()
        await asyncio.wait_for(up.requests[0].gone.wait(), 10)
    assert_observed(running.request(), upstream, status=499)
    (one,) = running.rows("calls")
    assert_observed(one, upstream, status=499)
    assert one["kind"] == "round"


async def until_sent(request: Request, steps: int) -> None:
    """Wait until the upstream has sent all of its answer, and the gateway has had time to read it."""
    async with asyncio.timeout(10):
        while request.steps_done < steps:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


@pairs
@pytest.mark.parametrize("ending", ["cut off", "error"])
async def test_a_stream_that_broke_costs_what_was_seen(
    tmp_path: Path, client: str, upstream: str, ending: str
) -> None:
    frames = frames_of(upstream)
    half = frames[: len(frames) // 2]
    broken = Sse(half, end=CutOff())
    if ending == "error":
        whole = answers.stream_error(upstream, "x")
        broken = Sse([*half, whole.frames[-1]])
    async with Upstream(lambda _: broken) as up:
        config = one_target(upstream, up, more="[server_tools.empty_reply_continue]\nenabled = false\n")
        async with gateway(tmp_path, config) as running:
            await running.send(client, stream=True)
    row = running.request()
    assert row["status"] == 200
    assert row["error"]
    (one,) = running.rows("calls")
    assert one["status"] >= 500
    assert_observed(one, upstream, status=one["status"])
    assert (row["cost"], row["cost_kind"]) == (one["cost"], "observed")


@protocols
async def test_a_round_that_broke_and_the_round_that_continued_it_both_count(
    tmp_path: Path, protocol: str
) -> None:
    frames = frames_of(protocol)
    async with Upstream() as up:
        up.queue(
            Sse(frames[: len(frames) // 2], end=CutOff()),
            answers.text(protocol, "the end", True, counts=COUNTS),
        )
        async with gateway(tmp_path, one_target(protocol, up)) as running:
            body = asking.body(protocol, SET_STOP_MESSAGE.format(1), stream=True)
            await call(running.port, asking.path(protocol, stream=True), body, headers=SESSION)
    first, second, *_ = running.rows("calls")
    assert_observed(first, protocol, status=first["status"])
    assert (second["kind"], second["cost_kind"]) == ("round", "reported")
    assert running.request()["cost_kind"] == "observed"


@protocols
async def test_a_round_whose_client_left_counts(tmp_path: Path, protocol: str) -> None:
    frames = frames_of(protocol)
    half = Sse(frames[: len(frames) // 2], end=Hang())
    async with Upstream(lambda _: half) as up, gateway(tmp_path, one_target(protocol, up)) as running:
        body = asking.body(protocol, SET_STOP_MESSAGE.format(3), stream=True)
        path = asking.path(protocol, stream=True)
        under_way = await begin(running.port, path, body, headers=SESSION)
        await under_way.head()
        await asyncio.wait_for(under_way.piece(), 10)
        await until_sent(up.requests[0], len(half.frames))
        await under_way.leave()
        await asyncio.wait_for(up.requests[0].gone.wait(), 10)
    (one,) = running.rows("calls")
    assert_observed(one, protocol, status=499)


@streaming
@protocols
async def test_a_client_that_leaves_before_the_answer_costs_the_input(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with (
        Upstream(lambda _: Steps([Hang()])) as up,
        gateway(tmp_path, one_target(protocol, up)) as running,
    ):
        body = asking.body(protocol, stream=stream)
        under_way = await begin(running.port, asking.path(protocol, stream=stream), body)
        async with asyncio.timeout(10):
            while not up.requests:
                await asyncio.sleep(0.01)
        await under_way.leave()
        await asyncio.wait_for(up.requests[0].gone.wait(), 10)
    row = running.request()
    assert (row["status"], row["cost_kind"], row["output_tokens"]) == (499, "observed", 0)
    assert 10 < row["input_tokens"] < 100


def without_usage(answer: Json | Sse) -> Json | Sse:
    """Return a chat answer whose provider does not count tokens."""
    if isinstance(answer, Json):
        body = {name: value for name, value in msgspec.json.decode(answer.data).items() if name != "usage"}
        return Json(200, body)
    return Sse([frame for frame in answer.frames if b'"choices":[]' not in frame])


COUNT_NAMES = {
    "chat": ("prompt_tokens", "completion_tokens"),
    "responses": ("input_tokens", "output_tokens"),
    "messages": ("input_tokens", "output_tokens"),
    "gemini": ("promptTokenCount", "candidatesTokenCount"),
}
relays_and_translations = pytest.mark.parametrize(
    ("client", "upstream"),
    [
        pytest.param(one, other, id=f"{one}-to-{other}")
        for at, other in enumerate(PROTOCOLS)
        for one in (other, PROTOCOLS[at - 1])
    ],
)


@contextlib.asynccontextmanager
async def counting_upstream(
    protocol: str, counts: dict[str, Any], *, stream: bool
) -> AsyncIterator[Upstream]:
    """Run an upstream whose answer has this usage object and no other."""
    whole, streamed = answers_with_usage(protocol, counts)
    streamed = streamed.replace(b'"usageMetadata":{"promptTokenCount":1}', b'"usageMetadata":{}')
    async with Upstream(lambda _: Sse([streamed]) if stream else Json(200, msgspec.json.decode(whole))) as up:
        yield up


@streaming
@pytest.mark.parametrize("counts", [(0, 0), ("many", -7)], ids=["zeros", "nonsense"])
@relays_and_translations
async def test_usage_without_a_count_is_estimated(
    tmp_path: Path, client: str, upstream: str, counts: tuple[Any, Any], stream: bool
) -> None:
    """A provider that counts nothing must not make the answer free."""
    usage = dict(zip(COUNT_NAMES[upstream], counts, strict=True))
    async with (
        counting_upstream(upstream, usage, stream=stream) as up,
        gateway(tmp_path, one_target(upstream, up)) as running,
    ):
        answer = await running.send(client, stream=stream)
    assert answer.status == 200
    row = running.request()
    assert row["cost_kind"] == "estimated"
    assert row["input_tokens"] > 5
    assert row["output_tokens"] > 0
    assert row["cost"] == row["cost_estimated"] > 0


@streaming
@relays_and_translations
async def test_input_that_the_provider_did_not_count_is_estimated(
    tmp_path: Path, client: str, upstream: str, stream: bool
) -> None:
    async with (
        counting_upstream(upstream, {COUNT_NAMES[upstream][1]: 500}, stream=stream) as up,
        gateway(tmp_path, one_target(upstream, up)) as running,
    ):
        await running.send(client, stream=stream)
    row = running.request()
    assert (row["output_tokens"], row["cost_kind"]) == (500, "estimated")
    assert 5 < row["input_tokens"] < 100
    assert row["cost"] == (row["input_tokens"] + 1000) / 1e6


@streaming
@protocols
async def test_an_answer_without_usage_is_estimated(tmp_path: Path, protocol: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(without_usage(answers.text("chat", TEXT, stream)))
        async with gateway(tmp_path, one_target("chat", up)) as running:
            answer = await running.send(protocol, stream=stream)
    assert answer.status == 200
    row = running.request()
    assert row["cost_kind"] == "estimated"
    assert len(TEXT) / 6 < row["output_tokens"] < len(TEXT) / 2.2
    assert row["cost"] == row["cost_estimated"] > 0


@streaming
async def test_a_chat_client_that_did_not_ask_for_usage_does_not_get_it(tmp_path: Path, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "fine", stream, counts=COUNTS))
        async with gateway(tmp_path, one_target("chat", up)) as running:
            body = asking.body("chat", stream=stream)
            body.pop("stream_options", None)
            answer = await call(running.port, asking.path("chat", stream=stream), body)
    assert (b'"choices":[],' in answer.body) is False
    row = running.request()
    assert (row["input_tokens"], row["cost_kind"]) == (1200, "reported")


@protocols
async def test_a_model_without_a_price_has_an_unknown_cost(tmp_path: Path, protocol: str) -> None:
    async with Upstream() as up:
        up.queue(answers.text(protocol, "fine", False, counts=COUNTS))
        async with gateway(tmp_path, one_target(protocol, up, price="")) as running:
            answer = await running.send(protocol, stream=False)
            metrics = (await call(running.port, "/metrics", method="GET")).body.decode()
    assert answer.headers["x-routecodex-cost"] == "unknown"
    assert (running.request()["cost"], running.calls("cost", "price_source")) == (None, [(None, None)])
    assert re.search(r'routecodex_cost_unknown_total\{model="m",provider="up",worker="0"\} 1\.0', metrics)
    assert "routecodex_cost_usd_total{" not in metrics


async def test_a_request_with_one_unknown_call_is_unknown_and_keeps_what_is_known(tmp_path: Path) -> None:
    async with Upstream() as model, Upstream(describe_image) as eye:
        model.queue(answers.text("chat", "it is red", False, counts=COUNTS))
        config = HEAD + blind("chat", model) + PRICE + provider("eye", "chat", eye)
        config += '[routing]\ndefault = ["blind.m"]\nvision = ["eye.m"]\n'
        async with gateway(tmp_path, config) as running:
            answer = await send_image(running.running, "chat", *HISTORY)
    assert answer.headers["x-routecodex-cost"] == "unknown"
    row = running.request()
    assert (row["cost"], row["cost_known"]) == (None, COST)


async def test_a_free_model_costs_nothing_and_that_is_known(tmp_path: Path) -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "fine", False, counts=COUNTS))
        async with gateway(tmp_path, one_target("chat", up, price='price = "free"\n')) as running:
            answer = await running.send("chat", stream=False)
    assert answer.headers["x-routecodex-cost"] == "0"
    assert running.calls("cost", "cost_kind", "input_tokens") == [(0.0, "reported", 1200)]


async def test_the_gateways_own_answers_cost_nothing_and_are_not_in_the_ledger(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "fine", False)) as up,
        gateway(tmp_path, one_target("chat", up)) as running,
    ):
        answer = await running.send("chat", "<**help**>", stream=False)
        await running.send("chat", stream=False)
        refused = await call(running.port, "/v1/chat/completions", {"model": "up.m"})
    assert (answer.headers["x-routecodex-cost"], refused.status) == ("0", 400)
    assert len(running.rows("requests")) == 1


@streaming
async def test_without_a_ledger_nothing_is_counted(tmp_path: Path, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "fine", stream, counts=COUNTS))
        config = f'[usage]\nenabled = false\nfile = "{tmp_path / "usage.sqlite"}"\n' + one_target("chat", up)
        async with serving(config) as running:
            body = asking.body("chat", stream=stream)
            answer = await call(running.port, asking.path("chat", stream=stream), body)
            metrics = (await call(running.port, "/metrics", method="GET")).body.decode()
    assert answer.status == 200
    assert "x-routecodex-cost" not in answer.headers
    assert list(tmp_path.iterdir()) == []
    assert re.search(r'tokens_total\{kind="input",[^}]*\} 1200\.0', metrics)


EMBEDDINGS = {"object": "list", "data": [], "model": "m"}
USAGES = {
    "OpenAI": ({"prompt_tokens": 1000, "total_tokens": 1000}, 1000, "reported"),
    "Voyage": ({"total_tokens": 1000}, 1000, "reported"),
    "none": (None, 14, "estimated"),
}


@pytest.mark.parametrize(("usage", "tokens", "kind"), USAGES.values(), ids=USAGES)
async def test_embeddings_count(tmp_path: Path, usage: dict[str, int] | None, tokens: int, kind: str) -> None:
    body = EMBEDDINGS | ({} if usage is None else {"usage": usage})
    async with (
        Upstream(lambda _: Json(200, body)) as up,
        gateway(tmp_path, one_target("chat", up)) as running,
    ):
        sent = b'{"model":"up.m","input":["some words"]}'
        answer = await call(running.port, "/v1/embeddings", sent)
    row = running.request()
    assert (row["input_tokens"], row["output_tokens"], row["cost_kind"]) == (tokens, 0, kind)
    assert float(answer.headers["x-routecodex-cost"]) == row["cost"] == tokens / 1e6


async def test_the_log_line_has_the_cost(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "fine", False, counts=COUNTS))
        config = '[logging]\nformat = "json"\n' + one_target("chat", up)
        async with gateway(tmp_path, config) as running:
            await running.send("chat", stream=False)
    lines = [msgspec.json.decode(line) for line in capfd.readouterr().err.splitlines() if "req_" in line]
    (line,) = [line for line in lines if line.get("protocol") == "chat"]
    assert (line["cost"], line["cost_kind"], line["reasoning_tokens"]) == (COST, "reported", 32)


async def test_the_status_has_the_usage_of_the_session(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "fine", False, counts=COUNTS)) as up,
        gateway(tmp_path, one_target("chat", up)) as running,
    ):
        for _ in range(2):
            await running.send("chat", stream=False)
        other = asking.body("chat", "Hello", stream=False)
        await call(running.port, "/v1/chat/completions", other, headers={"x-session-id": "s-2"})
        status = await running.send("chat", "<**status**>", stream=False)
    text = status.json["choices"][0]["message"]["content"]
    assert "- usage: 2 requests, 2400 in (83% cached), 120 out, $0.00084" in text.splitlines()


async def test_the_status_has_no_usage_without_a_ledger() -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "fine", False)) as up,
        serving(one_target("chat", up)) as running,
    ):
        body = asking.body("chat", "<**status**>", stream=False)
        status = await call(running.port, "/v1/chat/completions", body, headers=SESSION)
    assert "usage:" not in status.json["choices"][0]["message"]["content"]


async def test_rows_log_and_metrics_name_the_client_and_its_team(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    clients = '[logging]\nformat = "json"\n[teams.core]\n'
    clients += '[clients.laptop]\nkey = "key-of-laptop"\nteam = "core"\n[clients.ci]\nkey = "key-of-ci"\n'
    async with (
        Upstream(lambda _: answers.text("chat", "fine", False, counts=COUNTS)) as up,
        gateway(tmp_path, clients + one_target("chat", up)) as running,
    ):
        body = asking.body("chat", stream=False)
        for key in ("key-of-laptop", "key-of-ci"):
            bearer = {"authorization": f"Bearer {key}"}
            assert (await call(running.port, "/v1/chat/completions", body, headers=bearer)).status == 200
        bearer = {"authorization": "Bearer key-of-laptop"}
        refused = await call(running.port, "/v1/chat/completions", {"model": 5}, headers=bearer)
        metrics = (await call(running.port, "/metrics", method="GET", headers=bearer)).body.decode()
    assert refused.status == 400
    assert [(row["client"], row["team"]) for row in running.rows("requests")] == [
        ("laptop", "core"),
        ("ci", ""),
    ]
    sample = r'routecodex_cost_usd_total\{client="(\w+)",kind="reported",[^}]*team="(\w*)"[^}]*\} ([\d.]+)'
    assert sorted(re.findall(sample, metrics)) == [("ci", "", "0.00042"), ("laptop", "core", "0.00042")]
    assert re.search(r'routecodex_client_requests_total\{client="laptop",status="400"[^}]*\} 1\.0', metrics)
    lines = [msgspec.json.decode(line) for line in capfd.readouterr().err.splitlines() if "req_" in line]
    shown = [(line["client"], line.get("team"), line["status"]) for line in lines]
    assert shown == [("laptop", "core", 200), ("ci", None, 200), ("laptop", "core", 400)]
