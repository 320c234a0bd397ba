from __future__ import annotations

import asyncio

import pytest

from routecodex.canon.errors import ClientDisconnected
from routecodex.gateway.answer.keep_alive import KeepAlive, KeepAlives
from routecodex.gateway.request import Headers

COMMENT = b": still here\n\n"


class Listener:
    """A client that counts what is written to it, or has a reason not to take it."""

    def __init__(self, *, refuses: Exception | None = None) -> None:
        self.started = False
        self.writable = True
        self.heard = asyncio.Semaphore(0)
        self.asked = 0
        self._refuses = refuses

    def start(self, status: int, headers: Headers) -> None:
        assert not self.started
        self.started = True

    def write_nowait(self, data: bytes) -> bool:
        assert data == COMMENT
        self.asked += 1
        if self._refuses is not None:
            raise self._refuses
        self.heard.release()
        return True

    async def hears(self, times: int) -> None:
        async with asyncio.timeout(10):
            for _ in range(times):
                await self.heard.acquire()

    async def send(self, status: int, headers: Headers, body: bytes) -> None: ...
    async def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    async def end(self, data: bytes = b"") -> None: ...
    def abort(self) -> None: ...


def watched(streams: KeepAlives, listener: Listener) -> KeepAlive:
    return streams.watch(listener, comment=COMMENT, head=list)


async def test_a_silent_stream_is_begun_and_kept_alive_until_it_is_stopped() -> None:
    streams, listener = KeepAlives(0.01), Listener()
    stream = watched(streams, listener)
    await listener.hears(3)
    assert listener.started
    stream.stop()
    other = Listener()
    watched(streams, other).stop()
    last = watched(streams, other)
    await other.hears(2)
    last.stop()
    assert listener.asked == 3


@pytest.mark.parametrize(
    "reason", [ClientDisconnected(), RuntimeError("the stream is not open: it was ended")]
)
async def test_trouble_of_one_stream_ends_the_comments_of_that_one_alone(reason: Exception) -> None:
    streams, well, broken = KeepAlives(0.01), Listener(), Listener(refuses=reason)
    kept = [watched(streams, broken), watched(streams, well)]
    await well.hears(5)
    for stream in kept:
        stream.stop()
    assert broken.asked == 1


async def test_what_was_unforeseen_is_logged_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    streams, broken, well = KeepAlives(0.01), Listener(refuses=ValueError("secret words")), Listener()
    kept = [watched(streams, broken), watched(streams, well)]
    await well.hears(2)
    for stream in kept:
        stream.stop()
    assert [row.getMessage() for row in caplog.records] == ["a stream is kept alive no longer: ValueError"]


async def test_a_client_that_takes_nothing_now_gets_comments_once_it_reads_on() -> None:
    streams, well, slow = KeepAlives(0.01), Listener(), Listener()
    kept = [watched(streams, slow), watched(streams, well)]
    slow.writable = False
    await well.hears(4)
    assert (slow.started, slow.asked) == (False, 0)
    slow.writable = True
    await slow.hears(2)
    for stream in kept:
        stream.stop()
