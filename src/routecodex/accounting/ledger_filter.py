"""Selects requests of the usage ledger: by names, status, a text, and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

NAMES = ("client", "team", "session", "agent", "provider", "model", "target", "route", "protocol", "status")
"""Names by which requests can be selected, beside the text `q`."""

_COLUMNS = ("client", "team", "session", "agent", "provider", "route", "protocol")
_TARGET = "r.provider || '.' || r.key || '.' || r.target_model"
_FAILED = "(r.status >= 400 OR COALESCE(r.error, '') <> '')"
_SEARCHED = ("r.id", "r.model", _TARGET, "r.session", "r.client", "r.agent", "r.error")
_SEARCHED_FIELDS = ("request", "model", "target", "session", "client", "agent", "code", "error")
OK, ERROR, ACTIVE = "ok", "error", "active"


class RequestFilter(Struct, frozen=True, kw_only=True):
    """Requests that ended in a time, with these values of `NAMES`, and `q` in one of their texts.

    Times are in seconds. A model is the requested one or that of the target; a target may leave out its key
    or its model. With `session_text` only requests of a session match, whose id or client contains it.
    """

    q: str = ""
    session_text: str | None = None
    names: Mapping[str, str] = {}
    since: float | None = None
    until: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether every request matches."""
        return self == _EVERYTHING

    @property
    def wants_active(self) -> bool:
        """Whether requests under way can match."""
        return self.names.get("status", ACTIVE) == ACTIVE

    @property
    def wants_ended(self) -> bool:
        """Whether requests that have ended can match."""
        return self.names.get("status") != ACTIVE

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition on a row `r` of `requests`, and the values of its parameters."""
        conditions, values = ["1"], list[Any]()
        if self.since is not None:
            conditions.append("r.time >= ?")
            values.append(int(self.since * 1000))
        if self.until is not None:
            conditions.append("r.time < ?")
            values.append(math.ceil(self.until * 1000))
        for name, value in self.names.items():
            condition, more = _condition(name, value)
            conditions.append(condition)
            values += more
        if self.session_text is not None:
            conditions.append("r.session <> ''")
        if self.session_text:
            conditions.append("(r.session LIKE ? ESCAPE '\\' OR r.client LIKE ? ESCAPE '\\')")
            values += [f"%{_escaped(self.session_text)}%"] * 2
        if self.q:
            # SQLite ends a pattern at this character, and no text of a row has it.
            conditions.append("0" if "\0" in self.q else _SEARCH)
        if self.q and "\0" not in self.q:
            values += [f"%{_escaped(self.q)}%"] * (len(_SEARCHED) + 1)
        return " AND ".join(conditions), values

    def matches(self, row: Mapping[str, Any], *, at: float) -> bool:
        """Return whether a row of the admin API matches; `at` is its time in seconds."""
        if (self.since is not None and at < self.since) or (self.until is not None and at >= self.until):
            return False
        if self.q and not _has_text(row, self.q):
            return False
        return all(_has_name(row, name, value) for name, value in self.names.items())


_EVERYTHING = RequestFilter()
_ERROR_TEXT = "CASE WHEN json_valid(d.json) THEN json_extract(d.json, '$.error') END"
_SEARCH = (
    "("
    + " OR ".join(f"{column} LIKE ? ESCAPE '\\'" for column in _SEARCHED)
    # The text of an error is among the details; there are few errors.
    + f" OR ({_FAILED} AND EXISTS (SELECT 1 FROM details d WHERE d.id = r.id"
    + f" AND {_ERROR_TEXT} LIKE ? ESCAPE '\\')))"
)


def _condition(name: str, value: str) -> tuple[str, Sequence[Any]]:
    if name in _COLUMNS:
        return f"r.{name} = ?", [value]
    if name == "model":
        return "(r.model = ? OR r.target_model = ?)", [value, value]
    if name == "target":
        provider = value.partition(".")[0]
        parts = f"{_TARGET}, r.provider || '.' || r.key, r.provider || '.' || r.target_model, r.provider"
        return f"r.provider = ? AND ? IN ({parts})", [provider, value]
    assert name == "status", name
    if value == OK:
        return f"NOT {_FAILED}", []
    if value == ERROR:
        return _FAILED, []
    return ("0", []) if value == ACTIVE else ("r.status = ?", [int(value)])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _has_text(row: Mapping[str, Any], text: str) -> bool:
    wanted = text.lower()
    return any(wanted in str(row.get(name) or "").lower() for name in _SEARCHED_FIELDS)


def _has_name(row: Mapping[str, Any], name: str, value: str) -> bool:
    if name == "status":
        return value in _statuses(row)
    target = str(row.get("target") or "")
    provider, _, rest = target.partition(".")
    key, _, model = rest.partition(".")
    if name == "provider":
        return provider == value
    if name == "model":
        return value in (row.get("model"), model)
    if name == "target":
        return bool(target) and value in (target, f"{provider}.{key}", f"{provider}.{model}", provider)
    return str(row.get(name) or "") == value


def _statuses(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of `status` that select a row."""
    status = row.get("status")
    if status is None:
        return (ACTIVE,)
    return str(status), ERROR if status >= 400 or row.get("code") or row.get("error") else OK
