"""A request from socket to socket: a gateway, its provider and its client on the event loop of this process.

Bytecodes of the event loop, the provider and the client are not counted, only those of the gateway: server,
routing, server tools, HTTP client, records.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import cast

import uvloop

from bench import requests
from bench.guard.counting import Step
from bench.guard.scripts import STREAMS
from bench.setups import CALL_A_TOOL, SETUPS
from routecodex.config import loads
from routecodex.server.serve import Service

CONFIG = """
[server]
port = 0
drain_seconds = 1

[store]
url = "memory:"

[logging]
level = "error"

[providers.mock]
protocol = "chat"
base_url = "http://127.0.0.1:{port}/v1"
auth = [{{ value = "k" }}]
models = {{ "gpt-mock" = {{}} }}

[routing]
default = ["mock.gpt-mock"]
"""
DOCUMENT = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":1760000000,"model":"gpt-mock","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Carried, not read.","refusal":null},"logprobs":null,'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14}}'
)
CHUNK = b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1760000000,"model":"gpt-mock",'
CALL = (
    CHUNK + b'"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":'
    b'"call_0","type":"function","function":{"name":"tool_0","arguments":"{}"}}]},"finish_reason":null}]}\n\n'
    + CHUNK
    + b'"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
)
ARM = f'<**stopMessage:"{CALL_A_TOOL}",1000000**> Go on.'

SETTLING_TURNS = 10
"""Turns of the event loop after an answer, in which the gateway finishes its background work."""


def _answer(kind: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


class Party(asyncio.Protocol):
    """One end of a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transport of uvloop is not a subclass of asyncio.Transport.
        self.transport = cast("asyncio.Transport", transport)


class Provider(Party):
    """Answers every request with the same text, or with a tool call if it ends with `CALL_A_TOOL`."""

    def __init__(self) -> None:
        self._stream = _answer(b"text/event-stream", (STREAMS / "chat.sse").read_bytes())
        self._call = _answer(b"text/event-stream", CALL)
        self._document = _answer(b"application/json", DOCUMENT)

    def data_received(self, data: bytes) -> None:
        """Answer a request; one kilobyte arrives in one piece."""
        answer = self._stream if b'"stream":true' in data else self._document
        self.transport.write(self._call if CALL_A_TOOL.encode() in data else answer)


class Client(Party):
    """Keeps a connection and reads each answer to its end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._end = b""
        self._received = b""
        self._ended: asyncio.Future[None]

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(self._end):
            assert self._received.startswith(b"HTTP/1.1 200 "), self._received
            self._received = b""
            self._ended.set_result(None)

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)

    async def send(self, request: bytes, end: bytes) -> None:
        # The gateway closes a connection that is idle for long, as it is on a busy machine between two steps.
        if self.transport.is_closing():
            await self.connect()
        self._end = end
        self._ended = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self._ended
        for _ in range(SETTLING_TURNS):
            await asyncio.sleep(0)


def _request(protocol: str, *, stream: bool, session: str = "", last_words: str = "") -> bytes:
    content = requests.body(protocol, "1k", stream=stream, last_words=last_words)
    return requests.raw(requests.PATHS[protocol], content, {"x-session-id": session} if session else {})


STREAM_END = b"0\r\n\r\n"
REQUESTS = {
    "request": (_request("chat", stream=False), b"}}"),
    "request, streamed": (_request("chat", stream=True), STREAM_END),
    "request, converted": (_request("messages", stream=True), STREAM_END),
    "request with a sticky target": (_request("chat", stream=True, session="sticky"), STREAM_END),
    "request with a stop message": (
        _request("chat", stream=True, session="armed", last_words=CALL_A_TOOL),
        STREAM_END,
    ),
    "request with one follow-up": (_request("chat", stream=True, session="armed"), STREAM_END),
}

PREPARED = (
    _request("chat", stream=False, session="sticky", last_words="<**!mock.gpt-mock**> Go on."),
    _request("chat", stream=True, session="armed", last_words=ARM),
)
"""Requests that set the state of the sessions before the count."""


PRICE = "{ input = 1, output = 2 }"
OF_CLIENTS = {"request of a client": SETUPS["keys"], "request with limits": SETUPS["budget"]}
"""Setups of gateways with clients; each is sent the plain request, and a stream."""


@contextmanager
def requests_answered() -> Iterator[dict[str, Step]]:
    """Run gateways; yield steps that each send one request to one of them."""
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        tempfile.TemporaryDirectory() as folder,
    ):
        os.environ["ROUTECODEX_USER_DIR"] = folder
        provider = runner.run(_listening(Provider))
        text = CONFIG.format(port=provider.sockets[0].getsockname()[1])
        with ExitStack() as stack:
            stack.callback(_close, runner, provider)
            plain = stack.enter_context(_gateway(runner, text))
            runner.run(plain.send(PREPARED[0], b"}}"))
            runner.run(plain.send(PREPARED[1], STREAM_END))
            steps: dict[str, Step] = {
                name: partial(_step, runner, plain, *request) for name, request in REQUESTS.items()
            }
            for name, setup in OF_CLIENTS.items():
                priced = text.replace('"gpt-mock" = {}', f'"gpt-mock" = {{ price = {PRICE} }}')
                client = stack.enter_context(_gateway(runner, priced + setup.settings))
                steps[name] = partial(_step, runner, client, *REQUESTS["request"])
                steps[f"{name}, streamed"] = partial(_step, runner, client, *REQUESTS["request, streamed"])
            yield steps


def _close(runner: asyncio.Runner, server: asyncio.Server) -> None:
    server.close()
    runner.run(server.wait_closed())


def _step(runner: asyncio.Runner, client: Client, request: bytes, end: bytes) -> None:
    runner.get_loop().run_until_complete(client.send(request, end))


@contextmanager
def _gateway(runner: asyncio.Runner, text: str) -> Iterator[Client]:
    """Run a gateway; yield a client that is connected to it."""
    service = Service(loads(text, environ={}))
    _, port = runner.run(service.start())
    client = Client(port)
    runner.run(client.connect())
    try:
        yield client
    finally:
        # Also after a failure: `Runner.close` would wait for ever for what is still open.
        client.transport.close()
        runner.run(service.stop())


async def _listening(protocol: type[asyncio.Protocol]) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
