"""Free ports for processes that are told theirs: those of the benchmark, and of tests."""

from __future__ import annotations

import random
import socket

_RANGE = range(20_000, 32_000)
"""Below the ports that systems give to connections and to servers that ask for any port.

One of those could be given away between the choice of a port and its use.
"""
_CHANCE = random.SystemRandom()


def free_port() -> int:
    """Return a free loopback port; it is random, since other processes choose one at the same time."""
    while True:
        port = _CHANCE.choice(_RANGE)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
