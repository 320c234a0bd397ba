"""The limit of open files: raised at the start, and what it leaves for requests.

A request needs two descriptors, one for its client and one for its provider. Some more are kept for files,
pipes and the requests of the gateway itself.
"""

from __future__ import annotations

import contextlib
import logging
import resource

logger = logging.getLogger("routecodex.server")

_RESERVE = 64
_LARGEST = 1024 * 1024
"""Enough for every request that fits into memory. Programs that the gateway starts inherit the limit, and
some of them close every possible descriptor first."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one; return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LARGEST if hard == resource.RLIM_INFINITY else min(hard, _LARGEST)
    if 0 <= soft < wanted:
        # macOS has a lower limit of the kernel, and refuses more; then the old one stays.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def limit() -> int:
    """Return the soft limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _LARGEST if soft == resource.RLIM_INFINITY else soft


def reserve(limit: int) -> int:
    """Return the descriptors that connections leave free."""
    return min(_RESERVE, limit // 4)


def requests_allowed(limit: int) -> int:
    """Return the number of requests at once that a limit allows."""
    return (limit - reserve(limit)) // 2


def describe(limit: int, max_concurrent: int) -> str:
    """Return the line about the limit for the start of the log."""
    return (
        f"the limit of {limit} open files allows {requests_allowed(limit)} requests at once in each process; "
        f"server.max_concurrent is {max_concurrent}"
    )


def shortage(limit: int, max_concurrent: int) -> str:
    """Return the warning about a limit that is too low for `max_concurrent`; empty if it is not."""
    if requests_allowed(limit) >= max_concurrent:
        return ""
    fix = f"raise the hard limit (`ulimit -Hn`) to {2 * max_concurrent + _RESERVE}, or lower max_concurrent"
    return f"{describe(limit, max_concurrent)}; {fix}"


def report(max_concurrent: int) -> None:
    """Log what the limit allows, or the warning that it is too low."""
    files = limit()
    warning = shortage(files, max_concurrent)
    if warning:
        logger.warning("%s", warning)
    else:
        logger.info("%s", describe(files, max_concurrent))
