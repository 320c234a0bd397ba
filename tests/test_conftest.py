"""Processes that tests start have default signals, however the tests were started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

STANDARD = (1 << 31) - 1
"""The signals 1 to 31; those above are of the C library, and some parents ignore one of them."""
IGNORED = re.compile(r"^SigIgn:\s*([0-9a-f]+)$", re.MULTILINE)
ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_child_ignores_no_signal() -> None:
    status = subprocess.check_output(["cat", "/proc/self/status"], text=True)
    found = IGNORED.search(status)
    assert found is not None
    assert int(found[1], 16) & STANDARD == 0


def test_children_of_tests_in_the_background_ignore_no_signal() -> None:
    script = "trap '' INT QUIT HUP; exec \"$@\""
    this = f"{Path(__file__).relative_to(ROOT)}::{test_a_child_ignores_no_signal.__name__}"
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "pytest", this]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
