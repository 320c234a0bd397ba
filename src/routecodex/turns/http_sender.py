"""A sender over HTTP: sends chat-shaped requests in any of the four protocols, yields chat-shaped chunks.

    body ─(chat codec)─▶ canonical request ─(codec of the endpoint)─▶ bytes ─▶ endpoint
    chunks ◀─(chat codec)─ events ◀─(codec of the endpoint)─ bytes ◀─

A chat endpoint gets the body unchanged, unknown fields included, and its chunks are repaired only where they
break the protocol. Every failure is raised as `RequestFailed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import re
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, get_args
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from msgspec import Struct, field
from msgspec.json import Decoder

from routecodex.canon.errors import ConfigError, GatewayError, UpstreamError, UpstreamRefusedKey
from routecodex.canon.events import Failed
from routecodex.canon.request import ProtocolName
from routecodex.canon.response import ResponseBuilder
from routecodex.protocols import chat
from routecodex.protocols.codec import Codec, EncodeOptions, Pipe, ReplyContext
from routecodex.protocols.sealed_signatures import seal
from routecodex.protocols.translation import Translation
from routecodex.protocols.upstream_errors import stream_truncated, upstream_error
from routecodex.providers.http import HttpClient, HttpResponse, Timeouts, origin_of
from routecodex.providers.upstream import ANSWER_LIMIT, Upstream
from routecodex.turns import preserved_parts
from routecodex.turns.errors import RequestFailed
from routecodex.turns.preserved_parts import AnswerSource
from routecodex.wire import json, sse

Chunk = dict[str, Any]
Body = Mapping[str, Any]

PROTOCOLS: tuple[str, ...] = get_args(ProtocolName)
SESSION_HEADER = "x-session-id"
_TIMEOUTS = Timeouts(connect=10.0, first_byte=600.0, idle=600.0)
_ERROR_LIMIT = 1024 * 1024
_KEY = "key"

_ORIGIN = "endpoint"
"""Provider name that the codecs get for the endpoint: its own signatures are sent back to it."""
_HEADER = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_ENDPOINT = re.compile(r"/(?:chat/completions|responses|messages)$")
_VERSION = re.compile(r"/v1(?:beta)?$")

_OWN_VERSION = frozenset({"messages", "gemini"})
"""Protocols whose paths start with their own version segment."""


class _ErrorMessage(Struct):
    message: str | None = None


class _Refusal(Struct):
    """The fields of an error body that all protocols share."""

    error: _ErrorMessage = field(default_factory=_ErrorMessage)
    code: str | None = None


_refusal_decoder = Decoder(_Refusal)


def open_sender(
    base_url: str,
    protocol: str = "chat",
    api_key: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> HttpSender:
    """Return a sender for the endpoint at `base_url`; it connects with the first request.

    `headers` are sent with every request. A missing `x-session-id` is generated, so that a gateway can
    recognise the requests of one conversation.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol is {protocol!r}; use one of {', '.join(PROTOCOLS)}")
    # Importing a codec takes time, and a conversation uses one protocol.
    codec: Codec = importlib.import_module(f"routecodex.protocols.{protocol}").CODEC
    lower = {name.lower(): value for name, value in (headers or {}).items()}
    key = (api_key or "").strip()
    for name, value in (*lower.items(), ("api_key", key)):
        if not _HEADER.fullmatch(value):
            raise ValueError(f"{name} contains a character that is not allowed in a header value")
    return HttpSender(base_url, codec, api_key=key, headers={SESSION_HEADER: uuid.uuid4().hex, **lower})


def root_of(base_url: str, protocol: str) -> str:
    """Return the URL below which the protocol's paths begin; `base_url` may include such a path."""
    url = urlsplit(base_url)
    path = _ENDPOINT.sub("", url.path.rstrip("/"))
    if protocol in _OWN_VERSION:
        path = _VERSION.sub("", path)
    return urlunsplit((url.scheme, url.netloc, path or ("" if protocol in _OWN_VERSION else "/v1"), "", ""))


