"""Agents are found in PATH, by their installer's place or by a given path; their version without a start."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from routecodex.cli.agents import AGENTS
from routecodex.cli.agents.detection import find_executable, find_version, not_installed


def program(file: Path, text: str = "exit 9") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_an_agent_is_found_in_path_before_the_place_of_its_installer(tmp_path: Path) -> None:
    agent, environ = AGENTS["claude"], {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    assert find_executable(agent, environ) is None
    installed = program(tmp_path / ".local" / "bin" / "claude")
    assert find_executable(agent, environ) == installed
    assert find_executable(agent, environ) == installed
    in_path = program(tmp_path / "bin" / "claude")
    assert find_executable(agent, environ) == in_path


def test_a_given_program_replaces_the_search(tmp_path: Path) -> None:
    other = program(tmp_path / "other")
    environ = {"PATH": str(tmp_path)}
    assert find_executable(AGENTS["pi"], environ, str(other)) == other
    assert find_executable(AGENTS["pi"], environ, "other") == other
    assert find_executable(AGENTS["pi"], environ, "/nowhere/pi") is None


@pytest.mark.parametrize(
    ("agent", "package"),
    [
        ("gemini", "@google/gemini-cli"),
        ("claude", "@anthropic-ai/claude-code-linux-x64"),
        ("opencode", "opencode-linux-x64-baseline"),
        ("pi", "@earendil-works/pi-coding-agent"),
    ],
)
def test_the_version_of_a_package_is_read_and_the_program_not_started(
    tmp_path: Path, agent: str, package: str
) -> None:
    real = program(tmp_path / "package" / "dist" / "cli.js", "touch started")
    description = {"name": package, "version": "1.2.3", "type": "module"}
    (tmp_path / "package" / "package.json").write_bytes(msgspec.json.encode(description))
    link = tmp_path / "bin" / agent
    link.parent.mkdir()
    link.symlink_to(real)
    assert find_version(AGENTS[agent], link, {}) == "1.2.3"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("echo 'codex-cli 0.169.0'", "0.169.0"),
        ("echo '2.1.326 (Claude Code)'", "2.1.326"),
        ("echo 'aider 0.86.3.dev12+gabc'", "0.86.3.dev12+gabc"),
        ("echo 'no number'", None),
        ("echo 1.2.3; exit 1", None),
        ("kill -9 $$", None),
    ],
)
def test_other_programs_are_asked_for_their_version(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "package.json").write_text('{"name": "another-package", "version": "9.9.9"}')
    assert find_version(AGENTS["codex"], program(tmp_path / "codex", text), {}) == version


def test_every_agent_has_a_command_that_installs_it() -> None:
    for agent in AGENTS.values():
        assert not_installed(agent).endswith(f"install it with: {agent.install}")
