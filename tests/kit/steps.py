"""Answers of a scripted upstream: whole bodies, streams, or single steps down to the raw socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

import msgspec


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes of the body."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the test sets the event."""

    event: asyncio.Event


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CloseClean:
    """End the body properly, then close the connection."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """Abort the socket in the middle of the body."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Stop sending and keep the connection open until the client disconnects."""


Step: TypeAlias = Send | Wait | Pause | CloseClean | CutOff | Hang


@dataclass(frozen=True, slots=True)
class Json:
    """A whole body with its length; objects are encoded as JSON, bytes are sent unchanged."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else msgspec.json.encode(self.body)


@dataclass(frozen=True, slots=True)
class Sse:
    """A stream of frames, chunked.

    `chunks` splits the bytes anew into chunks of that size; `pace` holds the frame of that number until its
    event is set; `end` is the last step (None: a proper end, the connection stays open).
    """

    frames: Sequence[bytes]
    chunks: int | None = field(default=None, kw_only=True)
    pace: Mapping[int, asyncio.Event] = field(default_factory=dict, kw_only=True)
    end: CloseClean | CutOff | Hang | None = field(default=None, kw_only=True)
    status: int = field(default=200, kw_only=True)
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    @property
    def data(self) -> bytes:
        return b"".join(self.frames)


@dataclass(frozen=True, slots=True)
class Steps:
    """A chunked body, step by step."""

    steps: Sequence[Step]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes sent unchanged, without status line, headers or framing, for answers that are not valid HTTP."""

    steps: Sequence[Step]


Answer: TypeAlias = Json | Sse | Steps | Raw


@dataclass(frozen=True, slots=True)
class Plan:
    """An answer ready to be sent: its head, the steps of its body, and whether that is chunked."""

    head: bytes
    steps: tuple[Step, ...]
    chunked: bool


def plan(answer: Answer) -> Plan:
    """Return the head and the steps that send the answer."""
    match answer:
        case Json():
            headers = {"content-type": "application/json", "content-length": str(len(answer.data))}
            return Plan(_head(answer, headers), (Send(answer.data),), False)
        case Sse():
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            steps = tuple(_paced(answer)) + ((answer.end,) if answer.end is not None else ())
            return Plan(_head(answer, headers | {"transfer-encoding": "chunked"}), steps, True)
        case Steps():
            headers = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
            return Plan(_head(answer, headers), tuple(answer.steps), True)
        case Raw():
            return Plan(b"", tuple(answer.steps), False)


def _head(answer: Json | Sse | Steps, headers: dict[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Status"
    named = headers | {name.lower(): value for name, value in answer.headers.items()}
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in named.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _paced(answer: Sse) -> Iterator[Step]:
    ready: list[bytes] = []
    for number, frame in enumerate(answer.frames):
        event = answer.pace.get(number)
        if event is not None:
            yield from _sends(ready, answer.chunks)
            ready = []
            yield Wait(event)
        ready.append(frame)
    yield from _sends(ready, answer.chunks)


def _sends(frames: list[bytes], size: int | None) -> Iterator[Step]:
    if size is None:
        yield from (Send(frame) for frame in frames)
        return
    data = b"".join(frames)
    yield from (Send(data[start : start + size]) for start in range(0, len(data), size))
