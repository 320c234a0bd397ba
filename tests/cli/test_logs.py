"""`routecodex logs`: the requests of a server, for people and for scripts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner, Result

from routecodex.cli import main
from tests.cli.admin_server import REQUEST as ROW
from tests.cli.admin_server import announce
from tests.cli.process import running

FAILED = {"time": "x", "status": 502, "protocol": "chat", "model": "m", "error": "connection\nrefused"}


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def logs(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["logs", *arguments], prog_name="routecodex")


def announced(user: Path, name: str = "alpha", **more: Any) -> Path:
    """Announce a server with a session dir; return the file of its requests."""
    folder = user / "sessions" / name
    folder.mkdir(parents=True)
    row = {"id": name, "url": "http://127.0.0.1:9", "token": "t", "pid": os.getpid(), **more}
    announce(user, row)
    return folder / "requests.jsonl"


def test_requests_are_a_table_for_people(user: Path) -> None:
    announced(user).write_bytes(lines(ROW, FAILED))
    result = logs()
    assert (result.exit_code, result.stderr) == (0, "")
    head, first, second = result.stdout.splitlines()
    assert (
        " ".join(head.split())
        == "TIME STATUS PROTOCOL SESSION MODEL → TARGET ROUTE REASON FIRST TOTAL IN OUT END"
    )
    local = time.strftime("%H:%M:%S", time.localtime(1735725600))
    assert first.split("  ")[0] == local
    for text in (
        "claude → glm.primary.glm-4.7",
        "thinking",
        "fresh question",
        "0.50s",
        "2.25s",
        "10",
        "stop",
    ):
        assert text in first
    assert second.endswith("connection?refused")
    assert "m → -" in second


def test_a_request_without_a_model_is_shown_by_its_call(user: Path) -> None:
    refused = {"time": "2025-01-01T10:00:00.000Z", "status": 404, "model": "", "call": "POST /v2/\x1b[2Jchat"}
    announced(user).write_bytes(lines(refused))
    assert "POST /v2/?[2Jchat" in logs().stdout


def test_scripts_get_the_lines_as_they_are(user: Path) -> None:
    announced(user).write_bytes(lines(ROW, FAILED))
    assert logs("--json").stdout.encode() == lines(ROW, FAILED)


def test_the_last_lines_come_from_older_files_too(user: Path) -> None:
    file = announced(user)
    rows = [{**ROW, "model": f"m{number}"} for number in range(6)]
    file.write_bytes(lines(*rows[4:]))
    file.with_name("requests.1.jsonl").write_bytes(lines(*rows[2:4]))
    file.with_name("requests.2.jsonl").write_bytes(lines(*rows[:2]))
    assert logs("--json", "-n", "5").stdout.encode() == lines(*rows[1:])
    assert logs("--json", "-n", "1").stdout.encode() == lines(rows[5])
    assert logs("--json").stdout.encode() == lines(*rows)


def test_an_announced_session_dir_is_used(user: Path, tmp_path: Path) -> None:
    announced(user, session_dir=str(tmp_path))
    (tmp_path / "requests.jsonl").write_bytes(lines(ROW))
    assert logs("--json").stdout.encode() == lines(ROW)


def test_a_server_that_has_ended_is_found_by_its_name(user: Path) -> None:
    file = announced(user)
    file.write_bytes(lines(ROW))
    (user / "servers" / "alpha.json").unlink()
    assert logs().exit_code == 3
    assert logs("alpha", "--json").stdout.encode() == lines(ROW)
    unknown = logs("alpah")
    assert unknown.exit_code == 2
    assert "did you mean 'alpha'?" in unknown.stderr
    assert logs("../sessions/alpha").exit_code == 2


def test_of_several_servers_one_has_to_be_named(user: Path) -> None:
    announced(user).write_bytes(lines(ROW))
    announced(user, "beta").write_bytes(lines(FAILED))
    assert logs().exit_code == 2
    assert logs("beta", "--json").stdout.encode() == lines(FAILED)


def test_a_log_that_is_empty_or_missing_is_said_so(user: Path) -> None:
    announced(user)
    result = logs()
    assert (result.exit_code, result.stdout) == (0, "")
    assert "the log is empty" in result.stderr


def test_no_lines_at_all_can_be_asked_for(user: Path) -> None:
    announced(user).write_bytes(lines(ROW))
    result = logs("-n", "0")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_line_that_is_no_request_is_shown_as_it_is(user: Path) -> None:
    announced(user).write_bytes(b"half a li\x1bne\n\n" + lines(ROW))
    shown = logs().stdout.splitlines()
    assert shown[1] == "half a li?ne"
    assert "claude" in shown[2]


def test_the_plain_log_is_shown_too(user: Path, tmp_path: Path) -> None:
    (tmp_path / "out.log").write_text("one\ntwo\nthree\n")
    announced(user, log=str(tmp_path / "out.log"))
    assert logs("--server-log", "-n", "2").stdout == "two\nthree\n"


async def test_a_pipe_gets_every_line_in_full(tmp_path: Path) -> None:
    reason = "a reason that is much longer than the column of the first request " * 3
    file = announced(tmp_path / "user")
    file.write_bytes(lines({**ROW, "client": "laptop", "cost": None}))
    async with running(tmp_path, "logs", "-f", environ={"COLUMNS": "40"}) as command:
        await command.wait_for("claude.*laptop|laptop.*claude")
        with file.open("ab") as out:
            out.write(lines({**ROW, "reason": reason, "client": "workstation", "cost": 1.5}))
        await command.wait_for("workstation")
        command.signal(signal.SIGINT)
        assert await command.ended() == 0
    assert reason.strip() in command.out[2]
    assert "$1.50" in command.out[2]
    assert len(command.out) == 3


async def test_following_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    file = announced(tmp_path / "user")
    file.write_bytes(lines(ROW))
    async with running(tmp_path, "logs", "-f") as command:
        await command.wait_for("claude")
        with file.open("ab") as out:
            out.write(lines({**ROW, "model": "second"}))
        await command.wait_for("second")
        os.replace(file, file.with_name("requests.1.jsonl"))
        file.write_bytes(lines({**ROW, "model": "third"}))
        await command.wait_for("third")
        command.signal(signal.SIGINT)
        assert await command.ended() == 0
    assert len(command.out) == 4
