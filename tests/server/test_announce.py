"""Announcements of running servers, and the admin token."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from routecodex.config import Config, loads
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from routecodex.server import announce
from routecodex.server.announce import Announcement
from tests.cli.process import serve
from tests.kit.raw_client import call

DEMO = (
    "[server]\nport = 0\ndrain_seconds = 1\n"
    '[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.demo-1]\n'
    '[routing]\ndefault = ["demo.demo-1"]\n'
)


def row(name: str = "main", *, pid: int | None = None, token: str = "t") -> Announcement:
    return Announcement(
        id=name,
        url="http://127.0.0.1:5520",
        pid=os.getpid() if pid is None else pid,
        token=token,
        started_at=1.0,
    )


def config(server: str = "") -> Config:
    return loads(
        f"[server]\n{server}\n" + DEMO.removeprefix("[server]\nport = 0\ndrain_seconds = 1\n"),
        environ={},
        presets=PRESETS,
        dialect_type=Dialect,
    )


def a_dead_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_what_is_written_is_read_by_id_and_is_the_owners_alone(tmp_path: Path) -> None:
    home = tmp_path / "user"
    announce.write(home, row("second"))
    announce.write(home, row("first"))
    assert announce.read(home) == [row("first"), row("second")]
    file = home / "servers" / "first.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in file.parent.iterdir()) == ["first.json", "second.json"]


def test_a_file_that_is_no_announcement_is_passed_over(tmp_path: Path) -> None:
    announce.write(tmp_path, row())
    (tmp_path / "servers" / "odd.json").write_text("{")
    (tmp_path / "servers" / "other.json").write_text('{"id": "x"}')
    assert announce.read(tmp_path) == [row()]


def test_without_any_announcement_there_are_none(tmp_path: Path) -> None:
    assert announce.read(tmp_path) == []


def test_an_announcement_is_removed_by_the_process_that_made_it_only(tmp_path: Path) -> None:
    announce.write(tmp_path, row())
    announce.remove(tmp_path, row(pid=1))
    assert announce.read(tmp_path) == [row()]
    announce.remove(tmp_path, row())
    announce.remove(tmp_path, row())
    assert announce.read(tmp_path) == []


def test_a_second_living_server_of_the_same_name_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    announce.write(tmp_path, row(pid=os.getppid()))
    announce.write(tmp_path, row())
    assert "server id 'main' is also used by" in caplog.text
    assert announce.read(tmp_path) == [row()]


def test_a_dead_server_of_the_same_name_is_nothing_to_speak_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    announce.write(tmp_path, row(pid=a_dead_pid()))
    announce.write(tmp_path, row())
    assert caplog.text == ""


def test_a_user_dir_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    announce.write(tmp_path / "file", row())
    assert announce.admin_token(config(), tmp_path / "file")
    assert len(caplog.records) == 2


def test_a_process_that_runs_is_alive_and_one_that_ended_is_not() -> None:
    assert announce.alive(row())
    assert not announce.alive(row(pid=a_dead_pid()))
    assert not announce.alive(row(pid=0))


def test_a_token_never_shows_in_a_traceback() -> None:
    assert "very-secret" not in repr(row(token="very-secret"))


def test_the_configured_token_is_used_and_nothing_is_written(tmp_path: Path) -> None:
    assert announce.admin_token(config('admin_token = "mine"'), tmp_path) == "mine"
    assert list(tmp_path.iterdir()) == []


def test_a_token_is_made_once_and_kept(tmp_path: Path) -> None:
    home = tmp_path / "new"
    token = announce.admin_token(config(), home)
    assert len(bytes.fromhex(token)) == 32
    assert (home / "admin-token").stat().st_mode & 0o777 == 0o600
    assert announce.admin_token(config(), home) == token
    assert [path.name for path in home.iterdir()] == ["admin-token"]


def test_an_empty_token_file_is_filled(tmp_path: Path) -> None:
    (tmp_path / "admin-token").write_text("\n")
    token = announce.admin_token(config(), tmp_path)
    assert token
    assert announce.admin_token(config(), tmp_path) == token


def test_a_token_that_others_could_read_becomes_the_owners(tmp_path: Path) -> None:
    file = tmp_path / "admin-token"
    file.write_text("abc\n")
    file.chmod(0o644)
    assert announce.admin_token(config(), tmp_path) == "abc"
    assert file.stat().st_mode & 0o777 == 0o600


def test_servers_that_start_at_once_have_one_token(tmp_path: Path) -> None:
    found: list[str] = []
    start = threading.Barrier(8)

    def begin() -> None:
        start.wait()
        found.append(announce.admin_token(config(), tmp_path))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("192.0.2.7", "http://192.0.2.7:1"),
        ("localhost", "http://localhost:1"),
    ],
)
def test_the_url_is_one_that_this_machine_can_use(host: str, url: str) -> None:
    assert announce.url_of(host, 1) == url


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_server_is_announced_while_it_runs(tmp_path: Path, workers: int) -> None:
    home = tmp_path / "user"
    async with serve(tmp_path, DEMO, "--workers", str(workers)) as command:
        port = await command.port()
        (found,) = announce.read(home)
        status = await call(
            port, "/admin/status", method="GET", headers={"authorization": f"Bearer {found.token}"}
        )
        command.signal()
        assert await command.ended() == 0
    assert (found.id, found.url) == (f"127.0.0.1-{port}", f"http://127.0.0.1:{port}")
    assert found.pid == command.process.pid
    assert found.config == str(tmp_path / "gateway.toml")
    assert found.token == (home / "admin-token").read_text().strip()
    assert msgspec.to_builtins(status.json) | {"version": "", "active": 0} == {
        "id": found.id,
        "url": found.url,
        "pid": found.pid,
        "version": "",
        "server_tools": [],
        "started_at": found.started_at,
        "workers": workers,
        "config": found.config,
        "active": 0,
    }
    assert announce.read(home) == []


async def test_a_server_that_is_killed_leaves_a_dead_announcement(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO) as command:
        await command.port()
        await command.kill()
    (found,) = announce.read(tmp_path / "user")
    assert not announce.alive(found)
