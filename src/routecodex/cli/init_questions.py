"""The questions of `routecodex init` at a terminal. Ctrl-C at any of them raises `click.Abort`."""

from __future__ import annotations

import os

import click
from msgspec.structs import replace

from routecodex.cli.config_draft import ProviderDraft, draft_demo, draft_preset, draft_server
from routecodex.cli.found_providers import FoundKey, FoundServer
from routecodex.cli.init_choices import (
    ChosenProvider,
    Findings,
    InitOptions,
    draft_found,
    is_model_name,
    key_variable,
)
from routecodex.config.presets import near_presets
from routecodex.config.problems import quoted
from routecodex.config.providers import ModelConfig
from routecodex.config.values import Secret
from routecodex.providers.catalog import PRESETS, PresetRow, preset_rows, row_of

_PLACEHOLDERS = {
    "resource": ("AZURE_RESOURCE_NAME", "Name of your Azure resource"),
    "region": ("AWS_REGION", "AWS region, such as us-east-1"),
}
_MOST_LISTED = 12


def ask_providers(options: InitOptions, findings: Findings) -> list[ChosenProvider]:
    """Ask which providers to set up, with their keys and models."""
    chosen = [ChosenProvider(draft=draft_demo())] if options.demo else []
    for name in options.named:
        chosen += _ask_preset(name, options, findings)
    if options.demo or options.presets:
        return chosen
    rows = [row_of(name) for name in options.named]
    for found in findings.keys:
        if found.rows[0] not in rows:
            chosen += _ask_found_key(found, options)
    for server in findings.servers:
        if row_of(server.server.preset) not in rows:
            chosen += _ask_server(server, options)
    chosen = _with_own_names(chosen)
    chosen += _ask_further(options, findings, taken={one.draft.name for one in chosen})
    if not chosen and click.confirm("No provider is chosen. Set up the built-in demo?", default=False):
        chosen.append(ChosenProvider(draft=draft_demo()))
    return chosen


def _ask_found_key(found: FoundKey, options: InitOptions) -> list[ChosenProvider]:
    """Ask whether to use a key, and for which of its presets."""
    name = _ask_which(found) if len(found.rows) > 1 else _ask_whether(found)
    if name is None:
        return []
    draft = draft_found(found, options, name) or _without_model(name, env=found.variable)
    return [ChosenProvider(draft=_ask_rest(draft, options))]


def _ask_whether(found: FoundKey) -> str | None:
    row = found.rows[0]
    question = f"Use {row.name} with the key in {found.variable}?"
    return row.preset if click.confirm(question, default=not found.is_general) else None


def _ask_which(found: FoundKey) -> str | None:
    """Ask which of several regions or plans a key is for."""
    click.echo(f"Which provider is the key in {found.variable} for?")
    for number, row in enumerate(found.rows, start=1):
        click.echo(f"  {number}  {row.preset}: {row.name} ({row.region}, {row.plan})")
    click.echo("  0  do not use it")
    choices = click.IntRange(0, len(found.rows))
    number = click.prompt("Number", type=choices, default=0 if found.is_general else 1)
    return found.rows[number - 1].preset if number else None


def _ask_server(found: FoundServer, options: InitOptions) -> list[ChosenProvider]:
    """Ask whether to use a server on this machine."""
    about, url = PRESETS[found.server.preset].about, found.server.url
    draft = draft_server(found, options.models.get(found.server.preset, ()))
    if draft is None:
        click.echo(f"{about} runs at {url} but has no model that chats; it is left out.")
        return []
    count = len(draft.models)
    if not click.confirm(f"Use {about} at {url} ({count} model{'s' * (count != 1)})?", default=True):
        return []
    return [ChosenProvider(draft=_ask_rest(draft, options))]


def _with_own_names(chosen: list[ChosenProvider]) -> list[ChosenProvider]:
    """Return the providers with a number at names that repeat: two keys may be for one preset."""
    named: dict[str, ChosenProvider] = {}
    for one in chosen:
        base = one.draft.name
        names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(chosen) + 1))
        name = next(free for free in names if free not in named)
        named[name] = replace(one, draft=replace(one.draft, name=name))
    return list(named.values())


