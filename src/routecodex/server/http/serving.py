"""One request, handled: whatever becomes of it, its connection goes on or ends."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from routecodex.server.http.reply import ClientGone, Reply
from routecodex.server.http.request import HttpRequest

if TYPE_CHECKING:
    from routecodex.server.http.connection import Connection


Handler = Callable[[HttpRequest, Reply], Awaitable[None]]


async def serve(connection: Connection, handler: Handler, *, request: HttpRequest, reply: Reply) -> None:
    """Runs the handler for a request that was read."""
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
    except ClientGone:
        reply.abort()
    except Exception as exc:
        connection.fail(request, reply, cause=_describe(exc))
    finally:
        connection.answered()


def _describe(exc: BaseException) -> str:
    """The exception's type and where it was raised, without its message, which may quote a request."""
    frames = "".join(traceback.format_tb(exc.__traceback__))
    return f"raised {type(exc).__qualname__}\n{frames}"
