"""Errors of turns and conversations.

TurnError
├── ConversationBusy     a turn of this conversation is running
├── ConversationClosed   the conversation was closed
├── NotInThisHook        the call is allowed in other hooks only
├── OutputInvalid        the answer does not fit the `output_type`
├── RequestFailed        the endpoint rejected the request, broke off or was unreachable
├── TooManyRequests      plugins requested more than `max_requests`
├── TurnAborted          the turn was aborted; raised to leave a hook, never out of `send`
└── TurnOver             the turn has ended; late calls are rejected
"""

from __future__ import annotations


class TurnError(Exception):
    """Base class of the errors of turns."""


class ConversationBusy(TurnError):
    """A turn is running; wait for its end or abort it first."""


class ConversationClosed(TurnError):
    """The conversation was closed; create another one."""


class NotInThisHook(TurnError):
    """The property or method is available in other hooks only."""


class OutputInvalid(TurnError):
    """The answer is not a value of the `output_type`; `answer` is its text."""

    def __init__(self, message: str, *, answer: str) -> None:
        super().__init__(message)
        self.answer = answer


class RequestFailed(TurnError):
    """The endpoint rejected the request, broke off its answer or could not be reached.

    `status` is the HTTP status of its response; without one it is 502 for a failed or broken connection and
    504 for a timeout. `code` and `param` are the endpoint's own; `retry_after` is in seconds.
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
    """The turn would exceed its `max_requests`."""


class TurnAborted(TurnError):
    """The turn was aborted; a hook may raise it or let it propagate."""


class TurnOver(TurnError):
    """The turn has ended; late calls are rejected."""
