"""Merges the answers of several servers to one admin call: figures are added, equal names become one row.

Rows of requests are those of all servers by time. A page of merged rows has a cursor that holds a place for
each server.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from routecodex.accounting.first_bytes import percentile
from routecodex.accounting.ledger_series import MOST_SERIES, OTHER
from routecodex.canon.errors import BadRequest
from routecodex.server.admin_providers import SEVERITY
from routecodex.server.server_directory import KnownServer

Row = dict[str, Any]

_PREFIX: Final = "all."
_ADDED: Final = ("requests", "errors", "input_tokens", "output_tokens", "cache_read_tokens")
_STATES: Final = ("ok", *SEVERITY, "disabled")
_NEVER: Final = ""


class ServerPart(Struct, frozen=True):
    """The answer of one server."""

    server: KnownServer
    answer: Row


class MergedCursor(Struct, frozen=True, forbid_unknown_fields=True):
    """A place in rows of several servers: the cursor of each, and a time for those that have none."""

    before: dict[str, str] = {}
    until_ms: int | None = None

    @property
    def text(self) -> str:
        """The cursor as a parameter, which needs no encoding in a URL."""
        return _PREFIX + urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=").decode()


_cursors = msgspec.json.Decoder(MergedCursor)


def read_cursor(text: str) -> MergedCursor:
    """Return the cursor of a parameter; that of the newest rows if it is empty."""
    if not text:
        return MergedCursor()
    try:
        if not text.startswith(_PREFIX):
            raise ValueError
        body = text.removeprefix(_PREFIX)
        return _cursors.decode(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, msgspec.MsgspecError) as exc:
        raise BadRequest(
            f"before: {text[:50]!r} is not the `next` of an earlier page of all servers", param="before"
        ) from exc


def merge_requests(
    parts: Sequence[ServerPart], *, limit: int, cursor: MergedCursor, time_of: Callable[[Row], int]
) -> Row:
    """Return the newest rows of all servers, the newest last; `time_of` returns the milliseconds of a row."""
    left = {part.server.id: list(part.answer["requests"]) for part in parts}
    shown: list[Row] = []
    before, until_ms = dict(cursor.before), cursor.until_ms
    # Rows of a server stay in its order: its cursor is the last one that is shown, and none may be skipped.
    while len(shown) < limit and any(left.values()):
        name = max(
            (name for name in left if left[name]), key=lambda name: (*_age(left[name][-1], time_of), name)
        )
        row = left[name].pop()
        before[name] = row["request"]
        if row["status"] is not None:
            until_ms = time_of(row) + 1
        shown.append({**row, "server": name})
    has_more = any(left.values()) or any(part.answer["next"] for part in parts)
    following = MergedCursor(before, until_ms).text if has_more and shown else None
    total = sum(part.answer["total"] for part in parts)
    return {"requests": shown[::-1], "next": following, "total": total}


def _age(row: Row, time_of: Callable[[Row], int]) -> tuple[bool, int]:
    """Return the place of a row: those under way are the newest."""
    return row["status"] is None, time_of(row)


def merge_groups(parts: Sequence[ServerPart]) -> Row:
    """Return the sessions of all servers with their figures, the one with the latest request last."""
    found: dict[tuple[str, ...], Row] = {}
    for part in parts:
        for group in part.answer["groups"]:
            key = (_state_of(part.server), group["session"], group.get("client") or "")
            found[key] = (
                _joined_group(found[key], group) if key in found else {**group, "server": part.server.id}
            )
    ordered = sorted(found.values(), key=lambda group: str(group["last"] or _NEVER))
    total = sum(part.answer["total"] for part in parts)
    doubles = sum(len(part.answer["groups"]) for part in parts) - len(ordered)
    return {"groups": ordered, "next": next_places(parts), "total": total - doubles}


def _joined_group(one: Row, other: Row) -> Row:
    return {
        **one,
        **{name: (one.get(name) or 0) + (other.get(name) or 0) for name in _ADDED if name in one},
        "cost": add_costs((one["cost"], other["cost"])),
        "first": min(one["first"], other["first"]),
        "last": max(one["last"], other["last"]),
    }


def _state_of(server: KnownServer) -> str:
    """Return where a server keeps its sessions: equal ids are one session only in the same store."""
    return "" if server.shares_store else server.id


def next_places(parts: Sequence[ServerPart]) -> str | None:
    """Return the cursor of a list of which every server has its own page; None at the end of all."""
    places = {part.server.id: part.answer["next"] for part in parts if part.answer["next"]}
    return MergedCursor(places).text if places else None


def merge_series(parts: Sequence[ServerPart]) -> Row:
    """Return the series of all servers: figures of equal names are added, percentiles come from all times."""
    found: dict[str, list[Row]] = {}
    for part in parts:
        for line in part.answer["series"]:
            points = line["points"]
            name = line["name"]
            found[name] = _joined_points(found[name], points) if name in found else points
    ranked = sorted(found.items(), key=lambda item: (item[0] == OTHER, -_requests(item[1]), item[0]))
    if len(ranked) > MOST_SERIES:
        rest = [points for _, points in ranked[MOST_SERIES - 1 :]]
        joined = rest[0]
        for points in rest[1:]:
            joined = _joined_points(joined, points)
        ranked = [*ranked[: MOST_SERIES - 1], (OTHER, joined)]
    series = [{"name": name, "points": [*map(_shown_point, points)]} for name, points in ranked]
    return {**parts[0].answer, "series": series}


def _requests(points: Iterable[Row]) -> int:
    return sum(point["requests"] for point in points)


def _joined_points(some: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    return [_joined_point(one, other) for one, other in zip(some, others, strict=True)]


def _joined_point(one: Row, other: Row) -> Row:
    counts: Counter[str] = Counter(one.get("first_bytes", {}))
    counts.update(other.get("first_bytes", {}))
    return {
        **one,
        **{name: one[name] + other[name] for name in _ADDED},
        "cost": add_costs((one["cost"], other["cost"])),
        "first_byte_p50": _later(one, other, "first_byte_p50"),
        "first_byte_p95": _later(one, other, "first_byte_p95"),
        "first_bytes": dict(counts),
    }


def _later(one: Row, other: Row, name: str) -> float | None:
    """Return the larger of two percentiles, for a server that does not send its times."""
    return max((row[name] for row in (one, other) if row[name] is not None), default=None)


def _shown_point(point: Row) -> Row:
    shown = {name: value for name, value in point.items() if name != "first_bytes"}
    counts = {int(bucket): count for bucket, count in point.get("first_bytes", {}).items()}
    if counts:
        shown |= {"first_byte_p50": percentile(counts, 0.5), "first_byte_p95": percentile(counts, 0.95)}
    return shown


def add_costs(costs: Iterable[float | None]) -> float | None:
    """Return the sum of costs of which some are unknown; None if nothing is known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def merge_providers(parts: Sequence[ServerPart]) -> Row:
    """Return the providers of all servers; equal keys are one row with the worst state and all figures."""
    found: dict[str, Row] = {}
    for part in parts:
        for provider in part.answer["providers"]:
            keys = [{**key, "servers": [part.server.id]} for key in provider["keys"]]
            own = {**provider, "keys": keys}
            name = provider["name"]
            found[name] = _joined_provider(found[name], own) if name in found else own
    return {"providers": list(found.values())}


