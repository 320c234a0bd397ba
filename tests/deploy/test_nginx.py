"""nginx with the configuration of `deploy/`, in front of real gateways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from bench.ports import free_port
from routecodex.protocols import grammar
from tests.cli.process import until
from tests.deploy import checks
from tests.deploy.test_files import compose
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import begin, call
from tests.kit.steps import Json, Raw, Sse
from tests.kit.upstream import Request, Upstream
from tests.server.console_client import TOKEN, config

WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'
pytestmark = pytest.mark.skipif(checks.find("nginx") is None, reason="nginx is not installed")


def answers_on(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def may_mount() -> bool:
    """Return whether a process here may have file systems of its own."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@contextlib.asynccontextmanager
async def nginx(
    folder: Path, gateways: Sequence[str], *, hosts: Path | None = None
) -> AsyncIterator[tuple[int, Process]]:
    """Run nginx in front of gateways at these addresses; yield its port and its process.

    `hosts` takes the place of /etc/hosts for it.
    """
    program, port, left = checks.find("nginx"), free_port(), list(gateways)
    assert program is not None
    text = checks.NGINX.read_text("utf-8").replace("/tmp/", f"{folder}/")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
    text = re.sub(r"gateway-\d:5520", lambda _: left.pop(0), text)
    if os.geteuid() == 0:
        text = f"user root;\n{text}"
    config = folder / "nginx.conf"
    config.write_text(text, "utf-8")
    prefix = () if hosts is None else ("unshare", "--mount", "sh", "-c", WITH_HOSTS, str(hosts))
    command = (*prefix, program, "-c", str(config), "-p", str(folder), "-g", "daemon off;")
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        await until(lambda: answers_on(port), "nginx listens")
        yield port, process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def balancer(folder: Path, ports: Sequence[int]) -> AsyncIterator[int]:
    """Run nginx in front of gateways on these ports; yield its own."""
    async with nginx(folder, [f"127.0.0.1:{each}" for each in ports]) as (port, _):
        yield port


def paced_stream(goes_on: asyncio.Event) -> Sse:
    """Return a stream whose last frame waits."""
    whole = answers.text("chat", "one two three", True)
    assert isinstance(whole, Sse)
    return Sse(whole.frames, pace={len(whole.frames) - 1: goes_on})


async def test_tokens_pass_as_they_come(tmp_path: Path) -> None:
    goes_on = asyncio.Event()
    async with (
        Upstream(lambda _: paced_stream(goes_on)) as up,
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


@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_a_body_that_is_too_large_is_refused_in_the_protocol_of_the_client(
    tmp_path: Path, protocol: str
) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "Hi", False)) as up,
        serving(one_target("chat", up)) as gateway,
        balancer(tmp_path, [gateway.port] * 3) as port,
    ):
        body = asking.body(protocol, "x" * (33 * 1024 * 1024), stream=False)
        answer = await call(port, asking.path(protocol, stream=False), body)
    assert answer.status == 413
    grammar.check_error(protocol, answer.status, answer.body)
    assert up.requests == []


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


async def test_a_page_logs_in_through_nginx_at_a_port_of_its_own(tmp_path: Path) -> None:
    async with serving(config()) as gateway, balancer(tmp_path, [gateway.port] * 3) as port:
        own, other = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{gateway.port}"
        found = [
            (await call(port, "/admin/login", {"token": TOKEN}, headers={"origin": origin})).status
            for origin in (own, other)
        ]
    assert found == [204, 403]


async def test_a_page_calls_the_gateway_through_nginx_from_its_own_origin(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "Hi", False)) as up,
        serving(one_target("chat", up)) as gateway,
        balancer(tmp_path, [gateway.port] * 3) as port,
    ):
        page = {"origin": f"http://127.0.0.1:{port}"}
        body = asking.body("chat", stream=False)
        answer = await call(port, "/v1/chat/completions", body, headers=page)
    asking.check("chat", answer, stream=False)


async def test_a_stream_ends_before_nginx_stops_as_compose_stops_it(tmp_path: Path) -> None:
    stop_signal = signal.Signals[compose()["services"]["nginx"]["stop_signal"]]
    goes_on = asyncio.Event()
    async with (
        Upstream(lambda _: paced_stream(goes_on)) as up,
        serving(one_target("chat", up)) as gateway,
        nginx(tmp_path, [f"127.0.0.1:{gateway.port}"] * 3) as (port, process),
    ):
        stream = await begin(port, "/v1/chat/completions", asking.body("chat", stream=True))
        await stream.head()
        assert await stream.piece()
        process.send_signal(stop_signal)
        await until(lambda: not answers_on(port), "nginx listens no more")
        goes_on.set()
        answer = await stream.rest()
        await stream.close()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    asking.check("chat", answer, stream=True)


@pytest.mark.skipif(not may_mount(), reason="mount namespaces are not allowed here")
async def test_a_reload_finds_a_gateway_at_its_new_address_and_cuts_no_stream(tmp_path: Path) -> None:
    hosts, goes_on = tmp_path / "hosts", asyncio.Event()

    def point_to(address: str) -> None:
        hosts.write_text(f"{address} gateway-1 gateway-2 gateway-3\n", "utf-8")

    def old_answer(request: Request) -> Sse | Json:
        return paced_stream(goes_on) if request.json.get("stream") else Json(body=b"{}")

    async def asked(port: int) -> bytes:
        body = asking.body("chat", stream=False)
        return (await call(port, "/v1/chat/completions", body)).body

    async with (
        Upstream(old_answer) as first,
        Upstream(lambda _: answers.text("chat", "from the new one", False)) as second,
        serving(one_target("chat", first, server='host = "127.0.0.2"')) as old,
    ):
        point_to("127.0.0.2")
        newer = one_target("chat", second, server='host = "127.0.0.3"').replace(
            "port = 0", f"port = {old.port}"
        )
        names = [f"gateway-{number}:{old.port}" for number in (1, 2, 3)]
        async with serving(newer), nginx(tmp_path, names, hosts=hosts) as (port, process):
            stream = await begin(port, "/v1/chat/completions", asking.body("chat", stream=True))
            await stream.head()
            assert await stream.piece()
            point_to("127.0.0.3")
            process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(20):
                while b"from the new one" not in await asked(port):
                    await asyncio.sleep(0.02)
            goes_on.set()
            answer = await stream.rest()
            await stream.close()
    asking.check("chat", answer, stream=True)
