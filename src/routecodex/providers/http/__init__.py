"""The outbound HTTP/1.1 client: pooled, streaming, no object per chunk.

client         HttpClient: sends a request over a pooled or new connection; ConnectionPool
connection     UpstreamConnection: one connection; Timeouts
response       HttpResponse: status, headers and streamed body; Inflater: undoes gzip and deflate
request_head   request line and headers as bytes
dial           opens connections: TCP, proxy tunnel, TLS
origin         Origin, origin_of: address, TLS, proxy and host header of a provider, computed once
proxy          Proxy: from the usual environment variables
tls            TlsOptions: certificate checks and the client certificate

Every failure leaves this package as `UpstreamFailed` or `UpstreamTimeout`, which name `host:port`, never a
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
