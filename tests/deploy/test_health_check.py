"""The health check of the image, run as Docker runs it."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from bench.ports import free_port
from tests.deploy.test_files import instructions
from tests.kit.gateway import serving
from tests.kit.steps import Json
from tests.kit.upstream import Upstream
from tests.server.console_client import config


async def check_health(port: int, proxy: Upstream) -> int:
    """Run the check on a gateway at this port, with a proxy in its environment; return its exit code."""
    (check,) = (rest for word, rest in instructions("Containerfile") if word == "HEALTHCHECK")
    _, *arguments = json.loads(check.partition(" CMD ")[2].replace("5520", str(port)))
    environ = {**os.environ, "http_proxy": proxy.url, "no_proxy": ""}
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environ, stdout=quiet, stderr=quiet
    )
    return await process.wait()


async def test_the_check_asks_the_gateway_and_not_a_proxy_of_its_environment() -> None:
    async with serving(config()) as gateway, Upstream(lambda _: Json()) as proxy:
        found = [await check_health(port, proxy) for port in (gateway.port, free_port())]
        assert (found, proxy.requests) == ([0, 1], [])


@pytest.mark.parametrize(("status", "code"), [(200, 0), (500, 1)])
async def test_the_check_fails_for_a_gateway_that_does_not_answer_200(status: int, code: int) -> None:
    async with Upstream(lambda _: Json(status)) as up:
        assert await check_health(up.port, up) == code
        assert {request.path for request in up.requests} == {"/health/live"}
