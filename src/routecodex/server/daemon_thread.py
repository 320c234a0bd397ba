"""Runs a blocking call beside the event loop without keeping the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def run_in_daemon_thread(call: Callable[[], T]) -> T:
    """Return the result of a call that may take very long, such as the resolution of a name.

    The threads of `asyncio.to_thread` are waited for when the loop and the process end; this one is not.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only beside an error

    def run() -> None:
        result: T | None = None
        error: Exception | None = None
        try:
            result = call()
        except Exception as exc:
            error = exc
        # The loop may have been closed meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await future
