"""Checks that the keys of providers are accepted, by one small request with each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from routecodex.canon.errors import (
    ConfigError,
    GatewayError,
    UpstreamError,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamUnknownModel,
)
from routecodex.cli.checks.providers import OFFLINE
from routecodex.cli.checks.result import CheckResult, passed, skipped
from routecodex.cli.checks.shape_runs import leaves_machine
from routecodex.cli.key_check import KeyCheck, try_keys
from routecodex.config import Config
from routecodex.config.providers import ProviderConfig
from routecodex.protocols.upstream_errors import names_unknown_model

_NO_CREDIT = "insufficient_quota"


async def check_keys(config: Config, environ: Mapping[str, str], *, offline: bool) -> list[CheckResult]:
    """Try every key with the first model of its provider; return the results in the order of the file."""
    results = {result.id: result for result in _not_tried(config, offline=offline)}
    every = [f"provider.{name}.{key.alias}" for name, row in config.providers.items() for key in row.keys]
    models = {
        name: next(iter(row.models))
        for name, row in config.providers.items()
        if f"provider.{name}.{row.keys[0].alias}" not in results
    }
    for check in await try_keys(config, models, environ=environ):
        result = _judge(check, config.providers[check.target.provider])
        results[result.id] = result
    return [results[check_id] for check_id in every]


def _not_tried(config: Config, *, offline: bool) -> Iterator[CheckResult]:
    """Yield the results of keys that need no request, or cannot be tried."""
    for name, row in config.providers.items():
        for key in row.keys:
            check_id = f"provider.{name}.{key.alias}"
            if row.protocol == "demo":
                yield passed(check_id, "is built in and needs no key")
            elif offline and leaves_machine(row):
                yield skipped(check_id, f"{name} {OFFLINE}")
            elif not row.models:
                yield skipped(check_id, f"{name} has no model to try the key with")


def _judge(check: KeyCheck, row: ProviderConfig) -> CheckResult:
    target = check.target
    check_id = f"provider.{target.provider}.{target.key}"
    if check.error is None:
        return passed(check_id, f"the key is accepted ({target.model} answered)")
    source = next((key.secret.source for key in row.keys if key.alias == target.key), "")
    judged = _judge_error(check.error, check, source or f"providers.{target.provider}.auth")
    return CheckResult(check_id, *judged)


def _judge_error(
    error: GatewayError, check: KeyCheck, source: str
) -> tuple[Literal["warn", "fail"], str, str]:
    target = check.target
    table = f"[providers.{target.provider}]"
    text = _shown(error)
    if _is_unknown_model(error, target.model):
        fix = f"correct the name of the model {target.model!r} under {table}, or set its id"
        return "fail", f"the provider does not serve {target.model!r} with this key ({text})", fix
    match error:
        case UpstreamRefusedKey():
            return (
                "fail",
                f"provider {target.provider!r} rejected key {target.key!r} ({text})",
                f"check {source}",
            )
        case UpstreamLimited() if error.code == _NO_CREDIT:
            return "fail", f"the account of the key has no credit ({text})", "add credit, or use another key"
        case UpstreamLimited() | UpstreamOverloaded():
            return (
                "warn",
                f"the key could not be tried now ({text})",
                f"try again, or add a key under {table}",
            )
        case UpstreamRejected():
            fix = f"check base_url, protocol and dialect under {table}"
            return "warn", f"the provider rejected the small request ({text})", fix
        case ConfigError():
            return "fail", error.message, "correct this setting or variable"
        case _:
            return "fail", text, f"check base_url under {table}, the network and the provider's status"


def _is_unknown_model(error: GatewayError, model: str) -> bool:
    if isinstance(error, UpstreamRejected):
        return names_unknown_model(error, model)
    return isinstance(error, UpstreamUnknownModel)


def _shown(error: GatewayError) -> str:
    """Return the provider's own words with its status."""
    status = error.upstream_status if isinstance(error, UpstreamError) else None
    words = (error.provider_message if isinstance(error, UpstreamError) else "") or error.message
    return f"HTTP {status}: {words}" if status else words
