"""Corrected time, kept over restarts and over servers that fail."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from routecodex.server_tools.clock.network_time import NetworkTime, NtpOptions, NtpState, is_ntp_enabled
from routecodex.server_tools.clock.ntp import BadReply, Sample
from tests.server_tools.clock.time_server import answer, time_server
from tests.server_tools.clock.world import START, Moving

SECONDS = START / 1000


class Scripted:
    """Servers by name: an offset in milliseconds, or what goes wrong."""

    def __init__(self, **servers: float | Exception) -> None:
        self.servers = servers
        self.cookies: list[bytes] = []

    async def __call__(
        self, server: str, *, timeout: float, clock: Callable[[], float], cookie: bytes
    ) -> Sample:
        self.cookies.append(cookie)
        outcome = self.servers[server]
        if isinstance(outcome, Exception):
            raise outcome
        return Sample(server, outcome, 10)


def keeper(file: Path | None = None, **servers: float | Exception) -> NetworkTime:
    return NetworkTime(
        Moving().seconds, options=NtpOptions(servers=tuple(servers)), file=file, query=Scripted(**servers)
    )


async def test_the_offset_corrects_the_time() -> None:
    time = keeper(a=1500.4)
    assert (time.now_ms(), time.offset_ms, time.state.status) == (START, 0, "unsynced")
    assert await time.sync() is True
    assert (time.now_ms(), time.offset_ms) == (START + 1500, 1500)
    assert time.report() == {
        "status": "ok",
        "offsetMs": 1500,
        "server": "a",
        "delayMs": 10,
        "syncedAtMs": START,
        "checkedAtMs": START,
    }


async def test_a_failure_changes_the_status_and_keeps_the_offset(caplog: pytest.LogCaptureFixture) -> None:
    query = Scripted(a=1500.0, b=TimeoutError("no answer within 800 ms"))
    time = NetworkTime(Moving().seconds, options=NtpOptions(servers=("a", "b")), query=query)
    assert await time.sync() is True
    query.servers["a"] = BadReply("kiss of death 'RATE'")
    assert await time.sync() is False
    reason = "a: kiss of death 'RATE'; b: no answer within 800 ms"
    assert time.report() == {
        "status": "error",
        "offsetMs": 1500,
        "server": "a",
        "delayMs": 10,
        "syncedAtMs": START,
        "checkedAtMs": START,
        "lastError": reason,
    }
    assert time.now_ms() == START + 1500
    assert caplog.messages == [f"network time failed, the offset stays 1500 ms: {reason}"]
    query.servers["a"] = 20
    assert await time.sync() is True
    assert (time.offset_ms, time.state.last_error) == (20, None)


async def test_a_liar_is_outvoted_and_a_tie_is_an_error() -> None:
    time = keeper(liar=3_600_000.0, a=5.0, b=6.0)
    assert await time.sync() is True
    assert time.offset_ms == 5
    tied = keeper(liar=3_600_000.0, a=5.0)
    assert await tied.sync() is False
    assert tied.report()["lastError"] == "the servers disagree: liar +3600000 ms, a +5 ms"
    assert tied.offset_ms == 0


async def test_no_servers_at_all_is_an_error() -> None:
    time = keeper()
    assert await time.sync() is False
    assert time.state.last_error == "no servers are configured"


async def test_every_question_has_a_cookie_of_its_own() -> None:
    query = Scripted(a=0, b=0)
    await NetworkTime(options=NtpOptions(servers=("a", "b")), query=query).sync()
    assert (len(set(query.cookies)), {len(cookie) for cookie in query.cookies}) == (2, {8})


async def test_the_offset_survives_a_restart_and_failing_servers(tmp_path: Path) -> None:
    file = tmp_path / "sessions" / "clock" / "ntp-state.json"
    await keeper(file, a=1500.0).sync()
    assert json.loads(file.read_text()) == {
        "version": 1,
        "status": "ok",
        "offsetMs": 1500,
        "server": "a",
        "delayMs": 10,
        "syncedAtMs": START,
        "checkedAtMs": START,
        "lastError": None,
    }
    again = keeper(file, a=TimeoutError("silent"))
    again.restore()
    assert again.now_ms() == START + 1500
    assert await again.sync() is False
    third = keeper(file, a=0.0)
    third.restore()
    assert (third.offset_ms, third.state.status, third.state.last_error) == (1500, "error", "a: silent")
    assert sorted(path.name for path in file.parent.iterdir()) == ["ntp-state.json"]


DAMAGED = {
    "no JSON": b"{",
    "another shape": b'{"version": 2}',
    "an absurd offset": b'{"status": "ok", "offsetMs": 99999999999}',
    "no UTF-8": b'{"server": "\xff"}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_set_aside(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "ntp-state.json"
    for number in (1, 2):
        file.write_bytes(content)
        time = keeper(file, a=0.0)
        time.restore()
        assert time.state == NtpState(status="unsynced")
        assert (tmp_path / f"ntp-state.json.corrupt-{number}").read_bytes() == content
    assert [str(file) in message for message in caplog.messages] == [True, True]


async def test_a_file_that_cannot_be_read_or_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    (tmp_path / "file").write_text("in the way")
    time = keeper(tmp_path / "file" / "ntp-state.json", a=7.0)
    time.restore()
    assert await time.sync() is True
    assert time.offset_ms == 7
    assert len(caplog.messages) == 2


async def test_turned_off_it_asks_nobody_and_corrects_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ntp-state.json"
    await keeper(file, a=1500.0).sync()
    query = Scripted(a=1)
    time = NetworkTime(
        Moving().seconds, options=NtpOptions(enabled=False, servers=("a",)), file=file, query=query
    )
    time.restore()
    await time.run()
    assert (time.now_ms(), time.report(), query.cookies) == (START, {"status": "off", "offsetMs": 0}, [])


@pytest.mark.parametrize(
    ("enabled", "value", "expected"),
    [(True, None, True), (True, "0", False), (True, "1", True), (True, " OFF ", False), (False, "1", False)],
)
def test_the_environment_can_turn_it_off(enabled: bool, value: str | None, expected: bool) -> None:
    environ = {} if value is None else {"ROUTECODEX_CLOCK_NTP": value}
    assert is_ntp_enabled(enabled, environ) is expected


async def test_it_asks_again_and_again_less_often_while_it_fails() -> None:
    query = Scripted(a=TimeoutError("silent"))
    options = NtpOptions(servers=("a",), every=900, again=60)
    time = NetworkTime(options=options, query=query, randomness=random.Random(7))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        query.servers["a"] = 5 if len(slept) == 6 else query.servers["a"]
        if len(slept) == 8:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await time.run(sleep=sleep)
    pauses = [60, 120, 240, 480, 900, 900, 900, 900]
    assert [0.9 <= seconds / pause <= 1.1 for seconds, pause in zip(slept, pauses, strict=True)] == [True] * 8
    assert len(set(slept)) == 8


async def test_real_servers_one_good_one_lying_one_silent_one_forging() -> None:
    def good(question: bytes) -> list[bytes]:
        return [answer(question, SECONDS + 3)]

    async with (
        time_server(good) as one,
        time_server(good) as two,
        time_server(lambda question: [answer(question, SECONDS + 3600)]) as liar,
        time_server(lambda question: []) as silent,
        time_server(lambda question: [answer(question, SECONDS + 9, origin=5)]) as forger,
    ):
        servers = (liar, silent, one, forger, two)
        time = NetworkTime(Moving().seconds, options=NtpOptions(servers=servers, timeout=1.0))
        assert await time.sync() is True
    assert time.state.server in (one, two)
    assert round(time.offset_ms / 1000) == 3
