"""Streams of providers, instructions in texts, and the HTTP reader of the server."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from routecodex.canon.errors import UpstreamError
from routecodex.canon.events import Event, Failed, Finished
from routecodex.gateway.context.instructions import extract_instructions
from routecodex.protocols import grammar
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.user_text import user_messages
from routecodex.routing.instructions import parse, strip
from routecodex.routing.instructions.values import MalformedInstruction
from tests.fuzz import mutate
from tests.fuzz.exchanges import PROTOCOLS
from tests.fuzz.processes import Case, split
from tests.fuzz.readings import read_requests
from tests.fuzz.request_targets import HEADS, Compared
from tests.fuzz.target import Target
from tests.fuzz.translations import pipe_of, serve_whole, validated
from tests.kit import answers, asking
from tests.kit.growing.lists import STREAMS, WHOLES

_OF_THE_MODEL = ("arguments are not JSON", "used twice", "is empty", "arguments are not a JSON object")
"""Rules about calls that a model may break: the gateway passes on the names and arguments that it wrote."""
_FAULTS = frozenset({400, 413, 414, 417, 431, 501, 505})
_TEXTS = (
    "Hello <**clear**> world",
    '<**!chat.m**> Go on. <**stopMessage:"go on",3**>',
    "```\n<**clear**>\n``` and `<**status**>` <**#chat**>",
    "<system-reminder>\n<**clear**>\n</system-reminder>\n<**help**>",
    '<**agents:"x"**> <**clock:clear**> <**@chat.m**>',
)


class Sse(Target):
    """Every stream ends once, the same however it is split; a client of another protocol gets its grammar."""

    name = "sse"

    def make(self, random: Random) -> bytes:
        """Return client, provider and offsets of splits in a line, then the stream."""
        client, upstream = random.choice(PROTOCOLS), random.choice(PROTOCOLS)
        kind = random.choice(sorted(STREAMS[upstream]))
        frames = STREAMS[upstream][kind](random.choice((1, 2, 3)))
        if random.random() < 0.15:
            frames = list(answers.stream_error(upstream, "word").frames)
        for _ in range(random.choice((0, 1, 1, 2))):
            at = random.randrange(len(frames))
            frames[at] = _changed_frame(frames[at], random)
        data = b"".join(frames)
        data = mutate.data(data, random) if random.random() < 0.2 else data
        offsets = ",".join(map(str, mutate.splits(len(data), random)))
        return f"{client} {upstream} {offsets}\n".encode() + data

    async def check(self, data: bytes) -> None:
        line, _, stream = data.partition(b"\n")
        client, upstream, offsets = line.decode().split(" ")
        reads = split(stream, [int(offset) for offset in offsets.split(",") if offset])
        events = _events(upstream, reads)
        assert [type(event) for event in events if isinstance(event, Finished | Failed)] == [type(events[-1])]
        assert repr(_joined(_events(upstream, [stream]))) == repr(_joined(events))
        _pass_on(client, upstream, reads)


def _changed_frame(frame: bytes, random: Random) -> bytes:
    head, mark, data = frame.partition(b"data: ")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return mutate.data(frame, random)
    return head + mark + mutate.json_body(value, random) + b"\n\n"


def _events(upstream: str, reads: list[bytes]) -> list[Event]:
    decoder = CODECS[upstream].stream_decoder()
    events = [event for data in reads for event in decoder.feed(data)]
    return [*events, *decoder.close()]


def _joined(events: list[Event]) -> list[Any]:
    """Return the events without ids that are made at random where the provider sent none."""
    return [type(event).__name__ for event in events]


def _pass_on(client: str, upstream: str, reads: list[bytes]) -> None:
    pipe = pipe_of(client, upstream)
    try:
        served = b"".join([*(pipe.feed(data) for data in reads), pipe.close()])
    except UpstreamError:
        assert not pipe.started
        return
    assert pipe.ended
    if client == upstream:
        return
    options = {"include_usage": True} if client == "chat" else {}
    if pipe.outcome.error is None:
        _check(lambda: grammar.check_stream(client, served, **options))
    else:
        _check(lambda: grammar.check_broken(client, served))


class Answers(Target):
    """A whole answer is passed on or refused as the provider's fault, and so is any error response."""

    name = "answers"

    def make(self, random: Random) -> bytes:
        """Return client, provider and status in a line, then the body."""
        client, upstream = random.choice(PROTOCOLS), random.choice(PROTOCOLS)
        kind = random.choice(sorted(WHOLES[upstream]))
        body = WHOLES[upstream][kind](random.choice((1, 2)))
        status = random.choice((200, 200, 200, 400, 401, 404, 413, 429, 500, 503, 529))
        if status != 200:
            body = {
                "error": {
                    "message": "it is down",
                    "type": "x",
                    "code": status,
                    "status": "X",
                    "details": [{}],
                }
            }
        return f"{client} {upstream} {status}\n".encode() + mutate.json_body(body, random)

    async def check(self, data: bytes) -> None:
        line, _, body = data.partition(b"\n")
        client, upstream, status = line.decode().split(" ")
        if status != "200":
            error = CODECS[upstream].decode_error(int(status), {"retry-after": "x"}, body, "up")
            grammar_status, envelope = CODECS[client].encode_error(error)
            grammar.check_error(client, grammar_status, msgspec.json.encode(envelope))
            return
        try:
            served = serve_whole(client, upstream, body)
        except UpstreamError:
            return
        if client != upstream:
            _check(lambda: grammar.check_json(client, served))


