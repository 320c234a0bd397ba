"""Test the Python sources, unless `ROUTECODEX_PURE=0` selects the compiled modules.

Hypothesis has no deadlines: a short pause of the machine is not a failure.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("ROUTECODEX_PURE", "1")

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
