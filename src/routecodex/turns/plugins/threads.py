"""Blocking calls beside the event loop, each in a thread of its own.

The loop's own pool would make calls wait for each other, and a call that never returns would keep the process
from ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any


async def in_thread(call: Callable[[], Any]) -> Any:
    """What the call returns or raises; when nobody waits any more it goes on and is forgotten."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def deliver(value: Any, error: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(call)
        except BaseException as exc:
            error = exc
        # The loop may be closed by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, value, error)

    Thread(target=work, name="tool", daemon=True).start()
    value, error = await outcome
    if error is not None:
        raise error
    return value
