"""Effect of failures and successes on keys: cooldowns and circuit breakers. Values and functions, no IO.

| Outcome                        | Applies to     | Effect                                                |
|--------------------------------|----------------|-------------------------------------------------------|
| 429                            | key            | cools: `Retry-After` (capped), or a ladder by strikes |
| quota exhausted, 402           | key            | cools long, twice as long with every strike, capped   |
| 401, 403                       | key            | out until it is reset; one probe every `probe_every`  |
| the model does not exist there | key × model    | the same                                              |
| 5xx, overload, timeout         | key × model    | counted; the third in a row opens the breaker         |
| no connection                  | key            | the same                                              |
| the request itself is at fault | –              | none                                                  |
| this machine is at fault       | –              | none                                                  |
| success                        | key and model  | resets                                                |

An open breaker becomes half-open when its time is over: one probe may pass; its success closes the breaker,
its failure opens it for longer. `probes` returns the keys that need a probe; the caller grants it. Strikes
are consecutive: an attempt that began before the cooldown and fails during it does not add one.

Times are seconds since the epoch, on a clock that may be set back: no cooldown lasts longer than its cap, and
one that was noted in the future has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from routecodex.canon.errors import (
    LocalFault,
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnknownModel,
)
from routecodex.routing.registry import Selector, Target

CooldownCause = Literal["limited", "quota", "key refused", "model unknown", "failing"]
KeyCondition = Literal["cooling", "open", "half-open", "refused"]
AttemptOutcome = Literal[
    "ok",
    "gone",
    "broken",
    "empty",
    "rejected",
    "limited",
    "quota",
    "key_refused",
    "model_unknown",
    "overloaded",
    "timeout",
    "no_connection",
    "local_fault",
    "failed",
]
"""Outcome of an attempt at a target: a short list, for metrics."""

SKEW = 60.0
"""Largest difference between the clocks of two machines, in seconds."""

LASTING: frozenset[CooldownCause] = frozenset({"key refused", "model unknown"})
"""Causes that stay until a person removes them."""

_MOST_ERROR_TEXT = 300
# Codes of failures of the response, not of the connection.
_ANSWER_CODES = frozenset({"upstream_truncated", "upstream_unparsable"})
_CONDITIONS: dict[CooldownCause, KeyCondition] = {
    "limited": "cooling",
    "quota": "cooling",
    "key refused": "refused",
    "model unknown": "refused",
    "failing": "open",
}


class CooldownOptions(Struct, frozen=True, kw_only=True):
    """Seconds a key stays in cooldown, by cause; none if not `enabled`."""

    enabled: bool = True
    retry_after_max: float = 900.0
    ladder: tuple[float, ...] = (3.0, 10.0, 30.0, 60.0)
    quota: float = 600.0
    quota_max: float = 7200.0
    probe_every: float = 600.0
    failures: int = 3
    opening: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0, 60.0)


DEFAULT = CooldownOptions()
_SHORT_SECONDS = 1.0


def short_cooldowns(options: CooldownOptions) -> CooldownOptions:
    """Return options with short cooldowns, for the demo provider, which fails only on request."""
    return replace(
        options,
        ladder=(_SHORT_SECONDS,),
        quota=_SHORT_SECONDS,
        quota_max=_SHORT_SECONDS,
        probe_every=_SHORT_SECONDS,
        opening=(_SHORT_SECONDS,),
    )


class Cooldown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cooldown of a key, or of a key for one model; `noted` is the time of the last failure."""

    reason: CooldownCause
    noted: float
    until: float = 0.0
    strikes: Annotated[int, Meta(ge=1, le=2**53)] = 1
    error: str = ""
    status: Annotated[int, Meta(ge=0, le=999)] | None = None


HealthState = Mapping[Selector, Cooldown]
"""Cooldowns by `provider.key` and `provider.key.model`; all others can be used."""


class FailureImpact(Struct, frozen=True, kw_only=True):
    """The effect of one failure on a key; `wait` is the provider's `Retry-After`, 0 without one."""

    selector: Selector
    reason: CooldownCause
    wait: float
    error: str
    status: int | None


def after_success(
    state: HealthState, target: Target, now: float, *, began: float | None = None
) -> HealthState:
    """Return the health after a successful attempt; the same object if it does not change.

    An attempt that began before the last failure of the key (`began`) does not end its cooldown.
    """
    if not state:
        return state
    recovered = [
        key
        for key, cooldown in _cooldowns_of(state, target)
        if began is None or not began < cooldown.noted <= now
    ]
    return {key: state[key] for key in state if key not in recovered} if recovered else state


