"""The format of price files: of the package, of `<user dir>/prices.json`, and of those that people import.

    {"version": 1, "currency": "USD", "unit": "1000000 tokens", "as_of": "2026-08-21",
     "sources": [{"name": "models.dev", "date": "2026-07-02", …}],
     "providers": {"glm": {"glm-4.7": {"input": 0.6, "output": 2.2, "from": ["models.dev"]}}}}

Rows stay raw JSON until a model needs its price: the file of the package has hundreds, a gateway uses a few.
"""

from __future__ import annotations

import datetime
import os
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct, field

from routecodex.canon.errors import BadRequest
from routecodex.config.providers import Amount, Count

FILE_NAME = "prices.json"
VERSION = 1
CURRENCY = "USD"
UNIT = "1000000 tokens"
MAX_BYTES = 32 * 1024 * 1024
"""Size of a price file; LiteLLM's table has about 2 MB."""

_DATE = re.compile(r"[-@](?:20\d{2}-[01]\d-[0-3]\d|20\d{2}[01]\d[0-3]\d)\Z")
"""A date at the end of an id: `-2025-04-14` (OpenAI), `-20250929` (Anthropic), `@20250929` (Vertex)."""
Day = Annotated[str, Meta(pattern=r"^20\d\d-[01]\d-[0-3]\d$")]

_TYPE_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "a text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
"""Types as messages name them to people who write a file."""


class PriceFileError(BadRequest):
    """A price file cannot be used."""

    default_code = "invalid_prices"


