"""Rows of the usage ledger, from the records of requests; built in the ledger's thread."""

from __future__ import annotations

from collections.abc import Sequence

from routecodex.accounting.cost import NANOS, Cost
from routecodex.accounting.ledger_file import LedgerBatch, LedgerRow
from routecodex.canon.events import Usage
from routecodex.gateway.call_record import CallRecord
from routecodex.gateway.request import RequestRecord
from routecodex.routing.registry import Target
from routecodex.server.error_replies import SERVICE
from routecodex.server.logs import session_name
from routecodex.server.request_details import encode_detail

_GONE = 499
_LONGEST = 200
_MOST_UNCOUNTED = 200
_MOST_ORDINARY = 50
"""Most details of requests without anything remarkable in one batch: 250 a second."""
_FLOOD = 500
_MOST_IN_FLOOD = 10
"""The same in a batch of a flood: one takes as long as the rows of five requests."""
_NO_TARGET = Target("", "", "")
_NO_USAGE = Usage()
_UNKNOWN = Cost(None)


def ledger_batch(
    records: Sequence[tuple[float, RequestRecord]], *, server: str, detailed: bool = False
) -> LedgerBatch:
    """Return the rows of requests, each with the time at which it ended; `detailed` for the console.

    Requests that no usage counts are kept for the console alone: refusals of clients, not those of probes and
    of the console's own pages. Of a flood of refusals some are left out, and of a flood of requests the
    details of those in which nothing happened: they cost as much as the rows.
    """
    ordinary, most_ordinary = 0, _MOST_ORDINARY if len(records) < _FLOOD else _MOST_IN_FLOOD
    requests: list[LedgerRow] = []
    calls: list[LedgerRow] = []
    uncounted: list[LedgerRow] = []
    details: list[LedgerRow] = []
    for at, record in records:
        if record.counted:
            requests.append(request_row(at, record, server))
            made = record.calls
            calls += [_call_row(record.id, index + 1, made[index]) for index in range(len(made))]
        elif detailed and record.endpoint not in SERVICE and len(uncounted) < _MOST_UNCOUNTED:
            uncounted.append((*request_row(at, record, server), len(requests)))
        else:
            continue
        if not detailed:
            continue
        is_remarkable = _is_remarkable(record)
        if not is_remarkable:
            ordinary += 1
        if is_remarkable or ordinary <= most_ordinary:
            details.append((record.id, encode_detail(at, record)))
    return LedgerBatch(requests, calls, uncounted, details)


def _is_remarkable(record: RequestRecord) -> bool:
    """Return whether the details of a request say more than its row."""
    return bool(
        record.error is not None
        or record.failures
        or record.notices
        or record.followups
        or len(record.calls) > 1
        or not record.counted
    )


def request_row(at: float, record: RequestRecord, server: str) -> LedgerRow:
    """Return the row of one request."""
    target, usage = record.target or _NO_TARGET, record.usage or _NO_USAGE
    cost, known, estimated = _costs(record)
    arrived, first_byte, session = record.arrived, record.first_byte, record.session
    return (
        record.id,
        int(at * 1000.0),
        server,
        record.client_name,
        record.team,
        session_name(session)[:_LONGEST] if session else "",
        record.role.agent,
        record.role.name,
        record.protocol,
        1 if record.stream else 0,
        record.model[:_LONGEST],
        record.route,
        target.provider,
        target.key,
        target.model,
        _GONE if record.gone else record.status,
        record.finish or None,
        None if record.error is None else record.error.code or f"http_{record.status}",
        record.attempts,
        record.rounds,
        usage.input,
        usage.output,
        usage.cache_read,
        usage.cache_write,
        usage.cache_write_1h,
        usage.reasoning,
        cost.usd,
        cost.kind,
        _milliseconds(first_byte - arrived) if first_byte else None,
        _milliseconds(record.finished - arrived),
        known,
        estimated,
    )


def _milliseconds(seconds: float) -> float:
    """Return a duration in milliseconds to the microsecond; `round` costs ten times as much."""
    micros = int(seconds * 1_000_000.0 + 0.5)
    return micros / 1000.0


def _costs(record: RequestRecord) -> tuple[Cost, float, float]:
    """Return the cost of a request, the part of it that is known, and that which is not `reported`."""
    cost = record.cost or _UNKNOWN
    if len(record.calls) <= 1:
        usd = cost.usd or 0.0
        return cost, usd, 0.0 if cost.kind == "reported" else usd
    known = estimated = 0
    for call in record.calls:
        nanos = call.cost.nanos or 0
        known += nanos
        estimated += 0 if call.cost.kind == "reported" else nanos
    return cost, known / NANOS, estimated / NANOS


def _call_row(request_id: str, number: int, call: CallRecord) -> LedgerRow:
    target, cost, usage = call.target, call.cost, call.usage
    return (
        request_id,
        number,
        call.kind,
        target.provider,
        target.key,
        target.model,
        call.status,
        usage.input,
        usage.output,
        usage.cache_read,
        usage.cache_write,
        usage.cache_write_1h,
        usage.reasoning,
        cost.usd,
        cost.kind,
        cost.source,
        _milliseconds(call.ms / 1000.0),
    )
