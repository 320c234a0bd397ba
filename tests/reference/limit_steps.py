"""Reference of `compile/limit_steps.c` in Python: steps of the usual request on the cells of a file."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import NamedTuple

from routecodex.accounting.limits import HeaderTexts
from routecodex.accounting.windows import Cells

SLOT_SIZE: int = 198
_ROWS_USED, _LAST_STEP, _ROWS_AT, _ROW_SIZE, _ROWS = 3, 6, 64, 3, 128
_CLOCK, _POSITION, _END, _USED, _OLDEST, _WARNED, _EXCEEDED, _RING = range(2, 10)
_RING_SIZE, _HELD = 61, SLOT_SIZE - _ROWS
_SECOND, _MOST_USED = 1_000_000, 1 << 61
_ROLLING, _PRESENT = 1, 2
_REQUESTS, _CONCURRENT, _TOKENS, _INPUT, _OUTPUT, _UNCACHED, _USD = range(7)


class _Limit(NamedTuple):
    at: int
    digest: int
    max: int
    warn_above: int
    micros: int
    window: int
    unit: int
    enforced: int


def _limits(packed: bytes) -> list[_Limit]:
    return [_Limit(*row) for row in struct.iter_unpack("=8q", packed)]


def _has_row(cells: Cells, row: int, generation: int) -> bool:
    return 0 <= row < _ROWS and cells[_ROWS_AT + row * _ROW_SIZE + 1] == generation


def _is_current(cells: Cells, limit: _Limit, now: int) -> bool:
    at, clock = limit.at, cells[limit.at + _CLOCK]
    if cells[at] != limit.digest or cells[at + _USED] < 0:
        return False
    if now < clock:
        return clock - now <= 2 * _SECOND
    return now - clock < _SECOND and now < cells[at + _END]


def _held(cells: Cells, limit: _Limit) -> int:
    first = limit.at + _HELD
    return sum(cells[cell] for cell in range(first, first + min(cells[_ROWS_USED], _ROWS)))


def _amount(unit: int, input: int, output: int, cache_read: int, nanos: int) -> int:
    plain, output, fresh = max(input, 0), max(output, 0), max(input - cache_read, 0)
    by_unit = {
        _TOKENS: plain + output,
        _INPUT: plain,
        _OUTPUT: output,
        _UNCACHED: fresh + output,
        _USD: nanos,
    }
    return by_unit.get(unit, 0)


def _is_absurd(*numbers: int) -> bool:
    return any(abs(number) > _MOST_USED // 4 for number in numbers)


def reserve(
    cells: Cells,
    packed: bytes,
    row: int,
    generation: int,
    now: int,
    input: int,
    output: int,
    nanos: int,
    is_request: bool,
    /,
) -> list[int] | None:
    """Reserve against all limits."""
    if not _has_row(cells, row, generation) or _is_absurd(input, output, nanos):
        return None
    amounts = []
    limits = _limits(packed)
    for limit in limits:
        if not _is_current(cells, limit, now):
            return None
        amount = _amount(limit.unit, input, output, 0, nanos)
        if limit.unit in (_REQUESTS, _CONCURRENT):
            amount = int(is_request)
        if limit.enforced and cells[limit.at + _USED] + _held(cells, limit) + amount > limit.max:
            return None
        amounts.append(amount)
    cells[_LAST_STEP] = 0
    for limit, amount in zip(limits, amounts, strict=True):
        cells[limit.at + _HELD + row] += amount
    return amounts


def settle(
    cells: Cells,
    packed: bytes,
    amounts: list[int],
    row: int,
    generation: int,
    now: int,
    input: int,
    output: int,
    cache_read: int,
    nanos: int,
    /,
) -> bool:
    """Replace reserved amounts by what was used."""
    limits, uses = _limits(packed), []
    if len(amounts) != len(limits) or not _has_row(cells, row, generation):
        return False
    if _is_absurd(input, output, cache_read, nanos):
        return False
    for limit, reserved in zip(limits, amounts, strict=True):
        use = reserved
        if limit.unit != _REQUESTS:
            use = _amount(limit.unit, input, output, cache_read, nanos)
        if not _is_current(cells, limit, now) or (use and _is_reported(cells, limit, use, now)):
            return False
        uses.append(use)
    cells[_LAST_STEP] = 0
    for index, (limit, use) in enumerate(zip(limits, uses, strict=True)):
        cells[limit.at + _HELD + row] -= amounts[index]
        if use:
            _use(cells, limit, use)
        amounts[index] = 0
    return True


def _is_reported(cells: Cells, limit: _Limit, use: int, now: int) -> bool:
    at = limit.at
    used = cells[at + _USED] + use
    if used < limit.warn_above:
        return False
    is_over = not limit.enforced and used >= limit.max
    return now >= cells[at + _WARNED] or (is_over and now >= cells[at + _EXCEEDED])


def _use(cells: Cells, limit: _Limit, amount: int) -> None:
    if limit.window == _PRESENT:
        return
    at = limit.at
    amount = min(amount, _MOST_USED - cells[at + _USED])
    if limit.window == _ROLLING:
        bucket = cells[at + _POSITION]
        cells[at + _RING + bucket % _RING_SIZE] += amount
        if not cells[at + _OLDEST]:
            cells[at + _OLDEST] = bucket
    cells[at + _USED] += amount


def header_lines(
    cells: Cells, packed: bytes, texts: HeaderTexts, now: int, is_messages: bool, /
) -> bytes | None:
    """Return the header lines of the tightest limit of each unit."""
    shown: dict[int, tuple[int, _Limit, tuple[bytes, bytes] | None]] = {}
    for limit, text in zip(_limits(packed), texts, strict=True):
        used = cells[limit.at + _USED]
        if cells[limit.at] != limit.digest or not 0 <= used < limit.warn_above:
            return None
        left = max(limit.max - used - _held(cells, limit), 0)
        other = shown.get(limit.unit)
        if limit.enforced and (other is None or left * other[1].max < other[0] * limit.max):
            shown[limit.unit] = (left, limit, text)
    lines = [
        _lines(cells, limit, left, text, now, is_messages)
        for left, limit, text in shown.values()
        if text is not None
    ]
    return b"".join(lines)


def _lines(
    cells: Cells, limit: _Limit, left: int, texts: tuple[bytes, bytes], now: int, is_messages: bool
) -> bytes:
    resets_at, oldest = cells[limit.at + _END], cells[limit.at + _OLDEST]
    if limit.window == _ROLLING:
        resets_at = -(-(oldest + _RING_SIZE) * limit.micros // 60) if oldest else now + limit.micros
    if limit.unit == _USD:
        used = _usd(cells[limit.at + _USED])
        day = _time(resets_at // _SECOND)
        return texts[0] + f"{used}; remaining={_usd(left)}; resets={day}\r\n".encode()
    end = _time(-(-resets_at // _SECOND)) if is_messages else _duration(resets_at - now)
    return texts[0] + str(left).encode() + texts[1] + f"{end}\r\n".encode()


def _usd(nanos: int) -> str:
    whole, rest = divmod(nanos, 1_000_000_000)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") if rest else str(whole)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _duration(micros: int) -> str:
    if micros <= 0:
        return "0s"
    millis = -(-micros // 1000)
    if millis < 1000:
        return f"{millis}ms"
    minutes, seconds = divmod(-(-millis // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
