from __future__ import annotations

import socket
import time
from functools import partial
from pathlib import Path

import pytest

from routecodex.cli.checks.machine import LEAST_FREE, LOW_FREE, check_clock, check_disk, check_port
from routecodex.cli.checks.result import CheckResult
from routecodex.config import Config
from routecodex.config.server_tools import NtpConfig
from tests.cli.checks import agent_model
from tests.server_tools.clock.time_server import answer, time_server

DEMO = '[providers.demo]\nprotocol = "demo"\n[providers.demo.models.m]\n[routing]\ndefault = ["demo.m"]\n'


def configured(text: str) -> Config:
    return agent_model.configured(text + DEMO)


def test_a_free_port_is_ok() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = check_port(configured(f"[server]\nport = {port}\n"), [])
    assert result == CheckResult("port", "ok", f"127.0.0.1:{port} is free")


def test_a_port_of_another_program_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = check_port(configured(f"[server]\nport = {port}\n"), [])
    assert (result.status, result.message) == ("fail", f"127.0.0.1:{port} is used by another program")
    assert "another port" in result.fix


def test_any_port_is_ok() -> None:
    assert check_port(configured("[server]\nport = 0\n"), []).status == "ok"


def test_an_address_of_another_machine_fails() -> None:
    text = '[server]\nhost = "192.0.2.1"\nclient_keys = [{ name = "a", key = "long-enough-key" }]\n'
    result = check_port(configured(text), [])
    assert result.status == "fail"
    assert "address of this machine" in result.fix


def test_the_port_is_not_checked_without_a_configuration() -> None:
    assert check_port(None, []).status == "skip"


def test_a_disk_with_space_is_ok(tmp_path: Path) -> None:
    result = check_disk([tmp_path / "user" / "sessions", tmp_path], free=lambda _folder: LOW_FREE)
    assert (result.status, result.message) == ("ok", f"1.0 GB are free at {tmp_path}")


@pytest.mark.parametrize(
    ("free", "status"), [(LOW_FREE - 1, "warn"), (LEAST_FREE, "warn"), (LEAST_FREE - 1, "fail")]
)
def test_a_disk_that_fills_up_is_reported(tmp_path: Path, free: int, status: str) -> None:
    result = check_disk([tmp_path], free=lambda _folder: free)
    assert result.status == status
    assert result.message.startswith("only ")
    assert "ROUTECODEX_USER_DIR" in result.fix


def test_the_folder_with_least_space_counts(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    spaces = {tmp_path: LOW_FREE, tmp_path / "small": 0}
    assert check_disk([tmp_path, tmp_path / "small"], free=spaces.__getitem__).status == "fail"


def test_a_file_in_place_of_the_folder_fails(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("")
    result = check_disk([tmp_path / "user" / "sessions"])
    assert result.status == "fail"
    assert f"{tmp_path / 'user'} is not a directory" in result.message


def test_the_space_of_a_real_disk_is_measured(tmp_path: Path) -> None:
    assert check_disk([tmp_path]).status in ("ok", "warn")


async def offset_result(seconds: float) -> CheckResult:
    """Return the result for a time server whose clock differs by that many seconds."""
    async with time_server(lambda question: [answer(question, time.time() + seconds)]) as address:
        return await check_clock(NtpConfig(servers=(address,), timeout_ms=5000), {}, offline=False)


async def test_a_clock_that_agrees_is_ok() -> None:
    assert (await offset_result(0.0)).status == "ok"


@pytest.mark.parametrize(("seconds", "way"), [(20.0, "slow"), (-20.0, "fast")])
async def test_a_clock_that_is_off_is_a_warning(seconds: float, way: str) -> None:
    result = await offset_result(seconds)
    assert result.status == "warn"
    assert way in result.message


async def test_a_clock_that_is_far_off_fails() -> None:
    result = await offset_result(600.0)
    assert result.status == "fail"
    assert "certificates" in result.message
    assert "synchronisation" in result.fix


async def test_a_clock_that_is_off_by_days_fails() -> None:
    result = await offset_result(3 * 86_400.0)
    assert result.status == "fail"
    assert "more than a day" in result.message


async def test_a_silent_time_server_is_a_warning() -> None:
    async with time_server(lambda _question: []) as address:
        result = await check_clock(NtpConfig(servers=(address,), timeout_ms=50), {}, offline=False)
    assert result.status == "warn"
    assert "no answer within 50 ms" in result.message


async def test_the_clock_is_not_compared_offline_or_when_it_is_turned_off() -> None:
    asked: list[bytes] = []

    def reply(question: bytes) -> list[bytes]:
        asked.append(question)
        return []

    async with time_server(reply) as address:
        check = partial(check_clock, offline=False)
        results = [
            await check_clock(NtpConfig(servers=(address,)), {}, offline=True),
            await check(NtpConfig(servers=(address,)), {"ROUTECODEX_CLOCK_NTP": "0"}),
            await check(NtpConfig(servers=(address,), enabled=False), {}),
        ]
    assert [result.status for result in results] == ["skip"] * 3
    assert asked == []
