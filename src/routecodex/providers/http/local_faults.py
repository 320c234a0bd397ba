"""Tells faults of this machine from those of a provider: a provider's health must not suffer for ours."""

from __future__ import annotations

import errno
import os
import socket
import ssl

from routecodex.canon.errors import LocalFault

DESCRIPTORS = "descriptors_exhausted"
"""Code of the errors that end when connections are closed."""

_RAISE_LIMIT = "the gateway has no free file descriptor; raise its limit (`ulimit -n`)"
_REASONS = {
    errno.EMFILE: _RAISE_LIMIT,
    errno.ENFILE: "this machine has no free file descriptor",
    errno.ENOMEM: "this machine has no free memory",
    errno.ENOBUFS: "this machine has no free network buffer",
    errno.EADDRNOTAVAIL: "this machine has no free port or address for it",
    errno.ENETDOWN: "the network of this machine is down",
    errno.ENETUNREACH: "this machine has no route to it",
    errno.EACCES: "this machine does not permit the connection",
    errno.EPERM: "this machine does not permit the connection",
}
"""Errors of socket(2), connect(2) and send(2) that say nothing about the peer."""


def local_fault(exc: BaseException | None, effect: str) -> LocalFault | None:
    """Return the error for an exception that this machine caused; None if the peer may be at fault."""
    number = _number(exc)
    reason = _REASONS.get(number)
    if reason is None:
        return None
    code = DESCRIPTORS if number in (errno.EMFILE, errno.ENFILE) else None
    return LocalFault(f"{effect}: {reason}", code=code)


def _number(exc: BaseException | None) -> int:
    # A name that cannot be resolved hides the cause: the resolver needs descriptors of its own.
    if isinstance(exc, socket.gaierror):
        return errno.ENOMEM if exc.errno == socket.EAI_MEMORY else _lack_of_descriptors()
    # The numbers of TLS errors are those of OpenSSL.
    return exc.errno or 0 if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError) else 0


def _lack_of_descriptors() -> int:
    try:
        os.close(os.dup(0))
    except OSError as exc:
        return exc.errno or 0
    return 0
