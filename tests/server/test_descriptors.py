"""A low limit of open files: more clients than it allows wait, and no provider is blamed."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from routecodex.server import descriptors
from tests.cli.process import serve
from tests.kit import answers, asking
from tests.kit.gateway import one_target
from tests.kit.raw_client import Answer, begin, call
from tests.kit.steps import Sse
from tests.kit.upstream import Upstream

LIMIT = 128
CLIENTS = 200


@pytest.mark.parametrize(
    ("limit", "requests", "warns"),
    [(64, 24, True), (1024, 480, True), (2064, 1000, False), (20000, 9968, False)],
)
def test_a_limit_allows_half_as_many_requests(limit: int, requests: int, warns: bool) -> None:
    assert descriptors.requests_allowed(limit) == requests
    assert bool(descriptors.shortage(limit, 1000)) is warns


def test_a_warning_names_the_limit_that_is_needed() -> None:
    assert descriptors.shortage(1024, 1000) == (
        "the limit of 1024 open files allows 480 requests at once in each process; server.max_concurrent is "
        "1000; raise the hard limit (`ulimit -Hn`) to 2064, or lower max_concurrent"
    )


async def health(port: int, folder: Path) -> object:
    token = (folder / "user" / "admin-token").read_text("utf-8").strip()
    headers = {"authorization": f"Bearer {token}"}
    return (await call(port, "/admin/health", method="GET", headers=headers)).json["health"]


async def ask(port: int) -> Answer:
    """Stream an answer on a connection of its own."""
    under_way = await begin(port, asking.path("chat", stream=True), asking.body("chat", stream=True))
    try:
        return await under_way.rest()
    finally:
        await under_way.close()


async def test_more_streams_than_descriptors_are_all_answered(tmp_path: Path) -> None:
    release = asyncio.Event()
    answer = answers.text("chat", "one two three", True)
    assert isinstance(answer, Sse)
    paced = Sse(answer.frames, pace={2: release})
    async with Upstream() as up:
        up.answer_with(lambda _: paced)
        config = one_target("chat", up)
        async with serve(tmp_path, config, shell=f"ulimit -n {LIMIT}") as command:
            port = await command.port()
            asked = [asyncio.ensure_future(ask(port)) for _ in range(CLIENTS)]
            await command.wait_for("48 client connections are open.*; new connections wait")
            release.set()
            found = await asyncio.gather(*asked)
            assert [one.status for one in found] == [200] * CLIENTS
            assert {len(one.body) for one in found} == {len(b"".join(answer.frames))}
            assert await health(port, tmp_path) == []
            command.signal()
            assert await command.ended() == 0
    assert "raise the hard limit" in command.text
    assert "Traceback" not in command.text


async def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    async with Upstream() as up:
        config = one_target("chat", up, server="max_concurrent = 100")
        async with serve(
            tmp_path, config, "--workers", "2", shell="ulimit -n 512; ulimit -Sn 100"
        ) as command:
            await command.wait_for(
                "allows 224 requests at once in each process; server.max_concurrent is 100"
            )
            limits = {worker.rlimit(resource.RLIMIT_NOFILE) for worker in command.workers()}
    assert limits == {(512, 512)}
    assert command.text.count("requests at once in each process") == 1
