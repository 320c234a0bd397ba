"""`BlockingCalls`: runs a conversation's coroutines for programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from routecodex.turns.errors import ConversationBusy

T = TypeVar("T")


class BlockingCalls:
    """A private event loop, kept between calls because connections belong to the loop that opened them."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the work to its end; Ctrl-C cancels it, and its cleanups run."""
        if _loop_runs_here():
            raise RuntimeError(
                f"{name}_sync was called while an event loop runs in this thread, as in async functions and "
                f"notebooks; use `await conversation.{name}(…)`"
            )
        self._runner = self._runner or asyncio.Runner()
        if self._runner.get_loop().is_running():
            raise ConversationBusy("a call in another thread is running; wait for its end")
        return self._runner.run(work())

    def close(self) -> None:
        """Close the loop."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
