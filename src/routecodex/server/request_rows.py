"""Rows of the admin API: a request as the ledger has it, with its details, or as it is under way."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.json import Decoder

from routecodex.accounting.timestamps import iso_millis
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.server.log_numbers import stamp
from routecodex.server.logs import RequestLine, session_name
from routecodex.server.request_details import RequestDetail

Row = dict[str, Any]

TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")

_details = Decoder(RequestDetail)
_LONGEST = 200


def read_detail(text: str | None) -> RequestDetail:
    """Return the details of a request; empty ones if they are not kept, or damaged."""
    if text is None:
        return RequestDetail()
    try:
        return _details.decode(text)
    except msgspec.MsgspecError:
        return RequestDetail()


def ended_row(found: Row) -> Row:
    """Return the row of a request of the ledger, with the fields of its log line."""
    detail = read_detail(found["detail"])
    first, total = found["first_byte_ms"], found["total_ms"]
    line = RequestLine(
        time=iso_millis(found["time"]),
        level="info",
        logger="routecodex.access",
        request=found["id"],
        protocol=found["protocol"],
        model=found["model"],
        stream=bool(found["stream"]),
        status=found["status"],
        seconds=round((total or 0.0) / 1000, 4),
        first_byte=None if first is None else round(first / 1000, 4),
        route=found["route"],
        target=target_name(found["provider"], found["key"], found["target_model"]),
        attempts=found["attempts"],
        rounds=found["rounds"],
        finish=found["finish"] or "",
        client=found["client"],
        team=found["team"],
        session=found["session"],
        role=found["role"],
        agent=found["agent"],
        code=found["error"] or "",
        reason=detail.reason,
        error=detail.error,
        call=detail.call,
        address=detail.address,
        client_request_id=detail.client_request_id,
        notices=detail.notices,
        failures=detail.failures,
        followups=detail.followups,
    )
    if any(found[name] for name in TOKENS):
        for name in TOKENS:
            setattr(line, name, found[name])
    if found["cost_kind"] is not None and not detail.call:
        line.cost, line.cost_kind = found["cost"], found["cost_kind"]
    row: Row = msgspec.to_builtins(line)
    return row


def active_row(record: RequestRecord, request: ClientRequest, *, began: float) -> Row:
    """Return the row of a request under way; `status` is null, and `time` is when it began."""
    line = RequestLine(
        time=stamp(began),
        level="info",
        logger="routecodex.access",
        request=record.id,
        protocol=record.protocol,
        model=record.model[:_LONGEST],
        stream=record.stream,
        status=0,
        seconds=0.0,
        first_byte=round(record.first_byte - record.arrived, 4) if record.first_byte else None,
        route=record.route,
        target="" if record.target is None else str(record.target),
        reason=record.reason,
        attempts=record.attempts,
        rounds=record.rounds,
        client=record.client_name,
        team=record.team,
        client_request_id=record.client_request_id,
        failures=tuple(failure.text for failure in record.failures),
        session=session_name(request.session)[:_LONGEST],
        role=request.role.name,
        agent=request.role.agent,
    )
    row: Row = msgspec.to_builtins(line)
    return {**row, "status": None, "seconds": None}


def target_name(provider: str, key: str, model: str) -> str:
    """Return the name of a target; empty without one."""
    return f"{provider}.{key}.{model}" if provider else ""
