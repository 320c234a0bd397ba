"""Which call a result belongs to: by id, else by name in order with the calls just before."""

from __future__ import annotations


class CallMatcher:
    """Walks a history; `call` and `result` give the ids that calls and results go by in canon."""

    __slots__ = ("_earlier", "_known", "_open")

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._open: list[tuple[str, str]] = []
        self._earlier: list[tuple[str, str]] = []

    def turn(self) -> None:
        """A new content of the model begins: its calls come before older ones that nobody answered."""
        self._earlier = self._open + self._earlier
        self._open = []

    def call(self, name: str, *, id: str | None, at: tuple[int, int]) -> str:
        """The id of a call at (content, part): its own, or one made from its position."""
        known = id or f"call_{at[0]}_{at[1]}"
        self._known[known] = name
        self._open.append((known, name))
        return known

    def result(self, name: str | None, *, id: str | None) -> str | None:
        """The id of the call that a result answers, or None when there is none."""
        if id is not None and id in self._known:
            self._close(id)
            return id
        for calls in (self._open, self._earlier):
            for index, (known, called) in enumerate(calls):
                if called == name:
                    del calls[index]
                    return known
        return None

    def name(self, id: str) -> str | None:
        """The name of the tool that the call `id` called."""
        return self._known.get(id)

    def _close(self, id: str) -> None:
        self._open = [call for call in self._open if call[0] != id]
        self._earlier = [call for call in self._earlier if call[0] != id]
