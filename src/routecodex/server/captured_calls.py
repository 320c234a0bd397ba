"""Handlers of endpoints whose requests may be captured; they take the place of the plain ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from routecodex.canon.errors import GatewayError
from routecodex.gateway.capture import enter_capture, leave_capture
from routecodex.server.captures import Captures
from routecodex.server.error_replies import error_reply
from routecodex.server.http.reply import encode_fields
from routecodex.server.recorded_connection import RecordedConnection

if TYPE_CHECKING:
    from routecodex.server.app import ApiCall


def capturing(
    handle: Callable[[ApiCall], Awaitable[None]], captures: Captures
) -> Callable[[ApiCall], Awaitable[None]]:
    """Return a handler that captures the calls it answers, as the settings of captures say."""

    async def handle_captured(call: ApiCall) -> None:
        request = call.request
        capture = captures.begin(
            call.id,
            method=request.method,
            path=request.target,
            headers=request.headers,
            body=request.body,
            client=call.client_name,
            owner=call.owner,
        )
        if capture is None:
            await handle(call)
            return
        token = enter_capture(capture)
        call.reply = RecordedConnection(call.reply, capture)
        try:
            await handle(call)
        except GatewayError as error:
            capture.failed = True
            if not call.reply.started:
                # The server writes the same response once it has recorded the error.
                status, headers, body = error_reply(error, request, call.id)
                capture.replied(status, encode_fields(headers), body)
            raise
        except BaseException:
            capture.failed = True
            raise
        finally:
            leave_capture(capture, token)
            captures.finish(capture)

    return handle_captured
