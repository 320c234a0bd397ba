"""What instructions and operators have set: values, and how an instruction changes them."""

from __future__ import annotations

from msgspec import Struct


class StopMessageState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said to a model that stops, and how often; times are seconds since the epoch."""

    text: str
    max_repeats: int = 10
    used: int = 0
    updated_at: float = 0.0
    last_used_at: float | None = None


class ForcedTarget(Struct, frozen=True):
    """A target for one turn of the person; `turn` marks the message that asked for it."""

    target: str
    turn: str


class SessionState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What instructions have set for one conversation; targets are kept as they were typed.

    A name is made definite only when it is used: the number of a key means its place in the configuration
    of that moment. `applied` is the mark (place and content) of the message applied last, so that the same
    message sent again changes nothing.
    """

    force: ForcedTarget | None = None
    sticky: str | None = None
    allow: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    stop_message: StopMessageState | None = None
    applied: str | None = None
    updated_at: float = 0.0


class ServerState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator has set for all conversations of one server."""

    sticky: str | None = None
    allow: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


NOTHING_SET = SessionState()
"""The state of a session in which nothing was ever set: one for all, so that it is known at sight."""

NO_SERVER_STATE = ServerState()
"""The same for a server."""
