"""Rows of the usage ledger, from records of requests."""

from __future__ import annotations

import pytest

from routecodex.accounting.cost import Cost
from routecodex.canon.events import Usage
from routecodex.gateway.call_record import CallRecord
from routecodex.gateway.request import RequestRecord
from routecodex.routing.registry import Target
from routecodex.server.ledger_rows import ledger_batch

TARGET = Target("p", "k", "m")


def record(number: int, *, notices: tuple[str, ...] = ()) -> RequestRecord:
    made = RequestRecord(id=f"req_{number}", protocol="chat", model="m", stream=False, arrived=0.0)
    made.counted = True
    made.notices = notices
    made.target = TARGET
    made.calls.append(CallRecord("round", TARGET, Usage(input=1, output=1), cost=Cost(1), status=200, ms=1.0))
    return made


@pytest.mark.parametrize(("count", "detailed"), [(40, 40), (400, 50), (1000, 10)])
def test_a_flood_of_ordinary_requests_has_all_rows_and_some_details(count: int, detailed: int) -> None:
    batch = ledger_batch([(1.0, record(number)) for number in range(count)], server="s", detailed=True)
    assert len(batch.requests) == len(batch.calls) == count
    assert [id for id, _ in batch.details] == [f"req_{number}" for number in range(detailed)]


def test_a_remarkable_request_has_details_in_a_flood_too() -> None:
    flood = [record(number) for number in range(500)]
    batch = ledger_batch(
        [(1.0, one) for one in [*flood, record(500, notices=("dropped top_k",))]], server="s", detailed=True
    )
    assert batch.details[-1][0] == "req_500"
    assert len(batch.details) == 11


def test_details_are_left_out_where_they_are_off() -> None:
    assert ledger_batch([(1.0, record(1, notices=("one",)))], server="s").details == []
