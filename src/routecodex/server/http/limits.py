"""What a client may cost: sizes, times and the number of connections."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HttpLimits:
    """The bounds an HTTP server holds its clients to; times are checked by a coarse sweep, never early."""

    body_bytes: int = 32 * 1024 * 1024
    header_bytes: int = 65536
    header_seconds: float = 15.0
    """A request head must be complete this long after its first byte, a fresh connection have begun one."""
    body_seconds: float = 60.0
    """A body that makes no progress for this long is answered 408."""
    keep_alive_seconds: float = 75.0
    write_stall_seconds: float = 60.0
    """A client that reads nothing for this long is cut off."""
    connections: int = 10_000
    """Further connections are answered 503 and closed."""
    linger_seconds: float = 2.0
    """After a refusal the client's remaining bytes are read and thrown away for this long."""
    linger_bytes: int = 64 * 1024 * 1024

    def sweep_seconds(self) -> float:
        """How often connections are looked at: fine enough for the shortest time, at most once a second."""
        shortest = min(
            self.header_seconds,
            self.body_seconds,
            self.keep_alive_seconds,
            self.write_stall_seconds,
            self.linger_seconds,
        )
        return min(1.0, max(0.005, shortest / 4))
