"""How an answer that passes from chat to chat ended, and the word its client is told."""

from __future__ import annotations

from routecodex.canon import finish
from routecodex.canon.finish import Finish


def settle(said: str | None, *, calls: bool, legacy: bool = False) -> tuple[Finish, str]:
    """The finish and its word; `legacy` answers made their call the old way, as `function_call`."""
    # Arguments that pass are not read, so a call the token limit may have cut off is not called whole.
    end = finish.infer("chat", said, has_calls=calls or legacy, calls_whole=False)
    if end.reason == "tool_calls" and not calls:
        return end, "function_call"
    return end, finish.express("chat", end)
