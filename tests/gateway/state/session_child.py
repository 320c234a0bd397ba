"""A process that changes session state: `python session_child.py <command> <directory>`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from msgspec.structs import replace

from routecodex.gateway.context.identity import Scope
from routecodex.gateway.state.sessions import Sessions
from routecodex.routing.state import SessionState, StopMessageState
from routecodex.stores.file import FileStore

SCOPE = Scope("session", "shared")
TIMES = 50


def used_once_more(state: SessionState) -> SessionState:
    message = state.stop_message or StopMessageState(text="go on", max_repeats=1000)
    return replace(state, stop_message=replace(message, used=message.used + 1))


async def count(sessions: Sessions) -> None:
    """Use the stop message repeatedly, five times at once."""
    for _ in range(TIMES // 5):
        await asyncio.gather(*(sessions.change(SCOPE, used_once_more) for _ in range(5)))


async def scribble(sessions: Sessions) -> None:
    """Count for ever and print each number once it is saved."""
    while True:
        state = await sessions.change(SCOPE, used_once_more)
        assert state.stop_message is not None
        os.write(1, b"%d\n" % state.stop_message.used)


async def main(command: str, directory: str) -> None:
    store = FileStore(Path(directory))
    await {"count": count, "scribble": scribble}[command](Sessions(store))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
