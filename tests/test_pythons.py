"""The interpreters that `make test-pythons` finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pythons import Interpreter, discover, main, newest


def program(file: Path, answer: object, *, code: int = 0) -> Path:
    """Write a program that answers like an interpreter."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\nexit {code}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Environment of a machine with several interpreters."""
    program(tmp_path / "usr/python3", [[3, 11, 2], "/usr/bin/python3.11"])
    program(tmp_path / "usr/python3.10", [[3, 10, 9], "/usr/bin/python3.10"])
    program(tmp_path / "usr/python3-config", [[3, 14, 0], "/not/a/python"])
    program(tmp_path / "usr/python3.13", [[3, 13, 1], ""])
    shim = tmp_path / "shims/python3.12"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    program(tmp_path / "pyenv/versions/3.12.1/bin/python3.12", [[3, 12, 1], "/pyenv/3.12.1"])
    program(tmp_path / "pyenv/versions/3.12.9/bin/python3.12", [[3, 12, 9], "/pyenv/3.12.9"])
    program(tmp_path / "uv/cpython-3.14/bin/python3.14", [[3, 14, 0], "/uv/3.14"])
    return {
        "PATH": f"{tmp_path / 'usr'}:{tmp_path / 'shims'}:/nowhere",
        "HOME": str(tmp_path),
        "PYENV_ROOT": str(tmp_path / "pyenv"),
        "UV_PYTHON_INSTALL_DIR": str(tmp_path / "uv"),
    }


def test_the_newest_release_of_every_supported_version_is_found(machine: dict[str, str]) -> None:
    assert discover(machine) == [
        Interpreter((3, 11, 2), "/usr/bin/python3.11"),
        Interpreter((3, 12, 9), "/pyenv/3.12.9"),
        Interpreter((3, 14, 0), "/uv/3.14"),
    ]


def test_what_is_found_can_be_listed(machine: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "3.14"], machine) == 0
    assert capsys.readouterr().out == "3.14  /uv/3.14\n"


def test_a_version_that_is_not_there_is_an_error(
    machine: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--only", "3.13"], machine) == 2
    assert capsys.readouterr().err == "no Python 3.13 was found\n"


def test_versions_are_ordered_by_number() -> None:
    found = [Interpreter((3, release, 0), "") for release in (100, 9, 12)]
    assert [each.version for each in newest(found)] == ["3.12", "3.100"]
