"""Prices of the configured models, from the first source that has one.

config    the model's `price`
provider  the provider's own figure in its answer (`Usage.cost`; see `TargetPrice.cost`)
file      `prices.json` in the user dir, made by `routecodex prices update`
package   the price file of this package; models of flat-rate plans and local servers are free
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from routecodex.accounting import price_file
from routecodex.accounting.cost import PriceOrigin, TargetPrice, TokenRates, to_rate
from routecodex.accounting.price_file import PriceFile, PriceFileError, PriceRow, PriceTier, PriceValues
from routecodex.config.providers import ModelConfig, PriceConfig, PriceGroups, ProviderConfig

GroupsOf: TypeAlias = Callable[[str, ProviderConfig], PriceGroups]
FileStamp: TypeAlias = tuple[int, int, int]

FREE: Final = PriceRow(input=0.0, output=0.0)
_MAX_PREPARED: Final = 8192
_CACHE_PRICES: Final = ("cache_read", "cache_write", "cache_write_1h", "reasoning")


class FoundPrice(Struct, frozen=True):
    """The row of a model, with its source and the day it was taken; without a row the price is unknown."""

    row: PriceRow | None = None
    source: PriceOrigin | None = None
    date: str = ""
    free: bool = False


_UNKNOWN: Final = FoundPrice()


class PriceTable:
    """Prices of the models of one configuration.

    `groups_of` returns the groups of a provider in price files; `file` is the price file of the user dir.
    Both files are read when the first price is looked up; `keep_current` notices changes of the user's.
    """

    def __init__(
        self,
        providers: Mapping[str, ProviderConfig],
        *,
        groups_of: GroupsOf,
        file: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.file = file
        self._providers = providers
        self._groups = {name: groups_of(name, provider) for name, provider in providers.items()}
        self._clock = clock
        self._prepared: dict[tuple[str, str], TargetPrice] = {}
        self._stamp: FileStamp | None = None
        self._user_file: PriceFile | None = None
        self._is_loaded = False
        self._lock = threading.Lock()
        self.file_error = ""
        """Reason why the price file of the user dir is not used; empty if it is, or does not exist."""

    def price_for(self, provider: str, model: str) -> TargetPrice:
        """Return the price of a model, by its names in the configuration; of a named one the same object."""
        price = self._prepared.get((provider, model))
        return price if price is not None else self._prepare(provider, model)

    def _prepare(self, provider: str, model: str) -> TargetPrice:
        with self._lock:
            price = TargetPrice()
            if len(self._prepared) < _MAX_PREPARED or self._is_named(provider, model):
                # Clients choose the models of a provider that names them itself.
                price = self._prepared.setdefault((provider, model), price)
            _fill(price, self._find(provider, model))
        return price

    def _is_named(self, provider: str, model: str) -> bool:
        return provider in self._providers and model in self._providers[provider].models

    @property
    def is_stale(self) -> bool:
        """Whether no price has been looked up yet, or the price file of the user dir has changed."""
        return not self._is_loaded or file_stamp(self.file) != self._stamp

    def keep_current(self) -> None:
        """Prepare all models, and read the price file of the user dir again if it has changed.

        A server calls it now and then beside its requests, so that none of them has to read a file.
        """
        with self._lock:
            if self.is_stale:
                self._load_file()
                for provider, model in {*self.models(), *self._prepared}:
                    price = self._prepared.setdefault((provider, model), TargetPrice())
                    _fill(price, self._find(provider, model))

    def models(self) -> Iterator[tuple[str, str]]:
        """Yield provider and model of all configured models, by their names in the configuration."""
        for name, provider in self._providers.items():
            for model in provider.named_models:
                yield name, model

    def find(self, provider: str, model: str) -> FoundPrice:
        """Return the row in force for a configured model."""
        with self._lock:
            return self._find(provider, model)

    def user_file(self) -> PriceFile | None:
        """Return the price file of the user dir, if there is one that can be used."""
        with self._lock:
            return self._loaded_file()

    def groups(self, provider: str) -> PriceGroups:
        """Return where the prices of a configured provider are found."""
        return self._groups[provider]

    def _find(self, provider: str, model: str) -> FoundPrice:
        row = self._providers.get(provider)
        # Models that a provider lists beyond its table are sent under their own name.
        config = row.models.get(model, ModelConfig(id=model)) if row is not None else ModelConfig(id=model)
        if config.price == "free":
            return FoundPrice(FREE, "config", free=True)
        if config.price is not None:
            return FoundPrice(_row_of(config.price), "config")
        groups = self._groups.get(provider, PriceGroups((provider,)))
        return self._in_files(groups, config.id or model)

    def _in_files(self, groups: PriceGroups, model: str) -> FoundPrice:
        sources: list[tuple[PriceOrigin, PriceFile | None]] = [
            ("file", self._loaded_file()),
            ("package", None if groups.flat_rate else price_file.package_prices()),
        ]
        for source, file in sources:
            row = file.find(groups.names, model) if file is not None else None
            if row is not None and file is not None:
                return FoundPrice(row, source, file.date_of(row))
        return FoundPrice(FREE, "package", free=True) if groups.flat_rate else _UNKNOWN

    def _loaded_file(self) -> PriceFile | None:
        if not self._is_loaded:
            self._load_file()
        return self._user_file

    def _load_file(self) -> None:
        self._is_loaded = True
        # Taken before the file is read, so that a change in between is noticed at the next call.
        self._stamp = file_stamp(self.file)
        try:
            self._user_file = price_file.load(self.file, today=price_file.day_of(self._clock()))
            self.file_error = ""
        except PriceFileError as exc:
            self._user_file, self.file_error = None, exc.message


def file_stamp(path: Path) -> FileStamp | None:
    """Return modification time, size and inode of a file; None if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _row_of(price: PriceConfig) -> PriceRow:
    """Return the price of a configuration as a row; a plain price that is absent is 0."""
    row = msgspec.convert(msgspec.to_builtins(price), PriceRow)
    return msgspec.structs.replace(row, input=row.input or 0.0, output=row.output or 0.0)


def _fill(price: TargetPrice, found: FoundPrice) -> None:
    """Prepare the prices of a row for arithmetic."""
    row = found.row
    if row is None:
        price.set(None, None)
        return
    price.set(
        found.source,
        _rates(row, row),
        tiers=[(tier.above, _tier_rates(tier, row)) for tier in row.tiers],
        modes={name: _rates(mode, row) for name, mode in row.modes.items()},
    )


def _tier_rates(tier: PriceTier, row: PriceRow) -> TokenRates:
    """Return the prices of a tier; reasoning with a price of its own costs no less than below the tier."""
    if tier.reasoning is None and row.reasoning is not None:
        output = row.output if tier.output is None else tier.output
        tier = msgspec.structs.replace(tier, reasoning=max(row.reasoning, output or 0.0))
    return _rates(tier, row)


def _rates(values: PriceValues, row: PriceRow) -> TokenRates:
    """Return the prices of a row, a tier or a mode; a plain price that is absent is the row's."""
    input = row.input if values.input is None else values.input
    output = row.output if values.output is None else values.output
    others = {
        name: None if (price := getattr(values, name)) is None else to_rate(price) for name in _CACHE_PRICES
    }
    return TokenRates(to_rate(input or 0.0), to_rate(output or 0.0), **others)
