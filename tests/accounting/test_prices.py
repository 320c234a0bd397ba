"""Prices of configured models: order of sources, groups by preset and name, changes of the user's file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from routecodex.accounting import price_report
from routecodex.accounting.cost import Cost
from routecodex.accounting.prices import PriceTable
from routecodex.canon.events import Usage
from routecodex.config import loads
from routecodex.providers.catalog import PRESETS, price_groups

CONFIG = """
[providers.glm]
auth = [{ value = "k" }]
[providers.glm.models."glm-4.7".price]
input = 0.6
output = 2.2
cache_read = 0.11
cache_write = 0.6
cache_write_1h = 0.96
reasoning = 2.2
tiers = [{ above = 200000, input = 1.2, output = 3.3 }]
[providers.work]
preset = "anthropic"
auth = [{ value = "k" }]
[providers.work.models.fast]
id = "claude-haiku-4-5-20301231"
[providers.up]
protocol = "chat"
base_url = "http://127.0.0.1:9/v1"
[providers.up.models]
m = {}
gift = { price = "free" }
[providers.deepseek]
protocol = "chat"
base_url = "http://127.0.0.1:9/v1"
models = { "deepseek-v4-pro" = {} }
[providers.zai-coding]
auth = [{ value = "k" }]
[providers.vllm]
models = { "m" = {} }
[providers.ollama]
protocol = "chat"
base_url = "http://127.0.0.1:9/v1"
models = { "m" = {} }
[providers.demo]
protocol = "demo"
models = { "demo-1" = {} }
[routing]
default = ["up.m"]
"""
MILLION = Usage(1_000_000, 1_000_000)
"""Above all tiers."""
THOUSAND = Usage(1000, 1000)


def table(folder: Path, config: str = CONFIG) -> PriceTable:
    loaded = loads(config, environ={}, presets=PRESETS)
    return PriceTable(loaded.providers, groups_of=price_groups, file=folder / "prices.json")


def write(folder: Path, rows: dict[str, Any], **head: Any) -> None:
    """Write the price file of the user dir; its time differs from that of the one before."""
    file = folder / "prices.json"
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(json.dumps({**head, "providers": rows}))
    os.utime(file, ns=(before + 10**9, before + 10**9))


@pytest.mark.parametrize(
    ("provider", "model", "cost"),
    [
        ("glm", "glm-4.7", Cost(2_800_000, "reported", "config")),
        ("glm", "glm-5.1", Cost(5_800_000, "reported", "package")),
        ("work", "claude-sonnet-5", Cost(18_000_000, "reported", "package")),
        ("work", "fast", Cost(6_000_000, "reported", "package")),
        ("up", "m", Cost(None, "reported", None)),
        ("up", "gift", Cost(0, "reported", "config")),
        ("deepseek", "deepseek-v4-pro", Cost(1_305_000, "reported", "package")),
        ("zai-coding", "glm-4.7", Cost(0, "reported", "package")),
        ("vllm", "m", Cost(0, "reported", "package")),
        ("ollama", "m", Cost(None, "reported", None)),
        ("demo", "demo-1", Cost(0, "reported", "package")),
        ("glm", "glm-4.6", Cost(2_800_000, "reported", "package")),
        ("nobody", "m", Cost(None, "reported", None)),
    ],
    ids=[
        "configuration",
        "named like a preset",
        "by its preset",
        "by its id without a date",
        "no price",
        "free",
        "by its name",
        "flat-rate plan",
        "local server",
        "only named like a local server",
        "demo",
        "not in the configuration",
        "unknown provider",
    ],
)
def test_a_price_is_that_of_the_first_source(tmp_path: Path, provider: str, model: str, cost: Cost) -> None:
    assert table(tmp_path).price_for(provider, model).cost(THOUSAND) == cost


def test_prices_of_the_user_file_go_before_the_package_and_after_all_others(tmp_path: Path) -> None:
    row = {"input": 1, "output": 1}
    groups = ("glm", "anthropic", "up", "deepseek", "zai-coding")
    models = ("glm-4.7", "glm-5.1", "claude-sonnet-5", "m", "gift", "deepseek-v4-pro")
    write(tmp_path, {group: dict.fromkeys(models, row) for group in groups})
    found = table(tmp_path)
    sources = {
        name: found.price_for(*name.split(".", 1)).source
        for name in (
            *("glm.glm-4.7", "glm.glm-5.1", "work.claude-sonnet-5", "up.m", "up.gift"),
            *("deepseek.deepseek-v4-pro", "zai-coding.glm-4.7", "work.fast"),
        )
    }
    assert sources == {
        "glm.glm-4.7": "config",
        "glm.glm-5.1": "file",
        "work.claude-sonnet-5": "file",
        "up.m": "file",
        "up.gift": "config",
        "deepseek.deepseek-v4-pro": "file",
        "zai-coding.glm-4.7": "file",
        "work.fast": "package",
    }
    billed = Usage(1000, 1000, cost=7)
    costs = [found.price_for(*name.split(".", 1)).cost(billed) for name in ("glm.glm-4.7", "up.m", "up.gift")]
    assert [(cost.nanos, cost.source) for cost in costs] == [
        (2_800_000, "config"),
        (7, "provider"),
        (0, "config"),
    ]


def test_a_tier_of_the_configuration_has_its_own_prices_alone(tmp_path: Path) -> None:
    price = table(tmp_path).price_for("glm", "glm-4.7")
    above = Usage(200_001, 1000, cache_read=100_001, cache_write=50_000, reasoning=500, cache_write_1h=25_000)
    input = 150_001 * 1200 + 25_000 * 1200 + 25_000 * 1920
    assert price.cost(above).nanos == input + 1000 * 3300
    below = Usage(200_000, 1000, cache_read=100_000, cache_write=50_000, reasoning=500, cache_write_1h=25_000)
    input = 50_000 * 600 + 100_000 * 110 + 25_000 * 600 + 25_000 * 960
    assert price.cost(below).nanos == input + 1000 * 2200


def test_missing_prices_of_tiers_and_modes_are_those_of_their_own_input(tmp_path: Path) -> None:
    row = {
        "input": 1,
        "output": 2,
        "cache_read": 0.1,
        "reasoning": 9,
        "tiers": [{"above": 1000, "input": 2}],
        "modes": {"flex": {"input": 0.5}, "fast": {"input": 10, "output": 20, "cache_write": 12.5}},
    }
    write(tmp_path, {"up": {"m": row}})
    price = table(tmp_path).price_for("up", "m")
    read = Usage(100, 100, cache_read=100, reasoning=50)
    assert (
        price.cost(Usage(2000, 100, cache_read=2000, reasoning=50)).nanos
        == 2000 * 2000 + 50 * 2000 + 50 * 9000
    )
    flex = Usage(read.input, read.output, cache_read=100, reasoning=50, mode="flex")
    assert price.cost(flex).nanos == 100 * 500 + 100 * 2000
    fast = Usage(100, 0, cache_write=100, cache_write_1h=100, mode="fast")
    assert price.cost(fast).nanos == 100 * 20000


def test_a_prepared_price_changes_with_the_file(tmp_path: Path) -> None:
    prices = table(tmp_path)
    assert prices.is_stale
    price = prices.price_for("up", "m")
    assert (price.source, prices.is_stale) == (None, False)
    write(tmp_path, {"up": {"m": {"input": 1, "output": 1}}})
    assert prices.is_stale
    prices.keep_current()
    assert prices.price_for("up", "m") is price
    assert price.cost(MILLION) == Cost(2_000_000_000, "reported", "file")
    (tmp_path / "prices.json").unlink()
    prices.keep_current()
    assert not price.is_known


def test_a_broken_file_is_not_used_and_says_why(tmp_path: Path) -> None:
    write(tmp_path, {"up": {"m": {"input": -1, "output": 1}}})
    prices = table(tmp_path)
    assert prices.price_for("glm", "glm-5.1").source == "package"
    assert prices.file_error == f"{tmp_path}/prices.json: providers.up.m: input: expected a number >= 0.0"
    assert price_report.show_prices(prices, "up.m")["file_error"] == prices.file_error
    write(tmp_path, {"up": {"m": {"input": 1, "output": 1}}})
    prices.keep_current()
    assert (prices.price_for("up", "m").source, prices.file_error) == ("file", "")


def test_shown_prices_have_the_configured_models_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"up": {"m": {"input": 1, "output": 2}, "other": {"input": 3, "output": 4}}},
        as_of="2026-10-01",
    )
    answer = price_report.show_prices(table(tmp_path), "up.*")
    assert answer == {
        "as_of": "2026-10-01",
        "prices": [
            {
                "provider": "up",
                "model": "m",
                "input": 1.0,
                "output": 2.0,
                "free": False,
                "source": "file",
                "date": "2026-10-01",
                "configured": True,
            },
            {
                "provider": "up",
                "model": "gift",
                "input": 0.0,
                "output": 0.0,
                "free": True,
                "source": "config",
                "date": None,
                "configured": True,
            },
            {
                "provider": "up",
                "model": "other",
                "input": 3.0,
                "output": 4.0,
                "free": False,
                "source": "file",
                "date": "2026-10-01",
                "configured": False,
            },
        ],
        "file": str(tmp_path / "prices.json"),
        "file_error": "",
    }


def test_a_check_finds_models_without_a_price_and_prices_older_than_180_days(tmp_path: Path) -> None:
    sources = [{"name": "old", "date": "2026-01-01"}, {"name": "new", "date": "2026-06-01"}]
    rows = {
        "up": {
            "m": {"input": 1, "output": 2, "from": ["old"]},
            "n": {"input": 1, "output": 2, "from": ["old", "new"]},
            "o": {"input": 1, "output": 2},
        }
    }
    write(tmp_path, rows, sources=sources, as_of="2026-01-02")
    found = price_report.check_prices(price_report.show_prices(table(tmp_path)), "2026-07-01")
    assert found["missing"] == [{"provider": "ollama", "model": "m"}]
    assert found["old"] == [
        {"provider": "up", "model": "m", "date": "2026-01-01", "days": 181, "configured": True}
    ]
    later = price_report.check_prices(price_report.show_prices(table(tmp_path)), "2026-07-02")
    assert [(row["model"], row["days"]) for row in later["old"]] == [("m", 182), ("o", 181)]


def test_models_that_a_provider_names_itself_have_prices_by_name(tmp_path: Path) -> None:
    models = 'auth = [{ value = "k" }]\nmodels = { "*" = {}, mine = {} }\n'
    prices = table(tmp_path, f'[providers.openai]\n{models}[routing]\ndefault = ["openai.mine"]\n')
    assert list(prices.models()) == [("openai", "mine")]
    price = prices.price_for("openai", "gpt-4.1")
    assert price.cost(MILLION) == Cost(10_000_000_000, "reported", "package")
    write(tmp_path, {"openai": {"gpt-4.1": {"input": 1, "output": 1}}})
    prices.keep_current()
    assert price.cost(MILLION) == Cost(2_000_000_000, "reported", "file")
    assert prices.price_for("openai", "gpt-4.1") is price
    for at in range(10_000):
        prices.price_for("openai", f"made-up-{at}")
    assert prices.price_for("openai", "made-up-9999") is not prices.price_for("openai", "made-up-9999")
    assert prices.price_for("openai", "mine") is prices.price_for("openai", "mine")
