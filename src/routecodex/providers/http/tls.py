"""TLS contexts, one per set of options; certificates are verified unless `verify` is false."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache

import msgspec

from routecodex.canon.errors import ConfigError

__all__ = ["TlsOptions", "context_for"]


class TlsOptions(msgspec.Struct, frozen=True):
    """Checks of the peer's certificate (`verify`, `ca_file`), and the client certificate to present."""

    verify: bool = True
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def context_for(options: TlsOptions | None) -> ssl.SSLContext:
    """Return the client context for these options; equal options over unchanged files share one."""
    options = options or TlsOptions()
    files = (options.ca_file, options.cert_file, options.key_file)
    return _context(options, tuple(_modified(path) for path in files if path))


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError as exc:
        raise ConfigError(f"TLS file {path!r} cannot be read: {exc.strerror}") from exc


@lru_cache(maxsize=64)
def _context(options: TlsOptions, modified: tuple[int, ...]) -> ssl.SSLContext:
    del modified  # part of the cache key only: a renewed certificate file needs a new context
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.cert_file:
            context.load_cert_chain(options.cert_file, options.key_file)
    except OSError as exc:
        raise ConfigError(f"TLS options cannot be used ({_describe(options)}): {exc}") from exc
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def _describe(options: TlsOptions) -> str:
    fields = ("ca_file", "cert_file", "key_file")
    return ", ".join(f"{field}={getattr(options, field)!r}" for field in fields if getattr(options, field))