def _check(check: Callable[[], None]) -> None:
    """Check a grammar, but for the rules that a model may break."""
    try:
        check()
    except grammar.GrammarViolation as exc:
        if not any(mark in str(exc) for mark in _OF_THE_MODEL):
            raise


class Instructions(Target):
    """No instruction is left in the text that goes to a provider, in any protocol."""

    name = "instructions"

    def make(self, random: Random) -> bytes:
        text = random.choice(_TEXTS)
        for _ in range(random.randrange(6)):
            text = mutate.text(text, random)
        return text.encode("utf-8", "replace")

    async def check(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        assert _instructions(strip(text)) == []
        for protocol in PROTOCOLS:
            wire = validated(protocol, asking.body(protocol, text, stream=False), stream=False)
            stripped = extract_instructions(CODECS[protocol], wire).stripped
            left = [part.text for message in user_messages(stripped) for part in message.texts]
            assert [found for one in left for found in _instructions(one)] == []


def _instructions(text: str) -> list[Any]:
    result = parse(text)
    return [
        *result.instructions,
        *(found for found in result.malformed if isinstance(found, MalformedInstruction)),
    ]


class Http(Target):
    """A request is the same however its bytes are split, and reading never fails but by a fault."""

    name = "http"

    def make(self, random: Random) -> bytes:
        data = mutate.data(random.choice(HEADS["requests"]), random)
        offsets = ",".join(map(str, mutate.splits(len(data), random)))
        return offsets.encode() + b"\n" + data

    async def check(self, data: bytes) -> None:
        offsets, _, sent = data.partition(b"\n")
        reads = split(sent, [int(offset) for offset in offsets.split(b",") if offset])
        whole, pieces = read_requests([sent])[0], read_requests(reads)[0]
        # A request with several faults is refused for the one that is read first.
        assert [item[:1] if item[0] == "fault" else item for item in pieces] == [
            item[:1] if item[0] == "fault" else item for item in whole
        ]
        assert {item[1] for item in [*whole, *pieces] if item[0] == "fault"} <= _FAULTS


class ComparedAnswers(Compared):
    """The build passes on streams and whole answers like the sources."""

    name = "compared-answers"

    def make(self, random: Random) -> bytes:
        """Return an input of the target that is compared, after its name."""
        target: Target = random.choice((Sse(), Answers()))
        return f"{target.name} ".encode() + target.make(random)

    async def check(self, data: bytes) -> None:
        line, _, sent = data.partition(b"\n")
        name, client, upstream, rest = line.decode().split(" ")
        at = [int(offset) for offset in rest.split(",") if offset] if name == Sse.name else []
        kind = "stream" if name == Sse.name else "whole"
        self.compare(Case(kind, split(sent, at), f"{client} {upstream}"))
