"""Costs: arithmetic by part, tiers, modes, kinds, sums and texts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.accounting.cost import (
    NO_COST,
    Cost,
    CostKind,
    TargetPrice,
    TokenRates,
    format_usd,
    least_certain,
    sum_costs,
    to_rate,
)
from routecodex.canon.events import Usage

KINDS: list[CostKind] = ["reported", "observed", "estimated"]


def rates(input: float, output: float, **others: float) -> TokenRates:
    given: dict[str, int | None] = {name: to_rate(price) for name, price in others.items()}
    return TokenRates(to_rate(input), to_rate(output), **given)


def price(
    of: TokenRates | None,
    *,
    tiers: list[tuple[int, TokenRates]] | None = None,
    modes: dict[str, TokenRates] | None = None,
    source: Any = "package",
) -> TargetPrice:
    made = TargetPrice()
    made.set(source if of is not None else None, of, tiers=tiers or [], modes=modes)
    return made


PARTS = ("input", "cache_read", "cache_write", "cache_write_1h", "output", "reasoning")
CLAUDE = rates(3, 15, cache_read=0.3, cache_write=3.75, cache_write_1h=6)
MIXED = Usage(1000, 200, cache_read=600, cache_write=300, cache_write_1h=100, reasoning=50)


def test_every_part_has_its_own_price() -> None:
    parts = price(CLAUDE).parts(MIXED)
    assert parts is not None
    found = {name: getattr(parts, name) for name in PARTS}
    assert found == {
        "input": 100 * 3000,
        "cache_read": 600 * 300,
        "cache_write": 200 * 3750,
        "cache_write_1h": 100 * 6000,
        "output": 150 * 15000,
        "reasoning": 50 * 15000,
    }
    assert price(CLAUDE).cost(MIXED) == Cost(sum(found.values()), "reported", "package")


@pytest.mark.parametrize(
    ("of", "nanos"),
    [
        (rates(3, 15), 1000 * 3000 + 60 * 3000 + 200 * 15000),
        (rates(3, 15, cache_write=3.75), 700 * 3000 + 200 * 3750 + 100 * 6000 + 200 * 15000),
        (rates(3, 15, reasoning=30), 1000 * 3000 + 60 * 3000 + 150 * 15000 + 50 * 30000),
        (rates(0, 0), 0),
    ],
    ids=["nothing but plain prices", "an hour costs 1.6 times five minutes", "dear reasoning", "free"],
)
def test_missing_prices_are_those_of_the_input_or_1_6_times_the_write(of: TokenRates, nanos: int) -> None:
    assert price(of).cost(MIXED).nanos == nanos


def test_a_tier_is_a_cliff_for_every_token_of_the_call() -> None:
    tiered = price(
        rates(1, 2, cache_read=0.1), tiers=[(100, rates(2, 4, cache_read=0.2)), (1000, rates(8, 8))]
    )
    cached = Usage(100, 10, cache_read=90)
    assert tiered.cost(cached).nanos == 10 * 1000 + 90 * 100 + 10 * 2000
    assert tiered.cost(Usage(101, 10, cache_read=91)).nanos == 10 * 2000 + 91 * 200 + 10 * 4000
    assert tiered.cost(Usage(1000, 10)).nanos == 1000 * 2000 + 10 * 4000
    assert tiered.cost(Usage(1001, 10, cache_read=1000)).nanos == 1001 * 8000 + 10 * 8000


def test_a_mode_has_its_own_prices_below_the_tiers() -> None:
    made = price(rates(2, 8), modes={"flex": rates(1, 4)}, tiers=[(1000, rates(4, 16))])
    assert made.cost(Usage(10, 1, mode="flex")).nanos == 10 * 1000 + 4000
    assert made.cost(Usage(10, 1, mode="priority")).nanos == 10 * 2000 + 8000
    assert made.cost(Usage(1001, 1, mode="flex")).nanos == 1001 * 4000 + 16000


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_price_is_never_zero(kind: CostKind) -> None:
    unknown = price(None)
    cost = unknown.cost(Usage(10, 10), kind)
    assert (unknown.is_known, cost, cost.usd, cost.text) == (False, Cost(None, kind, None), None, "unknown")
    assert unknown.parts(Usage(10, 10)) is None
    assert unknown.reservation(10, 10) is None


def test_the_figure_of_the_provider_goes_before_all_but_the_configuration() -> None:
    billed = Usage(1_000_000, 0, cost=5)
    assert price(None).cost(billed) == Cost(5, "reported", "provider")
    assert price(rates(1, 1), source="file").cost(billed) == Cost(5, "reported", "provider")
    assert price(rates(1, 1), source="config").cost(billed) == Cost(10**9, "reported", "config")


@pytest.mark.parametrize(
    ("estimated", "kind", "expected"),
    [
        (False, "reported", "reported"),
        (True, "reported", "estimated"),
        (True, "observed", "observed"),
        (False, "observed", "observed"),
    ],
)
def test_a_cost_by_an_estimated_usage_is_estimated(
    estimated: bool, kind: CostKind, expected: CostKind
) -> None:
    assert price(CLAUDE).cost(Usage(1, 1, estimated=estimated), kind).kind == expected


def test_the_least_certain_kind_wins() -> None:
    assert [[least_certain(one, other) for other in KINDS] for one in KINDS] == [
        ["reported", "observed", "estimated"],
        ["observed", "observed", "estimated"],
        ["estimated", "estimated", "estimated"],
    ]


def test_a_sum_is_unknown_if_one_of_its_costs_is() -> None:
    known = [Cost(5, "reported", "package"), Cost(7, "observed", "package")]
    assert sum_costs(known) == Cost(12, "observed", "package")
    assert sum_costs([*known, Cost(None, "estimated", None)]) == Cost(None, "estimated", None)
    assert sum_costs([known[0], Cost(1, "reported", "provider")]) == Cost(6, "reported", None)
    assert sum_costs([]) == NO_COST
    assert hash(sum_costs([])) == hash(NO_COST)


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (0, "0"),
        (1, "0.000000001"),
        (1_234_000, "0.001234"),
        (10**9, "1"),
        (12_500_000_000, "12.5"),
        (10**15 + 1, "1000000.000000001"),
    ],
)
def test_amounts_have_neither_exponent_nor_trailing_zeros(nanos: int, text: str) -> None:
    assert (format_usd(nanos), Cost(nanos).text) == (text, text)


def test_amounts_are_rounded_once() -> None:
    cheap = price(rates(0.0028, 0.0014))
    assert cheap.cost(Usage(1, 1)).nanos == 4
    parts = cheap.parts(Usage(1, 1))
    assert parts is not None
    assert (parts.input, parts.output) == (3, 1)


def test_a_reservation_is_never_less_than_the_cost() -> None:
    made = price(CLAUDE, tiers=[(5000, rates(6, 22.5, reasoning=40))])
    assert made.reservation(1000, 200) == 1000 * 6000 + 200 * 15000
    assert made.reservation(5001, 1) == 5001 * 9600 + 40000


counts = st.integers(-5, 10**12)
amounts = st.decimals(0, 100_000, places=6).map(float)
usages = st.builds(
    Usage,
    input=counts,
    output=counts,
    cache_read=counts,
    cache_write=counts,
    reasoning=counts,
    cache_write_1h=counts,
)
prices = st.builds(
    rates,
    amounts,
    amounts,
    cache_read=amounts,
    cache_write=amounts,
    cache_write_1h=amounts,
    reasoning=amounts,
)


@given(prices, usages)
def test_no_cost_is_negative_and_the_parts_add_up(of: TokenRates, usage: Usage) -> None:
    made = price(of)
    cost, parts = made.cost(usage).nanos, made.parts(usage)
    assert cost is not None
    assert parts is not None
    found = [getattr(parts, name) for name in PARTS]
    assert all(part >= 0 for part in found)
    assert sum(found) == cost
    assert sum(of.amounts(usage)) == of.amount(usage)


@given(prices, st.integers(0, 10**9), st.integers(0, 10**9), st.data())
def test_a_cost_is_the_sum_of_tokens_times_prices(
    of: TokenRates, plain: int, output: int, data: st.DataObject
) -> None:
    read, five, hour = (data.draw(st.integers(0, 10**9)) for _ in range(3))
    reasoning = data.draw(st.integers(0, output))
    usage = Usage(
        plain + read + five + hour,
        output,
        cache_read=read,
        cache_write=five + hour,
        cache_write_1h=hour,
        reasoning=reasoning,
    )
    exact = plain * of.input + read * of.cache_read + five * of.cache_write + hour * of.cache_write_1h
    exact += (output - reasoning) * of.output + reasoning * of.reasoning
    nanos = price(of).cost(usage).nanos
    assert nanos is not None
    assert abs(nanos - Fraction(exact, 10**6)) <= Fraction(1, 2)
    assert nanos <= (price(of).reservation(usage.input, usage.output) or 0)
