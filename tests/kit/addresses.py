"""Addresses of this machine."""

from __future__ import annotations

import socket

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest


def other_address() -> str:
    """Return an address of this machine that is not loopback: a call from it looks like one of another."""
    for rows in psutil.net_if_addrs().values():
        for row in rows:
            if row.family == socket.AF_INET and not row.address.startswith("127."):
                return str(row.address)
    pytest.skip("this machine has no address but loopback")
