"""The query parameters of the admin API."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from urllib.parse import parse_qsl

from routecodex.accounting.ledger_query import FILTERS
from routecodex.accounting.usage_report import InvalidUsageQuery, UsageQuestion
from routecodex.canon.errors import BadRequest
from routecodex.server.admin_calls import find_call
from routecodex.server.http import HttpRequest
from routecodex.stores.store import Place

_MAX_ROWS = 1000
_MOST_DIGITS = 20


def check_names(name: str, request: HttpRequest) -> None:
    """Reject a parameter that `/admin/<name>` does not have: a typing error must not select everything."""
    known = find_call("GET", name).query if request.method == "GET" else ()
    for parameter, _ in parse_qsl(request.query, keep_blank_values=True):
        # The console adds the chosen server to every address.
        if parameter not in known and parameter != "server":
            shown = parameter[:80]
            raise BadRequest(
                f"{shown!r} is not a query parameter of {request.method} /admin/{name}; "
                f"it has {', '.join(known) or 'none'}",
                param=shown,
            )


def usage_question(request: HttpRequest, *, now: float) -> UsageQuestion:
    """Return the question about usage that a call puts; `by` may be repeated, or have several names."""
    given = parse_qsl(request.query)
    by = [name for key, value in given if key == "by" for name in value.split(",") if name]
    try:
        return UsageQuestion(
            by=by,
            since=request.query_param("since"),
            until=request.query_param("until"),
            filters={name: request.query_param(name) for name in FILTERS},
            now=now,
        )
    except InvalidUsageQuery as exc:
        raise BadRequest(f"{exc.parameter}: {exc.message}", param=exc.parameter) from exc


def limit_of(request: HttpRequest, *, default: int) -> int:
    """Return the number of rows that a call asks for."""
    text = request.query_param("limit")
    if text is None:
        return default
    if not _is_number(text):
        raise BadRequest(f"limit: {text[:50]!r} is not a number", param="limit")
    return min(int(text), _MAX_ROWS)


def cursor_of(request: HttpRequest) -> Place | None:
    """Return the place behind which a page begins; None for the first page."""
    name = "before" if request.query_param("before") else "cursor"
    text = request.query_param(name)
    if text is None:
        return None
    stamp, _, key = text.partition(".")
    try:
        place = Place(int(stamp) if _is_number(stamp.removeprefix("-")) else 0, _decode_key(key))
    except ValueError:
        place = None
    if place is None or cursor_text(place) != text:
        raise BadRequest(f"{name}: {text[:50]!r} is not the `next` of an earlier page", param=name)
    return place


def cursor_text(place: Place | None) -> str | None:
    """Return the cursor of a place, which needs no encoding in a URL."""
    if place is None:
        return None
    return f"{place.stamp}.{urlsafe_b64encode(place.key.encode()).rstrip(b'=').decode()}"


def _decode_key(text: str) -> str:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
