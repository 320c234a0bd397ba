"""Prices of models in the configuration: every key, and values that make no sense."""

from __future__ import annotations

import pytest

from routecodex.config import ModelConfig, PriceConfig, PriceTierConfig, loads
from tests.config.checked import Row, problems_of, provider

PLACE = "providers.q.models.m.price"


def priced(price: str) -> str:
    return provider(models=f"{{ m = {{ price = {price} }} }}")


def test_a_price_has_all_its_keys() -> None:
    text = priced(
        "{ input = 0.6, output = 2.2, cache_read = 0.11, cache_write = 0.6, cache_write_1h = 0.96, "
        "reasoning = 2.2, tiers = [{ above = 200000, input = 1.2, output = 3.3 }] }"
    )
    assert problems_of(text) == []
    assert loads(text, environ={}).providers["q"].models["m"] == ModelConfig(
        id="m",
        price=PriceConfig(
            input=0.6,
            output=2.2,
            cache_read=0.11,
            cache_write=0.6,
            cache_write_1h=0.96,
            reasoning=2.2,
            tiers=(PriceTierConfig(above=200_000, input=1.2, output=3.3),),
        ),
    )


def test_a_model_may_be_free() -> None:
    assert problems_of(priced('"free"')) == []
    assert loads(priced('"free"'), environ={}).providers["q"].models["m"].price == "free"


TEXT = 'set input and output in USD per million tokens, or price = "free"'
RANGE = "a number from 0 to 100000"
PROBLEMS = [
    pytest.param("{}", ("error", PLACE, "is empty", TEXT), id="empty"),
    pytest.param(
        "{ input = 1 }",
        (
            "warning",
            f"{PLACE}.output",
            "is missing, so this model's output costs nothing",
            "add output; output = 0 if it is free",
        ),
        id="no output",
    ),
    pytest.param(
        "{ output = 1 }",
        (
            "warning",
            f"{PLACE}.input",
            "is missing, so this model's input costs nothing",
            "add input; input = 0 if it is free",
        ),
        id="no input",
    ),
    pytest.param(
        "{ input = -1, output = 1 }",
        ("error", f"{PLACE}.input", f"must be {RANGE}, got -1", f"write {RANGE}"),
        id="negative",
    ),
    pytest.param(
        "{ input = 1, output = 600000 }",
        ("error", f"{PLACE}.output", f"must be {RANGE}, got 600000", f"write {RANGE}"),
        id="absurd",
    ),
    pytest.param(
        "{ input = nan, output = 1 }",
        ("error", f"{PLACE}.input", f"must be {RANGE}, got nan", f"write {RANGE}"),
        id="not a number",
    ),
    pytest.param(
        "{ input = 1, output = 1, cache_read = inf }",
        ("error", f"{PLACE}.cache_read", f"must be {RANGE}, got inf", f"write {RANGE}"),
        id="infinite",
    ),
    pytest.param(
        "{ input = 1, output = 1, cached = 1 }",
        (
            "error",
            f"{PLACE}.cached",
            "is not a known key",
            'did you mean "cache_read"?',
        ),
        id="unknown key",
    ),
    pytest.param(
        "{ input = 1, output = 1, tiers = [{ input = 2 }] }",
        ("error", f"{PLACE}.tiers[0].above", "is missing", "set the size, as in above = 200000"),
        id="tier without a size",
    ),
    pytest.param(
        "{ input = 1, output = 1, tiers = [{ above = 0, input = 2 }] }",
        (
            "error",
            f"{PLACE}.tiers[0].above",
            "must be a whole number of at least 1, got 0",
            "write a whole number of at least 1",
        ),
        id="tier above nothing",
    ),
    pytest.param(
        "{ input = 1, output = 1, tiers = [{ above = 5 }] }",
        ("error", f"{PLACE}.tiers[0]", "has no price", "set input and output, or remove the tier"),
        id="tier without a price",
    ),
    pytest.param(
        '"gratis"',
        (
            "error",
            PLACE,
            'must be a table or "free", got a string',
            'write a table or "free"',
        ),
        id="another word",
    ),
]


@pytest.mark.parametrize(("price", "problem"), PROBLEMS)
def test_a_price_that_makes_no_sense_is_reported(price: str, problem: Row) -> None:
    found = problems_of(priced(price))
    assert [row for row in found if row[1].startswith("providers.q.models")][:1] == [problem]


def test_two_tiers_of_one_size_are_an_error() -> None:
    tiers = "{ input = 1, output = 1, tiers = [{ above = 5, input = 2 }, { above = 5, input = 3 }] }"
    assert problems_of(priced(tiers)) == [
        (
            "error",
            f"{PLACE}.tiers[{at}].above",
            "5 is the size of more than one tier",
            "give each tier its own size",
        )
        for at in (0, 1)
    ]
