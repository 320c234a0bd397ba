"""Whole requests: through a gateway, and through one of the sources and one of the build."""

from __future__ import annotations

from random import Random

import msgspec

from routecodex.protocols import grammar
from tests.fuzz import mutate
from tests.fuzz.exchanges import PROTOCOLS, Exchanges, exchanging
from tests.fuzz.processes import Case, Twins, split
from tests.fuzz.target import Target
from tests.kit import asking
from tests.kit.growing.lists import REQUESTS
from tests.kit.raw_client import Answer

_CLIENTS = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}
_TEXTS = (
    "<**!chat.m**> Hello",
    '<**stopMessage:"go on",2**> Hello',
    "<**#messages**><**@gemini.m**> Hello",
    "<**clear**>",
    "<**status**>",
    "<**help**> `<**clear**>`",
)
"""Texts with instructions that act, for requests of a session."""


def make_request(random: Random, *, sessions: bool = True) -> bytes:
    """Return a request: a line with its path, then its body, mostly a changed one."""
    client, upstream = random.choice(PROTOCOLS), random.choice(PROTOCOLS)
    stream = random.random() < 0.3
    path = asking.path(client, stream=stream, model=f"{upstream}.m")
    if sessions and random.random() < 0.2:
        path = f"/s/session-{random.randrange(5)}{path}"
        body = asking.body(client, random.choice(_TEXTS), stream=stream, tools=random.random() < 0.3)
    else:
        kind = random.choice(sorted(REQUESTS[client]))
        body = REQUESTS[client][kind](random.choice((1, 2, 3)))
    if client != "gemini":
        body |= {"model": f"{upstream}.m", "stream": stream}
    path = _counting(path) if random.random() < 0.05 else path
    encoded = msgspec.json.encode(body) if random.random() < 0.1 else mutate.json_body(body, random)
    return path.encode() + b"\n" + encoded


def _counting(path: str) -> str:
    """Return the path that counts the tokens of a request, where the protocol has one."""
    counting = path.partition(":")[0] + ":countTokens" if ":" in path else path
    return f"{path}/count_tokens" if path.endswith("/messages") else counting


def client_of(path: str) -> str:
    """Return the protocol of a path."""
    known = (name for end, name in _CLIENTS.items() if path.removesuffix("/count_tokens").endswith(end))
    return next(known, "gemini")


class Requests(Target):
    """Every answer follows the grammar of its protocol; nothing is a 5xx, nothing is logged as an error."""

    name = "requests"
    exchanges: Exchanges

    async def open(self) -> None:
        self.exchanges = await self.stack.enter_async_context(exchanging())

    def make(self, random: Random) -> bytes:
        return make_request(random)

    async def check(self, data: bytes) -> None:
        path, _, body = data.partition(b"\n")
        answer = await self.exchanges.call(path.decode(), body)
        problems = list(self.exchanges.problems)
        self.exchanges.problems.clear()
        self.exchanges.sent()
        assert problems == [], problems[0][-700:]
        if answer.status == 200 and (b"count_tokens" in path or b"countTokens" in path):
            return
        check_answer(client_of(path.decode()), answer, body)


def check_answer(client: str, answer: Answer, body: bytes) -> None:
    """Check status and grammar of an answer whose provider never fails."""
    assert answer.complete
    assert answer.status < 500, (answer.status, answer.body)
    if answer.status != 200:
        grammar.check_error(client, answer.status, answer.body)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        options = {"include_usage": _wants_usage(body)} if client == "chat" else {}
        grammar.check_stream(client, answer.body, **options)
    else:
        grammar.check_json(client, answer.body)


def _wants_usage(body: bytes) -> bool:
    options = msgspec.json.decode(body).get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


class Compared(Target):
    """Compares the sources with the build."""

    twins: Twins

    async def open(self) -> None:
        self.twins = self.stack.enter_context(Twins())

    def compare(self, case: Case) -> None:
        pure, built = self.twins.run(case)
        assert built == pure


class ComparedRequests(Compared):
    """The build answers like the sources, and sends the same to the provider."""

    name = "compared-requests"

    def make(self, random: Random) -> bytes:
        return make_request(random, sessions=False)

    async def check(self, data: bytes) -> None:
        path, _, body = data.partition(b"\n")
        self.compare(Case("request", [body], path.decode()))


class ComparedHeads(Compared):
    """The build reads requests and responses like the sources, however they are split."""

    name = "compared-heads"

    def make(self, random: Random) -> bytes:
        """Return a kind, the offsets of splits and the bytes."""
        kind = random.choice(("requests", "response"))
        data = mutate.data(random.choice(HEADS[kind]), random)
        offsets = ",".join(map(str, mutate.splits(len(data), random)))
        return f"{kind} {offsets}\n".encode() + data

    async def check(self, data: bytes) -> None:
        line, _, sent = data.partition(b"\n")
        kind, _, offsets = line.decode().partition(" ")
        at = [int(offset) for offset in offsets.split(",") if offset]
        self.compare(Case(kind, split(sent, at)))


_POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
_CHUNKS = b"5\r\nhello\r\n3;a=b\r\nyou\r\n0\r\n\r\n"
HEADS: dict[str, list[bytes]] = {
    "requests": [
        _POST + b"Content-Length: 5\r\n\r\nhello",
        _POST
        + b"Content-Length: 5\r\nConnection: keep-alive\r\n\r\nhello"
        + _POST
        + b"Content-Length: 0\r\n\r\n",
        _POST + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNKS,
        _POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
        b"GET /v1/models?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\nOrigin: http://a\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    ],
    "response": [
        _OK + b"Content-Length: 5\r\n\r\nhello",
        _OK + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNKS,
        _OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n" + _CHUNKS,
        _OK + b"Transfer-Encoding: gzip, chunked\r\nConnection: close\r\n\r\n" + _CHUNKS,
        _OK + b"Connection: close\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" + _OK + b"Content-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 204 No Content\r\nKeep-Alive: timeout=5\r\n\r\n",
    ],
}
"""Bytes of connections to and from the gateway, which are changed."""
