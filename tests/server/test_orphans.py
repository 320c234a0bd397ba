"""Orphans: reaped where the gateway is process 1, and never a child that somebody waits for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from routecodex.server.orphans import reap
from tests.cli.process import serve, until

CONFIG = """
[providers.demo]
protocol = "demo"
models = { demo = {} }
[routing]
default = ["demo.demo"]
"""
needs_namespaces = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="process namespaces need Linux, root and unshare",
)


def wait_until_dead(pid: int) -> None:
    """Wait until a child is dead, without reaping it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is needed")
def test_a_dead_child_is_reaped_at_the_second_look() -> None:
    child = subprocess.Popen(["true"])
    wait_until_dead(child.pid)
    seen = reap(set())
    assert child.pid in seen
    assert child.pid not in reap(seen)
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    assert child.wait() == 0  # its status is lost to Popen, which counts it as 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is needed")
def test_a_child_that_died_since_the_last_look_is_left_to_its_owner() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    wait_until_dead(child.pid)
    reap(set())
    assert child.wait() == 7


def dead_children(process: psutil.Process) -> list[int]:
    return [child.pid for child in process.children() if child.status() == psutil.STATUS_ZOMBIE]


@needs_namespaces
async def test_a_gateway_that_is_process_1_reaps_orphans_and_drains_on_sigterm(tmp_path: Path) -> None:
    namespace = 'exec unshare --pid --fork --mount-proc "$@"'
    async with serve(tmp_path, CONFIG, shell=namespace) as unshare:
        await unshare.port()
        (gateway,) = unshare.workers()
        # The shell leaves a process behind, which ends soon: process 1 inherits it.
        subprocess.run(["nsenter", "-t", str(gateway.pid), "-p", "sh", "-c", "sleep 0.05 &"], check=True)
        await until(lambda: dead_children(gateway), "an orphan is dead")
        await until(lambda: not dead_children(gateway), "it is reaped")
        gateway.send_signal(signal.SIGTERM)
        assert await unshare.ended() == 0
