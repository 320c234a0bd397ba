"""Translates the errors of redis-py, once, into what they mean for the store."""

from __future__ import annotations

from typing import Literal

from redis import exceptions as errors

from routecodex.stores.store import StoreError

FailureKind = Literal["connection", "read_only", "script", "damaged", "refused"]

_REFUSED_WRITES = ("READONLY", "OOM", "MISCONF", "NOREPLICAS", "MASTERDOWN")
_OUTAGES = (
    errors.ConnectionError,
    errors.TimeoutError,
    errors.ClusterError,
    errors.ClusterDownError,
    errors.SlotNotCoveredError,
    errors.RedisClusterException,
    errors.BusyLoadingError,
    OSError,
)


class StoreGone(StoreError):
    """The store could not be reached in time; whether a write was carried out is not known."""


class CallNotSent(StoreGone):
    """The store was known to be gone, so that the call was not sent: nothing was changed."""


class ReplicasBehind(StoreGone):
    """Too few replicas have a write in time; a failover now might lose it, so it is undone."""


class WritesRefused(StoreError):
    """The store takes no writes now; nothing was changed."""


def failure_kind(error: Exception) -> FailureKind:
    """Return what an error means: the server is gone, takes no writes, or dislikes the call."""
    if isinstance(error, errors.NoScriptError):
        return "script"
    if isinstance(error, _OUTAGES):
        return "connection"
    text = str(error)
    if isinstance(error, errors.ReadOnlyError | errors.OutOfMemoryError) or text.startswith(_REFUSED_WRITES):
        return "read_only"
    # A script passes on what its commands raise, with its own words around it.
    if any(f"{word} " in text for word in _REFUSED_WRITES):
        return "read_only"
    if "WRONGTYPE" in text:
        return "damaged"
    if "BUSY" in text or "NOAUTH" in text or "WRONGPASS" in text or "NOPERM" in text:
        return "connection"
    return "refused"


def error_text(error: Exception) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
