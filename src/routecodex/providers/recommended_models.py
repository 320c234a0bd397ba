"""Models to start with at each preset: one for most requests, others where a route needs another model.

The rows of recommended_models.json have ids and sizes with their sources. Presets whose models have names of
the customer's own (deployments) have no row. The file is read when the first row is looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from routecodex.config.providers import ModelConfig, Protocol

ROUTES = ("default", "thinking", "background", "vision", "longcontext")
"""Routes for which a row may name a model."""


class RecommendedModels(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The models of one preset; a route without a model uses that of `default`."""

    preset: str
    protocol: Protocol | None = None
    """Set where the protocols of a preset have different models."""
    default: str
    thinking: str | None = None
    background: str | None = None
    vision: str | None = None
    longcontext: str | None = None
    models: dict[str, ModelConfig]
    source: tuple[str, ...]

    @property
    def by_route(self) -> Mapping[str, str]:
        """The model of each route that has one."""
        named = ((route, getattr(self, route)) for route in ROUTES)
        return {route: model for route, model in named if model is not None}


@cache
def recommended_rows() -> tuple[RecommendedModels, ...]:
    """Return all rows, in the order of the catalog."""
    data = resources.files("routecodex.providers").joinpath("recommended_models.json").read_bytes()
    return msgspec.json.decode(data, type=tuple[RecommendedModels, ...])


def recommended_models(preset: str, protocol: Protocol) -> RecommendedModels | None:
    """Return the models to start with at the address of one protocol; None if there is no recommendation."""
    rows = (row for row in recommended_rows() if row.preset == preset)
    return next((row for row in rows if row.protocol in (None, protocol)), None)
