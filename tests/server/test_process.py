"""Memory that large requests use, counted in pages that the system had to give."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from routecodex.server.process import tune_malloc
if sys.argv[1] == "kept":
    assert tune_malloc()
def large(megabytes, times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        blocks = [bytearray(megabytes << 20) for _ in range(4)]
        del blocks
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
large(1, 1)
large(1, 50)
large(16, 2)
"""


def pages(how: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], check=True, capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="only there the C library can be told")
def test_large_blocks_are_taken_from_the_system_once_and_very_large_ones_each_time() -> None:
    _, given_back, _ = pages("given back")
    first, again, very_large = pages("kept")
    # 1024 pages, without those that the start has left free.
    assert first > 4 * 200
    assert again < 250 < 50 * 250 < given_back
    assert very_large > 2 * 4 * 16 * 250
