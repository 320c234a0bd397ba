"""Headers of the limits of a client, as the makers of its protocol name them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from routecodex.accounting.cost import usd_bytes
from routecodex.accounting.counters import LimitFigures
from routecodex.accounting.limits import CountedUnit, Limit
from routecodex.accounting.timestamps import iso_time
from routecodex.accounting.windows import MICROS, RollingWindow

_OPENAI: Final[dict[CountedUnit, str]] = {"requests": "requests", "tokens": "tokens"}
_ANTHROPIC: Final[dict[CountedUnit, str]] = {
    "requests": "requests",
    "tokens": "tokens",
    "input": "input-tokens",
    "output": "output-tokens",
}
_ANTHROPIC_KINDS: Final = frozenset(kind.encode() for kind in _ANTHROPIC.values())
_OPENAI_PREFIX: Final = b"x-ratelimit-"
_ANTHROPIC_PREFIX: Final = b"anthropic-ratelimit-"

UpstreamLimitHeaders = Sequence[tuple[bytes, bytes]]


class LimitHeader:
    """The header lines of one limit, with places for what is left and when it resets."""

    __slots__ = ("_anthropic", "_budget", "_openai", "_seconds", "limit", "texts")

    def __init__(self, limit: Limit) -> None:
        self.limit: Final = limit
        window = limit.window
        self._seconds: Final = window.seconds * MICROS if isinstance(window, RollingWindow) else 0
        self._budget: Final = b"x-routecodex-budget: %b; used=" % limit.text.encode()
        self.texts: Final = {
            True: self._texts(_anthropic_lines(limit)),
            False: self._texts(_openai_lines(limit)),
        }
        """The texts before the two numbers of its lines, for messages and for the other protocols."""
        self._openai: Final = _openai_lines(limit)
        self._anthropic: Final = _anthropic_lines(limit)

    def _texts(self, lines: bytes) -> tuple[bytes, bytes] | None:
        if self.limit.unit == "usd":
            return (self._budget, b"")
        first, _, rest = lines.partition(b"%d")
        return (first, rest.partition(b"%b")[0]) if lines else None

    def lines(self, row: LimitFigures, protocol: str, now: int) -> bytes:
        """Return the lines for the client's protocol; none if it has no header for this kind."""
        # A rolling window without use yet resets one window after the first.
        resets_at = now + self._seconds if row.resets_at is None else row.resets_at
        if self.limit.unit == "usd":
            used, left = usd_bytes(row.used), usd_bytes(row.remaining)
            return b"%b%b; remaining=%b; resets=%b\r\n" % (
                self._budget,
                used,
                left,
                _utc(resets_at // MICROS),
            )
        if protocol == "messages":
            lines = self._anthropic
            return lines % (row.remaining, _utc(-(-resets_at // MICROS))) if lines else b""
        return self._openai % (row.remaining, go_duration(resets_at - now)) if self._openai else b""


def _openai_lines(limit: Limit) -> bytes:
    kind = _OPENAI.get(limit.unit)
    if kind is None:
        return b""
    return (
        f"x-ratelimit-limit-{kind}: {limit.max}\r\n"
        f"x-ratelimit-remaining-{kind}: %d\r\nx-ratelimit-reset-{kind}: %b\r\n"
    ).encode()


def _anthropic_lines(limit: Limit) -> bytes:
    kind = _ANTHROPIC.get(limit.unit)
    if kind is None:
        return b""
    name = f"anthropic-ratelimit-{kind}"
    return f"{name}-limit: {limit.max}\r\n{name}-remaining: %d\r\n{name}-reset: %b\r\n".encode()


class LimitHeaders:
    """Header lines of the limits of a client: for each kind the limit of which the smallest share is left."""

    __slots__ = ("_headers", "_in_order", "limits", "messages_texts", "other_texts")

    def __init__(self, limits: Sequence[Limit]) -> None:
        self.limits: Final = limits
        self._headers: Final = {limit: LimitHeader(limit) for limit in limits if limit.enforced}
        rows = [self._headers.get(limit) for limit in limits]
        self.messages_texts: Final = tuple([None if row is None else row.texts[True] for row in rows])
        self.other_texts: Final = tuple([None if row is None else row.texts[False] for row in rows])
        has_rivals = len({limit.unit for limit in limits}) < len(limits) or len(self._headers) < len(limits)
        # Where every kind has one limit, none has to be chosen.
        self._in_order: Final = [] if has_rivals else list(self._headers.values())

    def lines(self, figures: Sequence[LimitFigures], protocol: str, now: int) -> bytes:
        """Return complete header lines."""
        in_order, lines = self._in_order, b""
        if in_order and len(in_order) == len(figures):
            for index in range(len(in_order)):
                lines += in_order[index].lines(figures[index], protocol, now)
            return lines
        tightest: dict[CountedUnit, LimitFigures] = {}
        for row in figures:
            limit = row.limit
            if not limit.enforced:
                continue
            other = tightest.get(limit.unit)
            if other is None or row.remaining * other.limit.max < other.remaining * limit.max:
                tightest[limit.unit] = row
        for row in tightest.values():
            lines += self._headers[row.limit].lines(row, protocol, now)
        return lines


@lru_cache(maxsize=1024)
def _utc(seconds: int) -> bytes:
    return iso_time(seconds).encode()


def go_duration(micros: int) -> bytes:
    """Return a duration as Go writes it, rounded up: `850ms`, `1s`, `6m0s`, `23h0m5s`."""
    if micros <= 0:
        return b"0s"
    millis = -(-micros // 1000)
    if millis < 1000:
        return b"%dms" % millis
    return _go_seconds(-(-millis // 1000))


@lru_cache(maxsize=4096)
def _go_seconds(count: int) -> bytes:
    minutes, seconds = divmod(count, 60)
    if not minutes:
        return b"%ds" % seconds
    hours, minutes = divmod(minutes, 60)
    return b"%dh%dm%ds" % (hours, minutes, seconds) if hours else b"%dm%ds" % (minutes, seconds)


def passed_on(headers: UpstreamLimitHeaders, own: bytes) -> bytes:
    """Return those rate-limit headers of a provider whose kind has no limit of ours, as lines."""
    lines: list[bytes] = []
    for name, value in headers:
        kind = kind_of(name)
        if not kind or (b"-%b: " % kind not in own and b"-%b-limit: " % kind not in own):
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)


def kind_of(name: bytes) -> bytes:
    """Return what a rate-limit header counts: `requests`, `input-tokens`; empty for other kinds."""
    if name.startswith(_OPENAI_PREFIX):
        return name.removeprefix(_OPENAI_PREFIX).partition(b"-")[2]
    kind = name.removeprefix(_ANTHROPIC_PREFIX).rpartition(b"-")[0]
    return kind if kind in _ANTHROPIC_KINDS else b""
