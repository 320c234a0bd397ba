"""Adds providers and routes to a configuration file: nothing that is set changes, comments stay.

Providers are appended as tables of their own. Routes go into the table that is there, edited with tomlkit.
The result is compared with the file before: an edit that would change a value or lose a comment is refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from routecodex.cli.config_draft import (
    HAIKU,
    HAIKU_COMMENT,
    HAIKU_ROUTE,
    ROUTE_COMMENTS,
    ROUTING_COMMENT,
    ProviderDraft,
    draft_preset,
    model_fields,
    propose_routes,
    provider_text,
    route_line,
)
from routecodex.config.check_routes import split_target
from routecodex.config.model import Config
from routecodex.config.problems import quoted
from routecodex.providers.catalog import PRESETS, row_of

_REFERENCE = re.compile(r"\$\{(\w+)(?::-[^}]*)?\}\Z")


class EditRefused(Exception):
    """The file has a form that cannot be added to without changing it; the message says what to do."""


class EditedConfig(Struct, frozen=True, kw_only=True):
    """The new text, the providers that were added, and the targets of every route that was added."""

    text: str
    providers: tuple[ProviderDraft, ...]
    routes: Mapping[str, Sequence[str]]


class ExistingProviders:
    """The providers that a file has, as written: names, presets, and variables of their keys."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        rows = tree.get("providers")
        tables = rows.items() if isinstance(rows, dict) else ()
        self.rows: dict[str, dict[str, Any]] = {name: row for name, row in tables if isinstance(row, dict)}

    def preset_of(self, name: str) -> str | None:
        """Return the preset of a provider; a name alone may be one."""
        row = self.rows[name]
        preset = row.get("preset")
        if isinstance(preset, str):
            return preset
        return name if name in PRESETS and not row.keys() & {"protocol", "base_url"} else None

    def named_like(self, draft: ProviderDraft) -> str | None:
        """Return the name of the provider that is the same as a draft: its preset, or its address."""
        if draft.preset is None:
            return next((name for name, row in self.rows.items() if row.get("protocol") == "demo"), None)
        wanted = row_of(draft.preset)
        for name, row in self.rows.items():
            preset = self.preset_of(name)
            if preset is not None and row_of(preset) == wanted:
                return name
            if wanted is not None and row.get("base_url") in wanted.base_url.values():
                return name
        return None

    def uses(self, variable: str) -> bool:
        """Whether the key in an environment variable is already used."""
        return any(variable in self._variables(name) for name in self.rows)

    def _variables(self, name: str) -> set[str]:
        auth = self.rows[name].get("auth")
        if auth is None:
            preset = row_of(self.preset_of(name) or "")
            return set(preset.env) if preset is not None else set()
        keys = [key for key in auth if isinstance(key, dict)] if isinstance(auth, list) else []
        found = {key["env"] for key in keys if isinstance(key.get("env"), str)}
        values = (_REFERENCE.match(str(key.get("value", ""))) for key in keys)
        return found | {match[1] for match in values if match}

    def free_name(self, name: str) -> str:
        """Return the name, with a number if it is taken."""
        names = [name, *(f"{name}-{number}" for number in range(2, len(self.rows) + 3))]
        return next(one for one in names if one not in self.rows)


def add_to_config(text: str, providers: Sequence[ProviderDraft], *, config: Config | None) -> EditedConfig:
    """Add providers and the routes that are missing; `config` is the file as it is loaded, if it can be.

    A provider that the file already has is not added again. Raises EditRefused.
    """
    tree = tomllib.loads(text)
    existing = ExistingProviders(tree)
    missing = [one for one in providers if existing.named_like(one) is None]
    added = [replace(one, name=existing.free_name(one.name)) for one in missing]
    set_routes = tree.get("routing")
    set_routes = set_routes if isinstance(set_routes, dict) else {}
    every = [*_present_drafts(existing, config), *added]
    routes = {
        route: targets
        for route, targets in (propose_routes(every) if every else {}).items()
        if route not in set_routes
    }
    aliases = _missing_aliases(tree, routes)
    edited = _edit(text, tree, providers=added, routes=routes, aliases=aliases)
    _require_unchanged(text, edited)
    return EditedConfig(text=edited, providers=tuple(added), routes=routes)


