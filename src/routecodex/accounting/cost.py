"""Cost of one answer: its token counts times the prices of its target, in integers.

Prices are kept in 10⁻¹⁵ USD per token (USD per million tokens × 10⁹), amounts in 10⁻⁹ USD. An amount is
rounded once, at the end. Nothing here divides floats or allocates more than the result, because every request
comes through. Sums of two products are taken from floats as long as these are exact: below 2⁵³.

An amount is None if the price is unknown; it is never taken for 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from routecodex.canon.events import Usage

CostKind: TypeAlias = Literal["reported", "observed", "estimated"]
PriceOrigin: TypeAlias = Literal["config", "provider", "file", "package"]

NANOS: Final = 1_000_000_000
"""Units of an amount in one USD."""
_PRICE_UNITS: Final = 1_000_000_000
_PER_NANO: Final = 1_000_000
_HALF: Final = _PER_NANO // 2
_EXACT: Final = 9.0e15
"""Floats below it, with some room to 2⁵³, have no fraction and no error."""
_KINDS: Final[tuple[CostKind, ...]] = ("reported", "observed", "estimated")
"""From the most certain to the least."""

UNKNOWN: Final = "unknown"
"""An amount without a price, for people."""
_UNKNOWN: Final = UNKNOWN.encode()


class Cost:
    """The cost of one answer or of several; `nanos` is in 10⁻⁹ USD, None if a price is unknown."""

    __slots__ = ("_bytes", "kind", "nanos", "source")

    def __init__(
        self, nanos: int | None, kind: CostKind = "reported", source: PriceOrigin | None = None
    ) -> None:
        self._bytes: bytes | None = None
        self.nanos: Final = nanos
        self.kind: Final = kind
        self.source: Final = source

    @property
    def usd(self) -> float | None:
        """The amount in USD."""
        return None if self.nanos is None else self.nanos / NANOS

    @property
    def text(self) -> str:
        """The amount as `x-routecodex-cost` has it."""
        return UNKNOWN if self.nanos is None else format_usd(self.nanos)

    def encode(self) -> bytes:
        """Return `text` as bytes: header and log line have the same."""
        if self._bytes is None:
            self._bytes = _UNKNOWN if self.nanos is None else usd_bytes(self.nanos)
        return self._bytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cost):
            return NotImplemented
        return (self.nanos, self.kind, self.source) == (other.nanos, other.kind, other.source)

    def __hash__(self) -> int:
        return hash((self.nanos, self.kind, self.source))

    def __repr__(self) -> str:
        return f"Cost({self.nanos}, {self.kind!r}, {self.source!r})"


NO_COST: Final = Cost(0)
"""The cost of a request that called no provider."""


class CostParts:
    """The cost of one answer by part, in 10⁻⁹ USD; the parts add up to the cost."""

    __slots__ = ("cache_read", "cache_write", "cache_write_1h", "input", "output", "reasoning")

    def __init__(self, amounts: list[int]) -> None:
        """Take exact amounts, in the order of `input` to `reasoning`; round them so that the sum is exact."""
        ends, total = [0], 0
        for amount in amounts:
            total += amount
            ends.append((total + _HALF) // _PER_NANO)
        self.input: Final = ends[1] - ends[0]
        self.cache_read: Final = ends[2] - ends[1]
        self.cache_write: Final = ends[3] - ends[2]
        self.cache_write_1h: Final = ends[4] - ends[3]
        self.output: Final = ends[5] - ends[4]
        self.reasoning: Final = ends[6] - ends[5]


class TokenRates:
    """Prices of one call, in 10⁻¹⁵ USD per token; `cache_write` is for 5 minutes."""

    __slots__ = (
        "cache_read",
        "cache_write",
        "cache_write_1h",
        "dearest_input",
        "dearest_output",
        "input",
        "output",
        "reasoning",
    )

    def __init__(
        self,
        input: int,
        output: int,
        *,
        cache_read: int | None = None,
        cache_write: int | None = None,
        cache_write_1h: int | None = None,
        reasoning: int | None = None,
    ) -> None:
        """Fill in missing prices: caching costs as much as other input, an hour of it 1.6 times as much."""
        write = input if cache_write is None else cache_write
        self.input: Final = input
        self.output: Final = output
        self.cache_read: Final = input if cache_read is None else cache_read
        self.cache_write: Final = write
        self.cache_write_1h: Final = write * 8 // 5 if cache_write_1h is None else cache_write_1h
        self.reasoning: Final = output if reasoning is None else reasoning
        self.dearest_input: Final = max(input, self.cache_read, write, self.cache_write_1h)
        """The highest price that a token of input can have."""
        self.dearest_output: Final = max(output, self.reasoning)
        """The highest price that a token of output can have."""

    def amount(self, usage: Usage) -> int:
        """Return the exact cost, in 10⁻¹⁵ USD: the sum of `amounts`, without building them.

        Counts that contradict each other are read so that no part is negative.
        """
        plain, read, write = usage.input, usage.cache_read, usage.cache_write
        total = 0
        if read <= 0 and write <= 0 and usage.reasoning <= 0:
            return sum_of_products(_count(plain), self.input, _count(usage.output), self.output)
        if read > 0:
            plain -= read
            total = read * self.cache_read
        if write > 0:
            plain -= write
            hour = min(_count(usage.cache_write_1h), write)
            total += (write - hour) * self.cache_write + hour * self.cache_write_1h
        if plain > 0:
            total += plain * self.input
        output, reasoning = usage.output, usage.reasoning
        if output > 0:
            total += output * self.output
            if reasoning > 0:
                total += min(reasoning, output) * (self.reasoning - self.output)
        return total

    def amounts(self, usage: Usage) -> list[int]:
        """Return the exact amount of each part: input, the three cache parts, output, reasoning."""
        read, write = _count(usage.cache_read), _count(usage.cache_write)
        hour = min(_count(usage.cache_write_1h), write)
        output = _count(usage.output)
        reasoning = min(_count(usage.reasoning), output)
        return [
            _count(usage.input - read - write) * self.input,
            read * self.cache_read,
            (write - hour) * self.cache_write,
            hour * self.cache_write_1h,
            (output - reasoning) * self.output,
            reasoning * self.reasoning,
        ]


class TargetPrice:
    """The price of one model, prepared once; `source` is None if it is unknown.

    An update of the price file changes this object in place, so it may be kept beside its target.
    """

    __slots__ = ("_modes", "_rates", "_tiers", "source")

    def __init__(self) -> None:
        self.source: PriceOrigin | None = None
        self._rates: TokenRates | None = None
        self._tiers: list[tuple[int, TokenRates]] = []
        self._modes: dict[str, TokenRates] = {}

    def set(
        self,
        source: PriceOrigin | None,
        rates: TokenRates | None,
        *,
        tiers: Iterable[tuple[int, TokenRates]] = (),
        modes: dict[str, TokenRates] | None = None,
    ) -> None:
        """Replace the prices; a tier is the input above which it holds, and its rates."""
        self.source = source
        self._rates = rates
        self._tiers = sorted(tiers, key=lambda tier: tier[0], reverse=True)
        self._modes = modes or {}

    @property
    def is_known(self) -> bool:
        """Whether a cost can be computed before the provider answers."""
        return self._rates is not None

    def cost(self, usage: Usage, kind: CostKind = "reported") -> Cost:
        """Return the cost of one answer; that of an estimated usage is at best `estimated`.

        The provider's own figure counts unless the configuration has a price.
        """
        if usage.estimated and kind == "reported":
            kind = "estimated"
        if usage.cost is not None and self.source != "config":
            return Cost(usage.cost, kind, "provider")
        rates = self._rates_of(usage.input, usage.mode)
        if rates is None:
            return Cost(None, kind, None)
        return Cost((rates.amount(usage) + _HALF) // _PER_NANO, kind, self.source)

    def parts(self, usage: Usage) -> CostParts | None:
        """Return the cost by part, from the prices alone; None if they are unknown."""
        rates = self.rates(usage)
        return None if rates is None else CostParts(rates.amounts(usage))

    def rates(self, usage: Usage) -> TokenRates | None:
        """Return the prices that hold for one answer; None if they are unknown."""
        return self._rates_of(usage.input, usage.mode)

    def reservation(self, input_tokens: int, output_tokens: int, mode: str = "") -> int | None:
        """Return the most that a call with so many tokens can cost, in 10⁻⁹ USD; None if unknown."""
        rates = self._rates_of(input_tokens, mode)
        if rates is None:
            return None
        amount = sum_of_products(input_tokens, rates.dearest_input, output_tokens, rates.dearest_output)
        return (amount + _PER_NANO - 1) // _PER_NANO

    def _rates_of(self, input_tokens: int, mode: str) -> TokenRates | None:
        """Return the prices of a call: a tier is a cliff and goes before the mode of processing."""
        for above, rates in self._tiers:
            if input_tokens > above:
                return rates
        return self._modes.get(mode, self._rates) if mode else self._rates


def _count(tokens: int) -> int:
    return tokens if tokens > 0 else 0


def sum_of_products(one: int, rate: int, other: int, other_rate: int) -> int:
    """Return `one * rate + other * other_rate`; compiled code multiplies large integers slowly."""
    product = float(one) * float(rate) + float(other) * float(other_rate)
    return int(product) if product < _EXACT else one * rate + other * other_rate


def to_rate(usd_per_million: float) -> int:
    """Return a price in 10⁻¹⁵ USD per token."""
    return round(usd_per_million * _PRICE_UNITS)


def least_certain(one: CostKind, other: CostKind) -> CostKind:
    """Return the kind of a sum of both."""
    return _KINDS[max(_KINDS.index(one), _KINDS.index(other))]


def sum_costs(costs: Iterable[Cost]) -> Cost:
    """Return the cost of a request from those of its calls: unknown if one is, and the least certain kind.

    The source is that of all calls, None if they differ.
    """
    nanos: int | None = 0
    kind: CostKind = "reported"
    sources: list[PriceOrigin | None] = []
    for cost in costs:
        nanos = None if nanos is None or cost.nanos is None else nanos + cost.nanos
        kind = least_certain(kind, cost.kind)
        sources.append(cost.source)
    same = bool(sources) and sources.count(sources[0]) == len(sources)
    return Cost(nanos, kind, sources[0] if same else None)


# Padding and stripping zeros cost more than the rest of an amount, so thousands are looked up.
_PADDED: Final = [b"%03d" % number for number in range(1000)]
_STRIPPED: Final = [text.rstrip(b"0") for text in _PADDED]


def format_usd(nanos: int) -> str:
    """Return an amount in USD without exponent and without trailing zeros: at most nine decimals."""
    return usd_bytes(nanos).decode()


def usd_bytes(nanos: int) -> bytes:
    """Return the text of `format_usd` as bytes."""
    whole = nanos // NANOS
    rest = nanos - whole * NANOS
    if not rest:
        return b"%d" % whole
    millionths, last = rest // 1000, rest % 1000
    first, second = millionths // 1000, millionths % 1000
    if last:
        decimals = _PADDED[first] + _PADDED[second] + _STRIPPED[last]
    elif second:
        decimals = _PADDED[first] + _STRIPPED[second]
    else:
        decimals = _STRIPPED[first]
    return b"0.%b" % decimals if not whole else b"%d.%b" % (whole, decimals)
