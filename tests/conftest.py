"""Test the Python sources, unless `ROUTECODEX_PURE=0` selects the compiled modules.

Hypothesis has no deadlines: a short pause of the machine is not a failure.

Processes that tests start have default signals. A shell in the background starts its commands with SIGINT and
SIGQUIT ignored, nohup with SIGHUP; children inherit an ignored signal, but not a handler, through exec. The
tests themselves go on ignoring it, as whoever started them wants.

The garbage collector leaves out what exists before the first test: millions of objects, and several tests
ask for a collection for every case.

Tests mostly wait for other processes, so there are three processes of tests for every two cores. A file runs
in one of them, and the files that take longest run first: begun late, one of them would run alone at the end.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("ROUTECODEX_PURE", "1")

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda number, frame: None)


LONGEST = (
    "protocols/test_linear_work.py",
    "server/events/test_event_service.py",
    "ui/test_console_gateway.py",
    "ui/test_console_gateway_actions.py",
    "cli/test_run.py",
    "cli/test_service.py",
    "gateway/test_clock_kills.py",
    "gateway/test_clock_holds.py",
    "stores/redis/test_modes.py",
    "cluster/test_trial.py",
    "accounting/test_ledger_query.py",
    "server/test_workers.py",
    "ui/test_console_live.py",
    "cli/test_keys.py",
    "ui/test_console_gateway_all.py",
    "cli/test_nodes.py",
    "cli/test_doctor.py",
    "cli/test_lifecycle.py",
    "cli/test_init.py",
    "ui/test_console_gateway_login.py",
    "cli/test_ui.py",
    "cli/test_discovery.py",
    "gateway/test_clock.py",
    "test_memory.py",
    "cli/test_serve.py",
)
"""The files of more than 14 seconds, the longest first, below this folder."""
_FOLDER = Path(__file__).parent


def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes run tests side by side."""
    cores: int = psutil.cpu_count() or 1
    return cores + (cores + 1) // 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, where files run side by side."""
    if hasattr(config, "workerinput"):
        place = {_FOLDER / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """Keep modules and the tests themselves out of every collection."""
    gc.collect()
    gc.freeze()
