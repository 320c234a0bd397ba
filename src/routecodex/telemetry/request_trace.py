"""The part of a request's record that becomes spans: ids, attempts and calls of server tools.

While a request runs, only values at hand are kept. Spans are made of them after its end, in another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from time import monotonic
from typing import Any, Final

from routecodex.canon.errors import (
    ClientDisconnected,
    GatewayError,
    UpstreamError,
    UpstreamFailed,
    UpstreamTimeout,
)
from routecodex.canon.events import Event, Usage
from routecodex.canon.request import Request
from routecodex.telemetry.trace_context import (
    context_lines,
    is_sampled,
    new_span_id,
    new_trace_id,
    read_context,
)

RequestParameters = tuple[int | None, float | None, float | None]
"""`max_tokens`, `temperature` and `top_p` of a request, None where they are not sent."""

NO_PARAMETERS: Final[RequestParameters] = (None, None, None)
CANCELLED: Final = "cancelled"
EMPTY: Final = "empty_answer"
MAX_CAPTURED: Final = 1024 * 1024
"""Bytes of an answer that are kept for its content; a longer one has none."""
_EVENT_BYTES: Final = 128
_MAX_KIND: Final = 64
"""Characters of an `error.type` that a server tool chooses."""


def error_type(error: BaseException) -> str:
    """Return the `error.type` of a failure: the HTTP status of the provider, or a class."""
    if isinstance(error, ClientDisconnected | asyncio.CancelledError):
        return CANCELLED
    if not isinstance(error, GatewayError):
        return type(error).__name__
    if isinstance(error, UpstreamError):
        status = error.upstream_status
        if status is not None and status >= 300:
            return str(status)
        if isinstance(error, UpstreamTimeout):
            return "timeout"
        # Other codes say what was wrong with the answer.
        if status is None and error.code == UpstreamFailed.default_code:
            return "connection"
    return error.code or str(error.status)


class CapturedContent:
    """Request and answer of an attempt, for `telemetry.content`: bytes of its protocol, or events."""

    __slots__ = ("data", "events", "is_stream", "protocol", "request", "request_bytes", "size")

    def __init__(self, request: Request, request_bytes: int) -> None:
        self.request: Final = request
        self.request_bytes: Final = request_bytes
        self.protocol = ""
        self.is_stream = False
        self.data: list[bytes] = []
        self.events: Sequence[Event] = ()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Keep a piece of the answer; of one that is too long nothing is kept."""
        self.size += len(data)
        if self.size <= MAX_CAPTURED:
            self.data.append(data)
        else:
            self.data.clear()

    def add_events(self, events: Sequence[Event]) -> None:
        """Keep the events of an answer."""
        self.events = events
        self.size += _EVENT_BYTES * len(events)


class AttemptTrace:
    """One attempt at a target: when it began, had its first content and ended, and what came of it.

    Times are those of the monotonic clock, 0 if there was none. `failure` is its `error.type`.
    """

    __slots__ = (
        "began",
        "content",
        "ended",
        "failure",
        "finish",
        "model",
        "opened",
        "response_id",
        "round",
        "span_id",
        "target",
        "usage",
    )

    def __init__(self, target: Any, began: float, round: int) -> None:
        self.span_id: Final = new_span_id()
        self.target: Final = target
        self.began: Final = began
        self.round: Final = round
        self.opened = 0.0
        self.ended = 0.0
        self.failure = ""
        self.model = ""
        self.response_id = ""
        self.finish = ""
        self.usage: Usage | None = None
        self.content: CapturedContent | None = None

    def note(self, *, model: str, id: str, finish: str) -> None:
        """Keep what the answer says of itself."""
        self.model, self.response_id, self.finish = model, id, finish


class ToolTrace:
    """One call of a server tool."""

    __slots__ = ("began", "call_id", "ended", "failure", "name", "span_id")

    def __init__(self, name: str, call_id: str) -> None:
        self.span_id: Final = new_span_id()
        self.name: Final = name
        self.call_id: Final = call_id
        self.began: Final = monotonic()
        self.ended = 0.0
        self.failure = ""


_running_tool: ContextVar[ToolTrace | None] = ContextVar("running_tool", default=None)
"""The call of a server tool that the task runs: calls of one answer run at the same time."""


