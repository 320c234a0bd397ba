"""Prices as `routecodex prices` and `/admin/prices` show them, and their problems."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from routecodex.accounting import price_file
from routecodex.accounting.price_file import PriceFile, PriceRow
from routecodex.accounting.prices import FoundPrice, PriceTable

PriceAnswer = dict[str, Any]

OLD_DAYS = 180
"""Days after which the price of a row should be looked up again."""
UPDATE_FIX = "`routecodex prices update --file FILE` imports newer prices"


def show_prices(table: PriceTable, pattern: str = "*") -> PriceAnswer:
    """Return the prices of all configured models, and all other rows of the price files.

    `pattern` is a glob over `provider.model`. A configured model without a price has the source null.
    """
    files = _files(table)
    rows = [*_configured(table), *_others(files, set(table.models()))]
    return {
        "as_of": files[0][1].as_of,
        "prices": [row for row in rows if fnmatch.fnmatchcase(f"{row['provider']}.{row['model']}", pattern)],
        "file": str(table.file) if table.user_file() is not None else None,
        "file_error": table.file_error,
    }


def _files(table: PriceTable) -> list[tuple[str, PriceFile]]:
    user = table.user_file()
    package = ("package", price_file.package_prices())
    return [package] if user is None else [("file", user), package]


def _configured(table: PriceTable) -> Iterator[dict[str, Any]]:
    for provider, model in table.models():
        yield _row(provider, model, table.find(provider, model), configured=True)


def _others(files: list[tuple[str, PriceFile]], shown: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for source, file in files:
        for group, models in file.providers.items():
            for model, raw in models.items():
                if (group, model) in shown:
                    continue
                shown.add((group, model))
                row = msgspec.json.decode(raw, type=PriceRow)
                found = FoundPrice(row, "file" if source == "file" else "package", file.date_of(row))
                yield _row(group, model, found, configured=False)


def _row(provider: str, model: str, found: FoundPrice, *, configured: bool) -> dict[str, Any]:
    row = found.row
    prices: dict[str, Any] = msgspec.to_builtins(row) if row is not None else {}
    head = {"provider": provider, "model": model, "input": None, "output": None}
    tail = {"free": found.free, "source": found.source, "date": found.date or None, "configured": configured}
    return {**head, **prices, **tail}


def check_prices(answer: PriceAnswer, today: str) -> PriceAnswer:
    """Return the configured models without a price, and the rows whose price is old."""
    rows = answer["prices"]
    configured = [row for row in rows if row["configured"]]
    missing = [_named(row) for row in configured if row["source"] is None]
    return {
        "as_of": answer["as_of"],
        "models": len(configured),
        "missing": missing,
        "old": list(_old(rows, today)),
        "file_error": answer["file_error"],
    }


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"provider": row["provider"], "model": row["model"]}


def _old(rows: Iterable[Mapping[str, Any]], today: str) -> Iterator[dict[str, Any]]:
    for row in rows:
        days = price_file.age_in_days(row["date"], today) if row["date"] else None
        if days is not None and days > OLD_DAYS:
            yield {**_named(row), "date": row["date"], "days": days, "configured": row["configured"]}


def save_prices(file: PriceFile, path: Path, *, skipped: Iterable[Mapping[str, str]] = ()) -> PriceAnswer:
    """Write the price file of the user dir; return what it has."""
    price_file.save(file, path)
    return {
        "file": str(path),
        "as_of": file.as_of,
        "providers": len(file.providers),
        "prices": file.count(),
        "skipped": list(skipped),
    }
