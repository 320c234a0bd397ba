"""A scripted upstream: an HTTP/1.1 server on a free port of 127.0.0.1 whose answers the test chooses.

    async with Upstream() as up:
        up.queue(Json(200, {"hello": 1}), Sse([b"data: x\\n\\n"]))
        …                                   # send a request to up.url
        assert up.requests[0].json == {...}

The script is a queue (`queue`), or a function of the request (`Upstream(function)`, `answer_with`). Every
request is recorded, and whether the client disconnected before its answer was complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl as tls
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from tests.kit.steps import (
    Answer,
    CloseClean,
    CutOff,
    Hang,
    Json,
    Pause,
    Plan,
    Raw,
    Send,
    Sse,
    Step,
    Steps,
    Wait,
    plan,
)
from tests.kit.stream_server import StreamServer

__all__ = [
    "Answer",
    "CloseClean",
    "CutOff",
    "Hang",
    "Json",
    "Pause",
    "Raw",
    "Request",
    "Script",
    "Send",
    "Sse",
    "Step",
    "Steps",
    "Upstream",
    "Wait",
]


@dataclass(slots=True)
class Request:
    """One request as it was received, and the state of its answer.

    `gone` is set when the client disconnected before the answer was complete, at loop time `gone_at` and
    after `steps_done` steps of the body; `answered` is set when the whole answer was sent.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int
    steps_done: int = 0
    gone_at: float | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def disconnected(self) -> bool:
        return self.gone.is_set()


Script: TypeAlias = Callable[[Request], Answer | Awaitable[Answer]]


class _Disconnected(Exception):
    """The client disconnected."""


class _Connection:
    """One client connection: reads requests one after the other and buffers bytes that came early."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number
        self._buffer = b""

    async def _more(self) -> None:
        try:
            data = await self.reader.read(65536)
        except OSError as exc:
            raise _Disconnected from exc
        if not data:
            raise _Disconnected
        self._buffer += data

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            await self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    async def request(self) -> Request:
        first, *lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return Request(method, path, headers, await self._body(headers), self.number)

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("expect", "").lower() == "100-continue":
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" not in headers.get("transfer-encoding", "").lower():
            return await self._exactly(int(headers.get("content-length", "0")))
        pieces: list[bytes] = []
        while size := int((await self._until(b"\r\n")).partition(b";")[0], 16):
            pieces.append(await self._exactly(size))
            await self._until(b"\r\n")
        while await self._until(b"\r\n"):
            """Trailers are dropped."""
        return b"".join(pieces)

    async def watch(self) -> None:
        """Return when the client disconnects; buffer its bytes for the next request meanwhile."""
        with contextlib.suppress(_Disconnected):
            while True:
                await self._more()

    async def send(self, plan: Plan, request: Request) -> bool:
        """Send the answer; return whether the connection may be used again."""
        self.writer.write(plan.head)
        for step in plan.steps:
            if not await self._step(step, plan):
                return False
            request.steps_done += 1
        if plan.chunked:
            self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()
        return bool(plan.head)

    async def _step(self, step: Step, plan: Plan) -> bool:
        match step:
            case Send():
                if step.data:
                    frame = b"%x\r\n%b\r\n" % (len(step.data), step.data) if plan.chunked else step.data
                    self.writer.write(frame)
                    await self.writer.drain()
            case Wait():
                await step.event.wait()
            case Pause():
                await asyncio.sleep(step.seconds)
            case CloseClean():
                if plan.chunked:
                    self.writer.write(b"0\r\n\r\n")
                return False
            case CutOff():
                # Earlier bytes must arrive before the connection is reset.
                while self.writer.transport.get_write_buffer_size():
                    await asyncio.sleep(0)
                self.writer.transport.abort()
                return False
            case Hang():
                await asyncio.Event().wait()
        return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Upstream:
    """The scripted server; `requests` in order of arrival, `connections` counts accepted connections.

    A script that raises answers 500, and the first such failure is raised on exit from the server.
    """

    def __init__(self, script: Script | None = None, *, ssl: tls.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.failures: list[Exception] = []
        self.port = 0
        self._script = script
        self._ssl = ssl
        self._queue: deque[Answer] = deque()
        self._arrived = asyncio.Condition()
        self._server = StreamServer(self._attend, ssl=ssl)

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    def queue(self, *answers: Answer) -> None:
        """Queue the next answers; they come before those of the function."""
        self._queue.extend(answers)

    def answer_with(self, script: Script) -> None:
        """Answer with the function from now on."""
        self._script = script

    async def received(self, count: int = 1) -> Request:
        """Wait until this many requests have arrived; return the last of them."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def __aenter__(self) -> Upstream:
        await self._server.start()
        self.port = self._server.port
        return self

    async def __aexit__(self, raised: type[BaseException] | None, *_: object) -> None:
        await self._server.close()
        if raised is None and self.failures:
            raise self.failures[0]

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = _Connection(reader, writer, number=self.connections)
        with contextlib.suppress(_Disconnected, OSError):
            await self._serve(connection)
        await connection.close()

    async def _serve(self, connection: _Connection) -> None:
        while True:
            request = await connection.request()
            self.requests.append(request)
            async with self._arrived:
                self._arrived.notify_all()
            if not await self._respond(connection, request):
                return

    async def _respond(self, connection: _Connection, request: Request) -> bool:
        watching = asyncio.ensure_future(connection.watch())
        sending = asyncio.ensure_future(self._send(connection, request))
        try:
            await asyncio.wait({watching, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() or isinstance(sending.exception(), OSError):
                request.gone_at = asyncio.get_running_loop().time()
                request.gone.set()
                return False
            again = sending.result()
            request.answered.set()
            return again
        finally:
            watching.cancel()
            sending.cancel()
            await asyncio.gather(watching, sending, return_exceptions=True)

    async def _send(self, connection: _Connection, request: Request) -> bool:
        return await connection.send(plan(await self._answer(request)), request)

    async def _answer(self, request: Request) -> Answer:
        if self._queue:
            return self._queue.popleft()
        if self._script is None:
            return _broken("the test did not script an answer")
        try:
            answer = self._script(request)
            return await answer if isinstance(answer, Awaitable) else answer
        except Exception as exc:
            self.failures.append(exc)
            return _broken(f"the test's script failed: {exc!r}")


def _broken(message: str) -> Json:
    return Json(500, {"error": {"message": message, "type": "server_error"}})
