"""Sums of the requests of one batch, by hour, session and names, for the totals of the usage ledger.

SQLite would read every row again to sum them up, which costs more than writing them; most requests of a
batch have their names in common. `ledger_totals` computes the same from the rows where they are read anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from routecodex.accounting.first_bytes import bucket_of
from routecodex.accounting.ledger_schema import CALL_COLUMNS, HOUR, REQUEST_COLUMNS

SumKey: TypeAlias = tuple[int, str, str, str, str, str, str, str, str, str]
"""Hour, session, and the names of a facet: client, team, agent, route, protocol, provider, model, key."""
FirstByteKey: TypeAlias = tuple[int, str, str, str, int]
"""Hour, client, provider, model, and bucket of the time to the first byte."""
Row: TypeAlias = tuple[Any, ...]

_GONE: Final = 499
_ID: Final = REQUEST_COLUMNS.index("id")
_TIME: Final = REQUEST_COLUMNS.index("time")
_CLIENT: Final = REQUEST_COLUMNS.index("client")
_TEAM: Final = REQUEST_COLUMNS.index("team")
_SESSION: Final = REQUEST_COLUMNS.index("session")
_AGENT: Final = REQUEST_COLUMNS.index("agent")
_PROTOCOL: Final = REQUEST_COLUMNS.index("protocol")
_ROUTE: Final = REQUEST_COLUMNS.index("route")
_PROVIDER: Final = REQUEST_COLUMNS.index("provider")
_KEY: Final = REQUEST_COLUMNS.index("key")
_MODEL: Final = REQUEST_COLUMNS.index("target_model")
_STATUS: Final = REQUEST_COLUMNS.index("status")
_ERROR: Final = REQUEST_COLUMNS.index("error")
_COST: Final = REQUEST_COLUMNS.index("cost")
_FIRST_BYTE: Final = REQUEST_COLUMNS.index("first_byte_ms")

_CALL_REQUEST: Final = CALL_COLUMNS.index("request_id")
_CALL_PROVIDER: Final = CALL_COLUMNS.index("provider")
_CALL_KEY: Final = CALL_COLUMNS.index("key")
_CALL_MODEL: Final = CALL_COLUMNS.index("model")
_CALL_STATUS: Final = CALL_COLUMNS.index("status")
_CALL_INPUT: Final = CALL_COLUMNS.index("input_tokens")
_CALL_OUTPUT: Final = CALL_COLUMNS.index("output_tokens")
_CALL_CACHE_READ: Final = CALL_COLUMNS.index("cache_read_tokens")
_CALL_CACHE_WRITE: Final = CALL_COLUMNS.index("cache_write_tokens")
_CALL_REASONING: Final = CALL_COLUMNS.index("reasoning_tokens")
_CALL_COST: Final = CALL_COLUMNS.index("cost")
_CALL_KIND: Final = CALL_COLUMNS.index("cost_kind")


class LedgerSum:
    """Sums of one group: of requests at the target that answered last, of calls where each went."""

    __slots__ = (
        "cache_read",
        "cache_write",
        "call_errors",
        "call_unknown",
        "calls",
        "cost",
        "cost_estimated",
        "cost_unknown",
        "errors",
        "input",
        "output",
        "reasoning",
        "requests",
    )

    def __init__(self) -> None:
        self.requests = self.errors = self.cost_unknown = 0
        self.input = self.output = self.cache_read = self.cache_write = self.reasoning = 0
        self.cost = self.cost_estimated = 0.0
        self.calls = self.call_errors = self.call_unknown = 0

    def add_request(self, row: Row) -> None:
        """Add a row of `requests`."""
        self.requests += 1
        status: int = row[_STATUS]
        if row[_ERROR] or (status >= 400 and status != _GONE):
            self.errors += 1
        if row[_COST] is None:
            self.cost_unknown += 1

    def add_call(self, row: Row) -> None:
        """Add a row of `calls`."""
        self.calls += 1
        status: int = row[_CALL_STATUS]
        if status >= 400 and status != _GONE:
            self.call_errors += 1
        input: int = row[_CALL_INPUT]
        output: int = row[_CALL_OUTPUT]
        cache_read: int = row[_CALL_CACHE_READ]
        cache_write: int = row[_CALL_CACHE_WRITE]
        reasoning: int = row[_CALL_REASONING]
        self.input += input
        self.output += output
        self.cache_read += cache_read
        self.cache_write += cache_write
        self.reasoning += reasoning
        cost: float | None = row[_CALL_COST]
        if cost is None:
            self.call_unknown += 1
            return
        self.cost += cost
        if row[_CALL_KIND] != "reported":
            self.cost_estimated += cost

    def values(self) -> Row:
        """Return the sums in the order of `FIGURE_COLUMNS` and `CALL_COUNT_COLUMNS`."""
        return (
            self.requests,
            self.errors,
            self.input,
            self.output,
            self.cache_read,
            self.cache_write,
            self.reasoning,
            self.cost,
            self.cost_unknown,
            self.cost_estimated,
            self.calls,
            self.call_errors,
            self.call_unknown,
        )


class LedgerSums:
    """Sums of a batch: rows for the totals, and the number of requests in each bucket of first bytes."""

    def __init__(self, requests: Sequence[Row], calls: Sequence[Row]) -> None:
        self._sums: dict[SumKey, LedgerSum] = {}
        self._first_bytes: dict[FirstByteKey, int] = {}
        keys: dict[str, SumKey] = {}
        for row in requests:
            keys[row[_ID]] = self._add_request(row)
        for row in calls:
            self._add_call(row, keys[row[_CALL_REQUEST]])

    def _add_request(self, row: Row) -> SumKey:
        hour = row[_TIME] // (1000 * HOUR) * HOUR
        client, provider, model = row[_CLIENT], row[_PROVIDER], row[_MODEL]
        key: SumKey = (
            hour,
            row[_SESSION],
            client,
            row[_TEAM],
            row[_AGENT],
            row[_ROUTE],
            row[_PROTOCOL],
            provider,
            model,
            row[_KEY],
        )
        self._of(key).add_request(row)
        first_byte: float | None = row[_FIRST_BYTE]
        if first_byte is not None:
            place = (hour, client, provider, model, bucket_of(first_byte))
            self._first_bytes[place] = self._first_bytes.get(place, 0) + 1
        return key

    def _add_call(self, row: Row, key: SumKey) -> None:
        provider, model, alias = row[_CALL_PROVIDER], row[_CALL_MODEL], row[_CALL_KEY]
        if provider != key[7] or model != key[8] or alias != key[9]:
            key = (key[0], key[1], key[2], key[3], key[4], key[5], key[6], provider, model, alias)
        self._of(key).add_call(row)

    def _of(self, key: SumKey) -> LedgerSum:
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = LedgerSum()
        return found

    def rows(self) -> list[Row]:
        """Return hour, session, names and sums of each group."""
        return [(*key, *group.values()) for key, group in self._sums.items()]

    def first_bytes(self) -> list[Row]:
        """Return the key and the number of requests of each bucket."""
        return [(*key, count) for key, count in self._first_bytes.items()]
