"""The trace context, compared with the official SDK."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from routecodex.providers.upstream import trace_headers
from routecodex.telemetry.trace_context import (
    context_lines,
    is_sampled,
    new_span_id,
    new_trace_id,
    read_context,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def headers_of(lines: bytes) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in lines.decode().splitlines())


@pytest.mark.parametrize("sampled", [False, True])
def test_the_sdk_reads_what_is_written(sampled: bool) -> None:
    headers = headers_of(context_lines(TRACE, SPAN, sampled=sampled, state="a=b,c=d"))
    found = get_current_span(TraceContextTextMapPropagator().extract(headers)).get_span_context()
    assert (f"{found.trace_id:032x}", f"{found.span_id:016x}") == (TRACE, SPAN)
    assert found.trace_flags.sampled == sampled
    assert found.trace_state.to_header() == "a=b,c=d"


hexes = st.text("0123456789abcdef", min_size=32, max_size=32)
traceparents = st.one_of(
    st.text(max_size=60),
    st.builds(
        "{}-{}-{}-{}{}".format,
        st.sampled_from(["00", "01", "ff", "fe", "0", "000"]),
        st.one_of(hexes, st.just("0" * 32), hexes.map(str.upper)),
        st.one_of(hexes.map(lambda text: text[:16]), st.just("0" * 16)),
        st.sampled_from(["00", "01", "03", "f", "zz"]),
        st.sampled_from(["", "-", "-more"]),
    ),
)


@given(traceparents)
def test_the_same_contexts_are_valid_as_for_the_sdk(value: str) -> None:
    context = read_context({"traceparent": value})
    found = get_current_span(
        TraceContextTextMapPropagator().extract({"traceparent": value})
    ).get_span_context()
    if context is None:
        # The SDK removes white space around the value, and accepts upper case.
        assert not found.is_valid or value != value.strip() or value != value.lower()
    else:
        assert (context.trace_id, context.span_id) == (f"{found.trace_id:032x}", f"{found.span_id:016x}")
        assert context.sampled == found.trace_flags.sampled


STATES = [
    ("a=b", "a=b"),
    ("a=1, b=2", "a=1, b=2"),
    ("a=1,\tb=2", "a=1,\tb=2"),
    ("a=b\r\nx: y", ""),
    ("a=b\n", ""),
    ("a=b\x00", ""),
    ("a=b\x7f", ""),
    ("a=b\u2028c", ""),
    ("a=\u00e9", ""),
]
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(("state", "kept"), STATES)
def test_a_state_that_cannot_be_a_header_is_dropped_alone(state: str, kept: str) -> None:
    headers = {"traceparent": PARENT, "tracestate": state}
    context = read_context(headers)
    assert context is not None
    assert (context.trace_id, context.state) == (TRACE, kept)
    assert headers_of(trace_headers(headers)) == {"traceparent": PARENT} | (
        {"tracestate": kept} if kept else {}
    )


@pytest.mark.parametrize("parent", ["x\r\ny: z", "x\n", "x\x00", "\u00e9"])
def test_without_a_parent_that_can_be_sent_nothing_is_passed_on(parent: str) -> None:
    assert trace_headers({"traceparent": parent, "tracestate": "a=b"}) == b""


@given(st.integers(1, 2**128 - 1), st.floats(0, 1))
def test_a_trace_is_sampled_as_by_the_sdk(trace_id: int, share: float) -> None:
    decision = TraceIdRatioBased(share).should_sample(None, trace_id, "name").decision
    assert is_sampled(f"{trace_id:032x}", share) == (decision is Decision.RECORD_AND_SAMPLE)


def test_ids_have_the_length_of_the_standard_and_do_not_repeat() -> None:
    traces, spans = {new_trace_id() for _ in range(2000)}, {new_span_id() for _ in range(2000)}
    assert (len(traces), len(spans)) == (2000, 2000)
    assert ({len(id) for id in traces}, {len(id) for id in spans}) == ({32}, {16})


def test_a_forked_worker_has_ids_of_its_own() -> None:
    program = (
        "import os\n"
        "from routecodex.telemetry.trace_context import new_trace_id\n"
        "new_trace_id()\n"
        "os.fork()\n"
        "os.write(1, new_trace_id().encode() + b'\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 2
