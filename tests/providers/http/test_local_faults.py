"""A fault of this machine is not one of the provider."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import ssl
from collections.abc import Iterator

import pytest

from routecodex.canon.errors import LocalFault
from routecodex.providers.http import HttpClient
from routecodex.providers.http.local_faults import local_fault
from tests.providers.http.scripted_server import answering, fetch, plain, serving


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EMFILE, "descriptors_exhausted"),
        (errno.ENFILE, "descriptors_exhausted"),
        (errno.ENOMEM, "local_fault"),
        (errno.ENOBUFS, "local_fault"),
        (errno.EADDRNOTAVAIL, "local_fault"),
        (errno.ENETDOWN, "local_fault"),
        (errno.ENETUNREACH, "local_fault"),
        (errno.EPERM, "local_fault"),
    ],
)
def test_this_machine_is_at_fault(number: int, code: str) -> None:
    fault = local_fault(OSError(number, os.strerror(number)), "peer:1 failed")
    assert fault is not None
    assert (fault.status, fault.code) == (503, code)
    assert fault.message.startswith("peer:1 failed: ")


@pytest.mark.parametrize(
    "exc",
    [
        None,
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        OSError(errno.EHOSTUNREACH, "no host"),
        OSError("Multiple exceptions"),
        ssl.SSLError(ssl.SSL_ERROR_SSL, "the number is not one of the system"),
        socket.gaierror(socket.EAI_NONAME, "unknown name"),
        ValueError("no error of the system"),
    ],
)
def test_the_peer_may_be_at_fault(exc: BaseException | None) -> None:
    assert local_fault(exc, "peer:1 failed") is None


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Use up every descriptor of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 256), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                used.append(os.dup(0))
        yield
    finally:
        for descriptor in used:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_lack_of_descriptors_is_a_fault_of_this_machine(client: HttpClient) -> None:
    async with serving(answering(plain())) as server:
        with no_descriptors(), pytest.raises(LocalFault, match="raise its limit") as caught:
            await fetch(client, server.origin())
    assert caught.value.code == "descriptors_exhausted"


async def test_idle_connections_make_room_when_descriptors_are_scarce(client: HttpClient) -> None:
    async with serving(answering(plain())) as first, serving(answering(plain())) as second:
        # One for the new connection, one for its other end in this process.
        await asyncio.gather(*(fetch(client, first.origin()) for _ in range(2)))
        with no_descriptors():
            response = await fetch(client, second.origin())
        assert response == b"ok"
        assert client.close_idle() == 1
