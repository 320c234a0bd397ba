"""One captured request in memory: the client's request, every call of a provider, the client's response.

The capture of the request in progress is found by a context variable: tasks that the request starts, and
calls that the gateway makes for it, belong to it without being handed anything, and a gateway that captures
nothing has no code for it on its path. Memory is bounded twice: by a limit for every body, and by one budget
for all captures of a worker until they are written. What does not fit is counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import Final

from msgspec import Struct

from routecodex.gateway.request import RequestRecord

HELD: Final = 8192
"""Bytes that a capture takes in memory beside its headers and bodies."""
_CALL_HELD: Final = 2048
_PIECE_COST: Final = 96
"""Bytes that a piece takes in memory beside its content."""
_MOST_PIECES: Final = 8192
_MOST_LAST_PIECES: Final = 2048
_MOST_CALLS: Final = 32

Piece = tuple[float, bytes]
"""Milliseconds since the request came, and bytes."""


class CaptureBudget:
    """Memory for all captures of a worker that are not written yet."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> bool:
        """Take memory; return False if that much is not left."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def release(self, size: int) -> None:
        """Give memory back."""
        self._left += size


class Recording:
    """Bytes as they came, piece by piece: the first three quarters of the limit, and the last quarter.

    The end of a long stream is kept because it says how it ended. `missing` counts the bytes between.
    """

    __slots__ = ("_budget", "_first_left", "_last_left", "_limit", "first", "last", "missing", "taken")

    def __init__(self, limit: int, budget: CaptureBudget) -> None:
        self._budget = budget
        self._limit = limit
        self._first_left = limit - limit // 4
        self._last_left = limit // 4
        self.first: list[Piece] = []
        self.last: deque[Piece] = deque()
        self.missing = 0
        self.taken = 0
        """Memory taken from the budget."""

    def add(self, ms: float, data: bytes) -> None:
        """Record bytes that came at this time."""
        if len(data) <= self._first_left and not self.missing:
            self._add_first(ms, data)
            return
        head, rest = data[: self._first_left], data[self._first_left :]
        if head:
            self._add_first(ms, head)
        self._first_left = 0
        if rest:
            self._add_last(ms, rest)

    def _add_first(self, ms: float, data: bytes) -> None:
        if len(self.first) >= _MOST_PIECES or not self._take(len(data) + _PIECE_COST):
            self._first_left = 0
            self._add_last(ms, data)
            return
        self.first.append((ms, data))
        self._first_left -= len(data)

    def _add_last(self, ms: float, data: bytes) -> None:
        kept = data[len(data) - min(len(data), self._limit // 4) :]
        self.missing += len(data) - len(kept)
        self._make_room(len(kept))
        if not kept or not self._take(len(kept) + _PIECE_COST):
            self.missing += len(kept)
            return
        self.last.append((ms, kept))
        self._last_left -= len(kept)

    def _make_room(self, size: int) -> None:
        """Drop the oldest of the last bytes until there is room for more."""
        while self.last and (size > self._last_left or len(self.last) >= _MOST_LAST_PIECES):
            ms, data = self.last.popleft()
            excess = size - self._last_left
            if 0 < excess < len(data):
                self.last.appendleft((ms, data[excess:]))
                self._drop(excess, excess)
            else:
                self._drop(len(data), len(data) + _PIECE_COST)

    def _drop(self, size: int, memory: int) -> None:
        self._last_left += size
        self.missing += size
        self._budget.release(memory)
        self.taken -= memory

    def _take(self, size: int) -> bool:
        if not self._budget.take(size):
            return False
        self.taken += size
        return True


class UpstreamExchange:
    """One call of a provider: the request as it was sent, and the response as it came."""

    __slots__ = ("body", "headers", "path", "response", "status", "target")

    def __init__(self, target: str, *, path: bytes, headers: bytes, body: Recording, response: Recording):
        self.target = target
        self.path = path
        self.headers = headers
        self.body = body
        self.status = 0
        """Status of the response; 0 while there is none."""
        self.response = response


class RequestCapture:
    """Bodies and headers of one request and its calls; `target` names the target of the next call.

    `secrets` must not be written down; `only_failed`: it is kept only if the request fails. Both are those of
    the configuration that the request began with. `held` is the memory that was taken for it already.
    """

    def __init__(
        self,
        id: str,
        *,
        method: str,
        path: bytes,
        headers: Mapping[str, str],
        body: bytes,
        client_name: str,
        owner: str,
        max_body: int,
        budget: CaptureBudget,
        secrets: tuple[str, ...] = (),
        only_failed: bool = False,
        held: int = 0,
    ) -> None:
        self.id = id
        self._held = held
        self.secrets = secrets
        self.only_failed = only_failed
        self.time = time.time()
        self.method = method
        self.path = path
        self.headers = dict(headers)
        self.client_name = client_name
        self.owner = owner
        self.status = 0
        self.response_headers = b""
        self.failed = False
        self.target = ""
        self.calls: list[UpstreamExchange] = []
        self.calls_missing = 0
        self.is_open = True
        self._began = time.monotonic()
        self._max_body = max_body
        self._budget = budget
        self.body = self.recording()
        self.body.add(0.0, body)
        self.response = self.recording()

    @property
    def ms(self) -> float:
        """Milliseconds since the request came."""
        return (time.monotonic() - self._began) * 1000.0

    @property
    def taken(self) -> int:
        """Memory that it holds of the budget."""
        recordings = [self.body, self.response]
        for call in self.calls:
            recordings += (call.body, call.response)
        return self._held + sum(recording.taken for recording in recordings)

    def recording(self) -> Recording:
        """Return an empty recording within the bounds of this capture."""
        return Recording(self._max_body, self._budget)

    def call(self, *, path: bytes, headers: bytes, body: bytes) -> UpstreamExchange | None:
        """Record a request to a provider; None if there were too many, or memory is short."""
        if len(self.calls) >= _MOST_CALLS or not self._budget.take(_CALL_HELD):
            self.calls_missing += 1
            return None
        self._held += _CALL_HELD
        sent = self.recording()
        sent.add(self.ms, body)
        exchange = UpstreamExchange(
            self.target, path=path, headers=headers, body=sent, response=self.recording()
        )
        self.calls.append(exchange)
        return exchange

    def replied(self, status: int, headers: bytes, body: bytes = b"") -> None:
        """Record the head of the client's response, and its body if it is whole."""
        self.status, self.response_headers = status, headers
        self.failed = self.failed or status >= 400
        if body:
            self.response.add(self.ms, body)

    def note(self, record: RequestRecord) -> None:
        """Learn from the record of the request whether it failed, even in a stream that began well."""
        if record.id == self.id:
            self.failed = self.failed or record.error is not None or record.gone or record.status >= 400


class NamedModel(Struct):
    """The model that a request body names."""

    model: str = ""


_current: ContextVar[RequestCapture | None] = ContextVar("routecodex_capture", default=None)


def enter_capture(capture: RequestCapture) -> Token[RequestCapture | None]:
    """Make a capture that of the request in progress; return the token that ends it."""
    return _current.set(capture)


def leave_capture(capture: RequestCapture, token: Token[RequestCapture | None]) -> None:
    """End a capture: work that outlives its request adds nothing to it."""
    capture.is_open = False
    _current.reset(token)


def noting(observe: Callable[[RequestRecord], None]) -> Callable[[RequestRecord], None]:
    """Return an observer of records that shows them to the capture of the request in progress first."""

    def note(record: RequestRecord) -> None:
        capture = current_capture()
        if capture is not None:
            capture.note(record)
        observe(record)

    return note


def current_capture() -> RequestCapture | None:
    """Return the capture of the request in progress; None if it is not captured."""
    capture = _current.get()
    return capture if capture is not None and capture.is_open else None
