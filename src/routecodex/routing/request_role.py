"""The role of one request; every request has one, so this module is compiled."""

from __future__ import annotations

from typing import Final

from routecodex.canon.request import RoleName


class RequestRole:
    """The role of a request and the signal that showed it.

    `agent` identifies a sub-agent below its session, `turn` the user turn, where the client names them.
    """

    __slots__ = ("agent", "name", "signal", "turn")

    def __init__(self, name: RoleName = "main", signal: str = "", agent: str = "", turn: str = "") -> None:
        self.name: Final = name
        self.signal: Final = signal
        self.agent: Final = agent
        self.turn: Final = turn

    def shown_by(self, signal: str, name: RoleName) -> RequestRole:
        """Return this role with another name, and the signal that shows it."""
        return RequestRole(name, signal, self.agent, self.turn)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestRole) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"RequestRole({self.name!r}, {self.signal!r}, {self.agent!r}, {self.turn!r})"


MAIN: Final = RequestRole()
"""The role of a request without a signal: one shared object, so that it can be compared by identity."""
