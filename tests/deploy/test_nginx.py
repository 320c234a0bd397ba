"""nginx with the configuration of `deploy/`, in front of real gateways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from bench.ports import free_port
from tests.cli.process import until
from tests.deploy import checks
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import begin, call
from tests.kit.steps import Raw, Sse
from tests.kit.upstream import Upstream

pytestmark = pytest.mark.skipif(checks.find("nginx") is None, reason="nginx is not installed")


def answers_on(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.asynccontextmanager
async def balancer(folder: Path, ports: Sequence[int]) -> AsyncIterator[int]:
    """Run nginx in front of gateways on these ports; yield its own."""
    program, port, left = checks.find("nginx"), free_port(), list(ports)
    assert program is not None
    text = checks.NGINX.read_text("utf-8").replace("/tmp/", f"{folder}/")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
    text = re.sub(r"gateway-\d:5520", lambda _: f"127.0.0.1:{left.pop(0)}", text)
    if os.geteuid() == 0:
        text = f"user root;\n{text}"
    config = folder / "nginx.conf"
    config.write_text(text, "utf-8")
    options = ("-c", str(config), "-p", str(folder), "-g", "daemon off;")
    process = await asyncio.create_subprocess_exec(
        program, *options, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        await until(lambda: answers_on(port), "nginx listens")
        yield port
    finally:
        process.terminate()
        await process.wait()


async def test_tokens_pass_as_they_come(tmp_path: Path) -> None:
    whole = answers.text("chat", "one two three", True)
    assert isinstance(whole, Sse)
    goes_on = asyncio.Event()
    paced = Sse(whole.frames, pace={len(whole.frames) - 1: goes_on})
    async with (
        Upstream(lambda _: paced) as up,
        serving(one_target("chat", up)) as gateway,
        balancer(tmp_path, [gateway.port] * 3) as port,
    ):
        stream = await begin(port, "/v1/chat/completions", asking.body("chat", stream=True))
        await stream.head()
        first = await stream.piece()
        assert b"data: " in first
        goes_on.set()
        answer = await stream.rest()
        await stream.close()
    asking.check("chat", answer, stream=True)


async def test_a_gateway_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "Hi", False)) as up,
        serving(one_target("chat", up)) as gateway,
        balancer(tmp_path, [free_port(), free_port(), gateway.port]) as port,
    ):
        for _ in range(6):
            answer = await call(port, "/v1/chat/completions", asking.body("chat", stream=False))
            asking.check("chat", answer, stream=False)


async def test_a_request_that_was_sent_is_not_repeated(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: Raw([])) as first,
        Upstream(lambda _: Raw([])) as second,
        Upstream(lambda _: Raw([])) as third,
        balancer(tmp_path, [first.port, second.port, third.port]) as port,
    ):
        answer = await call(port, "/v1/chat/completions", asking.body("chat", stream=False))
        sent = sum(len(one.requests) for one in (first, second, third))
    assert (answer.status, sent) == (502, 1)
