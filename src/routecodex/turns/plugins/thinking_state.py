"""`ThinkingState`: whether the model is thinking, and for how long.

Thinking lasts from the first reasoning delta to the first delta of the answer or of a call, or to the end of
the stream. Meanwhile the processing state is `thinking`, and streams report it like any other state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from routecodex.turns.chat_host import ChatTurn, Chunk

REASONING = ("reasoning_content", "reasoning")
ANSWER = ("content", "tool_calls", "refusal")


@dataclass(slots=True)
class ThinkingStatus:
    """The thinking of one turn: whether it is active, and the seconds of the finished phases."""

    active: bool = False
    seconds: float = 0.0
    since: float = 0.0


class ThinkingState:
    """Tracks the thinking of the latest turn; `on_change(thinking, turn)` is called at its start and end.

    `metadata["thinking_seconds"]` of a message holds the duration of the thinking before it.
    """

    def __init__(
        self,
        on_change: Callable[[bool, ChatTurn], Any] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_change = on_change
        self._clock = clock
        self._latest = ThinkingStatus()

    @property
    def thinking(self) -> bool:
        """Whether the model is thinking now."""
        return self._latest.active

    @property
    def seconds(self) -> float:
        """Seconds of thinking in this turn so far."""
        return self._seconds(self._latest)

    def of(self, turn: ChatTurn) -> ThinkingStatus:
        """Return the status of one turn, for a plugin that serves several conversations."""
        state: ThinkingStatus = turn.data_of(self).setdefault("thinking", ThinkingStatus())
        return state

    def on_turn_start(self, turn: ChatTurn) -> Callable[[], None]:
        self._latest = self.of(turn)
        # on_turn_end does not run after an error.
        return lambda: self._stop(turn)

    def on_stream_data(self, turn: ChatTurn) -> None:
        delta = _delta(turn.data)
        if any(delta.get(field) for field in ANSWER):
            self._stop(turn)
        elif any(delta.get(field) for field in REASONING):
            self._begin(turn)

    def on_after_request(self, turn: ChatTurn) -> None:
        self._stop(turn)

    def on_turn_end(self, turn: ChatTurn) -> None:
        self._stop(turn)

    def _begin(self, turn: ChatTurn) -> None:
        state = self.of(turn)
        if state.active:
            return
        state.active, state.since = True, self._clock()
        turn.set_processing_state("thinking")
        self._report(state, turn)

    def _stop(self, turn: ChatTurn) -> None:
        state = self.of(turn)
        if not state.active:
            return
        took = self._clock() - state.since
        state.active, state.seconds = False, state.seconds + took
        metadata = turn.current_message.metadata
        metadata["thinking_seconds"] = metadata.get("thinking_seconds", 0.0) + took
        if turn.processing_state == "thinking":
            turn.set_processing_state("streaming")
        self._report(state, turn)

    def _seconds(self, state: ThinkingStatus) -> float:
        return state.seconds + (self._clock() - state.since if state.active else 0.0)

    def _report(self, state: ThinkingStatus, turn: ChatTurn) -> None:
        if self._on_change is not None:
            self._on_change(state.active, turn)


def _delta(chunk: Chunk) -> Mapping[str, Any]:
    choices = (choice for choice in chunk.get("choices") or () if not choice.get("index"))
    delta = next((choice.get("delta") for choice in choices), None)
    return delta if isinstance(delta, Mapping) else {}
