"""Host, Origin and key are checked before a body is read: strangers cost no memory and no upstream call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from routecodex.protocols import grammar
from tests.cli.process import serve
from tests.kit import asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, Call
from tests.kit.upstream import Upstream

MB = 1024 * 1024
KEYS = 'client_keys = [{ name = "laptop", key = "k-1" }]'
PROTOCOLS = ("chat", "responses", "messages", "gemini")
STRANGERS = {
    "no key": ("", 401),
    "a wrong key": ("x-api-key: other\r\n", 401),
    "a foreign page": ("x-api-key: k-1\r\norigin: https://evil.example\r\n", 403),
    "a form": ("x-api-key: k-1\r\nuser-agent: Mozilla/5.0\r\ncontent-type: text/plain\r\n", 415),
}


async def after_head(port: int, path: str, fields: str, host: str = "localhost", sent: bytes = b"") -> Answer:
    """Send a head that declares 30 MB, and read the response without sending the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {30 * MB}\r\n{fields}\r\n"
    writer.write(head.encode() + sent)
    under_way = Call(reader, writer)
    async with asyncio.timeout(20):
        answer = await under_way.rest()
    await under_way.leave()
    return answer


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_strangers_are_refused_before_they_send_a_body(protocol: str) -> None:
    path = asking.path(protocol, stream=False)
    async with Upstream() as up, serving(one_target("chat", up, server=KEYS)) as gateway:
        for what, (fields, status) in STRANGERS.items():
            for more in ("", "expect: 100-continue\r\n"):
                answer = await after_head(gateway.port, path, fields + more)
                assert answer.status == status, what
                grammar.check_error(protocol, status, answer.body)
        assert (await after_head(gateway.port, path, "", host="evil.example")).status == 403
    assert up.requests == []


async def test_other_paths_and_the_admin_api_read_no_body_of_strangers() -> None:
    server = f'{KEYS}\nadmin_token = "operator"'
    async with Upstream() as up, serving(one_target("chat", up, server=server)) as gateway:
        found = [
            (await after_head(gateway.port, path, "")).status
            for path in ("/nothing", "/health", "/metrics", "/admin/explain", "/v1/embeddings")
        ]
    assert found == [404, 405, 401, 401, 401]


async def test_a_client_with_its_key_is_told_to_continue() -> None:
    async with Upstream() as up, serving(one_target("chat", up, server=KEYS)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\nx-api-key: k-1\r\n"
        writer.write(f"{head}expect: 100-continue\r\n\r\n".encode())
        async with asyncio.timeout(20):
            assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        writer.transport.abort()


async def test_forty_strangers_with_large_bodies_cost_no_memory(tmp_path: Path) -> None:
    """Each had its 30 MB buffered before its key was checked: 1.2 GB."""
    async with (
        Upstream() as up,
        serve(tmp_path, one_target("chat", up, server=KEYS)) as command,
    ):
        port = await command.port()
        process = psutil.Process(command.process.pid)
        before = process.memory_info().rss
        answers = await asyncio.gather(
            *(after_head(port, "/v1/messages", "x-api-key: other\r\n", sent=b"x" * 6 * MB) for _ in range(40))
        )
        grown = process.memory_info().rss - before
    assert {answer.status for answer in answers} == {401}
    assert grown < 60 * MB
