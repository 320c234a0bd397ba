"""How an answer that passes from chat to chat ended, and the word its client is told."""

from __future__ import annotations

from typing import Final

from routecodex.canon import finish
from routecodex.canon.finish import Finish


def settle_finish(said: str | None, *, calls: bool, legacy: bool = False) -> tuple[Finish, str]:
    """The finish and its word; `legacy` answers made their call the old way, as `function_call`."""
    if said is not None and not legacy:
        usual = _AFTER_CALLS.get(said) if calls else _AFTER_WORDS.get(said)
        if usual is not None:
            return usual
    return _settled(said, calls=calls, legacy=legacy)


def _settled(said: str | None, *, calls: bool, legacy: bool) -> tuple[Finish, str]:
    # Arguments that pass are not read, so a call that may have been cut off is not called whole.
    end = finish.infer("chat", said, has_calls=calls or legacy, calls_whole=False)
    if end.reason == "tool_calls" and not calls:
        return end, "function_call"
    return end, finish.express("chat", end)


_USUAL: Final = ("stop", "length", "tool_calls", "content_filter")
_AFTER_WORDS: Final = {said: _settled(said, calls=False, legacy=False) for said in _USUAL}

_AFTER_CALLS: Final = {said: _settled(said, calls=True, legacy=False) for said in _USUAL}
"""What the words of nearly every upstream come to."""
