"""Usage of a stream that was cut off, as each pipe estimates it."""

from __future__ import annotations

import pytest

from routecodex.protocols.codec import Pipe, ReplyContext
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.translation import Translation
from tests.kit import answers
from tests.kit.answers import Counts
from tests.kit.steps import Sse

PROTOCOLS = ("chat", "responses", "messages", "gemini")
SENTENCES = 200
TEXT = "The quick brown fox jumps. " * SENTENCES
COUNTS = Counts(input=4321, output=5, cached=4000)
ESTIMATE = 777
"""The estimate of the input, where the provider has not counted it."""
REPORTS_INPUT_EARLY = ("messages", "gemini")

pairs = pytest.mark.parametrize(
    ("upstream", "client"),
    [pytest.param(one, other, id=f"{one}-to-{other}") for one in PROTOCOLS for other in PROTOCOLS],
)


def make_pipe(upstream: str, client: str, *, include_usage: bool) -> Pipe:
    reply = ReplyContext(id="0", created=0, model="m", input_tokens=ESTIMATE, include_usage=include_usage)
    if upstream == client:
        return CODECS[upstream].relay(reply)
    return Translation(
        CODECS[upstream].stream_decoder(), CODECS[client].stream_encoder(reply), input_tokens=ESTIMATE
    )


def frames_of(upstream: str) -> list[bytes]:
    answer = answers.text(upstream, TEXT, True, counts=COUNTS, include_usage=True)
    assert isinstance(answer, Sse)
    return [frame.replace(b"\r\n", b"\n") for frame in answer.frames]


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("together", [1, 7], ids=["each frame alone", "several frames at once"])
@pairs
def test_a_stream_cut_in_half_has_used_about_half(
    upstream: str, client: str, together: int, include_usage: bool
) -> None:
    pipe = make_pipe(upstream, client, include_usage=include_usage)
    frames = frames_of(upstream)
    half = frames[: len(frames) // 2]
    for at in range(0, len(half), together):
        pipe.feed(b"".join(half[at : at + together]))
    usage = pipe.observed()
    early = upstream in REPORTS_INPUT_EARLY
    assert (usage.input, usage.cache_read) == ((COUNTS.input, COUNTS.cached) if early else (ESTIMATE, 0))
    assert usage.estimated == (not early)
    # Half of the text: a token has three to six characters, and estimates err high.
    assert len(TEXT) / 2 / 6 < usage.output < len(TEXT) / 2 / 2.5


@pairs
def test_before_the_first_frame_only_the_input_counts(upstream: str, client: str) -> None:
    usage = make_pipe(upstream, client, include_usage=True).observed()
    assert (usage.input, usage.output, usage.estimated) == (ESTIMATE, 0, True)


@pairs
def test_a_complete_stream_has_the_counts_of_the_provider(upstream: str, client: str) -> None:
    pipe = make_pipe(upstream, client, include_usage=False)
    pipe.feed(b"".join(frames_of(upstream)))
    pipe.close()
    usage = pipe.outcome.usage
    assert usage is not None
    assert (usage.input, usage.output, usage.estimated) == (COUNTS.input, COUNTS.output, False)