def cooling_until(
    state: HealthState, target: Target, now: float, *, options: CooldownOptions = DEFAULT
) -> float:
    """Return the time from which the target can be used; 0.0 if it can be used now, maybe as a probe."""
    if not state:
        return 0.0
    latest = max(
        (cooldown_end(cooldown, now, options=options) for _, cooldown in _cooldowns_of(state, target)),
        default=0.0,
    )
    return latest if latest > now else 0.0


def cooldown_reason(
    state: HealthState, target: Target, now: float, *, options: CooldownOptions = DEFAULT
) -> str:
    """Return the reason for the target's cooldown, for people; empty if it can be used."""
    cooldowns = _cooldowns_of(state, target)
    found = [(cooldown_end(cooldown, now, options=options), key, cooldown) for key, cooldown in cooldowns]
    end, key, cooldown = max(found, key=lambda one: one[0], default=(0.0, None, None))
    if cooldown is None or end <= now:
        return ""
    error = f": {cooldown.error}" if cooldown.error else ""
    return f"{key} is {_CONDITIONS[cooldown.reason]} for {end - now:.3g} s ({cooldown.reason}{error})"


def causes(
    state: HealthState, target: Target, now: float, *, options: CooldownOptions = DEFAULT
) -> frozenset[CooldownCause]:
    """Return all causes of the target's cooldowns."""
    return frozenset(
        cooldown.reason
        for _, cooldown in _cooldowns_of(state, target)
        if cooldown_end(cooldown, now, options=options) > now
    )


def unusable(
    state: HealthState, target: Target, now: float, *, options: CooldownOptions = DEFAULT
) -> Cooldown | None:
    """Return the cooldown of a target that waiting does not cure: key refused or out of credit, no model."""
    for _, cooldown in _cooldowns_of(state, target):
        in_force = cooldown_end(cooldown, now, options=options) > now
        if cooldown.reason in LASTING or (cooldown.reason == "quota" and in_force):
            return cooldown
    return None


def condition(cooldown: Cooldown, now: float, *, options: CooldownOptions = DEFAULT) -> KeyCondition | None:
    """Return the condition of a key with this cooldown; None if it can be used without a probe."""
    if cooldown_end(cooldown, now, options=options) > now:
        return _CONDITIONS[cooldown.reason]
    if cooldown.reason in LASTING:
        return "refused"
    return "half-open" if cooldown.reason == "failing" and cooldown.strikes >= options.failures else None


def probes(
    state: HealthState, target: Target, now: float, *, options: CooldownOptions = DEFAULT
) -> tuple[Selector, ...]:
    """Return the keys for which an attempt at this usable target would be a probe."""
    return tuple(
        key
        for key, cooldown in _cooldowns_of(state, target)
        if condition(cooldown, now, options=options) in ("half-open", "refused")
    )


def reset(state: HealthState, selector: Selector | None) -> HealthState:
    """Return the health without the cooldowns of the selector; without one, remove all."""
    if selector is None:
        return {}
    return {key: cooldown for key, cooldown in state.items() if not key.overlaps(selector)}


def without_refused_keys(state: HealthState) -> HealthState:
    """Return the health for keys and models that may be new: none counts as refused or unknown."""
    return {key: cooldown for key, cooldown in state.items() if cooldown.reason not in LASTING}


def health_keys(target: Target) -> tuple[Selector, Selector]:
    """Return the keys of a target's cooldowns: its key, and its key with its model."""
    return Selector(target.provider, target.key), Selector(target.provider, target.key, target.model)


def failure_impact(target: Target, error: UpstreamError) -> FailureImpact | None:
    """Return the effect of a failure on health; None if the request or this machine is at fault."""
    if isinstance(error, UpstreamRejected | LocalFault):
        return None
    key, model = health_keys(target)
    reason = _cause_of(error)
    status = error.upstream_status
    return FailureImpact(
        selector=model if _is_about_model(reason, error) else key,
        reason=reason,
        wait=error.retry_after or 0.0,
        # Providers choose both: the store takes no lone surrogates and only real statuses.
        error=error.message[:_MOST_ERROR_TEXT].encode("utf-8", "replace").decode(),
        status=status if status is not None and 0 <= status <= 999 else None,
    )


