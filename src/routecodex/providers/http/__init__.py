"""The outbound HTTP/1.1 client: pooled, streaming, without a framework object per chunk.

- `Origin`, `origin_of`: where a provider lives, worked out once: address, TLS, proxy, host header.
- `TlsOptions`: how a provider's certificate is checked and which one we show.
- `Proxy`: the proxy an origin is reached through, from the usual environment variables.
- `Timeouts`: how long to wait for a connection, for the head of the answer, between its pieces.
- `HttpClient`: sends a request over a kept-alive or a fresh connection and returns when the head is here.
- `HttpResponse`: status, headers and the body as it comes; closing it early cancels the upstream.

Whatever goes wrong leaves here as `UpstreamFailed` or `UpstreamTimeout`, naming `host:port` and never a
header or a key.
"""

from __future__ import annotations

from routecodex.providers.http.client import HttpClient
from routecodex.providers.http.connection import Timeouts
from routecodex.providers.http.origin import Origin, origin_of
from routecodex.providers.http.proxy import Proxy
from routecodex.providers.http.response import HttpResponse
from routecodex.providers.http.tls import TlsOptions

__all__ = ["HttpClient", "HttpResponse", "Origin", "Proxy", "Timeouts", "TlsOptions", "origin_of"]
