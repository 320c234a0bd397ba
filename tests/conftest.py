"""What is tested are the sources, unless `ROUTECODEX_PURE=0` asks for what was compiled from them.

Properties have no deadlines: a machine that stands still for a moment is no failure.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("ROUTECODEX_PURE", "1")

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
