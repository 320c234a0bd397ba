"""The outbound HTTP/1.1 client: pooled, streaming, no object per chunk.

client       HttpClient: sends a request over a pooled or new connection; ConnectionPool; the request head
connection   UpstreamConnection: one connection; Timeouts
response     HttpResponse: status, headers and streamed body; Inflater: undoes gzip and deflate
dial         opens connections: TCP, proxy tunnel, TLS
local_faults tells faults of this machine from those of a provider
origin       Origin: address, TLS, proxy and host header of a provider; TlsOptions, Proxy

Every failure leaves this package as `UpstreamFailed`, `UpstreamTimeout` or `LocalFault`, which name
`host:port`, never a header or a key.
"""

from __future__ import annotations

from routecodex.providers.http.client import HttpClient
from routecodex.providers.http.connection import Timeouts
from routecodex.providers.http.origin import Origin, Proxy, TlsOptions, origin_of
from routecodex.providers.http.response import HttpResponse

__all__ = ["HttpClient", "HttpResponse", "Origin", "Proxy", "Timeouts", "TlsOptions", "origin_of"]
