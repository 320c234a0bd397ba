"""Usage of an answer in several rounds: the client's next request will hold as much; all rounds were paid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from routecodex.canon.events import Usage
from tests.gateway.continuation_gateway import (
    PROTOCOLS,
    SET_STOP_MESSAGE,
    GatewayHarness,
    file_store_gateway,
)
from tests.gateway.installed_tool import install
from tests.gateway.test_matrix import decode_answer
from tests.kit import answers, asking
from tests.kit.answers import Call, Counts, Piece, ReasoningPiece, TextPiece
from tests.kit.gateway import NO_HEALTH
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request

pairs = pytest.mark.parametrize(
    ("protocol", "upstream_protocol"),
    [pytest.param(one, other, id=f"{one}-to-{other}") for one in PROTOCOLS for other in PROTOCOLS],
)
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ROUNDS = 10
PEEK = Call("peek", {"at": "the door"}, "call_p1")
WEATHER = Call("get_weather", {"city": "Oslo"}, "call_w1")
LAST = '[server_tools]\nvisible_rounds = "last"\n'


@pytest.fixture(autouse=True)
def peek(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a server tool."""
    monkeypatch.syspath_prepend(str(install(tmp_path / "site")))


def counts_of(number: int) -> Counts:
    """Return the counts of a round: its input repeats all that came before it."""
    return Counts(input=7000 + 40 * number, output=30 + number, cached=6000 + 40 * number, reasoning=10)


def script_rounds(harness: GatewayHarness, *rounds: Sequence[Piece] | None) -> None:
    """Answer with these pieces, one round after the other; None fails."""

    def answer(request: Request, number: int) -> UpstreamAnswer:
        pieces = rounds[number]
        if pieces is None:
            return Json(500, {"error": {"message": "it broke"}})
        stream = answers.wants_stream(request)
        return answers.compose(harness.upstream_protocol, *pieces, stream=stream, counts=counts_of(number))

    harness.script(answer)


def client_usage(protocol: str, answer: Answer, *, stream: bool) -> Usage:
    """Return the usage that the client reads last; check that its total is the sum."""
    asking.check(protocol, answer, stream=stream)
    assert b"iterations" not in answer.body
    usage = decode_answer(protocol, answer, stream=stream).usage
    assert usage is not None
    totals = re.findall(rb'"(?:total_tokens|totalTokenCount)":(\d+)', answer.body)
    assert protocol == "messages" or int(totals[-1]) == usage.input + usage.output
    return usage


def expected(shown: Sequence[int]) -> Usage:
    """Return the input of the first round with the output of those that are shown."""
    first, counts = counts_of(0), [counts_of(number) for number in shown]
    return Usage(
        input=first.input,
        cache_read=first.cached,
        output=sum(one.output for one in counts),
        reasoning=sum(one.reasoning for one in counts),
    )


@streaming
@pairs
async def test_ten_rounds_leave_a_conversation_of_7k_tokens_at_7k(
    tmp_path: Path, protocol: str, upstream_protocol: str, stream: bool
) -> None:
    async with file_store_gateway(
        protocol, tmp_path / "state", upstream_protocol=upstream_protocol
    ) as harness:
        script_rounds(harness, *([TextPiece(f"part {number}")] for number in range(ROUNDS)))
        answer = await harness.send(SET_STOP_MESSAGE.format(ROUNDS - 1), stream=stream)
        metrics = await call(harness.port, "/metrics", method="GET")
    usage = client_usage(protocol, answer, stream=stream)
    assert usage == expected(range(ROUNDS))
    assert usage.input + usage.output < 7500
    assert answer.headers.get("x-routecodex-rounds") == (None if stream else str(ROUNDS))
    paid = [counts_of(number) for number in range(ROUNDS)]
    for kind in ("input", "output"):
        sample = rf'routecodex_tokens_total{{[^}}]*kind="{kind}"[^}}]*}} ([\d.]+)'
        found = re.search(sample, metrics.body.decode())
        assert found is not None
        assert float(found[1]) == sum(getattr(counts, kind) for counts in paid)


