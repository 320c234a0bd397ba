"""How tests run: processes that they start have default signals, a run ends when its own die."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONGEST

STANDARD = (1 << 31) - 1
"""The signals 1 to 31; those above are of the C library, and some parents ignore one of them."""
IGNORED = re.compile(r"^SigIgn:\s*([0-9a-f]+)$", re.MULTILINE)
ROOT = Path(__file__).parent.parent

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@LINUX
def test_a_child_ignores_no_signal() -> None:
    status = subprocess.check_output(["cat", "/proc/self/status"], text=True)
    found = IGNORED.search(status)
    assert found is not None
    assert int(found[1], 16) & STANDARD == 0


@LINUX
def test_children_of_tests_in_the_background_ignore_no_signal() -> None:
    script = "trap '' INT QUIT HUP; exec \"$@\""
    this = f"{Path(__file__).relative_to(ROOT)}::{test_a_child_ignores_no_signal.__name__}"
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "pytest", this]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_longest_files_exist() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


ENDS = {
    "killed": """
        import os, signal, subprocess
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        os.kill(os.getpid(), signal.SIGKILL)""",
    "hanging": """
        import signal, threading
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        threading.Event().wait()""",
}
"""What a test does: its process is killed and leaves a child, or it hangs where no signal is heard."""


@pytest.mark.parametrize("end", ENDS)
def test_a_run_ends_with_a_failure_when_one_of_its_processes_is(tmp_path: Path, end: str) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(20))\ndef test_passes(n): pass\n"
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(many)
    (tmp_path / "test_1.py").write_text(f"{many}\ndef test_the_end():{ENDS[end]}\n{many}")
    options = re.search(r"^PARALLEL := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert options is not None
    more = ["-o", "faulthandler_timeout=2", *options[1].replace("$(JOBS)", "2").split(), str(tmp_path)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            str(ROOT / "pyproject.toml"),
            "--rootdir",
            str(tmp_path),
            *more,
        ],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashed while running 'test_1.py::test_the_end'" in done.stdout
    assert ("in test_the_end" in done.stderr) is (end == "hanging"), done.stderr
