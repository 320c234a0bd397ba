"""`RetryingSender`: repeats a request that failed before its answer began.

It repeats failed connections, HTTP 429 and 5xx, after a growing pause with some jitter, and never earlier
than the endpoint's `Retry-After` says. Once a chunk was received nothing is repeated: part of the answer is
in the conversation already. The session id stays the same, so the gateway sees one conversation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from routecodex.turns.chat_host import Body, Chunk, Sender
from routecodex.turns.errors import RequestFailed

# As in openai-python and anthropic-sdk-python, _constants.py and _base_client.py.
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 8.0
_JITTER = 0.25
LONGEST_RETRY_AFTER = 60.0
"""Seconds; an endpoint that asks for a longer pause gets no retry, and the caller its `retry_after`."""

NOT_REPEATED = frozenset({501, 505})
"""Statuses of 5xx that another attempt does not change."""


class RetryingSender:
    """Sends through another sender, with at most `max_retries` more attempts for each request."""

    def __init__(
        self,
        sender: Sender,
        max_retries: int = 2,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rand: Callable[[], float] = random.random,
    ) -> None:
        if max_retries < 0:
            raise ValueError(f"max_retries is {max_retries!r}; it must not be negative")
        self._sender = sender
        self._max_retries = max_retries
        self._sleep = sleep
        self._rand = rand
        self.message_fields: tuple[str, ...] = tuple(getattr(sender, "message_fields", ()))
        self.session: str | None = getattr(sender, "session", None)

    async def __call__(self, body: Body) -> AsyncGenerator[Chunk, None]:
        for retries in range(self._max_retries + 1):
            chunks = self._sender(body)
            received = False
            try:
                async for chunk in chunks:
                    yield chunk if received or not retries else _with_retries(chunk, retries)
                    received = True
                return
            except (RequestFailed, ConnectionError) as error:
                delay = None if received else self._delay(error, retries)
                if delay is None:
                    raise
            finally:
                aclose = getattr(chunks, "aclose", None)
                if aclose is not None:
                    await aclose()
            await self._sleep(delay)

    async def aclose(self) -> None:
        """Close the sender."""
        aclose = getattr(self._sender, "aclose", None)
        if aclose is not None:
            await aclose()

    def _delay(self, error: RequestFailed | ConnectionError, retries: int) -> float | None:
        """Return the seconds to wait before the next attempt; None if there is none."""
        if retries >= self._max_retries or not is_temporary(error):
            return None
        asked = (getattr(error, "retry_after", None) or 0.0) if isinstance(error, RequestFailed) else 0.0
        if asked > LONGEST_RETRY_AFTER:
            return None
        pause = min(_FIRST_DELAY * 2.0**retries, _LONGEST_DELAY) * (1 - _JITTER * self._rand())
        return max(asked, pause)


def is_temporary(error: RequestFailed | ConnectionError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, ConnectionError):
        return True
    return error.status == 429 or (error.status >= 500 and error.status not in NOT_REPEATED)


def _with_retries(chunk: Chunk, retries: int) -> dict[str, Any]:
    """Return the first chunk with the number of retries in its metadata."""
    return {**chunk, "metadata": {**(chunk.get("metadata") or {}), "retries": retries}}
