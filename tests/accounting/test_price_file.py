"""Price files: the package's own, imported ones, and what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from routecodex.accounting import price_file
from routecodex.accounting.price_file import PriceFile, PriceFileError, PriceRow, PriceTier
from routecodex.config.providers import ProviderConfig
from routecodex.providers.catalog import preset_rows, price_groups
from routecodex.providers.known_models import models_of

TODAY = "2026-11-18"
ROW = {"input": 1, "output": 2}


def parse(value: Any) -> PriceFile:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return price_file.parse(data, source="f.json", today=TODAY)


def row(file: PriceFile, group: str, model: str) -> PriceRow | None:
    return file.find((group,), model)


def test_every_row_of_the_package_has_a_source_with_a_date() -> None:
    file = price_file.package_prices()
    dates = {source.name: source.date for source in file.sources}
    assert (file.version, file.currency, file.unit) == (1, "USD", "1000000 tokens")
    assert file.as_of == max(dates.values())
    for group, models in file.providers.items():
        for model in models:
            found = row(file, group, model)
            assert found is not None
            assert found.sources, f"{group}.{model} has no source"
            assert file.date_of(found) in {dates[name] for name in found.sources}
            assert None not in (found.input, found.output)


def test_the_package_has_hundreds_of_rows_in_a_small_file() -> None:
    file = price_file.package_prices()
    assert file.count() > 600
    assert len(price_file.encode(file)) < 100_000
    assert {"openai", "anthropic", "gemini", "glm", "glm-cn", "deepseek", "qwen", "kimi"} <= set(
        file.providers
    )


def test_rows_keep_tiers_modes_and_the_day_from_which_they_hold() -> None:
    file = price_file.package_prices()
    sonnet, pro = row(file, "anthropic", "claude-sonnet-4-5"), row(file, "openai", "gpt-5.4")
    five = row(file, "anthropic", "claude-sonnet-5")
    assert sonnet is not None
    assert pro is not None
    assert five is not None
    assert sonnet.tiers == (
        PriceTier(above=200000, input=6, output=22.5, cache_read=0.6, cache_write=7.5, cache_write_1h=12),
    )
    assert set(pro.modes) == {"flex", "priority", "batch"}
    assert (five.input, five.output, five.since) == (3, 15, "2026-09-01")


UNKNOWN = {("zhipu", "glm-4.6v")}
"""Models of the catalogue without a row: no source has the price on open.bigmodel.cn, which is not Z.ai's."""


CATALOGUE = [
    (preset, protocol, model)
    for preset in preset_rows()
    for protocol in preset.base_url
    for model in models_of(preset.preset, protocol)
]


@pytest.mark.parametrize(
    ("preset", "protocol", "model"),
    CATALOGUE,
    ids=[f"{preset.preset}-{protocol}-{model}" for preset, protocol, model in CATALOGUE],
)
def test_every_model_of_the_catalogue_has_a_price_unless_it_is_free_or_known_to_have_none(
    preset: Any, protocol: Any, model: str
) -> None:
    groups = price_groups("p", ProviderConfig(preset=preset.preset, protocol=protocol))
    found = price_file.package_prices().find(groups.names, model)
    assert (found is None) == (groups.flat_rate or (preset.preset, model) in UNKNOWN)
    assert not groups.flat_rate or preset.plan != "usage" or preset.region == "local"
    assert found is None or price_file.package_prices().date_of(found)


def test_every_group_of_a_preset_exists() -> None:
    groups = {preset.prices for preset in preset_rows()} - {None}
    assert groups <= set(price_file.package_prices().providers)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("gpt-4.1-2025-04-14", "gpt-4.1"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("mistral-large-2512", "mistral-large-2512"),
        ("gpt-4-0613", "gpt-4-0613"),
        ("20250929", "20250929"),
    ],
)
def test_a_trailing_date_is_left_out(model: str, found: str) -> None:
    assert price_file.undated(model) == found


def test_rows_are_found_by_id_then_without_a_date_in_the_first_group() -> None:
    file = parse(
        {
            "providers": {
                "a": {"M": {"input": 1, "output": 1}, "n": {"input": 3, "output": 3}},
                "b": {"m-2025-01-31": {"input": 2, "output": 2}, "n": {"input": 4, "output": 4}},
            }
        }
    )
    found = [file.find(("a", "b"), model) for model in ("m-2025-01-31", "m-20260101", "n", "x")]
    assert [one and one.input for one in found] == [2, 1, 3, None]


