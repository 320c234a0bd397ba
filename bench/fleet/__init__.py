"""Simulates a fleet of gateways that share the health of their keys, without sockets and on its own clock."""
