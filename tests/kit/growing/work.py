"""The work that a list of `n` entries causes: executed lines and allocated bytes, counted and not timed.

Lines show loops of Python; bytes show copies that C code makes, such as a text that grows by `+=`. Counting
allocations needs the process for itself, so `python -m tests.kit.growing.work SECTION` prints the findings as
JSON: each case whose work grows faster than its list, with its growth.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import routecodex
from bench.guard.counting import Allocations
from routecodex.canon.parts import Reasoning
from routecodex.canon.response import fold
from routecodex.gateway.context.instructions import extract_instructions
from routecodex.gateway.state.reasoning_cache import CallReasoning, ReasoningCache, ReasoningRecorder
from routecodex.protocols import large_body
from routecodex.protocols.codec import Codec, EncodeOptions, ReplyContext, WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.translation import Translation, replace_foreign_parts
from routecodex.server_tools.round_merger import RoundMerger
from tests.fuzz.readings import read_requests, read_response
from tests.kit import asking
from tests.kit.growing.lists import REQUESTS, STREAMS, WHOLES
from tests.kit.growing.shapes import CUSTOM_TOOL

Step = Callable[[], object]
Sized = Callable[[int], Step]

LINES_AT = (1, 33, 129)
BYTES_AT = (256, 448, 1024)
"""Sizes of the list: a base, and so many entries more, and four times as many more.