class PriceValues(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prices in USD per million tokens; `cache_write` is for 5 minutes."""

    input: Amount | None = None
    output: Amount | None = None
    cache_read: Amount | None = None
    cache_write: Amount | None = None
    cache_write_1h: Amount | None = None
    reasoning: Amount | None = None


class PriceTier(PriceValues, frozen=True, kw_only=True, omit_defaults=True):
    """Prices of a call whose whole input is above a size."""

    above: Count


class PriceRow(PriceValues, frozen=True, kw_only=True, omit_defaults=True):
    """The price of one model; `modes` are other ways of processing, such as `flex`."""

    tiers: tuple[PriceTier, ...] = ()
    modes: dict[str, PriceValues] = {}
    since: Day | None = None
    """Day from which this price holds, where it replaced another."""
    sources: tuple[str, ...] = field(default=(), name="from")


class FileRow(PriceRow, frozen=True, kw_only=True, omit_defaults=True):
    """A row that is imported; it must have both prices."""

    input: Amount
    output: Amount


class PriceSource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Source of rows, and the date at which they were taken."""

    name: str
    date: Day
    repository: str = ""
    commit: str = ""
    licence: str = ""


class PriceFile(Struct, frozen=True, kw_only=True):
    """Rows by group and model; a group has the prices of one provider."""

    version: int = VERSION
    currency: str = CURRENCY
    unit: str = UNIT
    as_of: Day = ""
    sources: tuple[PriceSource, ...] = ()
    providers: dict[str, dict[str, Raw]]

    def find(self, groups: tuple[str, ...], model: str) -> PriceRow | None:
        """Return the row of a model in the first group that has it, by its id, then without its date.

        Upper and lower case make no difference: lists write `GLM-4.7`, Zhipu's API is called with `glm-4.7`.
        """
        for name in (model, undated(model)):
            for group in groups:
                raw = _row_named(self.providers.get(group, {}), name)
                if raw is not None:
                    return msgspec.json.decode(raw, type=PriceRow)
        return None

    def date_of(self, row: PriceRow) -> str:
        """Return the day of the newest source of a row, else that of the file."""
        dates = [source.date for source in self.sources if source.name in row.sources]
        return max(dates, default=self.as_of)

    def count(self) -> int:
        """Return the number of rows."""
        return sum(map(len, self.providers.values()))


class _ImportedFile(Struct, kw_only=True):
    """A file that people import; its rows are checked one by one, so that a mistake can be located."""

    providers: dict[str, dict[str, Raw]]
    version: int = VERSION
    currency: str = CURRENCY
    unit: str = UNIT
    as_of: Day | None = None
    sources: tuple[PriceSource, ...] = ()


def _row_named(rows: Mapping[str, Raw], name: str) -> Raw | None:
    if name in rows:
        return rows[name]
    lower = name.lower()
    return next((raw for model, raw in rows.items() if model.lower() == lower), None)


def undated(model: str) -> str:
    """Return a model's id without a date at its end."""
    return _DATE.sub("", model)


@cache
def package_prices() -> PriceFile:
    """Return the price file of the package; it is read at the first call."""
    data = resources.files("routecodex.accounting").joinpath(FILE_NAME).read_bytes()
    return msgspec.json.decode(data, type=PriceFile)


def load(path: Path, *, today: str) -> PriceFile | None:
    """Return the price file at a path; None if there is none; raise PriceFileError if it cannot be used."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise PriceFileError(f"{path} cannot be read: {exc.strerror}") from exc
    return parse(data, source=str(path), today=today)


def parse(data: bytes, *, source: str, today: str) -> PriceFile:
    """Read and check a price file; a file without `as_of` is as of today."""
    found = decode(data, _ImportedFile, source=source)
    _check_head(found, source)
    if not any(found.providers.values()):
        raise PriceFileError(f"{source}: providers: has no prices")
    rows = {
        group: {
            model: _read_row(raw, f"{source}: providers.{group}.{model}") for model, raw in models.items()
        }
        for group, models in found.providers.items()
    }
    return build(rows, as_of=found.as_of or today, sources=found.sources)


def decode(data: bytes | Raw, shape: type[Any], *, source: str) -> Any:
    """Decode a file of prices, or a part of one; PriceFileError says what is wrong with it."""
    size = len(memoryview(data))
    if size > MAX_BYTES:
        raise PriceFileError(f"{source}: has {size} bytes; a price file has at most {MAX_BYTES}")
    try:
        return msgspec.json.decode(data, type=shape)
    except msgspec.ValidationError as exc:
        what, _, where = str(exc).partition(" - at `$")
        place = where.rstrip("`").lstrip(".")
        text = what
        for type_name, word in _TYPE_WORDS.items():
            text = text.replace(f"`{type_name}`", word).replace(f"`{type_name} | null`", word)
        text = text.replace("`", "'")
        raise PriceFileError(
            f"{source}: {f'{place}: ' if place else ''}{text[:1].lower()}{text[1:]}"
        ) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise PriceFileError(f"{source}: is not valid JSON: {exc}") from exc


def _check_head(found: _ImportedFile, source: str) -> None:
    for name, expected in (("version", VERSION), ("currency", CURRENCY), ("unit", UNIT)):
        if getattr(found, name) != expected:
            raise PriceFileError(f"{source}: {name}: must be {expected!r}, got {getattr(found, name)!r}")


def _read_row(raw: Raw, place: str) -> FileRow:
    row: FileRow = decode(raw, FileRow, source=place)
    sizes = [tier.above for tier in row.tiers]
    if len(set(sizes)) != len(sizes):
        raise PriceFileError(f"{place}: tiers: two tiers begin above the same size")
    return row


def build(
    rows: Mapping[str, Mapping[str, PriceRow]], *, as_of: str, sources: tuple[PriceSource, ...] = ()
) -> PriceFile:
    """Return a price file of these rows."""
    providers = {
        group: {model: Raw(msgspec.json.encode(row)) for model, row in sorted(models.items())}
        for group, models in rows.items()
        if models
    }
    return PriceFile(as_of=as_of, sources=sources, providers=providers)


def encode(file: PriceFile) -> bytes:
    """Return the bytes of a price file, one row per line."""
    head = msgspec.json.encode(
        {name: getattr(file, name) for name in ("version", "currency", "unit", "as_of", "sources")}
    )
    groups = [
        b"%b: {\n%b\n}"
        % (
            msgspec.json.encode(group),
            b",\n".join(b"%b: %b" % (msgspec.json.encode(model), bytes(raw)) for model, raw in rows.items()),
        )
        for group, rows in file.providers.items()
    ]
    return head[:-1] + b',"providers": {\n' + b",\n".join(groups) + b"\n}}\n"


def save(file: PriceFile, path: Path) -> None:
    """Write a price file in one step: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(encode(file))
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def day_of(seconds: float) -> str:
    """Return the UTC day of a time, as price files write it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()


def age_in_days(date: str, today: str) -> int | None:
    """Return the days between two dates; None if one of them is not a date."""
    try:
        return (datetime.date.fromisoformat(today) - datetime.date.fromisoformat(date)).days
    except ValueError:
        return None
