"""What comes in, whom we answer, and what is remembered of it.

Ids: unique and not to be guessed, without a system call for each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Usage
from routecodex.gateway.records import FollowUpRecord
from routecodex.protocols.codec import Codec, WireRequest
from routecodex.routing.registry import Target

Headers = Sequence[tuple[bytes, bytes] | bytes]
"""Names and values; what is bytes alone is whole lines, ready to be sent."""


class ClientConnection(Protocol):
    """The connection a request came on, as far as answering goes."""

    @property
    def started(self) -> bool: ...
    @property
    def writable(self) -> bool:
        """Whether the client takes more now: the answer has not ended, and nothing waits to be read."""

    async def send(self, status: int, headers: Headers, body: bytes) -> None: ...
    def start(self, status: int, headers: Headers) -> None: ...
    async def write(self, data: bytes) -> None: ...
    def write_nowait(self, data: bytes) -> bool:
        """Writes without waiting; False when `drain` must be awaited before the next."""

    async def drain(self) -> None: ...
    async def end(self, data: bytes = b"") -> None: ...
    def abort(self) -> None: ...


class ClientRequest:
    """One request for one answer, validated.

    `original` is the request without the history that was put in front of it; `holder` is the provider and
    key that keep that history themselves, `chain` the id of the request that began it. `received` is what the
    client sent, where anything was taken out. `session` is what its state is kept under, once that is known.
    """

    __slots__ = (
        "arrived",
        "chain",
        "client_name",
        "codec",
        "created",
        "headers",
        "holder",
        "id",
        "inbound",
        "notices",
        "original",
        "query",
        "received",
        "session",
    )

    def __init__(
        self,
        *,
        id: str,
        codec: Codec,
        inbound: WireRequest,
        headers: Mapping[str, str],
        arrived: float,
        created: int,
        query: str = "",
        client_name: str = "",
    ) -> None:
        self.id = id
        self.codec = codec
        self.inbound = inbound
        self.headers = headers
        self.arrived = arrived
        self.created = created
        self.query = query
        self.client_name = client_name
        self.original: WireRequest | None = None
        self.received: WireRequest | None = None
        self.holder: tuple[str, str] | None = None
        self.chain: str | None = None
        self.session = ""
        self.notices: list[str] = []

    def is_held_by(self, target: Target) -> bool:
        """Whether the conversation this request continues is kept there, under that key."""
        return self.holder == (target.provider, target.key)


class RequestRecord:
    """What is remembered of one request, for logs and metrics.

    `failures` are the attempts that failed before anything reached the client, each in brief; `followups` are
    the rounds after the first, whose usage is part of the whole.
    """

    __slots__ = (
        "arrived",
        "attempts",
        "client_name",
        "error",
        "failures",
        "finish",
        "finished",
        "first_byte",
        "followups",
        "gone",
        "id",
        "model",
        "notices",
        "protocol",
        "reason",
        "route",
        "session",
        "status",
        "stream",
        "target",
        "usage",
    )

    def __init__(
        self,
        *,
        id: str,
        protocol: str,
        model: str,
        stream: bool,
        arrived: float,
        client_name: str = "",
        route: str = "",
    ) -> None:
        self.id = id
        self.protocol = protocol
        self.model = model
        self.stream = stream
        self.client_name = client_name
        self.session = ""
        self.route = route
        self.reason = ""
        self.target: Target | None = None
        self.attempts = 0
        self.status = 0
        self.arrived = arrived
        self.first_byte = 0.0
        self.finished = 0.0
        self.usage: Usage | None = None
        self.finish = ""
        self.error: GatewayError | None = None
        self.gone = False
        self.notices: tuple[str, ...] = ()
        self.failures: list[str] = []
        self.followups: tuple[FollowUpRecord, ...] = ()


_SIZE: Final = 12
_STOCK: Final = 512


class _Ids:
    """Random bytes bought in stock."""

    __slots__ = ("_at", "_stock")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A new stock; a forked worker must not go on with its parent's."""
        self._stock = os.urandom(_SIZE * _STOCK)
        self._at = 0

    def take(self) -> str:
        at = self._at
        if at == len(self._stock):
            self.renew()
            at = 0
        self._at = at + _SIZE
        return self._stock[at : at + _SIZE].hex()


_ids: Final = _Ids()
os.register_at_fork(after_in_child=_ids.renew)


def fresh_id() -> str:
    """24 hex digits that no other answer has."""
    return _ids.take()