def _present_drafts(existing: ExistingProviders, config: Config | None) -> list[ProviderDraft]:
    """Return the providers of the file as drafts, with the models that the file knows."""
    if config is None:
        return []
    drafts = []
    for name in existing.rows:
        preset = existing.preset_of(name)
        if preset is None or preset not in PRESETS or name not in config.providers:
            continue
        models = config.providers[name].named_models
        sees = frozenset(model for model, row in models.items() if row.vision)
        draft = draft_preset(preset, models=_first_model(config, name))
        if draft is not None and config.providers[name].discovers:
            # Every model of the provider can be used, named in the file or not.
            models, sees = {**draft.models, **models}, sees | draft.sees_images
        known = {
            route: model for route, model in (draft.by_route if draft else {}).items() if model in models
        }
        if draft is not None and "default" in known:
            drafts.append(replace(draft, name=name, models=models, by_route=known, sees_images=sees))
    return drafts


def _first_model(config: Config, provider: str) -> tuple[str, ...]:
    """Return the model of a provider that the default route uses, if any."""
    targets = [target for pool in config.pools("default") for target in pool.targets]
    own = [target for target in targets if target.partition(".")[0] == provider]
    parts = split_target(config, own[0]) if own else None
    return (parts[2],) if parts is not None else ()


def _missing_aliases(tree: Mapping[str, Any], routes: Mapping[str, Any]) -> dict[str, str]:
    """Return the alias of Claude Code's small model, if its route is new and no other alias matches it."""
    aliases = tree.get("models")
    taken = aliases if isinstance(aliases, dict) else {}
    if "background" not in routes or any(name == HAIKU or fnmatchcase(HAIKU, name) for name in taken):
        return {}
    return {HAIKU: HAIKU_ROUTE}


def _edit(
    text: str,
    tree: Mapping[str, Any],
    *,
    providers: Sequence[ProviderDraft],
    routes: Mapping[str, Sequence[str]],
    aliases: Mapping[str, str],
) -> str:
    import tomlkit  # slow to import, and only edits need it

    document = tomlkit.parse(text)
    inline = isinstance(document.get("providers"), tomlkit.items.InlineTable)
    if inline:
        for one in providers:
            document["providers"].append(one.name, _inline_provider(one))
    into_routes = {route: list(targets) for route, targets in routes.items()}
    if "routing" in tree:
        _add_keys(document["routing"], into_routes, ROUTE_COMMENTS)
    if "models" in tree:
        _add_keys(document["models"], dict(aliases), {})
    parts = [document.as_string()]
    parts += [] if inline else [provider_text(one) for one in providers]
    if routes and "routing" not in tree:
        lines = (f"# {ROUTE_COMMENTS[name]}\n{route_line(name, to)}" for name, to in routes.items())
        parts.append(f"# {ROUTING_COMMENT}\n[routing]\n{''.join(lines)}")
    if aliases and "models" not in tree:
        lines = (f"{quoted(name)} = {quoted(to)}\n" for name, to in aliases.items())
        parts.append(f"# {HAIKU_COMMENT}\n[models]\n{''.join(lines)}")
    return "\n".join(part if part.endswith("\n") or not part else f"{part}\n" for part in parts if part)


def _add_keys(table: Any, values: Mapping[str, Any], comments: Mapping[str, str]) -> None:
    """Add keys after the last one of the table: blank lines and comments behind it belong to the next."""
    import tomlkit

    body = table.value.body if hasattr(table.value, "body") else []
    behind = []
    while body and body[-1][0] is None:
        behind.append(body.pop())
    for name, value in values.items():
        item = tomlkit.item(value)
        if name in comments and not isinstance(table, tomlkit.items.InlineTable):
            item.comment(comments[name])
        table.append(name, item)
    body.extend(reversed(behind))


def _inline_provider(provider: ProviderDraft) -> Any:
    import tomlkit

    fields: dict[str, Any] = {"preset": provider.preset} if provider.preset is not None else {}
    fields |= provider.settings
    source = {"env": provider.env} if provider.env is not None else {"file": provider.key_file}
    if provider.env is not None or provider.key_file is not None:
        fields["auth"] = [source]
    fields["models"] = {name: model_fields(provider, name) for name in provider.models}
    table = tomlkit.inline_table()
    table.update(fields)
    return table


def _require_unchanged(before: str, after: str) -> None:
    """Refuse an edit after which a value or a comment of the file is not what it was."""
    try:
        kept = _contains(tomllib.loads(after), tomllib.loads(before))
    except tomllib.TOMLDecodeError:
        kept = False
    lines = set(after.splitlines())
    comments = [line for line in before.splitlines() if line.lstrip().startswith("#")]
    if not kept or not lines.issuperset(comments):
        raise EditRefused("its tables have a form that cannot be added to without changing it")


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and _contains(whole[key], value) for key, value in part.items()
        )
    return bool(whole == part)
