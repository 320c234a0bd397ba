"""Limits of turns with server tools, and of calls that the gateway makes itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.continuation_gateway import PROTOCOLS
from tests.gateway.installed_tool import install
from tests.gateway.instruction_gateway import answer_text
from tests.gateway.limit_gateway import KEY, LimitedGateway, client, limited
from tests.kit import answers, asking
from tests.kit.answers import Call, Piece, TextPiece
from tests.kit.gateway import provider, serving
from tests.kit.raw_client import call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
PEEK = Call("peek", {"at": "the door"}, "call_p1")
MAX = '[usage]\nreserve = "max"\n'


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(install(tmp_path / "site")))


def script(gateway: LimitedGateway, *rounds: tuple[Piece, ...]) -> None:
    """Answer with these pieces, one round after the other."""

    def answer(request: Request) -> Json | Sse:
        pieces = rounds[len(gateway.upstream.requests) - 1]
        return answers.compose(gateway.protocol, *pieces, stream=answers.wants_stream(request))

    gateway.upstream.answer_with(answer)


@protocols
@streams
async def test_rounds_are_one_request_and_add_up(protocol: str, stream: bool) -> None:
    rows = 'limits = ["9 requests/day", "90k tokens/day", "$90/day"]'
    async with limited(client("laptop", rows), protocol=protocol) as gateway:
        script(gateway, (TextPiece("First."), PEEK), (TextPiece("Second."),))
        answer = await gateway.ask(stream=stream)
        asking.check(protocol, answer, stream=stream)
        assert len(gateway.upstream.requests) == 2
        assert gateway.used() == [1, 60, 0.06]


@protocols
@streams
async def test_a_round_without_room_ends_the_turn_with_what_the_client_has(
    protocol: str, stream: bool
) -> None:
    # The first round may take 4096 tokens of output and its input; then there is no room for another.
    async with limited(
        client("laptop", 'limits = ["4200 tokens/day"]'), protocol=protocol, more=MAX
    ) as gateway:
        counts = answers.Counts(input=100, output=90)

        def answer(request: Request) -> Json | Sse:
            pieces = (TextPiece("First."), PEEK)
            streamed = answers.wants_stream(request)
            return answers.compose(protocol, *pieces, stream=streamed, counts=counts)

        gateway.upstream.answer_with(answer)
        if protocol == "messages":
            gateway.bodies["max_tokens"] = 4096
        answered = await gateway.ask(stream=stream, text="")
        asking.check(protocol, answered, stream=stream)
        assert len(gateway.upstream.requests) == 1
        assert gateway.used() == [190]
    assert answer_text(protocol, answered, stream=stream) == "First."
    if not stream:
        assert "has a limit of 4200 tokens/day: 190 used" in answered.headers["x-routecodex-notice"]


async def test_a_turn_holds_one_place_among_requests_at_the_same_time() -> None:
    async with limited(client("laptop", "concurrent = 1")) as gateway:
        script(gateway, (TextPiece("First."), PEEK), (TextPiece("Second."),), (TextPiece("Third."),))
        assert [(await gateway.ask()).status for _ in range(2)] == [200, 200]


IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WITH_IMAGE = {
    "model": "blind.m",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
            ],
        }
    ],
}


async def test_descriptions_of_images_count_for_the_request_that_needs_them() -> None:
    rows = client(
        "laptop",
        'limits = ["9 requests/day", "90k tokens/day", { limit = "90k tokens/day", models = ["eye.*"] }]',
    )
    async with (
        Upstream(lambda _: answers.text("chat", "a dot", False)) as eye,
        Upstream(lambda _: answers.text("chat", "It is a dot.", False)) as blind,
    ):
        text = (
            "[server]\nport = 0\n"
            + rows
            + provider("eye", "chat", eye)
            + provider("blind", "chat", blind)
            + 'vision = false\n[routing]\ndefault = ["blind.m"]\nvision = ["eye.m"]\n'
        )
        async with serving(text) as gateway:
            answer = await call(gateway.port, "/v1/chat/completions", WITH_IMAGE, headers=KEY)
            inner = gateway.service.gateway
            figures = inner.limiter.use.of_client(inner.clients.table.clients["laptop"])
    assert (answer.status, len(eye.requests), len(blind.requests)) == (200, 1, 1)
    assert [(row.used, row.reserved) for row in figures] == [(1, 0), (60, 0), (30, 0)]
