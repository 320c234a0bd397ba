"""Details of a request for the console: its plan, its calls with their times, its usage by part.

They are built in the ledger's thread, from the references that the record has: a request pays for two
assignments.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from routecodex.accounting.cost import NANOS, CostParts, TokenRates
from routecodex.canon.events import Usage
from routecodex.gateway import explain
from routecodex.gateway.call_record import CallRecord
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.records import FailedAttempt, FollowUpRecord
from routecodex.gateway.request import RequestRecord
from routecodex.wire import json

PARTS = ("input", "cache_read", "cache_write", "cache_write_1h", "output", "reasoning")
"""Parts of a usage that have a price of their own; they do not overlap."""

_SAME_CALL_MS = 1.0
_PER_MILLION = 1_000_000_000


class CallDetail(Struct, kw_only=True):
    """One call of a provider; times are milliseconds since the request arrived, null if unknown."""

    n: int = 0
    kind: str
    target: str
    status: int | None
    error: str | None = None
    start_ms: float | None = None
    first_byte_ms: float | None = None
    end_ms: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0


class UsagePart(Struct, kw_only=True):
    """Tokens of one kind; `price` is in USD per million tokens, null if unknown or if calls differ in it."""

    part: str
    tokens: int
    price: float | None
    cost: float | None


class RequestDetail(Struct, kw_only=True, omit_defaults=True):
    """Facts of a request that no column of the ledger has."""

    reason: str = ""
    error: str = ""
    call: str = ""
    address: str = ""
    client_request_id: str = ""
    notices: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    followups: tuple[FollowUpRecord, ...] = ()
    plan: dict[str, Any] | None = None
    calls: list[CallDetail] = []
    usage: list[UsagePart] = []


def encode_detail(at: float, record: RequestRecord) -> str:
    """Return the details of a request that ended at `at` as JSON."""
    try:
        return json.encode(detail_of(at, record)).decode()
    except UnicodeEncodeError:
        # Providers may put half of a surrogate pair into an error.
        return "{}"


def detail_of(at: float, record: RequestRecord) -> RequestDetail:
    """Return the details of a request that ended at `at`, or that is under way at `at`."""
    context, plan = record.context, None
    if isinstance(context, RoutingContext):
        began = at - ((record.finished or record.arrived) - record.arrived)
        plan = explain.explain(record.plan, context, now=began)
    error = record.error
    return RequestDetail(
        reason=record.reason,
        error="" if error is None else error.message,
        call=record.call,
        address=record.address,
        client_request_id=record.client_request_id,
        notices=record.notices,
        failures=tuple(failure.text for failure in record.failures),
        followups=record.followups,
        plan=plan,
        calls=_calls(record),
        usage=usage_parts(record.calls),
    )


def _calls(record: RequestRecord) -> list[CallDetail]:
    rows = [_made_call(record, call) for call in record.calls]
    rounds = [row for row in rows if row.kind == "round"]
    if rounds and record.first_byte and all(row.first_byte_ms is None for row in rounds):
        # The client gets a whole answer after the provider has sent it.
        rounds[-1].first_byte_ms = rounds[-1].end_ms
    for failure in record.failures:
        failed = _failed_call(record, failure)
        same = next((row for row in rows if _is_same(row, failed)), None)
        if same is None:
            rows.append(failed)
        else:
            same.error, same.status = failed.error, failed.status
    rows.sort(key=lambda row: row.start_ms or 0.0)
    for number, row in enumerate(rows, 1):
        row.n = number
    if record.error is not None and record.first_byte and rows and rows[-1].error is None:
        # An answer that broke off after it had begun.
        rows[-1].error = record.error.message
    return rows


def _made_call(record: RequestRecord, call: CallRecord) -> CallDetail:
    arrived = record.arrived
    end = (call.ended - arrived) * 1000.0
    start = end - call.ms
    first = (record.first_byte - arrived) * 1000.0 if record.first_byte else -1.0
    return CallDetail(
        kind=call.kind,
        target=str(call.target),
        status=call.status,
        start_ms=_rounded(start),
        first_byte_ms=_rounded(first) if call.kind == "round" and start <= first <= end else None,
        end_ms=_rounded(end),
        input_tokens=call.usage.input,
        output_tokens=call.usage.output,
        cost=call.cost.usd,
    )


def _failed_call(record: RequestRecord, failure: FailedAttempt) -> CallDetail:
    target = str(failure.target)
    return CallDetail(
        kind="attempt",
        target=target,
        status=failure.status,
        error=failure.text.removeprefix(f"{target}: "),
        start_ms=_rounded((failure.began - record.arrived) * 1000.0),
        end_ms=_rounded((failure.ended - record.arrived) * 1000.0),
    )


def _is_same(row: CallDetail, failed: CallDetail) -> bool:
    """Return whether a call that produced tokens is this failed attempt."""
    return (
        row.kind == "attempt"
        and row.target == failed.target
        and abs((row.start_ms or 0.0) - (failed.start_ms or 0.0)) <= _SAME_CALL_MS
    )


def _rounded(milliseconds: float) -> float:
    return max(0.0, round(milliseconds, 3))


def usage_parts(calls: list[CallRecord]) -> list[UsagePart]:
    """Return the tokens of all calls by part, each with its price and cost; empty parts are left out.

    A provider that reports its own cost need not arrive at the same sum.
    """
    tokens = dict.fromkeys(PARTS, 0)
    costs: dict[str, int | None] = dict.fromkeys(PARTS, 0)
    prices: dict[str, set[float | None]] = {part: set() for part in PARTS}
    for call in calls:
        rates = call.price.rates(call.usage) if call.price is not None else None
        parts = None if rates is None else CostParts(rates.amounts(call.usage))
        for part, count in _tokens(call.usage).items():
            if not count:
                continue
            tokens[part] += count
            prices[part].add(_price(rates, part))
            known = costs[part]
            costs[part] = None if parts is None or known is None else known + int(getattr(parts, part))
    return [
        UsagePart(part=part, tokens=tokens[part], price=_only(prices[part]), cost=_usd(costs[part]))
        for part in PARTS
        if tokens[part]
    ]


def _tokens(usage: Usage) -> dict[str, int]:
    write = max(0, usage.cache_write)
    hour = min(max(0, usage.cache_write_1h), write)
    output = max(0, usage.output)
    reasoning = min(max(0, usage.reasoning), output)
    read = max(0, usage.cache_read)
    plain = max(0, usage.input - read - write)
    return dict(zip(PARTS, (plain, read, write - hour, hour, output - reasoning, reasoning), strict=True))


def _price(rates: TokenRates | None, part: str) -> float | None:
    return None if rates is None else getattr(rates, part) / _PER_MILLION


def _only(prices: set[float | None]) -> float | None:
    return next(iter(prices)) if len(prices) == 1 else None


def _usd(nanos: int | None) -> float | None:
    return None if nanos is None else nanos / NANOS
