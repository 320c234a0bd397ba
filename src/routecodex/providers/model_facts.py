"""Sizes and abilities of models by name, from the rows of model_facts.json.

A row has the context size, the longest answer, and the abilities: v for images, t for tools, r for thinking;
each is null where no source knows it. Rows are grouped like prices: hosts may offer a model with another size
than its maker. The file is read when the first name is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from routecodex.config.providers import ModelConfig
from routecodex.providers.known_models import all_models

_Row = tuple[int | None, int | None, str | None]


class _FactsFile(Struct, frozen=True, forbid_unknown_fields=True):
    as_of: str
    sources: tuple[str, ...]
    models: dict[str, dict[str, _Row]]


@cache
def _groups() -> Mapping[str, Mapping[str, _Row]]:
    data = resources.files("routecodex.providers").joinpath("model_facts.json").read_bytes()
    return msgspec.json.decode(data, type=_FactsFile).models


def facts_of(name: str, group: str | None) -> ModelConfig | None:
    """Return the facts about a model at a group of providers, else those about it anywhere; None if unknown.

    Elsewhere a model may be written `maker/Model` or `model:variant`; its maker's row comes first.
    """
    row = _groups().get(group or "", {}).get(name)
    return _config(row) if row is not None else _by_plain_name().get(_plain(name))


@cache
def _by_plain_name() -> dict[str, ModelConfig]:
    known: dict[str, ModelConfig] = {}
    for name, model in _every_model():
        known.setdefault(_plain(name), model)
    return known


def _every_model() -> Iterator[tuple[str, ModelConfig]]:
    yield from all_models()
    for rows in _groups().values():
        for name, row in rows.items():
            yield name, _config(row)


def _plain(name: str) -> str:
    """Return the name without its maker and its variant, in lower case."""
    return name.rpartition("/")[2].partition(":")[0].lower()


def _config(row: _Row) -> ModelConfig:
    context, output, abilities = row
    if abilities is None:
        return ModelConfig(context_tokens=context, max_output_tokens=output)
    return ModelConfig(
        context_tokens=context,
        max_output_tokens=output,
        vision="v" in abilities,
        tools="t" in abilities,
        reasoning="r" in abilities,
    )