def _joined_provider(one: Row, other: Row) -> Row:
    keys = {key["name"]: key for key in one["keys"]}
    for key in other["keys"]:
        name = key["name"]
        keys[name] = _joined_key(keys[name], key) if name in keys else key
    models = list(dict.fromkeys((*one["models"], *other["models"])))
    return {**one, "models": models, "keys": list(keys.values())}


def _joined_key(one: Row, other: Row) -> Row:
    worse = max(one, other, key=lambda key: _STATES.index(key["state"]))
    requests = one["requests"] + other["requests"]
    return {
        **worse,
        "requests": requests,
        "errors": one["errors"] + other["errors"],
        "first_byte_p50": _mean((one, other), "first_byte_p50"),
        "cost": add_costs((one["cost"], other["cost"])),
        "quota": one["quota"] or other["quota"],
        "servers": [*one["servers"], *other["servers"]],
    }


def _mean(rows: Iterable[Row], name: str) -> float | None:
    """Return the mean of a figure, by the number of requests that each row has it from."""
    known = [(row[name], row["requests"]) for row in rows if row[name] is not None]
    weight = sum(count or 1 for _, count in known)
    return sum(value * (count or 1) for value, count in known) / weight if known else None


def merge_sessions(parts: Sequence[ServerPart]) -> Row:
    """Return the sessions of all servers; those of a common store are one row with all figures."""
    found: dict[tuple[str, ...], Row] = {}
    for part in parts:
        for row in part.answer["sessions"]:
            own = {**row, "server": part.server.id}
            key = (_state_of(part.server), row["id"], row.get("client") or "")
            found[key] = join_session(found[key], own) if key in found else own
    return {"sessions": list(found.values()), "next": next_places(parts)}


def join_session(one: Row, other: Row) -> Row:
    """Return a session that two servers know: the settings of one, which both have, and all figures."""
    tasks = {task["taskId"]: task for task in (*one["tasks"], *other["tasks"])}
    times = [row["last_at"] for row in (one, other) if row["last_at"] is not None]
    counts = [row["requests"] for row in (one, other) if row["requests"] is not None]
    turns = {"turns": sorted((*one["turns"], *other["turns"]), key=_start)} if "turns" in one else {}
    return {
        **one,
        "requests": sum(counts) if counts else None,
        "cost": add_costs((one["cost"], other["cost"])),
        "last_at": max(times, default=None),
        "cache_hit_rate": _mean(
            [{**row, "requests": row["requests"] or 0} for row in (one, other)], "cache_hit_rate"
        ),
        "tasks": list(tasks.values()),
        **turns,
    }


def _start(turn: Row) -> str:
    return str(turn["start"])
