"""A body passed to a sink: pieces where they are read, everything else to the waiting task."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamTimeout
from routecodex.providers.http import HttpClient, HttpResponse, Timeouts
from tests.providers.http.scripted_server import (
    FAST,
    Peer,
    answering,
    chunked,
    closing_after,
    fetch,
    plain,
    post,
    serving,
)

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
WORDS = (b"one", b"two", b"three")


class CollectingSink:
    """Collects pieces, at most `most`; `full` completes when all expected bytes have arrived."""

    def __init__(self, *, most: int = 100, waiting_for: bytes = b"") -> None:
        self.pieces: list[bytes] = []
        self.full = asyncio.Event()
        self._most, self._waiting_for = most, waiting_for

    def take(self, data: bytes) -> bool:
        self.pieces.append(data)
        if b"".join(self.pieces) == self._waiting_for:
            self.full.set()
        return len(self.pieces) < self._most


@asynccontextmanager
async def streaming(
    client: HttpClient, *pieces: bytes, timeouts: Timeouts = FAST
) -> AsyncIterator[tuple[HttpResponse, Callable[[], None]]]:
    """Open a chunked response; yield it with a function that releases its next piece or its end."""
    permits = asyncio.Semaphore(0)

    async def speaks(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for word in pieces:
            await permits.acquire()
            await peer.send(b"%x\r\n%b\r\n" % (len(word), word))
        await permits.acquire()
        await peer.send(b"0\r\n\r\n")
        await peer.gone()

    async with serving(speaks) as server:
        yield await post(client, server.origin(), timeouts=timeouts), permits.release
        for _ in range(len(pieces) + 1):
            permits.release()


async def test_pieces_come_one_by_one_up_to_the_end(client: HttpClient) -> None:
    async with streaming(client, *WORDS) as (response, send_next):
        sink = CollectingSink()

        def take(data: bytes) -> bool:
            send_next()
            return sink.take(data)

        send_next()
        await response.pour(take)
        assert (sink.pieces, response.ended) == (list(WORDS), True)


async def test_pieces_do_not_wake_whoever_waits(client: HttpClient) -> None:
    async with streaming(client, *WORDS) as (response, send_next):
        sink = CollectingSink(waiting_for=b"onetwo")
        pouring = response.pour(sink.take)
        waiting = pouring.send(None)
        assert isinstance(waiting, asyncio.Future)
        send_next()
        send_next()
        await sink.full.wait()
        assert not waiting.done()
        pouring.close()
        response.close()


async def test_what_is_already_here_is_handed_on_too(client: HttpClient) -> None:
    async with serving(answering(plain(b"hello"), plain(b"next"))) as server:
        response, sink = await post(client, server.origin()), CollectingSink()
        await response.pour(sink.take)
        assert (sink.pieces, response.ended) == ([b"hello"], True)
        assert (await fetch(client, server.origin()), server.connections) == (b"next", 1)


async def test_one_that_has_had_enough_can_go_on_later(client: HttpClient) -> None:
    async with streaming(client, *WORDS) as (response, send_next):
        first, rest = CollectingSink(most=1), CollectingSink()
        send_next()
        await response.pour(first.take)
        assert (first.pieces, response.ended) == ([b"one"], False)
        for _ in range(3):
            send_next()
        await response.pour(rest.take)
        assert (first.pieces, b"".join(rest.pieces), response.ended) == ([b"one"], b"twothree", True)


async def test_what_is_raised_on_taking_a_piece_is_raised_to_whoever_waits(client: HttpClient) -> None:
    def refuse(data: bytes) -> bool:
        raise LookupError(data)

    async with streaming(client, *WORDS) as (response, send_next):
        send_next()
        with pytest.raises(LookupError, match="one"):
            await response.pour(refuse)
        for _ in range(3):
            send_next()
        assert await response.read(100) == b"twothree"


async def test_a_cancelled_one_is_handed_nothing_more(client: HttpClient) -> None:
    async with streaming(client, *WORDS) as (response, send_next):
        sink = CollectingSink()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.pour(sink.take), 0.01)
        for _ in range(4):
            send_next()
        assert (await response.read(100), sink.pieces) == (b"onetwothree", [])


async def test_a_cut_off_body_is_handed_on_before_it_fails(client: HttpClient) -> None:
    async with serving(closing_after(CHUNKED + b"5\r\nhello\r\n")) as server:
        response, sink = await post(client, server.origin()), CollectingSink()
        with pytest.raises(UpstreamFailed, match="in the middle of its answer"):
            await response.pour(sink.take)
        assert (b"".join(sink.pieces), response.ended) == (b"hello", False)


async def test_silence_is_counted_from_the_last_piece(client: HttpClient) -> None:
    """Three pieces, each within the limit, take longer than it together; then the server is silent."""
    async with streaming(client, *WORDS, timeouts=Timeouts(20, 20, idle=0.4)) as (response, send_next):
        sink, loop = CollectingSink(), asyncio.get_running_loop()

        def take(data: bytes) -> bool:
            loop.call_later(0.3, send_next) if len(sink.pieces) < 2 else None
            return sink.take(data)

        send_next()
        with pytest.raises(UpstreamTimeout, match="fell silent"):
            await response.pour(take)
        # A machine that stands still for longer than the limit has less to tell.
        assert b"".join(sink.pieces) == b"".join(WORDS[: len(sink.pieces)])


async def test_a_packed_body_is_handed_on_unpacked(client: HttpClient) -> None:
    packed = gzip.compress(b"hello " * 1000)
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    async with serving(answering(head + chunked(packed[:20], packed[20:]))) as server:
        response, sink = await post(client, server.origin()), CollectingSink()
        await response.pour(sink.take)
        assert (b"".join(sink.pieces), response.ended) == (b"hello " * 1000, True)
