"""Limits of keys as their providers report them: a key rests before its 429, scarce keys come last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routecodex.providers.rate_limit_headers import KeyAllowance, KeyQuota, read_allowance, read_quotas
from routecodex.routing.registry import PlanStep, Target

_SCARCE: Final = 0.2
"""Share below which another key of the same model is preferred; above it conversations keep their key, whose
provider has cached their prompt."""
_SHORTEST_REST: Final = 0.05


class KeyAllowances:
    """The scarce keys that this process knows of; `latest` has the headers of each key's last answer."""

    __slots__ = ("latest", "scarce")

    def __init__(self) -> None:
        self.scarce: dict[tuple[str, str], tuple[float, float]] = {}
        self.latest: dict[tuple[str, str], tuple[float, Sequence[tuple[bytes, bytes]]]] = {}

    def note(self, target: Target, headers: Sequence[tuple[bytes, bytes]], now: float) -> KeyAllowance | None:
        """Read the headers of an answer; return what is left if nothing is, so that the key should rest."""
        key, found = (target.provider, target.key), read_allowance(headers, now)
        self.latest[key] = (now, headers)
        if found is None or found.share >= _SCARCE or found.resets_in < _SHORTEST_REST:
            self.scarce.pop(key, None)
            return None
        self.scarce[key] = (found.share, now + found.resets_in)
        return found if not found.share else None

    def quotas(self) -> list[tuple[str, float, list[KeyQuota]]]:
        """Return the limits of each `provider.key`, as its provider reported them last, and when."""
        return [
            (f"{provider}.{key}", at, read_quotas(headers, at))
            for (provider, key), (at, headers) in self.latest.items()
        ]

    def in_order(self, steps: Sequence[PlanStep], now: float) -> tuple[PlanStep, ...]:
        """Return the steps with scarce keys behind other keys of the same model, the scarcest last."""
        ordered: list[PlanStep] = []
        group: list[PlanStep] = []
        for step in steps:
            if group and _model(group[0]) != _model(step):
                ordered += sorted(group, key=lambda one: -self._share(one.target, now))
                group = []
            group.append(step)
        return (*ordered, *sorted(group, key=lambda one: -self._share(one.target, now)))

    def _share(self, target: Target, now: float) -> float:
        share, until = self.scarce.get((target.provider, target.key), (1.0, 0.0))
        return share if until > now else 1.0


def _model(step: PlanStep) -> tuple[str, str, str]:
    return step.target.provider, step.target.model, step.route