def record_failure(
    state: HealthState, impact: FailureImpact, *, now: float, options: CooldownOptions = DEFAULT
) -> HealthState:
    """Return the health after a failure."""
    changed: dict[Selector, Cooldown] = {}
    for key in (Selector(impact.selector.provider, impact.selector.key), impact.selector):
        refused = state.get(key)
        if impact.reason != "failing" or refused is None or refused.reason not in LASTING:
            continue
        # The probe did not reach the check of the key or model: it stays out until the next probe.
        if cooldown_end(refused, now, options=options) <= now:
            changed[key] = replace(refused, noted=now, until=now + options.probe_every)
        if impact.selector == key:
            return {**state, **changed}
    return {
        **state,
        **changed,
        impact.selector: _extend(state.get(impact.selector), impact, now=now, options=options),
    }


def cooldown_end(cooldown: Cooldown, now: float, *, options: CooldownOptions = DEFAULT) -> float:
    """Return the end of a cooldown, at most its cap from now."""
    if cooldown.noted > now + SKEW:
        return 0.0
    return min(cooldown.until, min(cooldown.noted, now) + _CAPS[cooldown.reason](options))


def _extend(old: Cooldown | None, impact: FailureImpact, *, now: float, options: CooldownOptions) -> Cooldown:
    end = cooldown_end(old, now, options=options) if old is not None else 0.0
    is_out = end > now
    strikes = old.strikes + (not is_out) if old is not None and old.reason == impact.reason else 1
    span = _SPANS[impact.reason](strikes, impact.wait, options)
    fresh = now + span if span else 0.0
    if is_out and old is not None and old.reason != impact.reason and end >= fresh:
        return old
    return Cooldown(
        reason=impact.reason,
        noted=now,
        until=max(fresh, end) if is_out else fresh,
        strikes=strikes,
        error=impact.error,
        status=impact.status,
    )


def _cooldowns_of(state: HealthState, target: Target) -> Iterator[tuple[Selector, Cooldown]]:
    for key in health_keys(target):
        cooldown = state.get(key)
        if cooldown is not None:
            yield key, cooldown


def _cause_of(error: UpstreamError) -> CooldownCause:
    if isinstance(error, UpstreamRefusedKey):
        return "key refused"
    if isinstance(error, UpstreamUnknownModel):
        return "model unknown"
    if not isinstance(error, UpstreamLimited):
        return "failing"
    return "quota" if error.code == "insufficient_quota" or error.upstream_status == 402 else "limited"


_OUTCOMES: tuple[tuple[type[UpstreamError], AttemptOutcome], ...] = (
    (UpstreamRejected, "rejected"),
    (UpstreamRefusedKey, "key_refused"),
    (UpstreamUnknownModel, "model_unknown"),
    (UpstreamOverloaded, "overloaded"),
    (UpstreamTimeout, "timeout"),
    (LocalFault, "local_fault"),
)


def outcome_of(error: UpstreamError) -> AttemptOutcome:
    """Return the outcome of an attempt that failed with this error."""
    if isinstance(error, UpstreamLimited):
        return "quota" if _cause_of(error) == "quota" else "limited"
    if _is_connection_error(error):
        return "no_connection"
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), "failed")


def _is_about_model(reason: CooldownCause, error: UpstreamError) -> bool:
    """Return whether other models of the key are not affected."""
    return reason == "model unknown" or (reason == "failing" and not _is_connection_error(error))


def _is_connection_error(error: UpstreamError) -> bool:
    return (
        isinstance(error, UpstreamFailed)
        and error.upstream_status is None
        and error.code not in _ANSWER_CODES
    )


def _capped_retry_after(wait: float, options: CooldownOptions) -> float:
    return min(wait, options.retry_after_max) if wait > 0 else 0.0


def _rung(steps: tuple[float, ...], number: int) -> float:
    return steps[min(number, len(steps)) - 1]


def _failing(strikes: int, wait: float, options: CooldownOptions) -> float:
    if strikes < options.failures:
        return 0.0
    return max(_rung(options.opening, strikes - options.failures + 1), _capped_retry_after(wait, options))


_SPANS: dict[CooldownCause, Callable[[int, float, CooldownOptions], float]] = {
    "limited": lambda strikes, wait, options: (
        _capped_retry_after(wait, options) or _rung(options.ladder, strikes)
    ),
    "quota": lambda strikes, _, options: min(options.quota * 2.0 ** min(strikes - 1, 32), options.quota_max),
    "key refused": lambda _strikes, _wait, options: options.probe_every,
    "model unknown": lambda _strikes, _wait, options: options.probe_every,
    "failing": _failing,
}
_CAPS: dict[CooldownCause, Callable[[CooldownOptions], float]] = {
    "limited": lambda options: max(options.retry_after_max, *options.ladder),
    "quota": lambda options: options.quota_max,
    "key refused": lambda options: options.probe_every,
    "model unknown": lambda options: options.probe_every,
    "failing": lambda options: max(options.retry_after_max, *options.opening),
}