def _ask_further(options: InitOptions, findings: Findings, taken: set[str]) -> list[ChosenProvider]:
    """Ask for further presets until there are no more."""
    chosen: list[ChosenProvider] = []
    while True:
        name = click.prompt(
            "Further provider (a preset; ? lists them, Enter for none)", default="", show_default=False
        ).strip()
        if not name:
            return chosen
        if name == "?":
            _list_presets()
        elif name not in PRESETS:
            near = " or ".join(map(quoted, near_presets(name, PRESETS)))
            hint = f"did you mean {near}?" if near else "? lists them"
            click.echo(f"There is no preset {quoted(name)}; {hint}")
        elif name in taken:
            click.echo(f"{name} is already chosen.")
        else:
            chosen += _ask_preset(name, options, findings)
            taken |= {one.draft.name for one in chosen}


def _list_presets() -> None:
    for row in preset_rows():
        click.echo(f"  {row.preset:<18} {row.name} ({row.region}, {row.plan})")


def _ask_preset(name: str, options: InitOptions, findings: Findings) -> list[ChosenProvider]:
    """Ask for the key, if none is found, and the model of a preset."""
    row = row_of(name)
    assert row is not None, name
    models = options.models.get(name, ())
    if row.region == "local":
        found = next((one for one in findings.servers if one.server.preset == row.preset), None)
        local = draft_server(found, models) if found is not None else draft_preset(name, models=models)
        return [ChosenProvider(draft=_ask_rest(local or _without_model(name), options))]
    variable = key_variable(name, row, options)
    key = None if variable is not None else _ask_key(name, row)
    if variable is None and key is None:
        return []
    draft = draft_preset(name, env=variable, models=models) or _without_model(name, env=variable)
    return [ChosenProvider(draft=_ask_rest(draft, options), key=key)]


def _ask_key(name: str, row: PresetRow) -> Secret | None:
    """Ask for a key without showing it; None if there is none."""
    while True:
        text = click.prompt(
            f"Key of {row.name} (not shown; Enter to leave {name} out)",
            default="",
            show_default=False,
            hide_input=True,
        ).strip()
        if not text:
            return None
        if text.isascii() and text.isprintable() and " " not in text:
            return Secret(text)
        click.echo("This is not a key: it has spaces or characters that a key cannot have.")


def _without_model(name: str, env: str | None = None) -> ProviderDraft:
    """Return a provider whose model must be asked for."""
    return ProviderDraft(name=name, about=PRESETS[name].about, preset=name, env=env, models={}, by_route={})


def _ask_rest(draft: ProviderDraft, options: InitOptions) -> ProviderDraft:
    """Ask for parts of the address and for the model, where no option gives them."""
    named = draft.preset is not None and options.models.get(draft.preset)
    draft = draft if named and draft.by_route else _ask_model(draft)
    return replace(draft, settings={**draft.settings, **_ask_address(draft)})


def _ask_model(draft: ProviderDraft) -> ProviderDraft:
    """Ask for the model that answers most requests."""
    known = sorted(draft.preset_models or draft.models)
    if len(known) > 1:
        more = ", …" if len(known) > _MOST_LISTED else ""
        click.echo(f"Models of {draft.name}: {', '.join(known[:_MOST_LISTED])}{more}")
    while True:
        model = click.prompt(
            f"Model of {draft.name}", default=draft.by_route.get("default"), type=str
        ).strip()
        if is_model_name(model):
            return draft if model == draft.by_route.get("default") else _with_main(draft, model)
        click.echo("The name of a model has no spaces.")


def _with_main(draft: ProviderDraft, model: str) -> ProviderDraft:
    """Return the provider with another main model."""
    row = row_of(draft.preset or "")
    if row is not None and row.region == "local":
        models = {model: draft.models.get(model, ModelConfig()), **draft.models}
        return replace(draft, models=models, by_route={"default": model})
    fresh = draft_preset(draft.preset or "", env=draft.env, models=(model,))
    assert fresh is not None
    return replace(fresh, settings=draft.settings)


def _ask_address(draft: ProviderDraft) -> dict[str, str]:
    """Ask for the parts of an address that neither the provider nor the environment has."""
    url = PRESETS[draft.preset].base_url if draft.preset is not None else ""
    asked = {}
    for part, (variable, question) in _PLACEHOLDERS.items():
        known = os.environ.get(variable) or (part == "region" and os.environ.get("AWS_DEFAULT_REGION"))
        if f"{{{part}}}" in url and not known:
            asked[part] = click.prompt(question, type=str).strip()
    return asked
