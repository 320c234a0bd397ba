"""Sends finished traces to a collector, in batches, without any request waiting for it.

Batches leave one after the other. A batch is sent again after 429, 502, 503, 504 or a failed connection, with
growing pauses or after the collector's `Retry-After`, and given up after a while (OTLP specification,
"Failures"). Any other response is final, and so is one with a partial success. A gateway that stops waits for
no pause: it tries each batch once more.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import email.utils
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from routecodex.canon.errors import GatewayError, UpstreamError
from routecodex.providers.http import HttpClient, HttpResponse, Timeouts, origin_of
from routecodex.providers.upstream import SecretRedactor, configured_secrets
from routecodex.telemetry import otlp_json, protobuf
from routecodex.telemetry.span import PartialSuccess, Resource, Span

log = logging.getLogger("routecodex.telemetry")

T = TypeVar("T")

_BATCH_SPANS = 512
_RETRYABLE = frozenset({429, 502, 503, 504})
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each further attempt; then the batch is given up."""
_LONGEST_PAUSE = 300.0
"""Longest `Retry-After` that is obeyed: the queue is bounded, and spans are dropped while it is full."""
_TIMEOUTS = Timeouts(connect=5.0, first_byte=10.0, idle=10.0)
_RESPONSE_LIMIT = 64 * 1024
_MESSAGE_SHOWN = 200
_MAX_CONTENT = 32 * 1024 * 1024
FLUSH_SECONDS = 2.0
"""Longest time that a stopping gateway waits for its last spans to leave."""


class _Coder(NamedTuple):
    """One encoding of OTLP."""

    content_type: str
    encode: Callable[[Resource, Iterable[Span]], bytes]
    decode: Callable[[bytes], PartialSuccess]


_PROTOBUF = _Coder(protobuf.CONTENT_TYPE, protobuf.encode_request, protobuf.decode_response)
_JSON = _Coder(otlp_json.CONTENT_TYPE, otlp_json.encode_request, otlp_json.decode_response)
_CODERS = {"http/protobuf": _PROTOBUF, "http/json": _JSON}


class ExportOptions(Struct, frozen=True, kw_only=True):
    """Destination of spans: address, encoding, headers, and the bounds of the queue.

    `environ` has the variables that set a proxy.
    """

    url: str
    environ: Mapping[str, str]
    protocol: str
    headers: tuple[tuple[str, str], ...]
    resource: Resource
    batch_seconds: float
    queue: int


class QueuedTrace(Struct, Generic[T]):
    """A finished request of type `T`, when it finished, and the number of its spans."""

    item: T
    at: int
    spans: int
    content_bytes: int


