"""A decoder and an encoder joined: what is held, what is raised, what is remembered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from routecodex.canon.errors import GatewayError, UpstreamError, UpstreamFailed, UpstreamLimited
from routecodex.canon.events import (
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Reasoning, Text, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.canon.response import fold
from routecodex.protocols.codec import Codec, ReplyContext
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.grammar import check_broken, check_stream
from routecodex.protocols.text_batches import StreamItem, TextBatch, batched
from routecodex.protocols.translation import Translation, estimated_usage
from tests.protocols.test_grammar import ANSWERS

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PAIRS = list(itertools.permutations(PROTOCOLS, 2))
OPTIONS = {"chat": {"include_usage": True}}


class Scripted:
    """A decoder that tells one prepared list of events for each piece it is fed."""

    def __init__(
        self, *told: Sequence[Event], last: Sequence[Event] = (), counts: Usage | None = None
    ) -> None:
        self._told = iter(told)
        self._last = last
        self._counts = counts

    def feed(self, data: bytes) -> Sequence[Event]:
        return next(self._told)

    def close(self) -> Sequence[Event]:
        return self._last

    def fail(self, error: GatewayError) -> Sequence[Event]:
        return self._last or (Failed(error),)

    def reported(self) -> Usage | None:
        return self._counts

    def decode_batches(self, data: bytes) -> Sequence[StreamItem]:
        return batched(self.feed(data))


class Noting:
    """An encoder that writes the names of the events."""

    def __init__(self) -> None:
        self.keep_alive = b""
        self.final_body: bytes | None = b"{}"
        self.written = 0

    def encode(self, event: Event) -> bytes:
        return type(event).__name__.encode() + b" "

    def add_texts(self, index: int, texts: Sequence[str]) -> bytes:
        return b"".join(self.encode(TextDelta(index, text)) for text in texts)


def names(*events: Event) -> bytes:
    return b"".join(map(Noting().encode, events))


def translation(*told: Sequence[Event], last: Sequence[Event] = ()) -> Translation:
    return Translation(Scripted(*told, last=last), Noting())


START, OPEN, TEXT = Started("id", "model"), PartStarted(0, Text("")), TextDelta(0, "Hi")
END = Finished(Finish("stop"))
CONTENT: list[Event] = [
    TEXT,
    ReasoningDelta(0, "Hm"),
    ArgumentsDelta(0, "{"),
    PartStarted(0, ToolCall("a", "f")),
    END,
]
QUIET: list[Event] = [
    START,
    OPEN,
    PartStarted(0, Reasoning()),
    PartFinished(0),
    UsageReported(Usage(1, 2)),
]


@pytest.mark.parametrize("event", QUIET, ids=lambda event: type(event).__name__)
def test_lifecycle_events_are_held(event: Event) -> None:
    pipe = translation([event])
    assert pipe.feed(b"") == b""
    assert not pipe.started


@pytest.mark.parametrize("event", CONTENT, ids=lambda event: type(event).__name__)
def test_content_lets_out_what_was_held(event: Event) -> None:
    pipe = translation([START, OPEN], [event])
    assert pipe.feed(b"") == b""
    assert pipe.feed(b"") == names(START, OPEN, event)
    assert pipe.started


def test_what_happened_is_remembered() -> None:
    pipe = translation([START, OPEN, TEXT], [UsageReported(Usage(1, 2)), END, TEXT], [TEXT], last=[TEXT])
    out = b"".join(pipe.feed(b"") for _ in range(3)) + pipe.close()
    assert out == names(START, OPEN, TEXT, UsageReported(Usage(1, 2)), END)
    assert pipe.ended
    outcome = pipe.outcome
    assert (outcome.model, outcome.response_id, outcome.usage) == ("model", "id", Usage(1, 2))
    assert (outcome.finish, outcome.error, outcome.body) == (Finish("stop"), None, b"{}")


def test_a_failure_before_content_is_raised() -> None:
    error = UpstreamLimited("slow")
    for pipe in (translation([START, OPEN, Failed(error)]), translation([Failed(error)])):
        with pytest.raises(UpstreamLimited) as caught:
            pipe.feed(b"")
        assert caught.value is error
    with pytest.raises(UpstreamLimited):
        translation(last=[Failed(error)]).close()


def test_a_failure_after_content_is_told() -> None:
    error = UpstreamFailed("broken")
    pipe = translation([START, OPEN, TEXT], last=[Failed(error), END])
    assert pipe.feed(b"") + pipe.close() == names(START, OPEN, TEXT, Failed(error))
    assert pipe.ended
    assert pipe.outcome.error is error
    assert pipe.outcome.finish is None


def test_a_stream_that_cannot_go_on_fails_once() -> None:
    pipe = translation([START, OPEN, TEXT])
    pipe.feed(b"")
    error = UpstreamFailed("broken")
    assert pipe.fail(error) == names(Failed(error))
    assert pipe.fail(error) == b""
    assert pipe.ended
    assert pipe.outcome.error is error


def test_a_watcher_sees_every_event_once() -> None:
    seen: list[Event] = []
    pipe = Translation(Scripted([START, OPEN], [TEXT, END]), Noting(), watch=seen.append)
    pipe.feed(b"")
    pipe.feed(b"")
    assert seen == [START, OPEN, TEXT, END]


class Together(Scripted):
    """A decoder that tells texts together."""

    def __init__(self, *batches: Sequence[StreamItem]) -> None:
        super().__init__()
        self._batches = iter(batches)

    def decode_batches(self, data: bytes) -> Sequence[StreamItem]:
        return next(self._batches)


class Adding(Noting):
    """An encoder that writes texts together."""

    def add_texts(self, index: int, texts: Sequence[str]) -> bytes:
        return f"{index}:{'|'.join(texts)} ".encode()


def test_texts_told_together_are_written_together() -> None:
    pipe = Translation(
        Together([START, OPEN, TEXT, TextBatch(0, ["a", "b"])], [TextBatch(0, ["c"]), END]), Adding()
    )
    assert pipe.feed(b"") == names(START, OPEN, TEXT) + b"0:a|b "
    assert pipe.feed(b"") == b"0:c " + names(END)


def test_texts_told_alone_are_gathered_for_an_encoder_that_writes_them_together() -> None:
    pipe = Translation(Scripted([START, OPEN, TEXT], [TEXT, TEXT, END]), Adding())
    assert pipe.feed(b"") + pipe.feed(b"") == names(START, OPEN, TEXT) + b"0:Hi|Hi " + names(END)


def test_the_first_text_lets_out_what_was_held_before_the_others_follow() -> None:
    pipe = Translation(Together([START, OPEN, TextBatch(0, ["a", "b", "c"])]), Adding())
    assert pipe.feed(b"") == names(START, OPEN, TEXT) + b"0:b|c "
    assert pipe.started


def test_a_watcher_sees_the_first_text_only_of_a_batch() -> None:
    seen: list[Event] = []
    pipe = Translation(Together([START, OPEN, TextBatch(0, ["a", "b"])]), Noting(), watch=seen.append)
    assert pipe.feed(b"") == names(START, OPEN, TEXT, TEXT)
    assert seen == [START, OPEN, TextDelta(0, "a")]


def test_nothing_is_told_after_the_end_not_even_texts_told_together() -> None:
    pipe = Translation(Together([START, OPEN, TEXT, END, TextBatch(0, ["a"])]), Adding())
    assert pipe.feed(b"") == names(START, OPEN, TEXT, END)


def test_a_source_of_events_needs_no_decoder() -> None:
    pipe = translation()
    assert pipe.encode([START]) + pipe.encode([OPEN, TEXT]) == names(START, OPEN, TEXT)


def test_estimates_err_high_and_say_so() -> None:
    assert estimated_usage(7, 0) == Usage(7, 1, estimated=True)
    assert estimated_usage(7, 30) == Usage(7, 11, estimated=True)


def reply(protocol: str) -> ReplyContext:
    request = Request(model="m", source="chat", messages=(Message("user", (Text("hi"),)),))
    return ReplyContext(id="ab" * 12, created=1, model="m", provider="up", request=request)


def between(source: Codec, target: Codec) -> Translation:
    return Translation(source.stream_decoder(), target.stream_encoder(reply(target.name)))


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("scene", ANSWERS)
def test_every_pair_translates_to_the_letter_however_chunked(source: str, target: str, scene: str) -> None:
    stream = ANSWERS[scene](source, True).data
    outs = []
    for step in (1, 37, len(stream)):
        pipe = between(CODECS[source], CODECS[target])
        out = b"".join(pipe.feed(stream[at : at + step]) for at in range(0, len(stream), step))
        outs.append(out + pipe.close())
        check_stream(target, outs[-1], **OPTIONS.get(target, {}))
        assert pipe.ended
    assert outs[0] == outs[1] == outs[2]
    decoder = CODECS[target].stream_decoder()
    read = fold([*decoder.feed(outs[0]), *decoder.close()])
    decoder = CODECS[source].stream_decoder()
    meant = fold([*decoder.feed(stream), *decoder.close()])
    assert [(part.name, part.arguments) for part in read.parts if isinstance(part, ToolCall)] == [
        (part.name, part.arguments or "{}") for part in meant.parts if isinstance(part, ToolCall)
    ]
    assert (read.finish.reason == "tool_calls") == (meant.finish.reason == "tool_calls")


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("scene", ["text", "two tool calls"])
def test_no_truncated_stream_looks_complete(source: str, target: str, scene: str) -> None:
    stream = ANSWERS[scene](source, True).data
    frames = [frame + b"\n\n" for frame in stream.split(b"\n\n")[:-1]]
    for cut in range(len(frames) // 2 + 1):
        pipe = between(CODECS[source], CODECS[target])
        try:
            out = pipe.feed(b"".join(frames[:cut])) + pipe.close()
        except UpstreamError:
            assert not pipe.started
            continue
        assert pipe.outcome.error is not None
        check_broken(target, out)


PLACEHOLDER = Usage(input=70, output=1, cache_read=60)
OBSERVED = {
    "counts of the provider go before estimates": (PLACEHOLDER, 0, PLACEHOLDER),
    "output is at least what was written": (PLACEHOLDER, 30, Usage(input=70, output=11, cache_read=60)),
    "without counts all is estimated": (None, 30, Usage(input=50, output=11, estimated=True)),
    "without content there is no output": (None, 0, Usage(input=50, output=0, estimated=True)),
    "an input of 0 is not believed": (Usage(output=40), 30, Usage(input=50, output=40)),
}


@pytest.mark.parametrize(("counts", "written", "expected"), OBSERVED.values(), ids=OBSERVED)
def test_the_usage_of_an_unfinished_answer(counts: Usage | None, written: int, expected: Usage) -> None:
    encoder = Noting()
    encoder.written = written
    pipe = Translation(Scripted(counts=counts), encoder, input_tokens=50)
    assert pipe.observed() == expected
