from __future__ import annotations

import asyncio

import pytest

from routecodex.canon.errors import ClientDisconnected
from routecodex.gateway.answer.keep_alive import KeepAlive, KeepAlives
from routecodex.gateway.request import Headers

COMMENT = b": still here\n\n"


class RecordingClient:
    """A client that counts the comments written to it, or raises an error on each."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.started = False
        self.writable = True
        self.interrupted = False
        self.comments = asyncio.Semaphore(0)
        self.attempts = 0
        self._error = error

    def start(self, status: int, headers: Headers) -> None:
        assert not self.started
        self.started = True

    def write_nowait(self, data: bytes) -> bool:
        assert data == COMMENT
        self.attempts += 1
        if self._error is not None:
            raise self._error
        self.comments.release()
        return True

    async def wait_for_comments(self, times: int) -> None:
        async with asyncio.timeout(10):
            for _ in range(times):
                await self.comments.acquire()

    async def send(self, status: int, headers: Headers, body: bytes) -> None: ...
    async def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    async def end(self, data: bytes = b"") -> None: ...
    def abort(self) -> None: ...


def watched(streams: KeepAlives, client: RecordingClient) -> KeepAlive:
    return streams.watch(client, comment=COMMENT, headers=list)


async def test_a_silent_stream_is_started_and_kept_alive_until_it_is_stopped() -> None:
    streams, client = KeepAlives(0.01), RecordingClient()
    stream = watched(streams, client)
    await client.wait_for_comments(3)
    assert client.started
    stream.stop()
    other = RecordingClient()
    watched(streams, other).stop()
    last = watched(streams, other)
    await other.wait_for_comments(2)
    last.stop()
    assert client.attempts == 3


@pytest.mark.parametrize(
    "reason", [ClientDisconnected(), RuntimeError("the stream is not open: it was ended")]
)
async def test_a_failed_write_ends_the_comments_of_that_stream_alone(reason: Exception) -> None:
    streams, well, broken = KeepAlives(0.01), RecordingClient(), RecordingClient(error=reason)
    watches = [watched(streams, broken), watched(streams, well)]
    await well.wait_for_comments(5)
    for stream in watches:
        stream.stop()
    assert broken.attempts == 1


async def test_an_unexpected_error_is_logged_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    streams, broken, well = (
        KeepAlives(0.01),
        RecordingClient(error=ValueError("secret words")),
        RecordingClient(),
    )
    watches = [watched(streams, broken), watched(streams, well)]
    await well.wait_for_comments(2)
    for stream in watches:
        stream.stop()
    assert [row.getMessage() for row in caplog.records] == ["a stream is kept alive no longer: ValueError"]


async def test_a_slow_client_gets_comments_once_it_is_writable_again() -> None:
    streams, well, slow = KeepAlives(0.01), RecordingClient(), RecordingClient()
    watches = [watched(streams, slow), watched(streams, well)]
    slow.writable = False
    await well.wait_for_comments(4)
    assert (slow.started, slow.attempts) == (False, 0)
    slow.writable = True
    await slow.wait_for_comments(2)
    for stream in watches:
        stream.stop()
