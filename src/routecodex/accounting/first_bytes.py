"""Times to the first byte in buckets: their counts add up over any time, percentiles do not.

A bucket spans an eighth of a millisecond below 4 ms. Above, every doubling of the time has sixteen buckets,
so that a percentile is wrong by 3 % at most. The number of a bucket is computed in SQL, in integers, because
SQLite may be built without logarithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_UNITS: Final = 8
"""Units of a time in one millisecond."""
_FIRST: Final = 32
"""Units below which every unit has its own bucket."""
_STEPS: Final = 16
_DOUBLINGS: Final = 22
"""The last bucket begins above four hours."""
_LAST: Final = _FIRST + _STEPS * _DOUBLINGS


def bucket_sql(column: str) -> str:
    """Return the expression for the bucket of a column in milliseconds: five comparisons for any time."""
    units = f"CAST({column} * {_UNITS} AS INTEGER)"

    def choose(first: int, last: int) -> str:
        if first < last:
            middle = (first + last) // 2
            low, high = choose(first, middle), choose(middle + 1, last)
            return f"CASE WHEN {units} < {2 * _FIRST << middle} THEN {low} ELSE {high} END"
        bucket = f"{_FIRST + _STEPS * first} + ({units} - {_FIRST << first}) / {2 << first}"
        return f"MIN({_LAST}, {bucket})" if first == _DOUBLINGS - 1 else bucket

    return f"CASE WHEN {units} < {_FIRST} THEN MAX(0, {units}) ELSE {choose(0, _DOUBLINGS - 1)} END"


def bucket_of(milliseconds: float) -> int:
    """Return the bucket of a time, as `bucket_sql` does."""
    units = int(milliseconds * _UNITS)
    if units < _FIRST:
        return max(units, 0)
    place = min(units.bit_length() - _FIRST.bit_length(), _DOUBLINGS - 1)
    return min(_FIRST + _STEPS * place + (units - (_FIRST << place)) // (2 << place), _LAST)


def bounds(bucket: int) -> tuple[float, float]:
    """Return the shortest and the longest time of a bucket, in milliseconds."""
    if bucket < _FIRST:
        return bucket / _UNITS, (bucket + 1) / _UNITS
    place, step = divmod(bucket - _FIRST, _STEPS)
    low = (_FIRST << place) + step * (2 << place)
    return low / _UNITS, (low + (2 << place)) / _UNITS


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the time in seconds that this share of the requests did not exceed; None without requests."""
    wanted = share * sum(counts.values())
    passed = 0
    for bucket in sorted(counts):
        count = counts[bucket]
        if passed + count >= wanted and count:
            low, high = bounds(bucket)
            return round((low + (high - low) * (wanted - passed) / count) / 1000, 6)
        passed += count
    return None
