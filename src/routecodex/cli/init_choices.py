"""The providers that `routecodex init` sets up without questions, and the options that name them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click
from msgspec import Struct
from msgspec.structs import replace

from routecodex.cli.config import show
from routecodex.cli.config_draft import ProviderDraft, draft_demo, draft_preset, draft_server
from routecodex.cli.config_edit import ExistingProviders
from routecodex.cli.found_providers import LOCAL_SERVERS, FoundKey, FoundServer, find_keys, find_servers
from routecodex.config.presets import near_presets
from routecodex.config.problems import Problem, quoted
from routecodex.config.values import Secret
from routecodex.providers.catalog import PRESETS, PresetRow, row_of

_WRONG_CONFIG = 2
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_KEY_LIKE = re.compile(r"(?:sk|pk|xai|gsk|hf|ghp|AIza)[-_]|.{40,}")


class InitOptions(Struct, frozen=True, kw_only=True):
    """The options of `routecodex init`."""

    file: Path
    presets: tuple[str, ...] = ()
    key_envs: Mapping[str, str] = {}
    models: Mapping[str, tuple[str, ...]] = {}
    test: bool = True
    dry_run: bool = False
    force: bool = False
    demo: bool = False

    @property
    def named(self) -> tuple[str, ...]:
        """The presets that options name: they are set up even if nothing is found for them."""
        return tuple(dict.fromkeys((*self.presets, *self.key_envs)))


class Findings(Struct, frozen=True, kw_only=True):
    """Keys and servers that were found and that the configuration file does not use yet."""

    keys: tuple[FoundKey, ...] = ()
    servers: tuple[FoundServer, ...] = ()
    used: tuple[str, ...] = ()
    """Variables and servers that the file already uses."""


class ChosenProvider(Struct, frozen=True, kw_only=True):
    """A provider that is to be set up; `key` is one that was typed, for its key file."""

    draft: ProviderDraft
    key: Secret | None = None

    @property
    def has_key(self) -> bool:
        """Whether it has a key that can be tested."""
        return self.draft.env is not None or self.key is not None


class CannotSetUp(Exception):
    """A preset lacks a key or a model that nobody was asked for; the message says what to do."""


def parse_presets(names: Iterable[str]) -> tuple[str, ...]:
    """Return the presets of `--preset`; an unknown one is a usage error with near names."""
    return tuple(dict.fromkeys(_known_preset(name, "--preset") for name in names))


def _known_preset(name: str, option: str) -> str:
    if name in PRESETS:
        return name
    near = " or ".join(map(quoted, near_presets(name, PRESETS)))
    hint = f"did you mean {near}?" if near else "`routecodex config presets` lists them"
    raise click.BadParameter(f"there is no preset {quoted(name)}; {hint}", param_hint=option)


def parse_key_envs(values: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable of each preset of `--key-env`; the variables must be set."""
    found = {}
    for value in values:
        preset, variable = _split(value, "--key-env", "PRESET=VARIABLE")
        if _VARIABLE.match(variable) is None or _KEY_LIKE.match(variable):
            # It may be the key itself, which must not be shown again.
            hint = "give the name of an environment variable, not the key: --key-env openai=MY_KEY"
            raise click.BadParameter(
                f"the part after {preset}= is not a variable; {hint}", param_hint="--key-env"
            )
        if not environ.get(variable, "").strip():
            raise click.BadParameter(
                f"the environment variable {variable} is not set; set it to the key first",
                param_hint="--key-env",
            )
        found[_known_preset(preset, "--key-env")] = variable
    return found


