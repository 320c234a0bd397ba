"""How long an upstream is waited for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Seconds to wait: for a usable connection, from the request to its answer's head, between pieces."""

    connect: float = 5.0
    first_byte: float = 120.0
    idle: float = 120.0
