"""What a turn refuses or ends with.

TurnError
├── ConversationBusy     a turn of this conversation is under way
├── ConversationClosed   the conversation was closed
├── NotInThisHook        the call belongs to another hook
├── RequestFailed        the model's endpoint refused, broke off or was not reached
├── TooManyRequests      plugins asked for more requests than `max_requests`
├── TurnAborted          the turn was aborted; raised to leave a hook, never out of `send`
└── TurnOver             the turn has ended and takes nothing any more
"""

from __future__ import annotations

__all__ = [
    "ConversationBusy",
    "ConversationClosed",
    "NotInThisHook",
    "RequestFailed",
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


class RequestFailed(TurnError):
    """The endpoint refused the request, broke its answer off or could not be reached.

    `status` is the HTTP status it answered with, or the one that fits: 502 when it was not reached or broke
    off, 504 when it stayed silent. `code` and `param` are its own words; `retry_after` is in seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after


class TooManyRequests(TurnError):
    """The turn would need more requests than it may make."""


class TurnAborted(TurnError):
    """The turn was aborted; a hook may raise it, or let it pass, to leave."""


class TurnOver(TurnError):
    """The turn has ended; what comes late is refused."""
