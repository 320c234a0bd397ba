"""Events that are all there, as a stream of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from routecodex.canon.events import Event


async def told(events: Sequence[Event]) -> AsyncGenerator[Event, None]:
    """One after the other."""
    for event in events:
        yield event