class _Refused(Exception):
    """The collector did not take a batch; `retry_after` is None if sending it again does not help."""

    def __init__(self, reason: str, retry_after: float | None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class SpanExporter(Generic[T]):
    """Queues finished requests; `to_spans` turns them into spans, in a thread.

    `exported` counts the spans that a collector took, `dropped` those that it did not get. Without options it
    is off.
    """

    def __init__(
        self,
        client: HttpClient,
        to_spans: Callable[[Sequence[QueuedTrace[T]]], Sequence[Span]],
        *,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self.exported = 0
        self.dropped = 0
        self.options: ExportOptions | None = None
        self._client = client
        self._to_spans = to_spans
        self._pauses = pauses
        self._queue: deque[QueuedTrace[T]] = deque()
        self._spans = 0
        self._content_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._end_pause = asyncio.Event()
        self._closing = False
        self._failing: ExportOptions | None = None
        """The options with which the last batch failed; None if it arrived."""
        self._has_warned = False

    def add(self, item: T, spans: int, content_bytes: int = 0) -> None:
        """Queue a request that has just ended; over the bounds of the queue its spans are dropped."""
        options = self.options
        if options is None or not spans:
            return
        is_full = self._spans + spans > options.queue
        if is_full or self._content_bytes + content_bytes > _MAX_CONTENT:
            self.dropped += spans
            return
        self._queue.append(QueuedTrace(item, time.time_ns(), spans, content_bytes))
        self._spans += spans
        self._content_bytes += content_bytes
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._is_due(options):
            self._wake.set()

    def _is_due(self, options: ExportOptions) -> bool:
        """Return whether what waits is a full batch, or so much that the next spans might be dropped."""
        return (
            self._spans >= min(_BATCH_SPANS, options.queue // 2) or self._content_bytes >= _MAX_CONTENT // 2
        )

    def configure(self, options: ExportOptions | None) -> None:
        """Use these options from the next attempt on; spans that wait when it is turned off are dropped."""
        if options != self.options:
            self._has_warned = False
            self._end_pause.set()
        self.options = options
        if options is None:
            self._drop_queue()
        self._wake.set()

    async def close(self) -> None:
        """Send what is left, for two seconds at most; the rest is dropped."""
        self._closing = True
        self._wake.set()
        self._end_pause.set()
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=FLUSH_SECONDS)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._drop_queue()

    def _drop_queue(self) -> None:
        self.dropped += self._spans
        self._queue.clear()
        self._spans = self._content_bytes = 0

    async def _run(self) -> None:
        """Send batches until the queue is empty."""
        try:
            while self._queue:
                await self._wait_for_batch()
                await self._send_batch(self._take_batch())
        finally:
            self._task = None

    async def _wait_for_batch(self) -> None:
        """Wait until a batch is full, or has waited long enough."""
        if self._closing or self.options is None or self._is_due(self.options):
            return
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.batch_seconds):
                await self._wake.wait()

    def _take_batch(self) -> list[QueuedTrace[T]]:
        batch: list[QueuedTrace[T]] = []
        size = 0
        while self._queue and (not batch or size + self._queue[0].spans <= _BATCH_SPANS):
            batch.append(self._queue.popleft())
            size += batch[-1].spans
            self._content_bytes -= batch[-1].content_bytes
        self._spans -= size
        return batch

    async def _send_batch(self, batch: list[QueuedTrace[T]]) -> None:
        """Send a batch; every span of it is counted, as exported or as dropped."""
        count = sum(one.spans for one in batch)
        exported: int | None = None
        try:
            while exported is None and (options := self.options) is not None:
                body = await asyncio.to_thread(self._encode, batch, options)
                exported = await self._deliver(body, count, options)
        except Exception:
            log.exception("%d spans could not be encoded", count)
        finally:
            self.exported += exported or 0
            self.dropped += count - (exported or 0)

    def _encode(self, batch: Sequence[QueuedTrace[T]], options: ExportOptions) -> bytes:
        return _CODERS[options.protocol].encode(options.resource, self._to_spans(batch))

    async def _deliver(self, body: bytes, count: int, options: ExportOptions) -> int | None:
        """Send a body until it is taken or given up; return the number of spans that were taken.

        None: the options have changed, and nothing was taken.
        """
        for pause in (*self._pauses, None):
            is_closing = self._closing
            try:
                partial = await self._post(body, options)
            except _Refused as refused:
                self._note_failure(str(refused), options)
                if refused.retry_after is None or pause is None or is_closing:
                    return 0
                await self._pause(retry_pause(pause, refused.retry_after), options)
                if self.options != options:
                    return None
                continue
            rejected = min(partial.rejected, count)
            if partial.rejected:
                self._note_failure(f"rejected {rejected} of {count} spans: {partial.message}", options)
            else:
                self._note_success(partial.message, options)
            return count - rejected
        return 0

    async def _pause(self, seconds: float, options: ExportOptions) -> None:
        """Wait before the next attempt, unless the gateway stops or the options change."""
        self._end_pause.clear()
        if self._closing or self.options != options:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end_pause.wait()

    async def _post(self, body: bytes, options: ExportOptions) -> PartialSuccess:
        coder = _CODERS[options.protocol]
        headers = {"content-type": coder.content_type, "user-agent": "routecodex", **dict(options.headers)}
        parts = urlsplit(options.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            response = await self._client.send(
                origin_of(options.url, environ=options.environ),
                method=b"POST",
                path=path.encode("ascii"),
                headers=b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()),
                body=body,
                timeouts=_TIMEOUTS,
            )
        except UpstreamError as error:
            raise _Refused(error.detached().message, 0.0) from None
        except GatewayError as error:
            raise _Refused(error.detached().message, None) from None
        return _judge(response, await _body_of(response))

    def _note_failure(self, reason: str, options: ExportOptions) -> None:
        if self._failing != options:
            log.warning(
                "traces do not reach %s, requests continue without them: %s",
                _shown(options.url),
                _without_secrets(reason, options),
            )
        self._failing = options

    def _note_success(self, message: str, options: ExportOptions) -> None:
        """Log that spans arrive again, and once the message of a collector that took all of them."""
        if self._failing is not None:
            log.info("traces reach %s again; %d spans were dropped", _shown(options.url), self.dropped)
        self._failing = None
        if message and not self._has_warned:
            self._has_warned = True
            shown = _without_secrets(message, options)
            log.warning("the collector at %s took the spans and warns: %s", _shown(options.url), shown)


async def _body_of(response: HttpResponse) -> bytes:
    """Return the body, empty if it is cut off or too long: the status alone says what became of the spans."""
    try:
        return await response.read(_RESPONSE_LIMIT)
    except UpstreamError:
        return b""
    finally:
        response.close()


def _shown(url: str) -> str:
    """Return a URL without its query, which may hold a key."""
    return url.partition("?")[0]


def _without_secrets(text: str, options: ExportOptions) -> str:
    """Return the beginning of a text of the collector, which may quote what was sent to it."""
    query = dict(parse_qsl(urlsplit(options.url).query))
    origin = origin_of(options.url, environ=options.environ)
    secrets = configured_secrets(_credentials(options.headers), headers={}, query=query, origin=origin)
    return SecretRedactor(secrets).text(text)[:_MESSAGE_SHOWN]


def _credentials(headers: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the values of headers: whole, without the name of their scheme, and the password of `Basic`."""
    for _, value in headers:
        yield value
        scheme, _, credentials = value.partition(" ")
        yield credentials.strip()
        if scheme.lower() == "basic":
            with contextlib.suppress(ValueError):
                yield binascii.a2b_base64(credentials).decode().partition(":")[2]


def _judge(response: HttpResponse, body: bytes) -> PartialSuccess:
    """Return the partial success of a response; raise for one that is not a success."""
    status = response.status
    if status in _RETRYABLE:
        raise _Refused(f"HTTP {status}", _retry_after(response.header(b"retry-after")))
    if not 200 <= status < 300:
        raise _Refused(f"HTTP {status}: {body.decode('utf-8', 'replace')}", None)
    is_json = (response.header(b"content-type") or b"").startswith(b"application/json")
    try:
        return (_JSON if is_json else _PROTOBUF).decode(body)
    except ValueError:
        # Some collectors answer with a text of their own; the status says that they took the spans.
        return PartialSuccess()


def retry_pause(pause: float, retry_after: float) -> float:
    """Return the seconds before a further attempt: the collector may ask for more, within bounds."""
    return max(pause, min(retry_after, _LONGEST_PAUSE))


def _retry_after(value: bytes | None) -> float:
    """Return the seconds of a `Retry-After`: a number, or a date (RFC 9110, 10.2.3); 0 without one."""
    text = (value or b"").decode("latin-1").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return 0.0