The base for bytes is beyond the numbers up to 256, for which CPython allocates nothing.
"""
MOST_GROWTH = 5.5
"""Four times the entries are four times the work; where it is quadratic, seven to sixteen times."""

SLACK = {"lines": 400, "bytes": 200_000}
"""Growth below this is not looked at: a table that doubles its size, a list that is not walked at all."""
_SOURCES = str(Path(routecodex.__file__).parent)
_OPTIONS = EncodeOptions(model="m", provider="up")


_CACHE = ReasoningCache()
_CACHE.keep("call_0", CallReasoning("up", (Reasoning("Hm.", signature="c2ln"),), None, parts_size=7))


class _Tracer:
    def __init__(self) -> None:
        self.lines = 0

    def on_frame(self, frame: FrameType, event: str, _argument: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(_SOURCES):
            return None
        self.lines += 1
        return self.on_event

    def on_event(self, _frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        self.lines += event == "line"
        return self.on_event


def lines(step: Step) -> int:
    """Count the lines of the package that one run executes; a loop in one line counts each time round."""
    tracer = _Tracer()
    sys.settrace(tracer.on_frame)
    try:
        step()
    finally:
        sys.settrace(None)
    return tracer.lines


def growth(base: int, once: int, fourfold: int) -> float:
    """Return how much more work four times the entries cause, beside the work of one entry."""
    return (fourfold - base) / max(once - base, 1)


def findings(sized: Sized, allocations: Allocations) -> dict[str, float]:
    """Return the measures by which the work grows faster than the list, with their growth.

    A jump, as where a body becomes large enough for another path, is not growth: it is gone at larger sizes.
    """
    found: dict[str, float] = {}
    for measure, sizes, count in (
        ("lines", LINES_AT, lines),
        ("bytes", BYTES_AT, lambda step: allocations.of(step, runs=2)[1]),
    ):
        grown = _growth_at(sized, sizes, count, slack=SLACK[measure])
        if grown > MOST_GROWTH:
            larger = (sizes[0] * 5, sizes[1] * 5, sizes[2] * 5)
            grown = min(grown, _growth_at(sized, larger, count, slack=SLACK[measure]))
        if grown > MOST_GROWTH:
            found[measure] = round(grown, 1)
    return found


def _growth_at(
    sized: Sized, sizes: tuple[int, int, int], count: Callable[[Step], int], *, slack: int
) -> float:
    base, once, fourfold = (count(sized(size)) for size in sizes)
    return growth(base, once, fourfold) if fourfold - once > slack else 0.0


def _validated(protocol: str, body: bytes) -> WireRequest:
    codec = CODECS[protocol]
    return codec.validate(body, model="up.m", stream=True) if protocol == "gemini" else codec.validate(body)


def send_request(client: Codec, upstream: Codec, body: bytes) -> None:
    """Do all that the gateway does with a request until it is sent."""
    wire = _validated(client.name, body)
    client.features(wire)
    client.fingerprint(wire)
    if large_body.may_hold_tags(wire.body):
        wire = extract_instructions(client, wire).stripped
    if client is upstream:
        client.rewrite(wire, _OPTIONS)
    else:
        upstream.encode_request(_CACHE.recall(client.decode_request(wire), "up"), _OPTIONS)


_CUSTOM_TOOLS: dict[str, dict[str, Any]] = {
    "chat": {"type": "custom", "custom": {"name": CUSTOM_TOOL}},
    "responses": {"type": "custom", "name": CUSTOM_TOOL},
}


def _reply(client: Codec) -> ReplyContext:
    body = asking.body(client.name, stream=True, tools=True)
    if client.name in _CUSTOM_TOOLS:
        body["tools"] = [*body["tools"], _CUSTOM_TOOLS[client.name]]
    wire = _validated(client.name, msgspec.json.encode(body))
    request = client.decode_request(wire)
    return ReplyContext(id="0" * 24, created=1, model="m", provider="up", view=wire.view, request=request)


def pass_stream(client: Codec, upstream: Codec, writes: list[bytes]) -> None:
    """Pass the stream of a provider to a client."""
    reply = _reply(client)
    translated = Translation(upstream.stream_decoder(), client.stream_encoder(reply), client=client)
    pipe = client.relay(reply) if client is upstream else translated
    for data in writes:
        pipe.feed(data)
    pipe.close()
    assert pipe.outcome.finish is not None, "the stream did not finish"


def merge_rounds(_client: Codec, upstream: Codec, writes: list[bytes]) -> None:
    """Pass the stream twice to what server tools put between provider and client."""
    cache = ReasoningCache()
    merger, recorder = RoundMerger(lambda name: name == CUSTOM_TOOL), ReasoningRecorder(cache, "up")
    for _ in range(2):
        merger.begin_round()
        decoder = upstream.stream_decoder()
        events = [event for data in writes for event in decoder.feed(data)]
        for event in [*events, *decoder.close()]:
            recorder(event)
            merger.feed(event)
        recorder.settle()
    merger.end()


def pass_whole(client: Codec, upstream: Codec, body: bytes) -> None:
    """Pass a whole answer of a provider to a client."""
    reply = _reply(client)
    if client is upstream:
        client.relay_response(body, reply)
        return
    response, _ = replace_foreign_parts(fold(upstream.decode_response(body)), client)
    client.encode_response(response, reply)


def _cases(section: str) -> Iterator[tuple[str, Sized]]:
    """Yield the cases of a section: `requests`, `streams`, `rounds` or `answers`, and a protocol."""
    what, _, protocol = section.partition(" ")
    if what == "http":
        yield from _http_cases()
        return
    codec = CODECS[protocol]
    for other in CODECS.values():
        if what == "requests":
            for kind, grow in REQUESTS[protocol].items():
                yield f"{kind} to {other.name}", _sized(send_request, codec, other, _body(grow))
        elif what == "streams":
            for kind, write in STREAMS[protocol].items():
                yield f"{kind} to {other.name}", _sized(pass_stream, other, codec, write)
        elif what == "rounds":
            if other is codec:
                for kind, write in STREAMS[protocol].items():
                    yield kind, _sized(merge_rounds, other, codec, write)
        else:
            for kind, grow in WHOLES[protocol].items():
                yield f"{kind} to {other.name}", _sized(pass_whole, other, codec, _body(grow))


def _http_cases() -> Iterator[tuple[str, Sized]]:
    """Yield heads and bodies of HTTP with many lines or chunks.

    httptools joins a header that arrives byte by byte again and again; `header_bytes` bounds that.
    """
    post, ok = b"POST / HTTP/1.1\r\nHost: x\r\n", b"HTTP/1.1 200 OK\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    makes: dict[str, tuple[Callable[[list[bytes]], object], Callable[[int], list[bytes]]]] = {
        "headers": (read_requests, lambda n: [post + _lines(n) + b"Content-Length: 0\r\n\r\n"]),
        "chunks": (read_requests, lambda n: [post + chunked, b"1\r\na\r\n" * n + b"0\r\n\r\n"]),
        "reads of chunks": (read_requests, lambda n: [post + chunked, *[b"1\r\na\r\n"] * n, b"0\r\n\r\n"]),
        "reads of a body": (
            read_requests,
            lambda n: [post + b"Content-Length: %d\r\n\r\n" % (10 * n), *[b"0123456789"] * n],
        ),
        "requests": (read_requests, lambda n: [(post + b"Content-Length: 0\r\n\r\n") * n]),
        "headers of a response": (read_response, lambda n: [ok + _lines(n) + b"Content-Length: 0\r\n\r\n"]),
        "chunks of a response": (read_response, lambda n: [ok + chunked, b"1\r\na\r\n" * n + b"0\r\n\r\n"]),
        "reads of a response": (
            read_response,
            lambda n: [ok + chunked, *[b"1\r\na\r\n"] * n, b"0\r\n\r\n"],
        ),
    }
    for kind, (read, make) in makes.items():
        yield kind, _read(read, make)


def _lines(count: int) -> bytes:
    return b"".join(b"A%d: b\r\n" % number for number in range(count))


def _read(read: Callable[[list[bytes]], object], make: Callable[[int], list[bytes]]) -> Sized:
    def sized(size: int) -> Step:
        reads = make(size)
        return lambda: read(reads)

    return sized


def _body(grow: Callable[[int], dict[str, Any]]) -> Callable[[int], bytes]:
    return lambda size: msgspec.json.encode(grow(size))


def _sized(
    walk: Callable[[Codec, Codec, Any], None], client: Codec, upstream: Codec, make: Callable[[int], Any]
) -> Sized:
    def sized(size: int) -> Step:
        made = make(size)
        return lambda: walk(client, upstream, made)

    return sized


def main() -> None:
    """Print the findings of a section."""
    allocations = Allocations()
    gc.disable()
    cases = _cases(sys.argv[1])
    found = {name: measures for name, sized in cases if (measures := findings(sized, allocations))}
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