class HttpSender:
    """Sends requests to one endpoint in its protocol; connections are reused."""

    def __init__(self, base_url: str, codec: Codec, *, api_key: str, headers: Mapping[str, str]) -> None:
        try:
            origin = origin_of(base_url)
        except ConfigError as exc:
            raise ValueError(exc.message) from exc
        self.session = headers.get(SESSION_HEADER, "")
        self.message_fields = () if codec is chat.CODEC else (preserved_parts.FIELD,)
        self._codec = codec
        self._peer = origin.host_header.decode()
        self._endpoint = AnswerSource(self._peer, codec.name, _ORIGIN, functools.partial(seal, _ORIGIN))
        self._open = functools.partial(
            Upstream,
            self._peer,
            codec=codec,
            base_url=root_of(base_url, codec.name),
            origin=origin,
            secrets={_KEY: api_key},
            timeouts=_TIMEOUTS,
            headers=headers,
            query=dict(parse_qsl(urlsplit(base_url).query)),
        )
        self._loop_upstream: tuple[asyncio.AbstractEventLoop, HttpClient, Upstream] | None = None

    async def __call__(self, body: Body) -> AsyncGenerator[Chunk, None]:
        with _translated():
            answer, encoded = self._prepare(body)
            upstream = self._upstream()
            response = await upstream.open(
                encoded,
                upstream.header_block(_KEY, stream=True, headers=None),
                upstream.path(str(body.get("model") or ""), stream=True),
            )
            try:
                if not 200 <= response.status < 300:
                    raise await self._refusal(response, upstream)
                answer.metadata["headers"] = _answer_headers(response)
                async with contextlib.aclosing(_read(response, answer)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            finally:
                response.close()

    async def aclose(self) -> None:
        """Close the connections; a running request fails."""
        opened, self._loop_upstream = self._loop_upstream, None
        if opened is not None and opened[0] is asyncio.get_running_loop():
            await opened[1].close()

    def _upstream(self) -> Upstream:
        """Return the upstream of the running event loop; connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        if self._loop_upstream is None or self._loop_upstream[0] is not loop:
            client = HttpClient()
            self._loop_upstream = loop, client, self._open(client=client)
        return self._loop_upstream[2]

    def _prepare(self, body: Body) -> tuple[_Answer, bytes]:
        """Return the reader of the answer, and the body in the endpoint's protocol."""
        reply = ReplyContext(
            id=uuid.uuid4().hex, created=int(time.time()), model=str(body.get("model") or "")
        )
        options = {**(body.get("stream_options") or {}), "include_usage": True}
        encoded_body = _encoded({**body, "stream": True, "stream_options": options})
        if self._codec is chat.CODEC:
            return _ChatAnswer(reply), encoded_body
        request = chat.CODEC.decode_request(chat.CODEC.validate(encoded_body))
        request = preserved_parts.restore(request, body["messages"], self._endpoint)
        encoded = self._codec.encode_request(request, EncodeOptions(model=request.model, provider=_ORIGIN))
        reply.request = request
        answer = _ForeignAnswer(reply, self._codec, self._endpoint)
        if encoded.notices:
            answer.metadata["notices"] = list(encoded.notices)
        return answer, encoded.body

    async def _refusal(self, response: HttpResponse, upstream: Upstream) -> RequestFailed:
        if 300 <= response.status < 400:
            return _failure(await upstream.error_of(response))
        try:
            body = await response.read(_ERROR_LIMIT)
        except UpstreamError:
            body = b""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        error = self._codec.decode_error(response.status, headers, body, self._peer)
        return _failure(upstream.sanitize(error), body)


async def _read(response: HttpResponse, answer: _Answer) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of the answer; raise if it breaks off or is not a valid answer."""
    # Some endpoints stream under another content type; only JSON means a response that is not streamed.
    if (response.header(b"content-type") or b"").startswith(b"application/json"):
        for chunk in answer.whole(await response.read(ANSWER_LIMIT)):
            yield chunk
        return
    while not answer.pipe.ended:
        data = await response.chunk()
        for chunk in answer.close() if data is None else answer.feed(data):
            yield chunk
        if answer.pipe.outcome.error is not None:
            raise answer.pipe.outcome.error


class _Answer:
    """Converts a response to chat-shaped chunks; the first chunk carries `metadata`."""

    pipe: Pipe

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self._first = True

    def feed(self, data: bytes) -> Iterator[Chunk]:
        return self._chunks(self.pipe.feed(data))

    def close(self) -> Iterator[Chunk]:
        return self._chunks(self.pipe.close())

    def whole(self, body: bytes) -> Iterator[Chunk]:
        """Yield the chunks of an answer that was not streamed although the request asked for a stream."""
        raise NotImplementedError

    def _chunks(self, stream: bytes) -> Iterator[Chunk]:
        """Yield the chunks in a piece of a chat stream, without `[DONE]`, errors and estimated usage."""
        for block in stream.split(b"\n\n"):
            frame = sse.parse(block)
            if frame is None or frame.data.rstrip() == b"[DONE]":
                continue
            chunk = _object(frame.data)
            if "error" in chunk or self._is_estimate(chunk):
                continue
            yield self._with_metadata(chunk)

    def _is_estimate(self, chunk: Chunk) -> bool:
        usage = self.pipe.outcome.usage
        return not chunk.get("choices") and bool(chunk.get("usage")) and (usage is None or usage.estimated)

    def _with_metadata(self, chunk: Chunk) -> Chunk:
        chunk.pop("metadata", None)
        if self._first:
            self._first = False
            chunk["metadata"] = self.metadata
        return chunk


class _ChatAnswer(_Answer):
    """The answer of a chat endpoint: its own chunks."""

    def __init__(self, reply: ReplyContext) -> None:
        super().__init__()
        self.pipe = chat.CODEC.relay(reply)
        self._reply = reply

    def whole(self, body: bytes) -> Iterator[Chunk]:
        relayed, _ = chat.CODEC.relay_response(body, self._reply)
        yield self._with_metadata(_object(relayed))


class _ForeignAnswer(_Answer):
    """The answer of an endpoint with another protocol, converted to chat."""

    def __init__(self, reply: ReplyContext, codec: Codec, endpoint: AnswerSource) -> None:
        super().__init__()
        self._codec = codec
        self._endpoint = endpoint
        self._decoder = codec.stream_decoder()
        self._builder = ResponseBuilder()
        self.pipe: Translation = Translation(self._decoder, chat.CODEC.stream_encoder(reply))

    def feed(self, data: bytes) -> Iterator[Chunk]:
        return self._converted(self._decoder.feed(data))

    def close(self) -> Iterator[Chunk]:
        return self._converted(self._decoder.close())

    def whole(self, body: bytes) -> Iterator[Chunk]:
        yield from self._converted(self._codec.decode_response(body))
        if not self.pipe.ended:
            raise stream_truncated("the answer")

    def _converted(self, events: Any) -> Iterator[Chunk]:
        for event in events:
            if not isinstance(event, Failed):
                self._builder.add(event)
        return self._chunks(self.pipe.encode(events))

    def _with_metadata(self, chunk: Chunk) -> Chunk:
        for choice in chunk["choices"]:
            if choice["finish_reason"] is not None:
                parts = self._builder.response().parts
                choice["delta"][preserved_parts.FIELD] = preserved_parts.preserve(parts, self._endpoint)
        return super()._with_metadata(chunk)


def _encoded(body: Body) -> bytes:
    try:
        return json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise RequestFailed(f"the request cannot be encoded as JSON: {exc}", status=400) from exc


def _object(data: bytes) -> Chunk:
    try:
        value = json.decode(data)
    except ValueError as exc:
        raise upstream_error(502, "the answer contains a chunk that is not valid JSON", provider="") from exc
    if not isinstance(value, dict):
        raise upstream_error(502, "the answer contains a chunk that is not a JSON object", provider="")
    return value


def _answer_headers(response: HttpResponse) -> dict[str, str]:
    """Return the headers with the request id and, from a RouteCodex gateway, the route."""
    pairs = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers)
    return {
        name: value
        for name, value in pairs
        if name.startswith("x-routecodex-") or name in ("x-request-id", "request-id")
    }


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except GatewayError as exc:
        raise _failure(exc) from exc


def _failure(error: GatewayError, body: bytes = b"") -> RequestFailed:
    """Return the error for the caller; a RouteCodex gateway puts its own code at the top of the body."""
    refusal = json.try_read(body, _refusal_decoder) or _Refusal()
    message, code = error.message, refusal.code or error.code
    if isinstance(error, UpstreamRefusedKey):
        # The codec words it for a gateway that holds the key; opened the key is the caller's own.
        message = refusal.error.message or "the endpoint rejected the api_key"
        code = refusal.code or "invalid_api_key"
    return RequestFailed(
        message,
        status=getattr(error, "upstream_status", None) or error.status,
        code=code,
        param=error.param,
        retry_after=error.retry_after,
    )
