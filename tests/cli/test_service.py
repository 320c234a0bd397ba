"""`routecodex service`: a gateway that the service manager of the session runs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from bench.ports import free_port
from tests.cli.process import ROOT, until
from tests.cli.service_fakes import FakeCommand

CONFIG = """
[server]
port = {port}
drain_seconds = 7

[providers.demo]
protocol = "demo"
models.demo-1 = {{}}

[routing]
default = ["demo.demo-1"]
"""

NEEDS_KEY = """
[providers.far]
protocol = "chat"
base_url = "http://127.0.0.1:9/v1"
auth = [{ env = "FAR_KEY" }]
models = { one = {} }

[routing]
default = ["far.one"]
"""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="systemd is on Linux only")
pytestmark = on_linux


class Session:
    """A user with a home of its own and a fake service manager."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home of % $you"
        self.home.mkdir(parents=True)
        self.systemctl = FakeCommand(folder / "bin", "systemctl")
        self.unit_file = self.home / ".config/systemd/user/routecodex.service"
        self.env_file = self.home / ".routecodex/service.env"
        self.config = self.home / "gate way.toml"
        self.port = free_port()
        self.config.write_text(CONFIG.format(port=self.port))
        self.config.chmod(0o600)

    def run(self, *arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `routecodex service …`."""
        settings = {"HOME": str(self.home), "PATH": self.systemctl.path, "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(
            [sys.executable, "-m", "routecodex", "service", *arguments],
            env={**settings, **(environ or {})},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def install(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `routecodex service install` with the configuration."""
        return self.run("install", "--config", str(self.config), *arguments, environ=environ)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    yield made
    made.systemctl.end()


def test_the_service_serves_after_install_and_is_gone_after_uninstall(session: Session) -> None:
    done = session.install()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"http://127.0.0.1:{session.port}" in done.stdout
    assert "loginctl enable-linger" in done.stdout
    assert session.systemctl.calls()[1:4] == [
        ["--user", "daemon-reload"],
        ["--user", "enable", "routecodex.service"],
        ["--user", "restart", "routecodex.service"],
    ]
    shown = session.run("status", "--json")
    pid = json.loads(shown.stdout)["pid"]
    assert (shown.returncode, json.loads(shown.stdout)) == (
        0,
        {
            "name": "routecodex",
            "kind": "systemd",
            "installed": True,
            "file": str(session.unit_file),
            "enabled": True,
            "state": "active (running)",
            "running": True,
            "pid": pid,
        },
    )
    process = psutil.Process(pid)
    removed = session.run("uninstall")
    assert (removed.returncode, removed.stdout) == (0, f"removed {session.unit_file}\n")
    assert not session.unit_file.exists()
    assert ["--user", "disable", "--now", "routecodex.service"] in session.systemctl.calls()
    assert ["--user", "daemon-reload"] in session.systemctl.calls()[-2:]
    psutil.wait_procs([process], timeout=20)
    assert not process.is_running()


def test_an_installation_again_takes_new_options_and_restarts(session: Session) -> None:
    assert session.install().returncode == 0
    session.systemctl.end()
    port = free_port()
    done = session.install("--port", str(port), "--workers", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert f":{port}" in done.stdout
    assert f'"--port" "{port}" "--workers" "2"' in session.unit_file.read_text()


def test_the_unit_restarts_on_failure_and_leaves_more_time_to_stop_than_the_drain(session: Session) -> None:
    done = session.install("--print")
    lines = done.stdout.splitlines()
    assert (done.returncode, session.systemctl.calls()) == (0, [])
    assert not session.unit_file.exists()
    for line in (
        "Type=exec",
        "Restart=on-failure",
        "RestartPreventExitStatus=2",
        "KillSignal=SIGTERM",
        "TimeoutStopSec=17",
        "WantedBy=default.target",
    ):
        assert line in lines
    config = str(session.config).replace("%", "%%").replace("$", "$$")
    [start] = [line for line in lines if line.startswith("ExecStart=")]
    assert start == f'ExecStart="{sys.executable}" "-m" "routecodex" "serve" "--config" "{config}"'


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_finds_nothing_wrong_with_the_unit(session: Session, tmp_path: Path) -> None:
    unit = tmp_path / "routecodex.service"
    unit.write_text(session.install("--print").stdout)
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        env=environ,
        capture_output=True,
        text=True,
    )
    complaints = [line for line in done.stderr.splitlines() if "routecodex.service" in line]
    assert (done.returncode, complaints) == (0, [])


def test_a_dry_run_shows_everything_and_changes_nothing(session: Session) -> None:
    before = sorted(session.home.rglob("*"))
    done = session.install("--dry-run", "--env", "FAR_KEY", FAR_KEY="secret-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"would write {session.unit_file}:" in done.stdout
    assert f"would save in {session.env_file}: FAR_KEY" in done.stdout
    assert "    systemctl --user restart routecodex.service" in done.stdout
    assert "secret-1" not in done.stdout
    assert (sorted(session.home.rglob("*")), session.systemctl.calls()) == (before, [])


def test_a_key_that_only_the_shell_has_is_an_error_that_names_the_way_out(session: Session) -> None:
    session.config.write_text(NEEDS_KEY)
    done = session.install(FAR_KEY="secret-1")
    assert done.returncode == 2
    assert "FAR_KEY" in done.stderr
    assert "`--env NAME`" in done.stderr
    assert not session.unit_file.exists()


def test_keys_are_saved_where_only_their_owner_reads_them(session: Session) -> None:
    session.config.write_text(
        NEEDS_KEY.replace("[providers.far]", f"[server]\nport = {session.port}\n[providers.far]")
    )
    session.env_file.parent.mkdir()
    session.env_file.write_text("# mine\nOTHER=1\nFAR_KEY=old\n")
    done = session.install("--env", "FAR_KEY", FAR_KEY="secret-1-with-$signs")
    assert (done.returncode, done.stderr) == (0, "")
    assert session.env_file.read_text() == "# mine\nOTHER=1\nFAR_KEY='secret-1-with-$signs'\n"
    assert session.env_file.stat().st_mode & 0o777 == 0o600
    assert "secret-1" not in session.unit_file.read_text()
    # Saved once, it is enough for later calls.
    session.systemctl.end()
    assert session.install(FAR_KEY="another").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (["--env", "FAR_KEY"], {}, "--env FAR_KEY: the variable is not set"),
        (["--env", "FAR_KEY"], {"FAR_KEY": "a'b"}, "--env FAR_KEY: its value has quotes"),
        (["--name", "../x"], {}, "use letters, digits"),
        (["--port", "0"], {}, "0 is not in the range"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    session: Session, arguments: list[str], environ: dict[str, str], message: str
) -> None:
    done = session.install(*arguments, **environ)
    assert done.returncode == 2
    assert message in done.stderr
    assert not session.unit_file.exists()


def test_an_address_for_everyone_needs_client_keys(session: Session) -> None:
    done = session.install("--host", "0.0.0.0")
    assert done.returncode == 2
    assert "cannot listen on 0.0.0.0 without client keys" in done.stderr
    assert not session.unit_file.exists()


def test_a_command_in_the_cache_of_uvx_cannot_be_a_service(session: Session, tmp_path: Path) -> None:
    venv = tmp_path / "uv/archive-v0/k3y"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    done = subprocess.run(
        [venv / "bin/python", "-m", "routecodex", "service", "install", "--config", str(session.config)],
        env={
            "HOME": str(session.home),
            "PATH": session.systemctl.path,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), sysconfig.get_path("platlib")]),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "`uv tool install routecodex`" in done.stderr
    assert not session.unit_file.exists()


def test_a_configuration_that_does_not_exist_is_told_before_anything_is_written(session: Session) -> None:
    done = session.run("install", "--config", "none.toml")
    assert done.returncode == 2
    assert "the file does not exist" in done.stderr
    assert not session.unit_file.exists()


def test_without_a_service_manager_start_is_named(session: Session, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for command in (["install", "--config", str(session.config)], ["uninstall"], ["status"]):
        done = session.run(*command, environ={"PATH": str(empty)})
        assert done.returncode == 1
        assert "'systemctl' is not on PATH" in done.stderr
        assert "`routecodex start`" in done.stderr


def test_a_session_without_a_manager_leaves_no_file_behind(session: Session) -> None:
    session.systemctl.fail_at("daemon-reload")
    done = session.install()
    assert done.returncode == 1
    assert "Failed to connect to bus" in done.stderr
    assert "`routecodex start`" in done.stderr
    assert not session.unit_file.exists()


def test_a_failed_installation_again_keeps_the_unit_that_was_there(session: Session) -> None:
    assert session.install().returncode == 0
    before = session.unit_file.read_text()
    session.systemctl.end()
    session.systemctl.fail_at("enable")
    assert session.install("--workers", "2").returncode == 1
    assert session.unit_file.read_text() == before


def test_a_unit_of_somebody_else_is_left_alone(session: Session) -> None:
    session.unit_file.parent.mkdir(parents=True)
    session.unit_file.write_text("[Service]\nExecStart=/bin/true\n")
    for done in (session.install(), session.run("uninstall")):
        assert done.returncode == 1
        assert "choose another --name" in done.stderr
    assert session.unit_file.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert session.install("--name", "gateway-2").returncode == 0
    assert session.unit_file.with_name("gateway-2.service").exists()


async def test_a_server_that_runs_already_is_named(session: Session, tmp_path: Path) -> None:
    environ = {"HOME": str(session.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "routecodex", "serve", "--config", str(session.config)]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            assert b"listens on" in server.stderr.readline()
            announced = session.home / ".routecodex/servers"
            await until(lambda: any(announced.glob("*")) or server.poll() is not None, "announced")
            done = session.install()
        finally:
            server.terminate()
    assert done.returncode == 1
    assert f"`routecodex stop 127.0.0.1-{session.port}`" in done.stderr
    assert not session.unit_file.exists()


def test_a_gateway_that_does_not_come_up_is_reported_with_where_to_look(session: Session) -> None:
    with socket.create_server(("127.0.0.1", session.port)):
        done = session.install()
    assert done.returncode == 1
    assert "the gateway does not answer" in done.stderr
    assert "`journalctl --user -u routecodex.service`" in done.stderr
    assert "cannot listen" in session.systemctl.output()
    shown = session.run("status")
    assert shown.returncode == 3
    assert "failed (exit-code)" in shown.stdout


def test_status_and_uninstall_say_that_nothing_is_installed(session: Session) -> None:
    shown, removed = session.run("status"), session.run("uninstall")
    assert (shown.returncode, removed.returncode) == (3, 0)
    assert "`routecodex service install`" in shown.stderr
    assert "is not installed" in removed.stderr
    assert json.loads(session.run("status", "--json").stdout) == {
        "name": "routecodex",
        "kind": "systemd",
        "installed": False,
        "running": False,
    }
    assert session.systemctl.calls() == []


def test_uninstall_can_be_tried_first(session: Session) -> None:
    assert session.install().returncode == 0
    done = session.run("uninstall", "--dry-run")
    assert done.stdout == f"would stop 'routecodex' and remove {session.unit_file}\n"
    assert session.unit_file.exists()
