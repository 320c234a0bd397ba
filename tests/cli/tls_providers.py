"""Well-known providers as a command sees them: their real host names, behind a proxy on this machine.

    with tls_providers(tmp_path, script) as providers:
        …                                   # run a command with `environ=providers.environ`
        assert providers.requests[0].headers["authorization"] == "Bearer …"

The proxy takes CONNECT for every host and leads to one scripted upstream, whose certificate the variable
SSL_CERT_FILE makes trusted. It runs in a thread, because the terminal of a test blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.stream_server import StreamServer
from tests.kit.upstream import Request, Script, Upstream
from tests.providers.http.authority import Authority

HOSTS = ("api.openai.com", "api.anthropic.com", "api.deepseek.com", "api.z.ai", "open.bigmodel.cn")


@dataclass
class TlsProviders:
    """The variables that lead a command here, the requests that arrived and the hosts they were for."""

    environ: dict[str, str]
    requests: list[Request]
    hosts: list[str] = field(default_factory=list)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


async def _serve(authority: Authority, script: Script, ready: Future[TlsProviders], ca: str) -> None:
    async with Upstream(script, ssl=authority.server(*HOSTS)) as upstream:
        providers = TlsProviders({"SSL_CERT_FILE": ca}, upstream.requests)

        async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                providers.hosts.append(head.split()[1].decode().partition(":")[0])
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                onward = await asyncio.open_connection("127.0.0.1", upstream.port)
                await asyncio.gather(_pump(reader, onward[1]), _pump(onward[0], writer))

        proxy = StreamServer(tunnel)
        await proxy.start()
        providers.environ["HTTPS_PROXY"] = f"http://127.0.0.1:{proxy.port}"
        ready.set_result(providers)
        try:
            await asyncio.Event().wait()
        finally:
            await proxy.close()


@contextlib.contextmanager
def tls_providers(folder: Path, script: Script) -> Iterator[TlsProviders]:
    """Run the providers; every request of every provider gets an answer of the script."""
    ready: Future[TlsProviders] = Future()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def run() -> None:
        task = asyncio.ensure_future(_serve(Authority(folder), script, ready, str(folder / "ca.pem")))
        started.set_result((asyncio.get_running_loop(), task))
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    loop, task = started.result(30)
    try:
        yield ready.result(30)
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
