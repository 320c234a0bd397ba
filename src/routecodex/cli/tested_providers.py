"""Tests the keys of the providers that `routecodex init` sets up, and reports the results in words."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from routecodex.cli.config import examine_text
from routecodex.cli.config_draft import config_text
from routecodex.cli.init_choices import ChosenProvider, exit_invalid, with_variables
from routecodex.cli.key_check import KeyCheck, check_keys
from routecodex.cli.tables import is_coloured, style


def tested_providers(chosen: Sequence[ChosenProvider], *, asks: bool) -> list[ChosenProvider]:
    """Send one request per key; return the providers that stay.

    `asks`: the person decides about a provider whose test failed. Otherwise one that refused its key goes.
    """
    keyed = [one for one in chosen if one.has_key]
    drafts, secrets = with_variables(keyed)
    environ = {**os.environ, **secrets}
    config, problems = examine_text(config_text(drafts), source="config.toml", environ=environ)
    if config is None:
        exit_invalid(problems)
    count = "1 key" if len(keyed) == 1 else f"{len(keyed)} keys"
    click.echo(f"Testing {count} with one small request each …", err=True)
    results = check_keys(config, {draft.name: draft.default for draft in drafts}, environ=environ)
    checks = {one.target.provider: one for one in results}
    return [one for one in chosen if _stays(one, checks.get(one.draft.name), asks=asks)]


def _stays(one: ChosenProvider, check: KeyCheck | None, *, asks: bool) -> bool:
    """Report the result of a test; return whether the provider stays."""
    if check is None:
        return True
    name = one.draft.name
    if check.error is None:
        click.echo(
            f"  {name}: {_coloured('ok', 'green')}, {one.draft.default} answered in {check.seconds:.1f} s",
            err=True,
        )
        return True
    click.echo(f"  {name}: {_coloured('failed', 'red')}, {_reason(one, check)}", err=True)
    if asks:
        return click.confirm(f"Keep {name} all the same?", default=not check.is_refused)
    fate = "left out; --no-test keeps it" if check.is_refused else "kept"
    click.echo(f"  {name} is {fate}", err=True)
    return not check.is_refused


def _coloured(word: str, colour: str) -> str:
    return style(word, colour) if is_coloured(sys.stderr) else word


def _reason(one: ChosenProvider, check: KeyCheck) -> str:
    """Return in words why a test failed."""
    assert check.error is not None
    message = getattr(check.error, "provider_message", "") or check.error.message
    if check.is_refused:
        source = f"the key in {one.draft.env}" if one.draft.env is not None else "the key"
        return f"the provider refused {source}: {message}"
    if check.is_unreachable:
        return f"the provider cannot be reached: {message}; check the network and the proxy variables"
    return message
