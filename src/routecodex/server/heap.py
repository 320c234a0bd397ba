"""What the process does with memory that a large request has used: it keeps some for the next one.

The C library gives large blocks back to the system at once, and takes them anew with the next request, page
by page: a request of 500 KB spent a quarter of its time on that.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""How the C library numbers what can be set."""
_KEPT = 32 * 1024 * 1024
_LARGEST = 8 * 1024 * 1024


def tune_malloc() -> bool:
    """Keeps up to 32 MB that are free, gives blocks beyond 8 MB back; False where that cannot be set."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST))
