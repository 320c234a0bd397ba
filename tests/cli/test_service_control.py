"""The agent of launchd: its file and the calls of `launchctl`, with a fake one."""

from __future__ import annotations

import os
import plistlib
import shlex
import subprocess
from pathlib import Path

import pytest

from routecodex.cli.service_control import LaunchdAgents, ServiceFailed, ServiceState, find_control
from routecodex.cli.service_units import ServiceUnit, launchd_agent
from tests.cli.service_fakes import FakeCommand

TARGET = "gui/501/gate"


def unit(folder: Path, *command: str) -> ServiceUnit:
    return ServiceUnit(
        name="gate",
        command=command or ("/opt/python", "-m", "routecodex", "serve", "--config", "/a b/c.toml"),
        directory=folder,
        environ={"ROUTECODEX_USER_DIR": "/a b"},
        env_file=folder / "it's service.env",
        log=folder / "logs/gate.service.log",
        drain_seconds=30,
    )


@pytest.fixture
def launchctl(tmp_path: Path) -> FakeCommand:
    return FakeCommand(tmp_path / "bin", "launchctl")


@pytest.fixture
def agents(tmp_path: Path, launchctl: FakeCommand) -> LaunchdAgents:
    return LaunchdAgents("gate", home=tmp_path, environ={"PATH": launchctl.path}, uid=501)


def test_the_agent_starts_at_login_restarts_on_failure_and_may_drain(tmp_path: Path) -> None:
    agent = plistlib.loads(launchd_agent(unit(tmp_path)).encode())
    shell, flag, script = agent.pop("ProgramArguments")
    assert (shell, flag) == ("/bin/sh", "-c")
    assert script.endswith("exec /opt/python -m routecodex serve --config '/a b/c.toml'")
    log = str(tmp_path / "logs/gate.service.log")
    assert agent == {
        "Label": "gate",
        "WorkingDirectory": str(tmp_path),
        "EnvironmentVariables": {"ROUTECODEX_USER_DIR": "/a b"},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 5,
        "ExitTimeOut": 40,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }


def test_the_agent_gives_its_command_the_saved_variables(tmp_path: Path) -> None:
    tell = unit(tmp_path, "/bin/sh", "-c", 'echo "$KEY"')
    command = plistlib.loads(launchd_agent(tell).encode())["ProgramArguments"]
    assert subprocess.check_output(command, env={}, text=True) == "\n"
    tell.env_file.write_text("# mine\nKEY='a $b c'\n")
    assert subprocess.check_output(command, env={}, text=True) == "a $b c\n"


def test_an_agent_is_enabled_and_loaded(
    tmp_path: Path, launchctl: FakeCommand, agents: LaunchdAgents
) -> None:
    agents.install(unit(tmp_path))
    file = tmp_path / "Library/LaunchAgents/gate.plist"
    assert file.read_text() == launchd_agent(unit(tmp_path))
    assert launchctl.calls() == [
        ["print", TARGET],
        ["enable", TARGET],
        ["bootstrap", "gui/501", str(file)],
    ]
    assert agents.state() == ServiceState(running=True, state="running", pid=42, enabled=True)
    assert agents.log_command() == shlex.join(["tail", str(tmp_path / "logs/gate.service.log")])


def test_an_agent_that_is_loaded_is_stopped_before_it_is_loaded_again(
    tmp_path: Path, launchctl: FakeCommand, agents: LaunchdAgents
) -> None:
    agents.install(unit(tmp_path))
    before = len(launchctl.calls())
    agents.install(unit(tmp_path))
    verbs = [call[0] for call in launchctl.calls()[before:]]
    assert verbs == ["print", "bootout", "print", "enable", "bootstrap"]


def test_an_agent_is_removed(tmp_path: Path, launchctl: FakeCommand, agents: LaunchdAgents) -> None:
    agents.install(unit(tmp_path))
    agents.uninstall(40)
    assert ["bootout", TARGET] in launchctl.calls()
    assert not agents.unit_file.exists()
    assert agents.state() == ServiceState(running=False, state="not loaded")


def test_an_agent_that_cannot_be_loaded_leaves_no_file(
    tmp_path: Path, launchctl: FakeCommand, agents: LaunchdAgents
) -> None:
    launchctl.fail_at("bootstrap")
    with pytest.raises(ServiceFailed, match="Bootstrap failed: 5"):
        agents.install(unit(tmp_path))
    assert not agents.unit_file.exists()


def test_an_agent_of_somebody_else_is_left_alone(tmp_path: Path, agents: LaunchdAgents) -> None:
    agents.unit_file.parent.mkdir(parents=True)
    agents.unit_file.write_text("<plist/>")
    with pytest.raises(ServiceFailed, match="choose another --name"):
        agents.install(unit(tmp_path))
    with pytest.raises(ServiceFailed, match="choose another --name"):
        agents.uninstall(1)
    assert agents.unit_file.read_text() == "<plist/>"


def test_an_agent_that_fails_shows_its_exit_code(
    tmp_path: Path, launchctl: FakeCommand, agents: LaunchdAgents
) -> None:
    agents.install(unit(tmp_path))
    launchctl.show("gate = {\n\tstate = spawn scheduled\n\tlast exit code = 1\n\tendpoints = {\n\t}\n}")
    assert agents.state() == ServiceState(
        running=False, state="spawn scheduled (last exit code 1)", failed=True, enabled=True
    )


def test_each_platform_has_its_service_manager(tmp_path: Path, launchctl: FakeCommand) -> None:
    environ = {"HOME": str(tmp_path), "PATH": launchctl.path}
    found = find_control("gate", platform="darwin", environ=environ)
    assert (found.kind, found.unit_file) == ("launchd", tmp_path / "Library/LaunchAgents/gate.plist")
    FakeCommand(tmp_path / "more", "systemctl")
    environ = {"HOME": str(tmp_path), "PATH": f"{tmp_path / 'more'}", "XDG_CONFIG_HOME": str(tmp_path / "x")}
    found = find_control("gate", platform="linux", environ=environ)
    assert (found.kind, found.unit_file) == ("systemd", tmp_path / "x/systemd/user/gate.service")


def test_a_platform_without_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"systemd \(Linux\) or launchd \(macOS\); this is 'win32'"):
        find_control("gate", platform="win32", environ=os.environ)
    with pytest.raises(ServiceFailed, match="'launchctl' is not on PATH"):
        find_control("gate", platform="darwin", environ={"HOME": str(tmp_path), "PATH": str(tmp_path)})
