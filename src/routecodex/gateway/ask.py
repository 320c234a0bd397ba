"""What comes in, whom we answer, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from routecodex.canon.errors import GatewayError
from routecodex.canon.usage import Usage
from routecodex.protocols.codec import Codec, Inbound
from routecodex.routing.registry import Target

Headers = Sequence[tuple[bytes, bytes] | bytes]
"""Names and values; what is bytes alone is whole lines, ready to be sent."""


class Client(Protocol):
    """The connection a request came on, as far as answering goes."""

    @property
    def started(self) -> bool: ...
    async def send(self, status: int, headers: Headers, body: bytes) -> None: ...
    def start(self, status: int, headers: Headers) -> None: ...
    async def write(self, data: bytes) -> None: ...
    def write_nowait(self, data: bytes) -> bool: ...
    async def end(self, data: bytes = b"") -> None: ...
    def abort(self) -> None: ...


class Ask(Struct, kw_only=True):
    """One request for one answer, validated.

    `as_array` is Gemini's way of streaming without `alt=sse`. `original` is the request without the history
    that was put in front of it; `holder` is the provider and key that keep that history themselves, `chain`
    the id of the request that began it. `received` is what the client sent, where anything was taken out.
    `session` is what its state is kept under, once that is known.
    """

    id: str
    codec: Codec
    inbound: Inbound
    headers: Mapping[str, str]
    arrived: float
    created: int
    query: str = ""
    as_array: bool = False
    client_name: str = ""
    original: Inbound | None = None
    received: Inbound | None = None
    holder: tuple[str, str] | None = None
    chain: str | None = None
    session: str = ""
    notices: list[str] = field(default_factory=list)

    def is_held_by(self, target: Target) -> bool:
        """Whether the conversation this request continues is kept there, under that key."""
        return self.holder == (target.provider, target.key)


class FollowedUp(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A further round of one request: what a server tool had a model asked, and what came of it."""

    request: str
    metadata: Mapping[str, bool]
    target: str = ""
    finish: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""


class Record(Struct, kw_only=True):
    """What is remembered of one request, for logs and metrics.

    `failures` are the attempts that failed before anything reached the client, each in brief; `followups` are
    the rounds after the first, whose usage is part of the whole.
    """

    id: str
    protocol: str
    model: str
    stream: bool
    client_name: str = ""
    session: str = ""
    route: str = ""
    reason: str = ""
    target: Target | None = None
    attempts: int = 0
    status: int = 0
    arrived: float = 0.0
    first_byte: float = 0.0
    finished: float = 0.0
    usage: Usage | None = None
    finish: str = ""
    error: GatewayError | None = None
    gone: bool = False
    notices: tuple[str, ...] = ()
    failures: list[str] = field(default_factory=list)
    followups: tuple[FollowedUp, ...] = ()