SHOWN: dict[str, tuple[list[list[Piece]], list[int]]] = {
    "a hidden call": ([[PEEK], [TextPiece("there")]], [1]),
    "a hidden call after text": ([[TextPiece("see"), PEEK], [TextPiece("there")]], [0, 1]),
    "hidden calls only, then a call of the client": ([[PEEK], [PEEK], [WEATHER]], [2]),
    "white space and a hidden call": ([[TextPiece("\n\n"), PEEK], [TextPiece("there")]], [1]),
    "reasoning and a hidden call": ([[ReasoningPiece("hm"), PEEK], [TextPiece("there")]], [0, 1]),
}


@streaming
@protocols
@pytest.mark.parametrize(("rounds", "shown"), SHOWN.values(), ids=SHOWN)
async def test_output_that_the_client_never_saw_is_not_counted(
    tmp_path: Path, protocol: str, stream: bool, rounds: list[list[Piece]], shown: list[int]
) -> None:
    async with file_store_gateway(protocol, tmp_path / "state") as harness:
        script_rounds(harness, *rounds)
        answer = await harness.send("look", stream=stream, tools=True)
    assert client_usage(protocol, answer, stream=stream) == expected(shown)


@streaming
@protocols
async def test_only_the_round_that_is_shown_is_counted(tmp_path: Path, protocol: str, stream: bool) -> None:
    async with file_store_gateway(protocol, tmp_path / "state", more=LAST) as harness:
        script_rounds(harness, *([TextPiece(text)] for text in ("one", "two", "three")))
        answer = await harness.send(SET_STOP_MESSAGE.format(2), stream=stream)
    assert harness.answer_text(answer, stream=stream) == "three"
    assert client_usage(protocol, answer, stream=stream) == expected([2])


@streaming
@protocols
@pytest.mark.parametrize("more", ["", LAST], ids=["all", "last"])
async def test_a_round_that_failed_counts_nothing(
    tmp_path: Path, protocol: str, stream: bool, more: str
) -> None:
    async with file_store_gateway(protocol, tmp_path / "state", more=NO_HEALTH + more) as harness:
        script_rounds(harness, [TextPiece("one")], None)
        answer = await harness.send(SET_STOP_MESSAGE.format(2), stream=stream)
    assert harness.answer_text(answer, stream=stream) == "one"
    assert client_usage(protocol, answer, stream=stream) == expected([0])
    assert "x-routecodex-rounds" not in answer.headers


@streaming
@protocols
async def test_an_answer_of_one_round_keeps_the_usage_of_the_provider(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with file_store_gateway(protocol, tmp_path / "state") as harness:
        script_rounds(harness, [TextPiece("one")])
        answer = await harness.send("look", stream=stream)
    assert client_usage(protocol, answer, stream=stream) == expected([0])
    assert "x-routecodex-rounds" not in answer.headers


ITERATIONS = [
    {"type": kind, "input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 0}
    for kind in ("compaction", "message")
]


@streaming
@pytest.mark.parametrize("rounds", [1, 2])
async def test_iterations_are_in_answers_of_one_round_only(tmp_path: Path, stream: bool, rounds: int) -> None:
    def answer(request: Request, number: int) -> UpstreamAnswer:
        canned = answers.text("messages", f"part {number}", answers.wants_stream(request))
        listed = b'"iterations":' + msgspec.json.encode(ITERATIONS) + b',"output_tokens":9'
        body = canned.data.replace(b'"output_tokens":9', listed)
        return Sse([body]) if isinstance(canned, Sse) else Json(200, body)

    async with file_store_gateway("messages", tmp_path / "state") as harness:
        harness.script(answer)
        text = SET_STOP_MESSAGE.format(rounds - 1) if rounds > 1 else "Hello"
        received = await harness.send(text, stream=stream)
    asking.check("messages", received, stream=stream)
    assert len(harness.upstream_texts) == rounds
    usage = decode_answer("messages", received, stream=stream).usage
    assert usage is not None
    assert list(usage.iterations) == (ITERATIONS if rounds == 1 else [])
    assert (b"iterations" in received.body) == (rounds == 1)
