"""Time servers over real UDP: they answer, lie, stay silent, or are not there."""

from __future__ import annotations

import asyncio
import socket

import pytest

from routecodex.server_tools.clock.ntp import BadReply, Sample, address_of, query_server
from tests.server_tools.clock.time_server import Reply, answer, time_server
from tests.server_tools.clock.world import START

SECONDS = START / 1000
COOKIE = b"cookie!!"


async def asked(server: str, *, timeout: float = 5.0) -> Sample:
    return await query_server(server, timeout=timeout, clock=lambda: SECONDS, cookie=COOKIE)


async def test_a_server_that_answers() -> None:
    async with time_server(lambda question: [answer(question, SECONDS + 7)]) as server:
        found = await asked(server)
    assert found.server == server
    assert abs(found.offset_ms - 7000) <= found.delay_ms / 2 + 1


async def test_strangers_are_passed_over() -> None:
    def reply(question: bytes) -> list[bytes]:
        forged = answer(question, SECONDS + 99, origin=1)
        return [b"", b"nonsense", forged, answer(question, SECONDS + 7), forged]

    async with time_server(reply) as server:
        found = await asked(server)
    assert round(found.offset_ms / 1000) == 7


LIES: dict[str, tuple[Reply, str]] = {
    "kiss of death": (lambda q: [answer(q, SECONDS, stratum=0, name=b"DENY")], "kiss of death 'DENY'"),
    "another century": (
        lambda q: [answer(q, SECONDS + 10**9)],
        "an offset of 1000000000 s is more than a day",
    ),
    "no server": (lambda q: [answer(q, SECONDS, mode=5)], "mode 5 is not that of a server"),
}


@pytest.mark.parametrize(("reply", "reason"), LIES.values(), ids=LIES)
async def test_a_server_that_lies(reply: Reply, reason: str) -> None:
    async with time_server(reply) as server:
        with pytest.raises(BadReply, match=reason):
            await asked(server)


async def test_a_silent_server_costs_the_time_out_and_no_more() -> None:
    async with time_server(lambda question: []) as server:
        with pytest.raises(TimeoutError, match=r"^no answer within 20 ms$"):
            await asked(server, timeout=0.02)


async def test_a_server_that_only_forges_is_told_apart_from_a_silent_one() -> None:
    async with time_server(lambda question: [answer(question, SECONDS, origin=1)]) as server:
        with pytest.raises(TimeoutError, match=r"within 300 ms \(the reply does not match the query\)$"):
            await asked(server, timeout=0.3)


async def test_a_server_that_is_not_there() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await asked(f"127.0.0.1:{port}")


async def test_a_name_that_is_none() -> None:
    with pytest.raises(OSError):
        await asked("no such host.invalid:123")


async def test_a_name_is_looked_up() -> None:
    async with time_server(lambda question: [answer(question, SECONDS)]) as server:
        found = await asked(server.replace("127.0.0.1", "localhost"))
    assert abs(found.offset_ms) <= found.delay_ms / 2 + 1


async def test_asking_can_be_cancelled() -> None:
    async with time_server(lambda question: []) as server:
        asking = asyncio.ensure_future(asked(server))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled()


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("pool.ntp.org", ("pool.ntp.org", 123)),
        ("time.example:1123", ("time.example", 1123)),
        ("10.0.0.1:123", ("10.0.0.1", 123)),
        ("[::1]:1123", ("::1", 1123)),
        ("[::1]", ("::1", 123)),
        ("::1", ("::1", 123)),
    ],
)
def test_addresses(server: str, address: tuple[str, int]) -> None:
    assert address_of(server) == address


@pytest.mark.parametrize("server", ["", ":123", "host:", "host:x", "host:0", "host:65536", "[]:1", "host:-1"])
async def test_what_is_no_address(server: str) -> None:
    with pytest.raises(ValueError):
        address_of(server)
    with pytest.raises(BadReply):
        await asked(server)
