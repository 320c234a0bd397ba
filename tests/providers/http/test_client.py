"""Sending and reusing connections, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamTimeout
from routecodex.providers.http import HttpClient, Timeouts
from tests.providers.http.scripted_server import (
    FAST,
    Peer,
    answering,
    closing_after,
    fetch,
    plain,
    post,
    serving,
)


async def test_request_goes_out_as_one_head_and_body(client: HttpClient) -> None:
    async with serving(answering(plain(b"hello"))) as server:
        response = await client.send(
            server.origin(),
            method=b"POST",
            path=b"/v1/chat?x=1",
            headers=[(b"Authorization", b"Bearer k")],
            body=[b'{"a":', b"1}"],
            timeouts=FAST,
        )
        assert (response.status, await response.read(100)) == (200, b"hello")
    assert server.requests == [
        b"POST /v1/chat?x=1 HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept-encoding: identity\r\n"
        b'content-length: 7\r\nAuthorization: Bearer k\r\n\r\n{"a":1}' % server.port
    ]


async def test_finished_connection_is_used_again(client: HttpClient) -> None:
    async with serving(answering(plain(b"a"), plain(b"b"), plain(b"c"))) as server:
        assert [await fetch(client, server.origin()) for _ in range(3)] == [b"a", b"b", b"c"]
        assert server.connections == 1


async def test_connection_used_last_is_taken_first(client: HttpClient) -> None:
    async with serving(answering(plain(b"first")), answering(plain(b"second"))) as server:
        origin = server.origin()
        one, two = await post(client, origin), await post(client, origin)
        await one.read(10)
        await two.read(10)
        assert [await fetch(client, origin), await fetch(client, origin)] == [b"second", b"second"]


async def test_unfinished_response_is_never_shared(client: HttpClient) -> None:
    partly = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab"
    async with serving(answering(partly), answering(plain(b"new"))) as server:
        first = await post(client, server.origin())
        assert await first.chunk() == b"ab"
        assert await fetch(client, server.origin()) == b"new"
        first.close()


async def test_stale_connection_is_replaced_once(client: HttpClient) -> None:
    async def closes_on_second_request(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain(b"one"))
        await peer.request()

    async with serving(closes_on_second_request, answering(plain(b"two"))) as server:
        assert await fetch(client, server.origin()) == b"one"
        assert await fetch(client, server.origin()) == b"two"
        assert (server.connections, len(server.requests)) == (2, 3)


async def test_fresh_connection_that_closes_is_not_tried_again(client: HttpClient) -> None:
    async def closes(peer: Peer) -> None:
        await peer.request()

    async with serving(closes) as server:
        with pytest.raises(UpstreamFailed, match=rf"127\.0\.0\.1:{server.port} closed .* before it answered"):
            await post(client, server.origin())
        assert server.connections == 1


async def test_stale_connection_replaced_by_a_closing_one_fails(client: HttpClient) -> None:
    async def one_answer(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain())
        await peer.request()

    async def none(peer: Peer) -> None:
        await peer.request()

    async with serving(one_answer, none) as server:
        await fetch(client, server.origin())
        with pytest.raises(UpstreamFailed):
            await post(client, server.origin())
        assert server.connections == 2


async def test_reused_connection_that_began_to_answer_is_not_tried_again(client: HttpClient) -> None:
    async def breaks_off(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain())
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n")
        peer.writer.close()

    async with serving(breaks_off) as server:
        await fetch(client, server.origin())
        with pytest.raises(UpstreamFailed, match="before it answered"):
            await post(client, server.origin())
        assert server.connections == 1


@pytest.mark.parametrize("unasked", [b"HTTP/1.1 408 Timeout\r\n\r\n", b""], ids=["data", "end"])
async def test_idle_connection_that_speaks_or_ends_is_dropped(client: HttpClient, unasked: bytes) -> None:
    async def speaks_up(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain(b"one"))
        if unasked:
            await peer.send(unasked)
            await peer.gone()

    async with serving(speaks_up, answering(plain(b"two"))) as server:
        assert await fetch(client, server.origin()) == b"one"
        await server.until_finished(1)
        assert await fetch(client, server.origin()) == b"two"
        assert server.requests[1:] != []
        assert server.connections == 2


@pytest.mark.parametrize(
    "response",
    [
        plain(b"ok", b"connection: close"),
        plain(b"ok") + b"GARBAGE",
        plain(b"ok") + plain(b"smuggled"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ],
    ids=["connection-close", "garbage-after", "second-response-after", "http-1.0"],
)
async def test_connection_is_not_reused_after(client: HttpClient, response: bytes) -> None:
    async with serving(answering(response)) as server:
        assert await fetch(client, server.origin()) == b"ok"
        assert await fetch(client, server.origin()) == b"ok"
        assert server.connections == 2


async def test_idle_connections_are_capped() -> None:
    client = HttpClient(max_idle_per_origin=1)
    async with serving(answering(plain())) as server:
        both = [await post(client, server.origin()) for _ in range(2)]
        for response in both:
            assert await response.read(10) == b"ok"
        await server.until_finished(1)
        assert (server.connections, server.finished) == (2, 1)
        await client.close()


async def test_expired_connection_is_not_taken() -> None:
    client = HttpClient(idle_seconds=0.0)
    async with serving(answering(plain())) as server:
        await fetch(client, server.origin())
        await fetch(client, server.origin())
        assert server.connections == 2
        await client.close()


async def test_expired_connection_is_closed_without_another_request() -> None:
    client = HttpClient(idle_seconds=0.01)
    async with serving(answering(plain())) as server:
        await fetch(client, server.origin())
        await server.until_finished(1)
        await client.close()


async def test_closing_the_client_ends_idle_and_busy_connections() -> None:
    client = HttpClient()
    async with serving(
        answering(plain()), answering(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
    ) as server:
        origin = server.origin()
        idle = await post(client, origin)
        busy = await post(client, origin)
        await idle.read(10)
        reading = asyncio.ensure_future(busy.chunk())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(UpstreamFailed, match="shutting down"):
            await reading
        await server.until_finished(2)
        with pytest.raises(UpstreamFailed, match="shutting down"):
            await post(client, origin)


async def test_refused_connection_names_host_and_port(client: HttpClient) -> None:
    async with serving(answering(plain())) as server:
        origin = server.origin()
    with pytest.raises(UpstreamFailed, match=rf"127\.0\.0\.1:{server.port} could not be connected to"):
        await post(client, origin)


async def test_connect_time_includes_the_tls_handshake(client: HttpClient) -> None:
    async def silent(peer: Peer) -> None:
        await peer.gone()

    async with serving(silent) as server:
        with pytest.raises(UpstreamTimeout, match=r"could not be connected to within 0\.05 s"):
            await post(client, server.origin("https"), timeouts=Timeouts(connect=0.05))
        await server.until_finished(1)


async def test_silence_before_the_head_times_out(client: HttpClient) -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await peer.gone()

    async with serving(silent) as server:
        with pytest.raises(UpstreamTimeout, match=r"did not answer for 0\.05 s"):
            await post(client, server.origin(), timeouts=Timeouts(first_byte=0.05))
        await server.until_finished(1)


async def test_reused_connection_that_stays_silent_is_not_tried_again(client: HttpClient) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(plain())
        await peer.gone()

    async with serving(once) as server:
        await fetch(client, server.origin())
        with pytest.raises(UpstreamTimeout):
            await post(client, server.origin(), timeouts=Timeouts(first_byte=0.05))
        assert server.connections == 1


async def test_shorter_patience_replaces_a_longer_one_on_the_same_connection(client: HttpClient) -> None:
    partly = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab"
    async with serving(answering(plain(), partly)) as server:
        await fetch(client, server.origin())
        response = await post(client, server.origin(), timeouts=Timeouts(idle=0.05))
        assert await response.chunk() == b"ab"
        with pytest.raises(UpstreamTimeout, match=r"fell silent in its answer for 0\.05 s"):
            await response.chunk()
        assert server.connections == 1


async def test_cancelled_while_connecting_leaves_no_connection(client: HttpClient) -> None:
    async def silent(peer: Peer) -> None:
        await peer.gone()

    async with serving(silent) as server:
        sending = asyncio.ensure_future(post(client, server.origin("https")))
        while server.connections == 0:
            await asyncio.sleep(0.001)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await server.until_finished(1)


async def test_cancelled_while_waiting_for_the_head_closes_the_connection(client: HttpClient) -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with serving(silent) as server:
        sending = asyncio.ensure_future(post(client, server.origin()))
        while not server.requests:
            await asyncio.sleep(0.001)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await server.until_finished(1)


async def test_cancelled_while_writing_closes_the_connection(client: HttpClient) -> None:
    async def never_reads(peer: Peer) -> None:
        await peer.head()
        started.set()
        await cancelled.wait()
        await peer.gone()

    started, cancelled = asyncio.Event(), asyncio.Event()
    async with serving(never_reads) as server:
        sending = asyncio.ensure_future(post(client, server.origin(), body=b"x" * (64 << 20)))
        await started.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        cancelled.set()
        await server.until_finished(1)


@pytest.mark.parametrize("size", [200_000, 1_000_000, 5_000_000])
async def test_large_body_arrives_whole_and_connection_is_reused(client: HttpClient, size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    async with serving(answering(plain())) as server:
        for parts in (body, [body[:1000], body[1000:]]):
            response = await post(client, server.origin(), body=parts)
            assert await response.read(10) == b"ok"
        assert [request.endswith(b"\r\n\r\n" + body) for request in server.requests] == [True, True]
        assert server.connections == 1


async def test_early_answer_is_seen_while_the_body_is_still_being_written(client: HttpClient) -> None:
    async def refuses(peer: Peer) -> None:
        await peer.head()
        await peer.send(plain(b"too large", status=b"413 Content Too Large"))
        await done.wait()

    done = asyncio.Event()
    async with serving(refuses, answering(plain(b"next"))) as server:
        response = await post(client, server.origin(), body=b"x" * (64 << 20))
        assert (response.status, await response.read(100)) == (413, b"too large")
        assert await fetch(client, server.origin()) == b"next"
        done.set()
        assert server.connections == 2


async def test_writing_stalls_with_the_peer(client: HttpClient) -> None:
    async def never_reads(peer: Peer) -> None:
        await peer.head()
        await asyncio.Event().wait()

    async with serving(never_reads) as server:
        with pytest.raises(UpstreamTimeout, match="did not answer"):
            await post(client, server.origin(), body=b"x" * (64 << 20), timeouts=Timeouts(first_byte=0.2))


async def test_ipv6_literal_is_connected_to(client: HttpClient) -> None:
    try:
        serving_v6 = serving(answering(plain()), host="::1")
        server = await serving_v6.__aenter__()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    assert await fetch(client, server.origin(host="[::1]")) == b"ok"
    assert b"\r\nhost: [::1]:%d\r\n" % server.port in server.requests[0]
    await serving_v6.__aexit__(None, None, None)


async def test_many_requests_at_once_share_nothing(client: HttpClient) -> None:
    async def echo(peer: Peer) -> None:
        while True:
            request = await peer.request()
            await peer.send(plain(request.rpartition(b"\r\n")[2]))

    async def send_one(number: int) -> bytes:
        response = await post(client, server.origin(), body=b"%d" % number)
        return await response.read(100)

    async with serving(echo) as server:
        for _ in range(3):
            answers = await asyncio.gather(*(send_one(number) for number in range(40)))
            assert answers == [b"%d" % number for number in range(40)]
        assert server.connections == 40


async def test_server_that_closes_before_the_request_is_an_upstream_failure(client: HttpClient) -> None:
    async def leaves(peer: Peer) -> None:
        peer.writer.close()

    async with serving(leaves) as server:
        with pytest.raises(UpstreamFailed, match="closed the connection before it answered"):
            await post(client, server.origin())


async def test_response_that_ends_with_the_connection_is_not_kept(client: HttpClient) -> None:
    async with serving(closing_after(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as server:
        assert await fetch(client, server.origin()) == b"all of it"
        assert await fetch(client, server.origin()) == b"all of it"
        assert server.connections == 2
