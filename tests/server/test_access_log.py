"""The access log: a line built from cached parts equals the line encoded as a whole."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.accounting.cost import Cost
from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.events import Usage
from routecodex.gateway.call_record import CallRecord
from routecodex.gateway.records import FailedAttempt, FollowUpRecord
from routecodex.gateway.request import RequestRecord, fresh_id
from routecodex.routing.registry import Target
from routecodex.routing.request_role import RequestRole
from routecodex.routing.route_plan import RoutePlan
from routecodex.server.access_log import AccessLog, LineEncoder
from routecodex.server.logs import human_line, json_line
from routecodex.telemetry.request_trace import Tracer
from tests.server.test_logs import AT, record

CALL = CallRecord(
    "round",
    Target("glm", "spare", "glm-4.7"),
    Usage(10, 5, reasoning=2),
    cost=Cost(1_234_000, "observed", "package"),
    status=200,
    ms=2.5,
)
OTHERWISE: dict[str, Any] = {
    "id": f"req_{fresh_id()}",
    "protocol": "messages",
    "model": "gpt-5",
    "stream": False,
    "client_name": "ann",
    "client_request_id": 'turn "7" \\',
    "endpoint": "models",
    "call": "GET /v1/models",
    "address": "127.0.0.1",
    "session": "session:s1",
    "role": RequestRole("utility", "header x"),
    "route": "tools",
    "reason": "the model is named",
    "target": Target("glm", "spare", "glm-4.7"),
    "attempts": 2,
    "rounds": 3,
    "status": 201,
    "arrived": 9.0,
    "first_byte": 0.0,
    "finished": 12.00005,
    "usage": None,
    "team": "core",
    "began": 11.0,
    "context": object(),
    "counted": True,
    "is_priced": True,
    "calls": [CALL, CallRecord("round", CALL.target, Usage(1, 2), cost=Cost(None), status=200, ms=3.0)],
    "finish": "length",
    "error": UpstreamFailed("broken"),
    "gone": True,
    "notices": ("dropped top_k: x",),
    "plan": RoutePlan(route="default", steps=(), reason="why"),
    "failures": [FailedAttempt(Target("glm", "primary", "glm-4.7"), "failed", "glm.primary.glm-4.7: 503")],
    "followups": (FollowUpRecord(request="req_1:vision", metadata={"a": True}),),
    "trace": Tracer().begin({}, method="POST", path="/v1/messages", endpoint="generate"),
}


def read(line: bytes | str) -> Any:
    assert "\n" not in (line if isinstance(line, str) else line.decode())
    return msgspec.json.decode(line)


def test_every_field_of_a_record_is_tried() -> None:
    fields = {name for name in dir(RequestRecord) if not name.startswith("_")}
    # The last two serve the answer, and are not facts for the log.
    assert sorted(OTHERWISE) == sorted(fields - {"cost", "trace_id", "limits", "upstream_limits"})


COSTS = {
    "one call": ([CALL], 0.001234, "observed"),
    "no call": ([], 0, "reported"),
    "a free call": (
        [CallRecord("round", CALL.target, Usage(1, 2), cost=Cost(0), status=200, ms=3.0)],
        0,
        "reported",
    ),
    "a price that is not known": (OTHERWISE["calls"], None, "observed"),
    "two calls": ([CALL, CALL], 0.002468, "observed"),
}


@pytest.mark.parametrize(("calls", "cost", "kind"), COSTS.values(), ids=COSTS)
def test_a_line_has_the_cost_of_all_calls(calls: list[CallRecord], cost: float | None, kind: str) -> None:
    entry = record(calls=calls, is_priced=True)
    line = read(LineEncoder().encode(AT, entry))
    assert line == read(json_line(AT, entry))
    assert (line["cost"], line["cost_kind"]) == (cost, kind)


def test_a_line_has_no_cost_if_costs_are_not_counted() -> None:
    assert "cost" not in read(LineEncoder().encode(AT, record()))


@pytest.mark.parametrize("field", OTHERWISE)
def test_a_line_between_others_says_what_its_whole_record_says(field: str) -> None:
    encoder = LineEncoder()
    other = record(**{field: OTHERWISE[field]})
    for entry in (record(), other, record(), other):
        assert read(encoder.encode(AT, entry)) == read(json_line(AT, entry))


@pytest.mark.parametrize(
    "session", ["", "session:", "session:a", "chain:a", "session:chain:a", "session:" + "x" * 300]
)
def test_a_session_is_named_as_ever(session: str) -> None:
    entry = record(session=session)
    assert read(LineEncoder().encode(AT, entry)) == read(json_line(AT, entry))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(texts, texts, texts, st.integers(0), st.floats(0, 1e12), st.floats(0, 1e6))
def test_whatever_is_sent_stays_one_line_of_json(
    model: str, name: str, session: str, tokens: int, at: float, seconds: float
) -> None:
    entry = record(
        model=model, client_name=name, session=session, usage=Usage(tokens, 1), finished=10.0 + seconds
    )
    encoder = LineEncoder()
    expected = read(json_line(at, entry))
    assert [read(encoder.encode(at, entry)) for _ in range(2)] == [expected, expected]


def cached_bytes(encoder: LineEncoder, records: Iterable[RequestRecord]) -> int:
    """Return the peak of bytes that the encoder adds while it encodes these records."""
    encoder.encode(AT, record())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for entry in records:
            encoder.encode(AT, entry)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_what_is_kept_is_bounded_and_sessions_are_no_part_of_it() -> None:
    encoder = LineEncoder()
    sessions = (record(id=f"req_{number}", session=f"session:{number}") for number in range(2000))
    assert cached_bytes(encoder, sessions) < 20_000
    names = (f"made-up-{number}-{'x' * 500}" for number in range(2000))
    assert cached_bytes(encoder, (record(model=name) for name in names)) < 800_000


def test_what_is_long_is_not_kept() -> None:
    encoder = LineEncoder()
    for field in ("model", "reason"):
        assert (
            cached_bytes(encoder, (record(**{field: f"{number}{'x' * 5000}"}) for number in range(50)))
            < 100_000
        )
    for entry in (record(model="x" * 5000), record(reason="x" * 5000)):
        assert read(encoder.encode(AT, entry)) == read(json_line(AT, entry))


async def test_lines_are_written_together_a_little_later() -> None:
    stream = io.StringIO()
    log = AccessLog(as_json=True, stream=stream)
    log.add(record(id="req_1"))
    log.add(record(id="req_2"))
    assert stream.getvalue() == ""
    log.flush()
    lines = stream.getvalue().splitlines()
    assert [msgspec.json.decode(line)["request"] for line in lines] == ["req_1", "req_2"]
    log.flush()
    assert len(stream.getvalue().splitlines()) == 2


async def test_many_lines_do_not_wait() -> None:
    stream = io.StringIO()
    log = AccessLog(as_json=False, stream=stream)
    for number in range(501):
        log.add(record(id=f"req_{number}"))
    assert len(stream.getvalue().splitlines()) >= 500
    log.flush()
    assert len(stream.getvalue().splitlines()) == 501


class RecordedSink:
    def __init__(self) -> None:
        self.requests: list[str] = []

    def append(self, lines: Sequence[bytes]) -> None:
        self.requests.extend(read(line)["request"] for line in lines)


async def test_a_keeper_gets_json_whoever_else_reads() -> None:
    stream, cached_bytes = io.StringIO(), RecordedSink()
    log = AccessLog(as_json=False, stream=stream, sink=cached_bytes)
    log.add(record())
    log.flush()
    assert cached_bytes.requests == ["req_1"]
    # The time of day is that of now.
    assert stream.getvalue()[8:] == human_line(AT, record())[8:] + "\n"
    log.shown = False
    log.add(record(id="req_2"))
    log.flush()
    assert cached_bytes.requests == ["req_1", "req_2"]
    assert stream.getvalue().count("\n") == 1


async def test_json_is_utf_8_and_stands_after_what_was_written_before() -> None:
    below = io.BytesIO()
    stream = io.TextIOWrapper(below, encoding="ascii", errors="backslashreplace")
    log = AccessLog(as_json=True, stream=stream)
    stream.write("before\n")
    log.add(record(model="grüße"))
    log.flush()
    before, line, rest = below.getvalue().split(b"\n")
    assert (before, read(line)["model"], rest) == (b"before", "grüße", b"")


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError("the terminal was closed")


@pytest.mark.parametrize("as_json", [True, False])
async def test_a_terminal_that_was_closed_costs_nothing_but_its_lines(as_json: bool) -> None:
    cached_bytes = RecordedSink()
    log = AccessLog(as_json=as_json, stream=Gone(), sink=cached_bytes)
    log.add(record())
    log.flush()
    assert cached_bytes.requests == ["req_1"]
