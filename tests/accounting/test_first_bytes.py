"""Buckets of times to the first byte: SQL and Python agree, and percentiles are close."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from itertools import pairwise

import pytest

from routecodex.accounting import first_bytes
from routecodex.accounting.first_bytes import bounds, bucket_sql, percentile

TIMES = [0.0, 0.1, 0.125, 3.99, 4.0, 7.999, 8.0, 31.5, 99.9, 1000.0, 4096.0, 59_999.9, 3_600_000.0]


def bucket_of(connection: sqlite3.Connection, milliseconds: float) -> int:
    sql = f"SELECT {bucket_sql('x')} FROM (SELECT ? AS x)"
    found: int = connection.execute(sql, (milliseconds,)).fetchone()[0]
    return found


@pytest.mark.parametrize("milliseconds", [*TIMES, *(1.37**power for power in range(45))])
def test_a_time_is_within_the_bounds_of_its_bucket(milliseconds: float) -> None:
    connection = sqlite3.connect(":memory:")
    low, high = bounds(bucket_of(connection, milliseconds))
    connection.close()
    assert low <= milliseconds < high
    assert high - low <= max(0.125, low / 16)


@pytest.mark.parametrize(
    "milliseconds",
    [-5.0, 1e12, *TIMES, *(1.37**power for power in range(80)), *map(float, range(0, 9000, 999))],
)
def test_python_and_sql_find_the_same_bucket(milliseconds: float) -> None:
    connection = sqlite3.connect(":memory:")
    found = bucket_of(connection, milliseconds)
    connection.close()
    assert first_bytes.bucket_of(milliseconds) == found


def test_buckets_follow_each_other_without_gaps() -> None:
    edges = [bounds(bucket) for bucket in range(300)]
    assert all(one[1] == other[0] for one, other in pairwise(edges))


@pytest.mark.parametrize("milliseconds", [-5.0, 1e12])
def test_absurd_times_have_a_bucket_too(milliseconds: float) -> None:
    connection = sqlite3.connect(":memory:")
    bucket = bucket_of(connection, milliseconds)
    connection.close()
    assert 0 <= bucket <= 32 + 16 * 22


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_percentile_is_wrong_by_a_few_percent_at_most(share: float) -> None:
    chance = random.Random(5)
    times = sorted(chance.lognormvariate(6, 1) for _ in range(5000))
    connection = sqlite3.connect(":memory:")
    counts = Counter(bucket_of(connection, one) for one in times)
    connection.close()
    found = percentile(counts, share)
    assert found == pytest.approx(times[int(share * len(times))] / 1000, rel=0.04)


def test_without_requests_there_is_no_percentile() -> None:
    assert percentile({}, 0.5) is None
