"""TLS contexts: verification on unless it is switched off by name, one context per set of options."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache

import msgspec

from routecodex.canon.errors import ConfigError

__all__ = ["TlsOptions", "context_for"]


class TlsOptions(msgspec.Struct, frozen=True):
    """How a peer's certificate is checked (`verify`, `ca_file`) and which certificate we show."""

    verify: bool = True
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def context_for(options: TlsOptions | None) -> ssl.SSLContext:
    """The client context for these options; equal options over unchanged files share one context."""
    options = options or TlsOptions()
    files = (options.ca_file, options.cert_file, options.key_file)
    return _context(options, tuple(_version_of(path) for path in files if path))


def _version_of(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError as exc:
        raise ConfigError(f"TLS file {path!r} cannot be read: {exc.strerror}") from exc


@lru_cache(maxsize=64)
def _context(options: TlsOptions, versions: tuple[int, ...]) -> ssl.SSLContext:
    del versions  # part of the key only: a renewed certificate file makes a new context
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.cert_file:
            context.load_cert_chain(options.cert_file, options.key_file)
    except OSError as exc:
        raise ConfigError(f"TLS options cannot be used ({_named(options)}): {exc}") from exc
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def _named(options: TlsOptions) -> str:
    fields = ("ca_file", "cert_file", "key_file")
    return ", ".join(f"{field}={getattr(options, field)!r}" for field in fields if getattr(options, field))