def test_an_imported_file_keeps_prices_sources_and_dates_alone(tmp_path: Path) -> None:
    source = {"name": "list", "date": "2026-10-01", "licence": "MIT"}
    full = {
        **ROW,
        "tiers": [{"above": 10, "input": 3, "output": 4}],
        "modes": {"flex": {"input": 0.5}},
        "since": "2026-09-01",
        "from": ["list"],
        "context": 1000,
        "can": ["tools"],
    }
    parsed = parse({"sources": [source], "as_of": "2026-10-02", "providers": {"g": {"m": full, "n": ROW}}})
    price_file.save(parsed, tmp_path / "user" / "prices.json")
    saved = price_file.load(tmp_path / "user" / "prices.json", today=TODAY)
    assert saved is not None
    assert saved == parsed
    found = row(saved, "g", "m")
    assert found == PriceRow(
        input=1,
        output=2,
        tiers=(PriceTier(above=10, input=3, output=4),),
        modes={"flex": price_file.PriceValues(input=0.5)},
        since="2026-09-01",
        sources=("list",),
    )
    assert found is not None
    assert saved.date_of(found) == "2026-10-01"
    other = row(saved, "g", "n")
    assert other is not None
    assert saved.date_of(other) == "2026-10-02"
    assert [file.name for file in (tmp_path / "user").iterdir()] == ["prices.json"]


def test_a_file_without_a_date_is_of_today() -> None:
    assert parse({"providers": {"g": {"m": ROW}}}).as_of == TODAY


BAD: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{", "f.json: is not valid JSON: "),
    "not UTF-8": (b'{"providers": {"\xff": {}}}', "f.json: is not valid JSON: "),
    "a list": ([], "f.json: expected an object, got a list"),
    "no rows": ({"providers": {}}, "f.json: providers: has no prices"),
    "empty groups": ({"providers": {"g": {}}}, "f.json: providers: has no prices"),
    "no providers": ({"prices": []}, "f.json: object missing required field 'providers'"),
    "another currency": ({"currency": "CNY", "providers": {"g": {"m": ROW}}}, "currency: must be 'USD'"),
    "another unit": ({"unit": "1 token", "providers": {"g": {"m": ROW}}}, "unit: must be '1000000 tokens'"),
    "another version": ({"version": 2, "providers": {"g": {"m": ROW}}}, "version: must be 1, got 2"),
    "a wrong date": ({"as_of": "yesterday", "providers": {"g": {"m": ROW}}}, "f.json: as_of: expected "),
    "a negative price": (
        {"providers": {"g": {"m": {"input": -1, "output": 2}}}},
        "f.json: providers.g.m: input: expected a number >= 0.0",
    ),
    "an absurd price": (
        {"providers": {"g": {"m": {"input": 1, "output": 1e9}}}},
        "f.json: providers.g.m: output: expected a number <= 100000",
    ),
    "a price as text": (
        {"providers": {"g": {"m": {"input": "1", "output": 2}}}},
        "f.json: providers.g.m: input: expected a number, got a text",
    ),
    "no output": (
        {"providers": {"g": {"m": {"input": 1}}}},
        "f.json: providers.g.m: object missing required field 'output'",
    ),
    "two tiers of one size": (
        {"providers": {"g": {"m": {**ROW, "tiers": [{"above": 5, "input": 1}, {"above": 5, "input": 2}]}}}},
        "f.json: providers.g.m: tiers: two tiers begin above the same size",
    ),
}


@pytest.mark.parametrize(("value", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_with_the_place_of_its_mistake(value: Any, message: str) -> None:
    with pytest.raises(PriceFileError) as refused:
        parse(value)
    assert message in refused.value.message
    assert (refused.value.status, refused.value.code) == (400, "invalid_prices")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert price_file.load(tmp_path / "absent.json", today=TODAY) is None
    with pytest.raises(PriceFileError, match="cannot be read: Is a directory"):
        price_file.load(tmp_path, today=TODAY)
    with pytest.raises(PriceFileError, match="a price file has at most"):
        parse(b" " * (price_file.MAX_BYTES + 1))


def test_days_between_dates() -> None:
    assert price_file.age_in_days("2026-05-22", TODAY) == 180
    assert price_file.age_in_days("soon", TODAY) is None
    assert price_file.day_of(0) == "1970-01-01"
