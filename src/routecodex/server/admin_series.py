"""`GET /admin/series`: requests, tokens, costs and times to the first byte over a time, in points."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from routecodex.accounting import ledger_series
from routecodex.accounting.ledger_series import MOST_POINTS, NAMES, SeriesQuery
from routecodex.accounting.timestamps import iso_millis
from routecodex.canon.errors import BadRequest
from routecodex.server.admin_requests import filter_of
from routecodex.server.http import HttpRequest
from routecodex.server.request_source import RequestSource

COUNTS_HEADER: Final = "x-routecodex-counts"
"""Sent by a server that merges series: every point has its times to the first byte, which can be added up."""

_DEFAULT_SECONDS = 3600.0
_DEFAULT_POINTS = 60
_LONGEST_STEP = 10 * 366 * 86_400


async def show_series(source: RequestSource, request: HttpRequest) -> dict[str, Any]:
    """Return the series of a call; a step that makes too many points is lengthened."""
    query = series_query(request, now=time.time())
    since, until = query.span
    counted = COUNTS_HEADER in request.headers
    found = await source.read(lambda connection: ledger_series.series(connection, query, counted=counted))
    return {"since": iso_millis(since), "until": iso_millis(until), "step": query.step, "series": found}


def series_query(request: HttpRequest, *, now: float) -> SeriesQuery:
    """Return the query that the parameters of a call describe; without any, the last hour by minutes."""
    wanted = filter_of(request, now=now)
    by = request.query_param("by") or None
    if by is not None and by not in NAMES:
        raise BadRequest(f"by: {by[:50]!r} is not one of {', '.join(NAMES)}", param="by")
    until = math.ceil(now * 1000) / 1000 if wanted.until is None else wanted.until
    since = max(0.0, until - _DEFAULT_SECONDS) if wanted.since is None else wanted.since
    if since >= until:
        raise BadRequest("since: is not before until", param="since")
    shortest = max(1, math.ceil((until - since) / MOST_POINTS))
    default = max(1, math.ceil((until - since) / _DEFAULT_POINTS))
    step = max(shortest, _step(request, default))
    return SeriesQuery(since=since, until=until, step=step, by=by, wanted=wanted)


def _step(request: HttpRequest, default: int) -> int:
    text = request.query_param("step")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= _LONGEST_STEP and len(text) <= 12):
        raise BadRequest(f"step: {text[:50]!r} is not a number of seconds", param="step")
    return int(text)