class RequestTrace:
    """The trace of one request: its own span, and what happened below it.

    `parent_id` is the span of the caller, empty if the trace begins here. Of one that is not sampled nothing
    is kept; its context is passed on all the same. `is_internal`: a call that the gateway makes itself, which
    has no span of its own; its attempts are children of `span_id`.
    """

    __slots__ = (
        "attempt",
        "attempts",
        "captures",
        "endpoint",
        "is_internal",
        "method",
        "parameters",
        "parent_id",
        "path",
        "sampled",
        "span_id",
        "state",
        "stream",
        "tools",
        "trace_id",
    )

    def __init__(self, trace_id: str, span_id: str, *, parent_id: str, sampled: bool, state: str) -> None:
        self.trace_id: Final = trace_id
        self.span_id: Final = span_id
        self.parent_id: Final = parent_id
        self.sampled: Final = sampled
        self.state: Final = state
        self.method = ""
        self.path = ""
        self.endpoint = ""
        self.stream = False
        self.captures = False
        self.is_internal = False
        self.parameters: RequestParameters = NO_PARAMETERS
        self.attempt: AttemptTrace | None = None
        self.attempts: list[AttemptTrace] = []
        self.tools: list[ToolTrace] = []

    @property
    def spans(self) -> int:
        """Number of spans that it becomes."""
        if not self.sampled:
            return 0
        return len(self.attempts) + len(self.tools) + (0 if self.is_internal else 1)

    @property
    def content_bytes(self) -> int:
        """Bytes of requests and answers that are kept for it."""
        kept = (one.content for one in self.attempts if one.content is not None)
        return sum(content.request_bytes + content.size for content in kept)

    def lines(self) -> bytes:
        """Return the trace context of a call to a provider: its parent is the attempt under way."""
        attempt = self.attempt
        span_id = self.span_id if attempt is None else attempt.span_id
        return context_lines(self.trace_id, span_id, sampled=self.sampled, state=self.state)

    def outer_lines(self) -> bytes:
        """Return the trace context of another call: its parent is the running tool, or the request."""
        return context_lines(self.trace_id, self._outer(), sampled=self.sampled, state=self.state)

    def _outer(self) -> str:
        tool = _running_tool.get()
        return self.span_id if tool is None or not self.sampled else tool.span_id

    def begin_attempt(self, target: Any, began: float, round: int) -> None:
        """Begin an attempt; the one before has ended."""
        if self.sampled:
            self.attempt = AttemptTrace(target, began, round)
            self.attempts.append(self.attempt)

    def open_attempt(self) -> None:
        """Note that the attempt has its first content."""
        if self.attempt is not None:
            self.attempt.opened = monotonic()

    def end_attempt(self, failure: str = "") -> None:
        """Note the end of the attempt, unless it has ended."""
        attempt = self.attempt
        if attempt is not None and not attempt.ended:
            attempt.ended = monotonic()
            attempt.failure = failure

    def capture(self, request: Request, request_bytes: int) -> CapturedContent | None:
        """Return where the content of the attempt under way is kept; None if it is not wanted."""
        if not self.captures or self.attempt is None:
            return None
        content = self.attempt.content = CapturedContent(request, request_bytes)
        return content

    @contextlib.contextmanager
    def tool(self, name: str, call_id: str) -> Iterator[None]:
        """Trace a call of a server tool."""
        if not self.sampled:
            yield
            return
        call = ToolTrace(name, call_id)
        self.tools.append(call)
        token = _running_tool.set(call)
        try:
            yield
        except BaseException as exc:
            call.failure = error_type(exc)
            raise
        finally:
            call.ended = monotonic()
            _running_tool.reset(token)

    def fail_tool(self, kind: str) -> None:
        """Note that the call of a server tool which this task runs failed; `kind` is its `error.type`."""
        call = _running_tool.get()
        if call is not None and self.sampled:
            call.failure = kind[:_MAX_KIND]

    def internal(self) -> RequestTrace:
        """Return the trace of a call that the gateway makes for this request."""
        inner = RequestTrace(
            self.trace_id, self._outer(), parent_id="", sampled=self.sampled, state=self.state
        )
        inner.is_internal = True
        inner.captures = self.captures
        return inner


class Tracer:
    """Begins the traces of requests; `share` of those without a caller's context are sampled."""

    __slots__ = ("_captures", "_share")

    def __init__(self, *, share: float = 1.0, captures: bool = False) -> None:
        self._share: Final = share
        self._captures: Final = captures

    def begin(self, headers: Mapping[str, str], *, method: str, path: str, endpoint: str) -> RequestTrace:
        """Return the trace of a request: below the span of its caller, or a new one."""
        context = read_context(headers)
        if context is None:
            trace_id = new_trace_id()
            sampled = self._share >= 1.0 or is_sampled(trace_id, self._share)
            trace = RequestTrace(trace_id, new_span_id(), parent_id="", sampled=sampled, state="")
        elif context.sampled:
            trace = RequestTrace(
                context.trace_id, new_span_id(), parent_id=context.span_id, sampled=True, state=context.state
            )
        else:
            # No span of ours exists: the parent of what comes next is the caller's.
            trace = RequestTrace(
                context.trace_id, context.span_id, parent_id="", sampled=False, state=context.state
            )
        trace.method, trace.path, trace.endpoint = method, path, endpoint
        trace.captures = self._captures
        return trace
