"""The exporter: batches, retries, the bounds of the queue, and a collector that is down."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email.utils
import logging
import time
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import msgspec
import pytest

from routecodex.providers.http import HttpClient
from routecodex.telemetry.exporter import (
    FLUSH_SECONDS,
    PAUSES,
    ExportOptions,
    QueuedTrace,
    SpanExporter,
    retry_pause,
)
from routecodex.telemetry.request_trace import Tracer
from routecodex.telemetry.span import INTERNAL, Resource, Span, SpanShape
from tests.kit.collector import Collector, ReceivedSpan, decode, partial_success
from tests.kit.steps import Answer, Hang, Json, Raw, Send
from tests.kit.upstream import Request

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SHAPE = SpanShape("one", INTERNAL, [])
LOGGER = "routecodex.telemetry"
NOWHERE = "http://127.0.0.1:9"


def spans_of(batch: Sequence[QueuedTrace[int]]) -> list[Span]:
    """Return as many spans for each item as it says, numbered by the item."""
    return [
        Span(SHAPE, TRACE, f"{queued.item:08x}{number + 1:08x}", "", "", 1, 2, [])
        for queued in batch
        for number in range(queued.spans)
    ]


def options(
    url: str,
    *,
    queue: int = 2048,
    batch: float = 0.0,
    protocol: str = "http/protobuf",
    headers: tuple[tuple[str, str], ...] = (("x-key", "k"),),
) -> ExportOptions:
    return ExportOptions(
        url=f"{url}/v1/traces",
        environ={},
        protocol=protocol,
        headers=headers,
        resource=Resource([("service.name", "gw")], "1"),
        batch_seconds=batch,
        queue=queue,
    )


@contextlib.asynccontextmanager
async def exporting(
    settings: ExportOptions | None, *, pauses: Sequence[float] = (0.0, 0.0, 0.0)
) -> AsyncIterator[SpanExporter[int]]:
    client = HttpClient()
    exporter = SpanExporter(client, spans_of, pauses=pauses)
    exporter.configure(settings)
    try:
        yield exporter
    finally:
        await exporter.close()
        await client.close()


def spans_in(request: Request) -> list[ReceivedSpan]:
    return decode(request.body, request.headers["content-type"])


async def counts(exporter: SpanExporter[int], exported: int, dropped: int) -> None:
    """Wait until the exporter has counted this much."""
    while (exporter.exported, exporter.dropped) != (exported, dropped):
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
async def test_spans_are_sent_with_the_headers_and_the_type_of_their_encoding(protocol: str) -> None:
    async with Collector() as collector, exporting(options(collector.url, protocol=protocol)) as exporter:
        exporter.add(1, 2)
        await counts(exporter, 2, 0)
    (request,) = collector.requests
    types = {"http/protobuf": "application/x-protobuf", "http/json": "application/json"}
    assert (request.headers["content-type"], request.headers["x-key"]) == (types[protocol], "k")
    assert [span.span_id for span in collector.spans] == ["0000000100000001", "0000000100000002"]


async def test_spans_wait_for_others_up_to_a_full_batch() -> None:
    async with Collector() as collector, exporting(options(collector.url, batch=3600)) as exporter:
        for item in range(1, 301):
            exporter.add(item, 2)
        await counts(exporter, 512, 0)
        await exporter.close()
        assert (exporter.exported, exporter.dropped) == (600, 0)
    assert len(collector.requests) == 2


async def test_a_batch_that_becomes_full_while_others_wait_leaves_at_once() -> None:
    async with Collector() as collector, exporting(options(collector.url, batch=3600)) as exporter:
        exporter.add(1, 2)
        await asyncio.sleep(0)
        for item in range(2, 257):
            exporter.add(item, 2)
        await counts(exporter, 512, 0)
    assert len(collector.requests) == 1


async def test_what_fills_half_of_the_queue_leaves_before_any_is_dropped() -> None:
    async with Collector() as collector, exporting(options(collector.url, queue=100, batch=3600)) as exporter:
        for item in range(1, 26):
            exporter.add(item, 2)
        await counts(exporter, 50, 0)
        for size in (15, 2):
            exporter.add(99, 1, content_bytes=size << 20)
            await asyncio.sleep(0)
        await counts(exporter, 52, 0)
    assert len(collector.requests) == 2


async def test_over_the_bounds_of_the_queue_spans_are_dropped_and_counted() -> None:
    async with Collector() as collector, exporting(options(collector.url, queue=5, batch=3600)) as exporter:
        for item in range(1, 5):
            exporter.add(item, 2)
        assert exporter.dropped == 4
        exporter.add(9, 1, content_bytes=1 << 30)
        assert exporter.dropped == 5
        await exporter.close()
    assert exporter.exported == 4
    assert len(collector.spans) == 4


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_passing_failure_is_retried(status: int) -> None:
    async with Collector() as collector, exporting(options(collector.url)) as exporter:
        collector.queue(Json(status, b"busy"), Json(status, b"busy"))
        exporter.add(1, 1)
        await counts(exporter, 1, 0)
    assert len(collector.requests) == 3
    assert len({request.body for request in collector.requests}) == 1


@pytest.mark.parametrize("wait", ["soon", "-1", "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"])
async def test_a_retry_that_is_asked_for_at_no_time_that_can_be_read_is_made(wait: str) -> None:
    async with Collector() as collector, exporting(options(collector.url)) as exporter:
        collector.queue(Json(429, b"busy", {"retry-after": wait}))
        exporter.add(1, 1)
        await counts(exporter, 1, 0)
    assert len(collector.requests) == 2


async def test_a_broken_connection_is_retried() -> None:
    async with Collector() as collector, exporting(options(collector.url)) as exporter:
        collector.queue(Raw([]))
        exporter.add(1, 1)
        await counts(exporter, 1, 0)
    assert len(collector.requests) >= 2


@pytest.mark.parametrize("status", [400, 401, 404, 413, 415, 500, 501, 302])
async def test_any_other_failure_is_final(status: int) -> None:
    async with (
        Collector(lambda _: Json(status, b"no")) as collector,
        exporting(options(collector.url)) as exporter,
    ):
        exporter.add(1, 3)
        await counts(exporter, 0, 3)
    assert len(collector.requests) == 1


LONG = b"x" * 100_000
CUT_OFF = b"HTTP/1.1 %d Status\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nbroken"


@pytest.mark.parametrize("answer", [Json(200, LONG), Raw([Send(CUT_OFF % 200)])], ids=["too long", "cut off"])
async def test_spans_that_were_taken_are_not_sent_again_if_the_rest_of_the_answer_is_unreadable(
    answer: Answer,
) -> None:
    async with Collector() as collector, exporting(options(collector.url)) as exporter:
        collector.queue(answer)
        exporter.add(1, 2)
        await counts(exporter, 2, 0)
    assert len(collector.requests) == 1


@pytest.mark.parametrize("answer", [Json(413, LONG), Raw([Send(CUT_OFF % 400)])], ids=["too long", "cut off"])
async def test_a_final_failure_is_final_if_its_text_is_unreadable(answer: Answer) -> None:
    async with Collector() as collector, exporting(options(collector.url)) as exporter:
        collector.queue(answer)
        exporter.add(1, 2)
        await counts(exporter, 0, 2)
    assert len(collector.requests) == 1


@pytest.mark.parametrize(("rejected", "exported"), [(2, 3), (5, 0), (9, 0)])
async def test_a_partial_success_is_counted_and_never_retried(rejected: int, exported: int) -> None:
    async with (
        Collector(lambda _: partial_success(rejected, "too many")) as collector,
        exporting(options(collector.url)) as exporter,
    ):
        exporter.add(1, 5)
        await counts(exporter, exported, 5 - exported)
    assert len(collector.requests) == 1


async def test_a_batch_is_given_up_after_the_last_pause() -> None:
    async with (
        Collector(lambda _: Json(503, b"")) as collector,
        exporting(options(collector.url), pauses=(0.0, 0.0)) as exporter,
    ):
        exporter.add(1, 2)
        await counts(exporter, 0, 2)
    assert len(collector.requests) == 3


def test_every_pause_before_a_retry_is_longer_than_the_last() -> None:
    assert all(after > before > 0 for before, after in pairwise(PAUSES))


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_a_retry_waits_as_long_as_the_collector_says(form: str) -> None:
    arrived: list[float] = []

    def answer(_request: object) -> Answer:
        arrived.append(time.time())
        date = email.utils.formatdate(time.time() + 2, usegmt=True)
        wait = {"retry-after": "1" if form == "seconds" else date}
        return Json(429, b"", wait) if len(arrived) == 1 else Json(200, b"")

    async with Collector(answer) as collector, exporting(options(collector.url)) as exporter:
        exporter.add(1, 1)
        await counts(exporter, 1, 0)
    assert arrived[1] - arrived[0] >= 0.9


@pytest.mark.parametrize(
    ("asked", "waited"), [(0.0, 4.0), (2.0, 4.0), (60.5, 60.5), (300.0, 300.0), (1e9, 300.0)]
)
def test_a_pause_is_as_long_as_the_collector_asks_up_to_five_minutes(asked: float, waited: float) -> None:
    assert retry_pause(4.0, asked) == waited


LANGFUSE = base64.b64encode(b"pk-lf-public:sk-lf-secret").decode()
SECRETS = (
    ("authorization", f"Basic {LANGFUSE}"),
    ("x-other", "bearer token-5"),
    ("x-team", "team-secret"),
    ("x-version", "4"),
)
QUOTES = f"4 bad: Basic {LANGFUSE}; {LANGFUSE}, sk-lf-secret, bearer token-5, token-5, team-secret, q-secret"
HIDDEN = "4 bad: ***; ***, ***, ***, ***, ***, ***"


@pytest.mark.parametrize("partial", [False, True], ids=["refusal", "partial success"])
async def test_the_log_has_no_header_and_no_key_that_the_collector_quotes(
    partial: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(_request: object) -> Json:
        return partial_success(1, QUOTES) if partial else Json(401, QUOTES.encode())

    async with Collector(answer) as collector:
        settings = options(collector.url, headers=SECRETS)
        settings = msgspec.structs.replace(settings, url=f"{settings.url}?api_key=q-secret")
        async with exporting(settings) as exporter:
            exporter.add(1, 1)
            await counts(exporter, 0, 1)
    (line,) = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert line.endswith(HIDDEN)
    assert "q-secret" not in line


async def test_a_key_at_the_end_of_a_long_refusal_is_not_shown_in_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "s3cret" * 20
    refusal = Json(401, ("x" * 150 + secret).encode())
    async with (
        Collector(lambda _: refusal) as collector,
        exporting(options(collector.url, headers=(("x-key", secret),))) as exporter,
    ):
        exporter.add(1, 1)
        await counts(exporter, 0, 1)
    assert "s3cret" not in caplog.text


async def test_a_collector_that_takes_all_spans_with_a_message_is_a_warning_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with (
        Collector(lambda _: partial_success(0, "use /v2 soon")) as collector,
        exporting(options(collector.url)) as exporter,
    ):
        for item in range(1, 4):
            exporter.add(item, 1)
            await counts(exporter, item, 0)
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"the collector at {collector.url}/v1/traces took the spans and warns: use /v2 soon"
    )


async def test_a_collector_that_is_down_logs_once_and_once_more_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with exporting(options(NOWHERE), pauses=()) as exporter:
        for item in range(1, 4):
            exporter.add(item, 1)
            await counts(exporter, 0, item)
        async with Collector() as collector:
            exporter.configure(options(collector.url))
            exporter.add(9, 1)
            await counts(exporter, 1, 3)
    levels = [record.levelname for record in caplog.records if record.name == LOGGER]
    assert levels == ["WARNING", "INFO"]
    assert "127.0.0.1:9/v1/traces" in caplog.text
    assert "x-key" not in caplog.text


async def test_a_collector_that_a_reload_names_has_a_warning_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with Collector(lambda _: Json(401, b"wrong key")) as strict:
        wrong = options(strict.url, headers=(("x-key", "typo"),))
        async with exporting(options(NOWHERE), pauses=()) as exporter:
            for number, settings in enumerate((options(NOWHERE), wrong, wrong), 1):
                exporter.configure(settings)
                exporter.add(number, 1)
                await counts(exporter, 0, number)
            strict.queue(Json(200, b""))
            exporter.add(9, 1)
            await counts(exporter, 1, 3)
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert [line.partition(",")[0].partition(";")[0] for line in lines] == [
        f"traces do not reach {NOWHERE}/v1/traces",
        f"traces do not reach {strict.url}/v1/traces",
        f"traces reach {strict.url}/v1/traces again",
    ]


async def test_what_cannot_leave_within_two_seconds_of_the_end_is_dropped() -> None:
    assert FLUSH_SECONDS == 2.0
    async with (
        Collector(lambda _: Raw([Hang()])) as collector,
        exporting(options(collector.url)) as exporter,
    ):
        exporter.add(1, 2)
        await collector.received()
        exporter.add(2, 1)
        await asyncio.wait_for(exporter.close(), 5)
        assert (exporter.exported, exporter.dropped) == (0, 3)


async def test_a_pause_ends_when_the_gateway_stops_and_what_waits_is_sent() -> None:
    async with Collector() as collector, exporting(options(collector.url), pauses=(3600,)) as exporter:
        collector.queue(Json(503, b""))
        exporter.add(1, 2)
        await (await collector.received()).answered.wait()
        exporter.add(2, 1)
        await exporter.close()
        assert (exporter.exported, exporter.dropped) == (3, 0)


async def test_a_gateway_that_stops_tries_every_batch_once() -> None:
    async with (
        Collector(lambda _: Json(503, b"")) as collector,
        exporting(options(collector.url), pauses=(3600, 3600)) as exporter,
    ):
        exporter.add(1, 2)
        await (await collector.received()).answered.wait()
        exporter.add(2, 1)
        await exporter.close()
        assert (exporter.exported, exporter.dropped) == (0, 3)
    sent = [spans[0].span_id[:8] for spans in map(spans_in, collector.requests)]
    assert sent == ["00000001", "00000001", "00000002"]


async def test_a_batch_in_a_pause_goes_to_the_collector_of_a_new_configuration() -> None:
    async with (
        Collector(lambda _: Json(503, b"", {"retry-after": "300"})) as busy,
        Collector() as idle,
        exporting(options(busy.url)) as exporter,
    ):
        exporter.add(1, 2)
        await (await busy.received()).answered.wait()
        exporter.configure(options(idle.url))
        await counts(exporter, 2, 0)
    assert [span.span_id for span in idle.spans] == ["0000000100000001", "0000000100000002"]


async def test_turned_off_it_drops_what_waits_and_takes_nothing() -> None:
    async with Collector() as collector, exporting(options(collector.url, batch=3600)) as exporter:
        exporter.add(1, 2)
        exporter.configure(None)
        exporter.add(2, 2)
        await counts(exporter, 0, 2)
        await exporter.close()
    assert collector.requests == []


async def test_spans_that_cannot_be_made_are_dropped_and_the_next_are_sent() -> None:
    def fails_first(batch: Sequence[QueuedTrace[int]]) -> list[Span]:
        if batch[0].item == 1:
            raise TypeError("a mistake")
        return spans_of(batch)

    client = HttpClient()
    async with Collector() as collector:
        exporter = SpanExporter(client, fails_first)
        exporter.configure(options(collector.url))
        logging.getLogger(LOGGER).disabled = True
        try:
            exporter.add(1, 2)
            await counts(exporter, 0, 2)
        finally:
            logging.getLogger(LOGGER).disabled = False
        exporter.add(2, 1)
        await counts(exporter, 1, 2)
        await exporter.close()
        await client.close()
    assert [span.span_id for span in collector.spans] == ["0000000200000001"]


def test_the_parent_of_a_call_is_the_tool_that_makes_it_until_the_tool_ends() -> None:
    trace = Tracer().begin({}, method="POST", path="/v1/messages", endpoint="generate")
    of_request = trace.outer_lines()
    with trace.tool("search", "call_1"):
        assert trace.tools[0].span_id.encode() in trace.outer_lines()
        with trace.tool("search", "call_2"):
            assert trace.tools[1].span_id.encode() in trace.outer_lines()
        assert trace.tools[0].span_id.encode() in trace.outer_lines()
    assert trace.outer_lines() == of_request


def test_an_unsampled_trace_collects_nothing() -> None:
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-00"}
    trace = Tracer().begin(headers, method="POST", path="/v1/messages", endpoint="generate")
    trace.begin_attempt("target", 1.0, 1)
    trace.open_attempt()
    trace.end_attempt()
    with trace.tool("search", "call_1"):
        assert trace.outer_lines() == trace.lines()
    assert (trace.spans, trace.attempts, trace.tools) == (0, [], [])
