"""What a turn refuses or ends with.

TurnError
├── ConversationBusy     a turn of this conversation is under way
├── ConversationClosed   the conversation was closed
├── NotInThisHook        the call belongs to another hook
├── TooManyRequests      plugins asked for more requests than `max_requests`
├── TurnAborted          the turn was aborted; raised to leave a hook, never out of `send`
└── TurnOver             the turn has ended and takes nothing any more
"""

from __future__ import annotations

__all__ = [
    "ConversationBusy",
    "ConversationClosed",
    "NotInThisHook",
    "TooManyRequests",
    "TurnAborted",
    "TurnError",
    "TurnOver",
]


class TurnError(Exception):
    """Anything the turn engine itself has to say."""


class ConversationBusy(TurnError):
    """A turn is under way; wait for it or abort it first."""


class ConversationClosed(TurnError):
    """The conversation was closed; open another one."""


class NotInThisHook(TurnError):
    """The context has this in another hook only."""


class TooManyRequests(TurnError):
    """The turn would need more requests than it may make."""


class TurnAborted(TurnError):
    """The turn was aborted; a hook may raise it, or let it pass, to leave."""


class TurnOver(TurnError):
    """The turn has ended; what comes late is refused."""
