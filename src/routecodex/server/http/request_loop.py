"""The task of a connection: calls the handler for one request after the other."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from routecodex.canon.errors import ClientDisconnected
from routecodex.server.http.reply import Reply
from routecodex.server.http.request import HttpRequest

if TYPE_CHECKING:
    from routecodex.server.http.connection import ServerConnection


Handler = Callable[[HttpRequest, Reply], Awaitable[None]]


async def serve_requests(connection: ServerConnection, handler: Handler) -> None:
    """Handle requests as they arrive, until the client disconnects."""
    while connection.pending is not None or not connection.gone:
        request = connection.pending
        if request is None:
            await connection.wait_for_request()
        else:
            await _serve(connection, handler, request=request, reply=connection.start_request())
            if connection.pending is not None:
                await asyncio.sleep(0)  # let other tasks run between pipelined requests


async def _serve(
    connection: ServerConnection, handler: Handler, *, request: HttpRequest, reply: Reply
) -> None:
    try:
        if not connection.gone:
            connection.running = True
            await handler(request, reply)
            if not reply.ended and not connection.gone:
                connection.fail(request, reply, cause="returned without finishing its response")
    except asyncio.CancelledError:
        if connection.interrupted and not connection.gone:
            connection.refuse_interrupted(request, reply)
        elif not connection.gone:
            connection.running = False
            connection.abort()
            raise
    except ClientDisconnected as exc:
        exc.__traceback__ = None  # a stored exception must not keep the request alive
        reply.abort()
    except Exception as exc:
        connection.fail(request, reply, cause=_describe(exc))
        exc.__traceback__ = None
    finally:
        connection.finish_request()


def _describe(exc: BaseException) -> str:
    """Describe an exception by type and traceback, without its message, which may quote a request."""
    frames = "".join(traceback.format_tb(exc.__traceback__))
    return f"raised {type(exc).__qualname__}\n{frames}"
