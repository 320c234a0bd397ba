"""The requests of one connection, handled: whatever becomes of one, its connection goes on or ends."""

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
    """Handles the requests that were read, as they come, until the connection is gone."""
    while connection.due is not None or not connection.gone:
        request = connection.due
        if request is None:
            await connection.called()
        else:
            await _serve(connection, handler, request=request, reply=connection.begin())
            if connection.due is not None:
                await asyncio.sleep(0)  # between two that came together, others have their turn


async def _serve(
    connection: ServerConnection, handler: Handler, *, request: HttpRequest, reply: Reply
) -> None:
    try:
        if not connection.gone:
            connection.running = True
            await handler(request, reply)
            if not reply.ended and not connection.gone:
                connection.fail(request, reply, cause="returned without finishing its answer")
    except asyncio.CancelledError:
        if not connection.gone:
            connection.running = False
            connection.abort()
            raise
    except ClientDisconnected as exc:
        exc.__traceback__ = None  # whoever keeps it keeps no request
        reply.abort()
    except Exception as exc:
        connection.fail(request, reply, cause=_describe(exc))
        exc.__traceback__ = None
    finally:
        connection.answered()


def _describe(exc: BaseException) -> str:
    """The exception's type and where it was raised, without its message, which may quote a request."""
    frames = "".join(traceback.format_tb(exc.__traceback__))
    return f"raised {type(exc).__qualname__}\n{frames}"
