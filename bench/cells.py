"""Cells of the benchmark: each is one kind of traffic, for the systems that support it."""

from __future__ import annotations

from dataclasses import dataclass

from bench.setups import PLAIN


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of traffic: `client` → `upstream` protocol, number of connections, port of the mock.

    `setup` names the settings and sessions of our gateway; with `calls` the answer is a tool call. A sample
    is disturbed if other processes take more than the share `others` of the machine: a single pause of it
    decides the 99th percentile of the first tokens.
    """

    name: str
    title: str
    connections: int
    client: str = "chat"
    upstream: str = "chat"
    size: str = "1k"
    stream: bool = False
    port: str = "whole"
    setup: str = PLAIN
    calls: bool = False
    others: float = 0.15

    @property
    def needle(self) -> str:
        """The end of a complete answer."""
        return STREAM_ENDS[self.client] if self.stream else DOCUMENT_TEXT

    @property
    def variant(self) -> Variant:
        """The upstream a gateway must be configured for."""
        return Variant(self.upstream, self.port, self.setup)


@dataclass(frozen=True, slots=True)
class Variant:
    """An upstream: its protocol, its port of the mock, and the setup of the gateway."""

    protocol: str
    port: str
    setup: str = PLAIN

    @property
    def upstream(self) -> tuple[str, str]:
        """Properties that are the same for every system."""
        return self.protocol, self.port


STREAM_ENDS = {"chat": "[DONE]", "messages": "message_stop", "responses": "response.completed"}
DOCUMENT_TEXT = "here to be carried, not to be read."

CELLS = {
    cell.name: cell
    for cell in (
        Cell("n1", "1 KB, 1 connection", 1),
        Cell("n16", "1 KB, 16 connections", 16),
        Cell("n64", "1 KB, 64 connections", 64),
        Cell("s16", "stream in one write, 16 connections", 16, stream=True),
        Cell("s64", "stream in one write, 64 connections", 64, stream=True),
        Cell("m16", "stream, one write per event, 16 connections", 16, stream=True, port="each"),
        Cell(
            "p64", "stream, an event every 10 ms, 64 connections", 64, stream=True, port="paced", others=0.02
        ),
        Cell("k16", "100 KB, 16 connections", 16, size="100k"),
        Cell("B4", "500 KB, 4 connections", 4, size="500k"),
        Cell("2MB", "2 MB, 2 connections", 2, size="2m"),
        Cell("a16", "messages to chat, 16 connections", 16, client="messages"),
        Cell("A16", "messages to chat, stream, 16 connections", 16, client="messages", stream=True),
        Cell(
            "r16",
            "responses to messages, stream, 16 connections",
            16,
            client="responses",
            upstream="messages",
            stream=True,
        ),
        Cell("sticky16", "a session with a sticky target, 16 connections", 16, setup="sticky"),
        Cell("known16", "any of 10 000 such sessions, 16 connections", 16, setup="known"),
        Cell(
            "armed16",
            "stopMessage armed, tool calls end the turn, stream, 16 connections",
            16,
            stream=True,
            setup="armed",
            calls=True,
        ),
        Cell(
            "follow16", "stopMessage follows up once, stream, 16 connections", 16, stream=True, setup="armed"
        ),
        Cell("off16", "without the usage ledger, 16 connections", 16, setup="off"),
        Cell("soff16", "the same, stream, 16 connections", 16, stream=True, setup="off"),
        Cell("keys16", "a client with a key, 16 connections", 16, setup="keys"),
        Cell("budget16", "a client with three limits, 16 connections", 16, setup="budget"),
        Cell("sbudget16", "the same, stream, 16 connections", 16, stream=True, setup="budget"),
        Cell("redis16", "state in Redis, 16 connections", 16, setup="redis"),
        Cell("redisbudget16", "a client with three limits in Redis, 16 connections", 16, setup="redisbudget"),
        Cell("redisclients16", "any of 100 such clients, 16 connections", 16, setup="redisclients"),
        Cell("filesticky16", "each request sets a sticky target, 16 connections", 16, setup="filesticky"),
        Cell("redissticky16", "the same with state in Redis, 16 connections", 16, setup="redissticky"),
        Cell("clock16", "clock with time tag, stream, 16 connections", 16, stream=True, setup="clock"),
    )
}
OF_FEATURES = (
    *("sticky16", "known16", "armed16", "follow16", "clock16"),
    *("off16", "soff16", "keys16", "budget16", "sbudget16"),
    *("redis16", "redisbudget16", "redisclients16", "filesticky16", "redissticky16"),
)
FULL = ("n1", "n16", "n64", "s16", "s64", "m16", "p64", "B4", "2MB", "a16", "A16", "r16", *OF_FEATURES)
QUICK = ("n1", "n16", "s16", "m16", "p64", "B4", "a16", "A16", "r16", "off16", "keys16", "budget16")