def parse_models(values: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the models of each preset of `--model`, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
        preset, model = _split(value, "--model", "PRESET=MODEL")
        known = _known_preset(preset, "--model")
        if not is_model_name(model):
            raise click.BadParameter(f"{quoted(model)} is not a valid model name", param_hint="--model")
        found[known] = (*found.get(known, ()), model)
    return found


def is_model_name(text: str) -> bool:
    """Whether a text can be the name of a model."""
    return bool(text) and text.isprintable() and not any(map(str.isspace, text))


def _split(value: str, option: str, form: str) -> tuple[str, str]:
    name, equals, rest = (part.strip() for part in value.partition("="))
    if not (name and equals and rest):
        raise click.BadParameter(f"write it as {form}", param_hint=option)
    return name, rest


def find_all(existing: ExistingProviders) -> Findings:
    """Search the environment and this machine."""
    keys, servers = find_keys(os.environ), find_servers(LOCAL_SERVERS)
    new_keys = tuple(one for one in keys if not existing.uses(one.variable))
    new_servers = tuple(one for one in servers if not _is_present(one, existing))
    used = (
        *(one.variable for one in keys if one not in new_keys and not one.is_general),
        *(one.server.preset for one in servers if one not in new_servers),
    )
    return Findings(keys=new_keys, servers=new_servers, used=used)


def _is_present(found: FoundServer, existing: ExistingProviders) -> bool:
    draft = draft_server(found, models=("any",))
    return draft is not None and existing.named_like(draft) is not None


def choose(options: InitOptions, findings: Findings) -> tuple[list[ChosenProvider], list[str]]:
    """Return the providers to set up without questions, and what is left out and why."""
    if options.demo:
        return [ChosenProvider(draft=draft_demo()), *_named(options, findings)], []
    chosen, left_out = _named(options, findings), list[str]()
    rows = [row_of(name) for name in options.named]
    if options.presets:
        return chosen, left_out
    for found in findings.keys:
        if found.is_general:
            left_out.append(f"{found.variable} is used only with --preset {found.rows[0].preset}")
            continue
        if found.rows[0] in rows:
            continue
        draft = draft_found(found, options)
        if draft is None:
            left_out.append(needs_model(found.rows[0].preset))
        else:
            chosen.append(ChosenProvider(draft=draft))
    for server in (one for one in findings.servers if row_of(one.server.preset) not in rows):
        local = draft_server(server, options.models.get(server.server.preset, ()))
        if local is None:
            left_out.append(
                f"{PRESETS[server.server.preset].about} at {server.server.url} has no model that chats"
            )
        else:
            chosen.append(ChosenProvider(draft=local))
    return chosen, left_out


def draft_found(found: FoundKey, options: InitOptions, preset: str | None = None) -> ProviderDraft | None:
    """Return the provider of a key that was found: of several presets the first, or the one given."""
    name = preset or found.rows[0].preset
    return draft_preset(name, env=found.variable, models=options.models.get(name, ()))


def _named(options: InitOptions, findings: Findings) -> list[ChosenProvider]:
    return [ChosenProvider(draft=draft_named(name, options, findings)) for name in options.named]


def draft_named(name: str, options: InitOptions, findings: Findings) -> ProviderDraft:
    """Return the provider of a preset that was named; raise CannotSetUp if its key or model is missing."""
    row = row_of(name)
    assert row is not None, name
    if row.region == "local":
        return draft_local(name, row, options, findings)
    variable = key_variable(name, row, options)
    if variable is None:
        raise CannotSetUp(
            f"there is no key for {name}: set {' or '.join(row.env)}, or name another variable with "
            f"--key-env {name}=VARIABLE"
        )
    draft = draft_preset(name, env=variable, models=options.models.get(name, ()))
    if draft is None:
        raise CannotSetUp(needs_model(name))
    return draft


def key_variable(name: str, row: PresetRow, options: InitOptions) -> str | None:
    """Return the variable that holds the key of a preset, if one is set."""
    named = options.key_envs.get(name)
    return named or next((one for one in row.env if os.environ.get(one, "").strip()), None)


def draft_local(name: str, row: PresetRow, options: InitOptions, findings: Findings) -> ProviderDraft:
    """Return the provider of a server on this machine, running or not."""
    models = options.models.get(name, ())
    found = next((one for one in findings.servers if one.server.preset == row.preset), None)
    draft = draft_server(found, models) if found is not None else draft_preset(name, models=models)
    if draft is None:
        where = row.base_url["chat"]
        state = "has no model that chats" if found is not None else "does not answer"
        raise CannotSetUp(
            f"{row.name} {state} at {where}; start it, or name a model with --model {name}=MODEL"
        )
    variable = options.key_envs.get(name)
    return replace(draft, env=variable) if variable is not None else draft


def needs_model(name: str) -> str:
    """Return what to do for a preset without a recommended model."""
    return f"{name} has no recommended model; name one with --model {name}=MODEL"


def require_used_models(options: InitOptions, chosen: Sequence[ChosenProvider]) -> None:
    """Reject a `--model` for a preset that is not set up."""
    presets = {one.draft.preset for one in chosen}
    unused = next((name for name in options.models if name not in presets), None)
    if unused is not None:
        raise click.BadParameter(
            f"{unused} is not set up: no key was found for it; add --preset {unused}", param_hint="--model"
        )


def with_variables(chosen: Sequence[ChosenProvider]) -> tuple[list[ProviderDraft], dict[str, str]]:
    """Return the drafts with typed keys as variables, to use them before their files exist."""
    drafts, secrets = [], {}
    for number, one in enumerate(chosen):
        draft = one.draft
        if one.key is not None:
            variable = f"ROUTECODEX_TYPED_KEY_{number}"
            secrets[variable] = one.key.reveal()
            draft = replace(draft, env=variable, key_file=None)
        drafts.append(draft)
    return drafts, secrets


def exit_invalid(problems: Sequence[Problem]) -> NoReturn:
    """Show why the new configuration would not be valid, and exit."""
    show(problem for problem in problems if problem.severity == "error")
    click.echo("nothing was written", err=True)
    raise SystemExit(_WRONG_CONFIG)
