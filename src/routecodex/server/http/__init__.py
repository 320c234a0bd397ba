"""The inbound HTTP/1.1 server: an asyncio protocol on llhttp, one task per request.

HttpServer    listens, limits, drains
Handler       what it calls: `async (HttpRequest, Reply) -> None`
HttpRequest   a request, read to its end
Reply         how a handler answers, whole or as a stream
ClientGone    raised by a Reply whose client left; the handler's task is cancelled as well
Limits        what a client may cost

A client that closes its side while its request is handled has left, even if it could still read: `connection`
says why.
"""

from __future__ import annotations

from routecodex.canon.errors import ClientDisconnected
from routecodex.server.http.listener import HttpServer
from routecodex.server.http.reader import HttpLimits
from routecodex.server.http.reply import Reply
from routecodex.server.http.request import HttpRequest
from routecodex.server.http.request_loop import Handler

__all__ = ["ClientDisconnected", "Handler", "HttpLimits", "HttpRequest", "HttpServer", "Reply"]
