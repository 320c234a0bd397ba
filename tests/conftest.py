"""What is tested are the sources, unless `ROUTECODEX_PURE=0` asks for what was compiled from them."""

from __future__ import annotations

import os

os.environ.setdefault("ROUTECODEX_PURE", "1")
