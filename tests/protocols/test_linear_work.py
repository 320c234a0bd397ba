"""Work grows like the lists of a request or a stream, in all four protocols to all four: counted, not timed.

A list that costs the square of its length stops a worker for seconds: 30 000 calls of a Gemini history took
10.7 seconds, 8 000 parallel calls in a stream 3.3.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.kit.growing import work

ROOT = Path(__file__).parents[2]
PROTOCOLS = ("chat", "responses", "messages", "gemini")
SECTIONS = [
    f"{what} {protocol}" for what in ("requests", "streams", "rounds", "answers") for protocol in PROTOCOLS
]


def findings(section: str) -> dict[str, dict[str, float]]:
    """Return the cases of a section whose work grows faster than their list."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.growing.work", section],
        cwd=ROOT,
        env={**os.environ, "ROUTECODEX_PURE": "1", "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=dict[str, dict[str, float]])


@pytest.mark.parametrize("section", [*SECTIONS, "http"])
def test_four_times_the_entries_are_four_times_the_work(section: str) -> None:
    assert findings(section) == {}


def test_a_loop_in_a_loop_is_seen() -> None:
    assert work.growth(10, 10 + 50, 10 + 200) == 4.0
    assert work.growth(10, 10 + 50, 10 + 800) == 16.0
