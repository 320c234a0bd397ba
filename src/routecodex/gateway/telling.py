"""Streams of events: made of a list, heard to their end, closed whatever becomes of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence

from routecodex.canon.events import Event


async def told(events: Sequence[Event]) -> AsyncGenerator[Event, None]:
    """One after the other."""
    for event in events:
        yield event


async def collect_events(events: AsyncGenerator[Event, None]) -> list[Event]:
    """All of them."""
    try:
        return [event async for event in events]
    finally:
        await events.aclose()


async def closing(events: AsyncGenerator[Event, None], work: Awaitable[None]) -> None:
    """Does the work with them, and closes them after it."""
    try:
        await work
    finally:
        await events.aclose()
