"""Test the Python sources, unless `ROUTECODEX_PURE=0` selects the compiled modules.

Hypothesis has no deadlines: a short pause of the machine is not a failure.

Processes that tests start have default signals. A shell in the background starts its commands with SIGINT and
SIGQUIT ignored, nohup with SIGHUP; children inherit an ignored signal, but not a handler, through exec. The
tests themselves go on ignoring it, as whoever started them wants.

The garbage collector leaves out what exists before the first test: millions of objects, and several tests
ask for a collection for every case.
"""

from __future__ import annotations

import gc
import os
import signal

from hypothesis import HealthCheck, settings

os.environ.setdefault("ROUTECODEX_PURE", "1")

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda number, frame: None)


def pytest_collection_finish() -> None:
    """Keep modules and the tests themselves out of every collection."""
    gc.collect()
    gc.freeze()
