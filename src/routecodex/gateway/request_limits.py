"""Limits of one request: it reserves before every call of a provider, and settles what it has used.

Before the first call it reserves against all limits in one step: those of its client and team, those on the
models of the target, and the known ones of the target's key. The last two belong to the target: when they
have no room the target is skipped, and when another target is tried they are exchanged. A further round
reserves again. However the request ends, `close` replaces reservations by the figures of its calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from routecodex.accounting.cost import TargetPrice
from routecodex.accounting.counters import (
    CountersUnavailable,
    LimitCounters,
    LimitFigures,
    LimitRefusal,
    LimitReservation,
    PreparedStep,
    Reserved,
)
from routecodex.accounting.limits import Limit, amount_of
from routecodex.accounting.timestamps import iso_time
from routecodex.accounting.windows import MICROS
from routecodex.canon.errors import AccessDenied, GatewayError, LimitExceeded, Overloaded
from routecodex.canon.events import Usage
from routecodex.canon.notices import Notices
from routecodex.gateway.call_record import CallRecord
from routecodex.gateway.limit_headers import LimitHeaders
from routecodex.gateway.state.limiter import Limiter, LimitSet, TargetLimits
from routecodex.routing.registry import Target

_POLL: Final = 0.05
"""Seconds until a reservation that waits for other requests is tried again."""
_LONGEST_RETRY: Final = 60
_MOST_NANOS: Final = 1 << 50
"""A million dollars: the reservations of many requests must fit into the 64 bits of a counter."""
INTERNAL_INPUT: Final = 2048
"""Tokens of input that a call of the gateway itself is expected to have: an image, or a question."""
NO_PRICE: Final = "no price"
"""Reason for which a target without a price is skipped, if a money limit holds."""


_NO_USAGE: Final = Usage()


class RouteInstead(Exception):
    """A limit sends the request to another route."""

    def __init__(self, route: str) -> None:
        super().__init__(route)
        self.route = route


class SkippedTarget:
    """A target that a limit keeps out; `until` is when it may be tried again, None if it has no price."""

    __slots__ = ("reason", "refusal", "until")

    def __init__(self, reason: str, until: float | None, refusal: LimitRefusal | None = None) -> None:
        self.reason: Final = reason
        self.until: Final = until
        self.refusal: Final = refusal


class CallLimits:
    """Limits of the calls that one part of a request makes: its rounds, or a call of the gateway itself.

    `calls` lists those that it has made; `is_internal` says which of them are its own, `first` whether it
    reserves the request itself too.
    """

    def __init__(
        self,
        limiter: Limiter,
        limits: LimitSet,
        *,
        calls: Sequence[CallRecord],
        notices: Notices | None,
        max_wait: float,
        requested: int | None = None,
        choices: int = 1,
        mode: str = "",
        input_tokens: int = 0,
        is_internal: bool = False,
        first: bool = True,
    ) -> None:
        self._is_internal = is_internal
        self._limiter = limiter
        self._limits = limits
        self._calls = calls
        self._notices = notices
        self._wait_left = max_wait
        self._requested = requested
        self._choices = choices
        self._mode = mode
        self.input_tokens = input_tokens
        self._first = first
        self._general: LimitReservation | None = None
        self._target: LimitReservation | None = None
        self._held: LimitReservation | None = None
        """The reservation of the first round, with the place of the request among those at the same time."""
        self._settled = self._settled_target = 0
        self._exempt: frozenset[Limit] = frozenset()
        self._refused: LimitRefusal | None = None
        self.reroutes = False
        """Whether a limit may send the request to another route."""
        self.skipped: dict[Target, SkippedTarget] = {}
        self.is_admitted = False
        self._headers = limits.headers
        self._prepared: PreparedStep | None = None
        self._prepared_headers: LimitHeaders | None = None
        """The limits that the request was reserved against in one step, with their headers."""

    def for_internal_call(self, made: Sequence[CallRecord]) -> CallLimits:
        """Return the limits of a call that the gateway makes itself for the request."""
        return CallLimits(
            self._limiter,
            self._limits,
            calls=made,
            notices=None,
            max_wait=0.0,
            input_tokens=INTERNAL_INPUT,
            is_internal=True,
            first=False,
        )

    def admit(self, target: Target) -> bool | Awaitable[bool]:
        """Reserve for an attempt at a target; return False if it must be skipped. Without room at once, wait.

        LimitExceeded if a limit of the client or its team has no room; RouteInstead if it names a route.
        """
        limits = self._limits.at(target)
        if limits.needs_price and not limits.price.is_known and self._refuses_unknown:
            self._skip(target, SkippedTarget(NO_PRICE, None))
            return False
        if self._target is not None:
            self._leave_target()
        reserved = self._reserve(target, limits)
        if reserved is not None and not isinstance(reserved, LimitReservation):
            return self._admit_later(target, limits, reserved)
        self._note_admitted(target, limits)
        return True

    async def _admit_later(
        self, target: Target, limits: TargetLimits, reserved: LimitRefusal | Awaitable[Reserved]
    ) -> bool:
        """Wait for counters, and for limits that are to be waited for."""
        found: Reserved | Awaitable[Reserved] | None = reserved
        while True:
            if found is not None and not isinstance(found, LimitReservation | LimitRefusal):
                found = await self._received(found, limits)
            if not isinstance(found, LimitRefusal):
                self._note_admitted(target, limits)
                return True
            self._limiter.report(found.events)
            if not await self._handle(found):
                self._skip(target, self._skipped_by(found))
                self._headers = limits.headers
                return False
            found = self._reserve(target, limits)

    def _note_admitted(self, target: Target, limits: TargetLimits) -> None:
        if self.skipped:
            self.skipped.pop(target, None)
        self.is_admitted = True
        self._headers = limits.headers

    @property
    def _refuses_unknown(self) -> bool:
        return self._limiter.usage.unknown_price == "refuse"

    def _reserve(self, target: Target, limits: TargetLimits) -> Reserved | Awaitable[Reserved] | None:
        """Reserve what is not reserved yet; None if nothing can be counted, and that is allowed."""
        if self._general is None and limits.prepared is not None and not self._exempt:
            reserved_at_once = self._reserve_at_once(target, limits, limits.prepared)
            if reserved_at_once is not None:
                return reserved_at_once
        skipped = 0 if self._general is None else limits.general
        rows = limits.limits[skipped:] if skipped else limits.limits
        if not rows:
            return None
        amounts = self._amounts(target, limits, rows)
        limiter = self._limiter
        try:
            reserved = self._reserve_at(limiter.counters, rows, amounts)
        except CountersUnavailable as exc:
            self._pass_uncounted(exc)
            return None
        if limiter.is_down and isinstance(reserved, LimitReservation | LimitRefusal):
            limiter.note_up()
        if isinstance(reserved, LimitReservation):
            self._keep(reserved, limits.general - skipped)
        return reserved

    def _reserve_at_once(
        self, target: Target, limits: TargetLimits, prepared: PreparedStep
    ) -> LimitReservation | None:
        """Reserve for a target without limits of its own; None if that is not the usual case."""
        limiter, input, output = self._limiter, self.input_tokens, self._expected_output(target, limits)
        nanos = self._price_of(limits.price, input, output) if limits.counts_money else 0
        reserved = prepared.reserve(input, output, nanos, self._now(), is_request=self._first)
        if reserved is not None:
            self._general = reserved
            self._prepared = prepared
            self._prepared_headers = limits.headers
            self._first = False
            if self._held is None:
                self._held = reserved
            if limiter.is_down:
                limiter.note_up()
        return reserved

    def _expected_output(self, target: Target, limits: TargetLimits) -> int:
        most = limits.max_output if self._requested is None else self._requested
        return self._limiter.expected_output(target, most, self._choices)

    def _reserve_at(
        self, counters: LimitCounters, rows: Sequence[Limit], amounts: list[int]
    ) -> Reserved | Awaitable[Reserved]:
        # A call with keywords costs twice as much.
        if not self._exempt:
            return counters.reserve(rows, amounts, self._now())
        return counters.reserve(rows, amounts, self._now(), exempt=self._exempt)

    async def _received(self, coming: Awaitable[Reserved], limits: TargetLimits) -> Reserved | None:
        """Return the answer of counters that are not on this machine."""
        general = 0 if self._general is not None else limits.general
        try:
            reserved = await coming
        except CountersUnavailable as exc:
            self._pass_uncounted(exc)
            return None
        if self._limiter.is_down:
            self._limiter.note_up()
        if isinstance(reserved, LimitReservation):
            self._keep(reserved, general)
        return reserved

    def _amounts(self, target: Target, limits: TargetLimits, rows: Sequence[Limit]) -> list[int]:
        """Return the estimate for one call: the request, its input and output, and their price."""
        input, output = self.input_tokens, self._expected_output(target, limits)
        nanos = self._price_of(limits.price, input, output) if limits.counts_money else 0
        amounts = [amount_of(limit.unit, input, output, nanos=nanos) for limit in rows]
        for index, limit in enumerate(rows):
            if limit.unit in ("requests", "concurrent") and (self._first or limit.skips):
                amounts[index] = 1
        return amounts

    def _price_of(self, price: TargetPrice, input: int, output: int) -> int:
        """Return the most that a call can cost, in the mode of processing it asks for or without."""
        nanos = price.reservation(input, output) or 0
        if self._mode:
            nanos = max(nanos, price.reservation(input, output, self._mode) or 0)
        return min(nanos, _MOST_NANOS)

    def _keep(self, reserved: LimitReservation, general: int) -> None:
        """Divide a reservation into the part of the request and that of the target."""
        if general == len(reserved.limits):
            self._general = reserved
            self._held = self._held or reserved
            self._first = False
            return
        if general or self._general is None:
            self._general = reserved.part(0, general)
            if self._held is None:
                self._held = self._general
            self._first = False
        if general < len(reserved.limits):
            self._target = reserved.part(general, len(reserved.limits))

    def _pass_uncounted(self, error: CountersUnavailable) -> None:
        """Let a request pass that cannot be counted, or refuse it, as configured."""
        limiter = self._limiter
        limiter.note_down(error)
        if self._limits.is_limited and limiter.usage.on_store_down == "refuse":
            message = "the limits of this client cannot be counted now; the log of the gateway has the reason"
            raise Overloaded(message, code="store_unavailable")

    def _skip(self, target: Target, skipped: SkippedTarget) -> None:
        self.skipped[target] = skipped
        if self._notices is not None:
            self._notices.add(f"{target} skipped: {skipped.reason}")

    def _skipped_by(self, refusal: LimitRefusal) -> SkippedTarget:
        limit = refusal.exceeded.limit
        until = self._limiter.clock() + _POLL if refusal.frees_at is None else refusal.frees_at / MICROS
        return SkippedTarget(f"{limit.name} is used", until, refusal)

    async def _handle(self, refusal: LimitRefusal) -> bool:
        """Wait until a limit has room, if it is to be waited for; else refuse, or take another route.

        Return False if the target is to be skipped: its own limits refuse no request.
        """
        limit = refusal.exceeded.limit
        if limit.on_exceeded == "wait" and await self._wait(refusal):
            return True
        if limit.route and self.reroutes:
            self._exempt |= {limit}
            self._refused = refusal
            raise RouteInstead(limit.route)
        if limit.skips:
            return False
        self._limiter.note_refusal(limit)
        raise self.error_of(refusal)

    async def _wait(self, refusal: LimitRefusal) -> bool:
        """Wait for room; return False if there is none in time."""
        row = refusal.exceeded
        if refusal.amount > row.limit.max:
            return False
        seconds = _POLL
        # Room that running requests only reserve may be free at any moment.
        if refusal.frees_at is not None and row.used + refusal.amount > row.limit.max:
            seconds = max(refusal.frees_at / MICROS - self._limiter.clock(), 0.0) + 0.001
        if seconds > self._wait_left:
            return False
        self._wait_left -= seconds
        await asyncio.sleep(seconds)
        return True

    def final_error(self) -> GatewayError | None:
        """Return the error if limits alone keep all targets out; None if something else does too."""
        if self._refused is not None and not self.is_admitted:
            self._limiter.note_refusal(self._refused.exceeded.limit)
            return self.error_of(self._refused)
        refusals = [row.refusal for row in self.skipped.values() if row.refusal is not None]
        own = [row for row in refusals if not row.exceeded.limit.owner.startswith("key:")]
        if own:
            soonest = min(own, key=lambda row: row.frees_at or 1 << 62)
            self._limiter.note_refusal(soonest.exceeded.limit)
            return self.error_of(soonest)
        if refusals or not self.skipped:
            return None
        return _unknown_price(self.skipped)

    def error_of(self, refusal: LimitRefusal) -> LimitExceeded:
        """Return the error for the client."""
        return limit_error(refusal, self._now())

    def settle_round(self) -> None:
        """Charge the calls that have ended; the request keeps its place among those at the same time.

        The next round sends what the last one sent and answered.
        """
        for call in self._calls[self._settled :]:
            if call.kind == "round":
                self.input_tokens = max(self.input_tokens, call.usage.input + call.usage.output)
        self._settle(last=False)

    def close(self) -> None:
        """Charge all calls, and release what is reserved; does nothing the second time."""
        if self._prepared is None or not self._settle_at_once(self._prepared):
            self._settle(last=True)

    def _settle_at_once(self, prepared: PreparedStep) -> bool:
        """Charge the only call of a request that reserved once; return False if it is another kind."""
        reserved, calls = self._general, self._calls
        if reserved is None or self._held is not reserved or self._settled or len(calls) > 1:
            return False
        usage, nanos = _NO_USAGE, 0
        if calls:
            call = calls[0]
            if (call.kind == "internal") != self._is_internal:
                return False
            usage, nanos = call.usage, call.cost.nanos or 0
        now = self._now()
        if not prepared.settle(reserved, usage.input, usage.output, usage.cache_read, nanos, now):
            return False
        self._general = self._held = None
        self._settled = self._settled_target = len(calls)
        if calls and calls[0].kind == "round" and calls[0].status == 200:
            self._limiter.note_output(calls[0].target, usage.output)
        return True

    def _settle(self, *, last: bool) -> None:
        self._leave_target()
        calls = self._own_calls(self._settled)
        self._settled = len(self._calls)
        if self._general is not None:
            self._charge(self._general, calls, last=last)
            self._general = None
        elif calls and self._held is not None:
            self._charge(self._held, calls, last=last)
        if last and self._held is not None:
            if any(self._held.amounts):
                self._charge(self._held, (), last=True)
            self._held = None
        for call in calls:
            if call.kind == "round" and call.status == 200:
                self._limiter.note_output(call.target, call.usage.output)

    def _leave_target(self) -> None:
        """Charge the calls to the target, and release its own limits."""
        first, self._settled_target = self._settled_target, len(self._calls)
        if self._target is not None:
            self._charge(self._target, self._own_calls(first), last=True)
            self._target = None

    def _own_calls(self, first: int) -> list[CallRecord]:
        """Return its calls from one on; those of the gateway itself have limits of their own."""
        calls = self._calls
        if first == len(calls):
            return []
        return [call for call in calls[first:] if (call.kind == "internal") == self._is_internal]

    def _charge(self, reservation: LimitReservation, calls: Sequence[CallRecord], *, last: bool) -> None:
        used: list[int] = []
        for index, limit in enumerate(reservation.limits):
            amount = reservation.amounts[index] if limit.unit == "requests" else 0
            for call in calls:
                amount += limit.used_by(call.usage, call.cost.nanos)
            used.append(amount)
        counters = self._limiter.counters
        try:
            if last:
                counters.settle(reservation, used, self._now())
            else:
                counters.settle(reservation, used, self._now(), last=False)
        except CountersUnavailable as exc:
            self._limiter.note_down(exc)
            return
        if reservation.events:
            self._limiter.report(reservation.events)

    def header_lines(self, protocol: str) -> bytes:
        """Return the header lines of all limits of the client; warn of those that are nearly used."""
        if not self._limits.is_limited:
            return b""
        now, counters, headers = self._now(), self._limiter.counters, self._headers
        if self._prepared is not None and headers is self._prepared_headers:
            is_messages = protocol == "messages"
            texts = headers.messages_texts if is_messages else headers.other_texts
            lines = self._prepared.header_lines(texts, now, is_messages=is_messages)
            if lines is not None:
                return lines
        try:
            figures = (
                counters.latest(headers.limits) if self.is_admitted else counters.figures(headers.limits, now)
            )
        except CountersUnavailable:
            return b""
        if self._notices is not None:
            for row in figures:
                if row.used >= row.limit.warn_above:
                    self._notices.add(_warning(row))
        return headers.lines(figures, protocol, now)

    def _now(self) -> int:
        return int(self._limiter.clock() * MICROS)


def _warning(row: LimitFigures) -> str:
    limit = row.limit
    return f"{limit.name}: {limit.describe(row.used)} of {limit.describe(limit.max)} used"


def _unknown_price(skipped: dict[Target, SkippedTarget]) -> AccessDenied:
    targets = sorted({f"{target.provider}.{target.model}" for target in skipped})
    target = next(iter(skipped))
    setting = f"providers.{target.provider}.models.{target.model!r}.price"
    message = (
        f"no price is known for {', '.join(targets)}, and the client has a money limit; "
        f'set {setting}, or usage.unknown_price = "allow"'
    )
    return AccessDenied(message, code="price_unknown", details={"targets": targets, "setting": setting})


def limit_error(refusal: LimitRefusal, now: int) -> LimitExceeded:
    """Return the error of a refused reservation: it names owner, limit, use and reset."""
    row = refusal.exceeded
    limit = row.limit
    resets = None if row.resets_at is None else iso_time(row.resets_at / MICROS)
    never = refusal.amount > limit.max
    wait = 1.0 if row.resets_at is None else max((row.resets_at - now) / MICROS, 0.0)
    error = LimitExceeded(
        _message(refusal, resets, never=never),
        code=limit.code,
        counts="requests" if limit.unit in ("requests", "concurrent") else "tokens",
        details={
            "owner": limit.owner,
            "limit": limit.text,
            "unit": limit.unit,
            "used": limit.show(row.taken),
            "max": limit.show(limit.max),
            "resets_at": resets,
        },
        resets_at=None if row.resets_at is None else -(-row.resets_at // MICROS),
        retry_after=wait,
    )
    error.never_retry = never or wait > _LONGEST_RETRY
    return error


def _message(refusal: LimitRefusal, resets: str | None, *, never: bool) -> str:
    row = refusal.exceeded
    limit = row.limit
    kind, _, name = limit.owner.partition(":")
    head = f"{kind} {name!r} {'has a' if never else 'is at its'} limit of {limit.label}"
    if limit.unit == "concurrent":
        running = "1 request is" if row.reserved == 1 else f"{row.reserved} requests are"
        return f"{head}: {running} running"
    parts = [f"{limit.describe(row.used)} used"]
    if row.reserved:
        parts.append(f"{limit.describe(row.reserved)} reserved by running requests")
    if limit.unit != "requests":
        parts.append(f"this request may need {limit.describe(refusal.amount)}")
    tail = f"; it resets at {resets}" if resets is not None else ""
    if never:
        tail = ", which is more than the whole limit; raise the limit, or send a lower max_tokens"
    return f"{head}: {', '.join(parts)}{tail}"
