"""Bodies in every framing, whole and cut off, fast and slow."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamTimeout
from routecodex.providers.http import HttpClient, Timeouts
from tests.providers.http.scripted_server import (
    FAST,
    Peer,
    Script,
    answering,
    chunked,
    closing_after,
    fetch,
    plain,
    post,
    serving,
)

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"


async def test_headers_are_lower_cased_and_kept_in_order(client: HttpClient) -> None:
    async with serving(answering(plain(b"ok", b"X-One: 1", b"X-Two: B", b"x-one: 2"))) as server:
        response = await post(client, server.origin())
        expected = [(b"x-one", b"1"), (b"x-two", b"B"), (b"x-one", b"2"), (b"content-length", b"2")]
        assert response.headers == expected
        assert (response.header(b"x-one"), response.header(b"x-three")) == (b"1", None)


@pytest.mark.parametrize(
    "script",
    [
        answering(plain(b"hello world")),
        answering(CHUNKED + b"\r\n" + chunked(b"hello", b" world")),
        answering(CHUNKED + b"\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: t\r\n\r\n"),
        answering(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\n" + plain(b"hello world")
        ),
        closing_after(b"HTTP/1.1 200 OK\r\n\r\nhello world"),
        closing_after(b"HTTP/1.0 200 OK\r\nserver: old\r\n\r\nhello world"),
    ],
    ids=["length", "chunked", "extensions-and-trailers", "interim", "until-close", "http-1.0"],
)
async def test_whole_body_is_read(client: HttpClient, script: Script) -> None:
    async with serving(script) as server:
        response = await post(client, server.origin())
        assert (await response.read(100), response.ended, await response.chunk()) == (
            b"hello world",
            True,
            None,
        )
        assert b"link" not in dict(response.headers)
        assert b"trailer" not in dict(response.headers)


async def test_every_split_of_the_bytes_gives_the_same_body(client: HttpClient) -> None:
    whole = CHUNKED + b"a: b\r\n\r\n" + chunked(b"hello", b" world")

    async def byte_by_byte(peer: Peer) -> None:
        for cut in range(1, len(whole)):
            await peer.request()
            await peer.send(whole[:cut])
            await asyncio.sleep(0)
            await peer.send(whole[cut:])
        await peer.gone()

    async with serving(byte_by_byte) as server:
        bodies = {await fetch(client, server.origin()) for _ in range(1, len(whole))}
        assert (bodies, server.connections) == ({b"hello world"}, 1)


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_statuses_without_a_body_end_at_the_head(client: HttpClient, status: bytes) -> None:
    async with serving(answering(b"HTTP/1.1 " + status + b"\r\netag: x\r\n\r\n")) as server:
        for _ in range(2):
            response = await post(client, server.origin())
            assert (response.ended, response.take(), await response.chunk()) == (True, b"", None)
        assert server.connections == 1


async def test_head_request_has_no_body_whatever_its_length_says(client: HttpClient) -> None:
    async with serving(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n")) as server:
        response = await client.send(
            server.origin(), method=b"HEAD", path=b"/", headers=b"", body=b"", timeouts=FAST
        )
        assert (response.status, response.ended, await response.read(10)) == (200, True, b"")
        assert b"content-length" not in server.requests[0]


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 10\r\n\r\nhello",
        CHUNKED + b"\r\n5\r\nhello\r\n",
        CHUNKED + b"connection: close\r\n\r\n5\r\nhello\r\n",
    ],
    ids=["length", "length-and-close", "chunked", "chunked-and-close"],
)
async def test_truncated_body_gives_what_came_and_then_fails(client: HttpClient, response: bytes) -> None:
    async with serving(closing_after(response)) as server:
        answer = await post(client, server.origin())
        assert await answer.chunk() == b"hello"
        for _ in range(2):
            with pytest.raises(UpstreamFailed, match="in the middle of its answer"):
                await answer.chunk()
        answer.close()
        assert (answer.ended, answer.take()) == (False, b"")


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nabc",
    ],
    ids=["not-http", "no-status", "two-lengths", "length-and-chunked", "switched"],
)
async def test_malformed_head_is_an_upstream_failure(client: HttpClient, response: bytes) -> None:
    async with serving(answering(response)) as server:
        with pytest.raises(UpstreamFailed, match=rf"127\.0\.0\.1:{server.port}"):
            await post(client, server.origin())
        await server.until_finished(1)


async def test_malformed_chunk_gives_what_came_and_then_fails(client: HttpClient) -> None:
    async with serving(answering(CHUNKED + b"\r\n5\r\nhello\r\nZZ\r\n")) as server:
        response = await post(client, server.origin())
        assert await response.chunk() == b"hello"
        with pytest.raises(UpstreamFailed, match=r"not valid HTTP/1\.1"):
            await response.chunk()


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\n" + b"x: %b\r\n" % (b"y" * 990) * 3 + b"content-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    ],
    ids=["many", "one-without-end", "interim-flood"],
)
async def test_head_past_the_limit_is_refused(response: bytes) -> None:
    client = HttpClient(max_header_bytes=2048)
    async with serving(answering(response)) as server:
        with pytest.raises(UpstreamFailed, match="more than 2048 bytes"):
            await post(client, server.origin())
        await server.until_finished(1)
        await client.close()


async def test_large_body_in_the_same_packet_is_not_counted_as_head() -> None:
    client = HttpClient(max_header_bytes=2048)
    async with serving(answering(plain(b"x" * 60_000))) as server:
        assert len(await fetch(client, server.origin())) == 60_000
        await client.close()


async def test_endless_trailer_is_refused(client: HttpClient) -> None:
    async with serving(answering(CHUNKED + b"\r\n0\r\nx: " + b"y" * 400_000)) as server:
        response = await post(client, server.origin())
        with pytest.raises(UpstreamFailed, match="head or framing"):
            await response.chunk()


async def test_silence_between_pieces_times_out(client: HttpClient) -> None:
    async with serving(answering(CHUNKED + b"\r\n5\r\nhello\r\n")) as server:
        response = await post(client, server.origin(), timeouts=Timeouts(idle=0.05))
        assert await response.chunk() == b"hello"
        with pytest.raises(UpstreamTimeout, match=r"fell silent in its answer for 0\.05 s"):
            await response.chunk()
        await server.until_finished(1)


async def test_slow_reader_is_not_a_silent_upstream(client: HttpClient) -> None:
    async with serving(answering(CHUNKED + b"\r\n5\r\nhello\r\n")) as server:
        response = await post(client, server.origin(), timeouts=Timeouts(idle=0.02))
        await asyncio.sleep(0.06)
        assert await response.chunk() == b"hello"
        response.close()


async def test_pieces_already_here_come_merged(client: HttpClient) -> None:
    async with serving(answering(CHUNKED + b"\r\n" + chunked(*[b"ab"] * 50))) as server:
        response = await post(client, server.origin())
        assert (await response.chunk(), response.ended, await response.chunk()) == (b"ab" * 50, True, None)


async def test_take_never_waits(client: HttpClient) -> None:
    async def in_two_steps(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"\r\n")
        await proceed.wait()
        await peer.send(chunked(b"late"))
        await peer.gone()

    proceed = asyncio.Event()
    async with serving(in_two_steps) as server:
        response = await post(client, server.origin())
        assert (response.take(), response.ended) == (b"", False)
        proceed.set()
        assert (await response.chunk(), response.take()) == (b"late", b"")


async def test_cancelled_reader_can_read_on(client: HttpClient) -> None:
    async def waits(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"\r\n")
        await proceed.wait()
        await peer.send(chunked(b"late"))
        await peer.gone()

    proceed = asyncio.Event()
    async with serving(waits) as server:
        response = await post(client, server.origin())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.chunk(), 0.01)
        proceed.set()
        assert await response.read(10) == b"late"


async def test_close_in_the_middle_of_a_body_aborts_the_connection(client: HttpClient) -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"\r\n5\r\nhello\r\n")
        await peer.gone()

    async with serving(endless) as server:
        response = await post(client, server.origin())
        assert await response.chunk() == b"hello"
        response.close()
        response.close()
        await server.until_finished(1)
        assert (response.ended, response.take()) == (False, b"")
        with pytest.raises(UpstreamFailed, match="closed before its end"):
            await response.chunk()


async def test_close_of_a_whole_but_unread_answer_keeps_the_connection(client: HttpClient) -> None:
    async with serving(answering(plain(b"error text"), plain(b"next"))) as server:
        (await post(client, server.origin())).close()
        assert await fetch(client, server.origin()) == b"next"
        assert server.connections == 1


async def test_read_past_its_limit_fails_and_closes(client: HttpClient) -> None:
    async with serving(answering(plain(b"x" * 1000))) as server:
        response = await post(client, server.origin())
        with pytest.raises(UpstreamFailed, match="longer than 999 bytes"):
            await response.read(999)
        assert await (await post(client, server.origin())).read(1000) == b"x" * 1000


async def test_reader_that_stops_holds_the_upstream_back(client: HttpClient) -> None:
    total = 50 << 20
    sent = 0

    async def pushes(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            await peer.send(b"x" * 65536)
            sent += 65536
        await peer.gone()

    async def until_stuck() -> None:
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.05)

    async with serving(pushes) as server:
        response = await post(client, server.origin())
        await until_stuck()
        assert sent < total
        piece = await response.chunk()
        assert piece is not None
        assert len(piece) < 1 << 20
        assert len(piece) + len(await response.read(total)) == total
        assert response.ended


async def test_what_came_before_a_shut_down_can_still_be_taken(client: HttpClient) -> None:
    async with serving(answering(plain(b"x" * 5_000_000))) as server:
        response = await post(client, server.origin())
        first = await response.chunk()
        assert first is not None
        await asyncio.sleep(0.05)
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        assert len(first) + len(response.take()) < 5_000_000
        with pytest.raises(UpstreamFailed, match="shutting down"):
            await response.chunk()
        await closing


def deflated(body: bytes, wbits: int) -> bytes:
    squeeze = zlib.compressobj(wbits=wbits)
    return squeeze.compress(body) + squeeze.flush()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (b"gzip", gzip.compress(b"hello world" * 100)),
        (b"GZIP", gzip.compress(b"hello world" * 60) + gzip.compress(b"hello world" * 40)),
        (b"deflate", deflated(b"hello world" * 100, 15)),
        (b"deflate", deflated(b"hello world" * 100, -15)),
    ],
    ids=["gzip", "two-members", "zlib", "raw"],
)
async def test_coded_body_is_decoded_though_unasked(
    client: HttpClient, encoding: bytes, packed: bytes
) -> None:
    head = CHUNKED + b"content-encoding: " + encoding + b"\r\n\r\n"
    pieces = [packed[i : i + 7] for i in range(0, len(packed), 7)]
    async with serving(answering(head + chunked(*pieces))) as server:
        for _ in range(2):
            response = await post(client, server.origin())
            assert await response.read(10_000) == b"hello world" * 100
            assert (response.ended, response.headers) == (True, [(b"transfer-encoding", b"chunked")])
        assert server.connections == 1


async def test_decoding_a_bomb_is_bounded_and_stops_at_the_limit(client: HttpClient) -> None:
    bomb = gzip.compress(b"\0" * (50 << 20), 1)
    async with serving(answering(plain(bomb, b"content-encoding: gzip"))) as server:
        response = await post(client, server.origin())
        piece = await response.chunk()
        assert piece is not None
        assert len(piece) <= 1 << 20
        with pytest.raises(UpstreamFailed, match="longer than"):
            await response.read(4 << 20)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (gzip.compress(b"hello" * 100)[:-9], "compressed body that ends too early"),
        (b"not gzip", "does not match its content-encoding"),
    ],
    ids=["cut", "lying"],
)
async def test_coded_body_that_cannot_be_decoded_fails(
    client: HttpClient, packed: bytes, message: str
) -> None:
    async with serving(answering(plain(packed, b"content-encoding: gzip"))) as server:
        response = await post(client, server.origin())
        with pytest.raises(UpstreamFailed, match=message):
            await response.read(10_000)


async def test_empty_body_with_a_coding_is_empty(client: HttpClient) -> None:
    async with serving(answering(plain(b"", b"content-encoding: gzip"))) as server:
        assert await fetch(client, server.origin()) == b""


async def test_unknown_coding_is_passed_on_as_it_is(client: HttpClient) -> None:
    async with serving(answering(plain(b"\x01\x02", b"content-encoding: br"))) as server:
        response = await post(client, server.origin())
        assert (response.header(b"content-encoding"), await response.read(10)) == (b"br", b"\x01\x02")
