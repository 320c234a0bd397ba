from __future__ import annotations

from pathlib import Path

from routecodex.cli.agents import AGENTS
from routecodex.cli.checks.agent_program import check_installed
from routecodex.cli.checks.result import CheckResult


def check(folder: Path, prints: str | None) -> CheckResult:
    """Check Codex, whose program prints this text."""
    if prints is not None:
        program = folder / "codex"
        program.write_text(f"#!/bin/sh\necho '{prints}'\n")
        program.chmod(0o755)
    return check_installed(AGENTS["codex"], {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)})


def test_an_agent_that_is_not_installed_fails_with_the_command_that_installs_it(tmp_path: Path) -> None:
    result = check(tmp_path, None)
    assert result == CheckResult(
        "codex.installed", "fail", "Codex is not installed: no 'codex' in PATH", AGENTS["codex"].install
    )


def test_an_installed_agent_is_ok_with_its_version(tmp_path: Path) -> None:
    tested = AGENTS["codex"].tested
    assert check(tmp_path, f"codex-cli {tested}").message == f"Codex {tested} at {tmp_path / 'codex'}"
    newer = check(tmp_path, "codex-cli 9.1.0")
    assert newer.status == "ok"
    assert newer.message == f"Codex 9.1.0 at {tmp_path / 'codex'} ({tested} was tested)"


def test_an_agent_of_unknown_version_is_a_warning(tmp_path: Path) -> None:
    result = check(tmp_path, "hello")
    assert result.status == "warn"
    assert "does not tell its version" in result.message
