"""One request of a client: the request, its connection, its record for log and metrics, and its id."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from routecodex.accounting.clients import Client
from routecodex.accounting.cost import NO_COST, Cost, sum_costs
from routecodex.canon.errors import GatewayError, Overloaded
from routecodex.canon.events import Usage
from routecodex.canon.notices import Notices
from routecodex.canon.request import Request
from routecodex.gateway.call_record import CallRecord
from routecodex.gateway.records import FailedAttempt, FollowUpRecord
from routecodex.gateway.request_limits import CallLimits
from routecodex.protocols.codec import Codec, WireRequest
from routecodex.routing import tokens
from routecodex.routing.registry import Target
from routecodex.routing.request_role import MAIN, RequestRole
from routecodex.routing.route_plan import RoutePlan
from routecodex.server_tools.vision import ImageDescriptions
from routecodex.telemetry.request_trace import RequestTrace

Headers = Sequence[tuple[bytes, bytes] | bytes]
"""Names with values; an entry of bytes alone holds whole header lines."""


class ClientConnection(Protocol):
    """The connection an answer is written to."""

    @property
    def started(self) -> bool: ...
    @property
    def writable(self) -> bool:
        """Whether a write would be sent at once: the answer has not ended, and no bytes wait to be read."""

    @property
    def interrupted(self) -> bool:
        """Whether the task was cancelled because the server stops, with the client still there."""

    async def send(self, status: int, headers: Headers, body: bytes) -> None: ...
    def start(self, status: int, headers: Headers) -> None: ...
    async def write(self, data: bytes) -> None: ...
    def write_nowait(self, data: bytes) -> bool:
        """Write without waiting; return False if `drain` must be awaited before the next write."""

    async def drain(self) -> None: ...
    async def end(self, data: bytes = b"") -> None: ...
    def abort(self) -> None: ...


def interruption(client: ClientConnection) -> Overloaded | None:
    """Return the error that ends an answer because the server stops; None for any other cancellation.

    Call it where the cancellation was caught. It is taken back, so that the error can still be written.
    """
    if not client.interrupted:
        return None
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    return Overloaded("the gateway is shutting down; send the request again", code="shutting_down")


class ClientRequest:
    """One validated request of a client.

    `wire` is the request as providers may see it: control fields and instructions are stripped, and for
    Responses the stored history is expanded. `original` is the request without that history, `received` the
    request as the client sent it; both are None while they equal `wire`. `holder` names the provider and key
    that store the conversation themselves, `chain` the request that began it. `session` is the name of its
    scope, once known. `client` is who sent it, None on a gateway without clients; `owner` is the client that
    its state belongs to, if there are several.
    """

    __slots__ = (
        "_canonical",
        "arrived",
        "chain",
        "client",
        "client_name",
        "codec",
        "created",
        "headers",
        "holder",
        "id",
        "image_descriptions",
        "notices",
        "original",
        "owner",
        "query",
        "received",
        "retried_empty",
        "role",
        "session",
        "trace",
        "wire",
    )

    def __init__(
        self,
        *,
        id: str,
        codec: Codec,
        wire: WireRequest,
        headers: Mapping[str, str],
        arrived: float,
        created: int,
        query: str = "",
        client: Client | None = None,
        owner: str = "",
    ) -> None:
        self.id = id
        self.codec = codec
        self.wire = wire
        self.headers = headers
        self.arrived = arrived
        self.created = created
        self.query = query
        self.client = client
        self.client_name: str = "" if client is None else client.name
        self.owner = owner
        self.original: WireRequest | None = None
        self.received: WireRequest | None = None
        self.holder: tuple[str, str] | None = None
        self.chain: str | None = None
        self.session = ""
        self.role: RequestRole = MAIN
        self.trace: RequestTrace | None = None
        """Its trace, if traces are on."""
        self.notices: Notices = Notices()
        self.image_descriptions: ImageDescriptions | None = None
        """Descriptions of its images, shared by all attempts."""
        self.retried_empty = False
        """An empty answer was retried, which is done once for a request."""
        self._canonical: Request | None = None

    def canonical(self) -> Request:
        """Return the request in canonical form, decoded once; call it when `wire` changes no more."""
        if self._canonical is None:
            self._canonical = self.codec.decode_request(self.wire)
        return self._canonical

    def estimate_input(self) -> int:
        """Estimate its tokens closely, for an answer that was cut off before its provider counted them."""
        return tokens.estimate(self.wire.body, threshold=0)

    def complete_usage(self, usage: Usage) -> Usage:
        """Return the usage of an answer, with an estimate of the input if its provider counted none."""
        if usage.input > 0 or usage.cost is not None:
            return usage
        return replace(usage, input=self.estimate_input(), estimated=True)

    def is_held_by(self, target: Target) -> bool:
        """Return whether this provider and key store the conversation that the request continues."""
        return self.holder == (target.provider, target.key)


class RequestRecord:
    """Facts of a request for log and metrics.

    `failures` lists the attempts that failed before the client got a byte. `rounds` counts the answers of
    providers. `calls` lists every call that produced tokens, and `usage` is their sum: what they cost, not
    what the client is shown. `followups` lists the rounds after the first. `began` is the time at which the
    last attempt began. `counted`: it was admitted and routed, so that the usage ledger has it; `is_priced`:
    its calls are listed. `gone`: the client disconnected. `client_request_id` is the id that the client
    gave the request itself. `plan` is its first plan, `context` the `RoutingContext` of it. `endpoint`,
    `call` (method and path) and `address` are set if no provider had a part in the response; `protocol` is
    empty for endpoints of no protocol. `trace` is None if traces are off.
    """

    __slots__ = (
        "address",
        "arrived",
        "attempts",
        "began",
        "call",
        "calls",
        "client_name",
        "client_request_id",
        "context",
        "counted",
        "endpoint",
        "error",
        "failures",
        "finish",
        "finished",
        "first_byte",
        "followups",
        "gone",
        "id",
        "is_priced",
        "limits",
        "model",
        "notices",
        "plan",
        "protocol",
        "reason",
        "role",
        "rounds",
        "route",
        "session",
        "status",
        "stream",
        "target",
        "team",
        "trace",
        "upstream_limits",
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
        client_request_id: str = "",
        team: str = "",
        route: str = "",
    ) -> None:
        self.id = id
        self.protocol = protocol
        self.model = model
        self.stream = stream
        self.client_name = client_name
        self.client_request_id = client_request_id
        self.team = team
        self.endpoint = self.call = self.address = ""
        self.session = ""
        self.role: RequestRole = MAIN
        self.route = route
        self.reason = ""
        self.plan: RoutePlan | None = None
        self.context: object = None
        self.target: Target | None = None
        self.attempts = 0
        self.rounds = 0
        self.status = 0
        self.arrived = arrived
        self.began = 0.0
        self.first_byte = 0.0
        self.finished = 0.0
        self.counted = False
        self.is_priced = False
        self.limits: CallLimits | None = None
        """Limits that it is counted against until it ends; None if nothing limits it."""
        self.upstream_limits: Sequence[tuple[bytes, bytes]] = ()
        """Rate-limit headers of the provider, if it speaks the client's protocol."""
        self.calls: list[CallRecord] = []
        self.usage: Usage | None = None
        self.finish = ""
        self.error: GatewayError | None = None
        self.gone = False
        self.notices: tuple[str, ...] = ()
        self.failures: list[FailedAttempt] = []
        self.followups: tuple[FollowUpRecord, ...] = ()
        self.trace: RequestTrace | None = None

    @property
    def trace_id(self) -> str:
        """Id of its trace; empty if traces are off."""
        return "" if self.trace is None else self.trace.trace_id

    @property
    def cost(self) -> Cost | None:
        """The cost of all calls: unknown if that of one is; None if costs are not counted."""
        if not self.is_priced:
            return None
        calls = self.calls
        if len(calls) == 1:
            return calls[0].cost
        return sum_costs([call.cost for call in calls]) if calls else NO_COST


_MAX_CLIENT_ID: Final = 128
_NOT_PRINTABLE = re.compile(r"[^ -~]")


def client_request_id(headers: Mapping[str, str]) -> str:
    """Return the client's own `x-request-id`: printable ASCII, at most 128 characters; "" without one."""
    id = headers.get("x-request-id")
    if id is None:
        return ""
    return _NOT_PRINTABLE.sub("?", id[:_MAX_CLIENT_ID])


_SIZE: Final = 12
_STOCK: Final = 512


class _Ids:
    """Random ids without a system call for each: bytes are drawn for many at once."""

    __slots__ = ("_at", "_stock")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Draw new bytes; a forked worker must not reuse those of its parent."""
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
    """Return 24 random hex digits."""
    return _ids.take()


def new_request_id() -> str:
    """Return the id of a request: the second in which it came, then random digits.

    Ids in the order of time keep the index of the usage ledger compact: new rows go to its end.
    """
    return f"req_{int(time.time()):08x}{_ids.take()[8:]}"
