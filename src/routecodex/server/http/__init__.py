"""The inbound HTTP/1.1 server: an asyncio protocol on llhttp, one task per connection.

listener      HttpServer: listens, limits, drains
acceptor      Acceptor: the listening sockets; pauses while too many connections are open
connection    ServerConnection: one client connection; BufferedConnection: reads large bodies in place
reader        RequestReader: parses requests without IO; HttpLimits: bounds for clients
request       HttpRequest: one request with its whole body
request_loop  Handler, `async (HttpRequest, Reply) -> None`, and the task that calls it
reply         Reply: the response to one request, whole or streamed

A Reply raises `ClientDisconnected` when the client has gone; the handler's task is cancelled as well. A
client that closes its side while its request is handled counts as disconnected; `connection` says why.
"""

from __future__ import annotations

from routecodex.canon.errors import ClientDisconnected
from routecodex.server.http.listener import HttpServer
from routecodex.server.http.reader import HttpLimits
from routecodex.server.http.reply import Reply
from routecodex.server.http.request import HttpRequest
from routecodex.server.http.request_loop import Handler

__all__ = ["ClientDisconnected", "Handler", "HttpLimits", "HttpRequest", "HttpServer", "Reply"]
