"""A network namespace for a server, with a wire of its own to each of its clients; wires can be cut.

A wire is a pair of veth interfaces. The kernel drops what is sent over one that is cut, and nobody is told:
connections stay open, bytes are sent again, new connections hang. That is what happens to a machine whose
cable was pulled, and what no proxy can imitate. Needs root and iproute2 (Debian: `iproute2`).
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import shutil
import subprocess

from tests.kit.redis_server import install

_numbers = itertools.count(1)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@functools.cache
def missing_for_wires() -> str:
    """Return why there can be no wires here; an empty text if they work."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None and install("iproute2", "ip") is None:
        return "iproute2 is missing and cannot be installed here"
    try:
        ServerNamespace(1).close()
    except OSError as exc:
        return f"network namespaces are not allowed here ({exc})"
    return ""


class Wire:
    """The way of one client to the server, which it finds at `host`."""

    def __init__(self, namespace: str, name: str, network: str) -> None:
        self.host, self._client = f"{network}.1", f"{network}.2"
        self._namespace = namespace
        self._ends = f"{name}c", f"{name}s"
        client, server = self._ends
        _ip("link", "add", client, "type", "veth", "peer", "name", server, "netns", namespace)
        _ip("-n", namespace, "address", "add", f"{self.host}/24", "dev", server)
        _ip("-n", namespace, "link", "set", server, "up")
        _ip("address", "add", f"{self._client}/24", "dev", client)
        _ip("link", "set", client, "up")

    def cut(self) -> None:
        """Let nothing pass, in either direction."""
        _ip("-n", self._namespace, "link", "set", self._ends[1], "down")

    stall = cut

    def lose_answers(self) -> None:
        """Let nothing of what the server sends arrive; it goes on to receive."""
        _ip("-n", self._namespace, "route", "replace", "blackhole", f"{self._client}/32")

    def repair(self) -> None:
        """Let everything pass again."""
        _ip("-n", self._namespace, "link", "set", self._ends[1], "up")
        routes = _ip("-n", self._namespace, "route", "show", "type", "blackhole")
        if self._client in routes:
            _ip("-n", self._namespace, "route", "del", "blackhole", f"{self._client}/32")

    def remove(self) -> None:
        _ip("link", "delete", self._ends[0])


class ServerNamespace:
    """A namespace whose only interfaces are the wires; `launcher` runs a program in it."""

    def __init__(self, wires: int) -> None:
        number = next(_numbers)
        self.name = f"routecodex-{os.getpid()}-{number}"
        self.launcher = ("ip", "netns", "exec", self.name)
        self.wires: list[Wire] = []
        _ip("netns", "add", self.name)
        try:
            for at, network in enumerate(_free_networks(wires)):
                self.wires.append(Wire(self.name, f"r{os.getpid()}n{number}w{at}", network))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Remove the wires and the namespace; its processes have ended."""
        for wire in self.wires:
            wire.remove()
        _ip("netns", "delete", self.name)


def _free_networks(count: int) -> list[str]:
    """Return networks that no interface has, from the range for tests of network devices (RFC 2544)."""
    used = _ip("-4", "address", "show")
    every = [f"198.{second}.{third}" for second in (18, 19) for third in range(256)]
    free = [network for network in every if f"{network}." not in used]
    return random.sample(free, count)
