"""Repairs first mistakes in provider tables: names and shapes that other tools use.

Each mistake is reported once, with the line to write instead. The tree continues as the person meant it, so
that the mistake causes no further problems and hides none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from routecodex.config.problems import ConfigPath, Hidden, Problem, display, nearest, quoted
from routecodex.config.providers import DISCOVERED, Preset

_CHAT_FIX = 'write protocol = "chat" (chat completions), or protocol = "responses" (Responses API)'
_MESSAGES_FIX = 'write protocol = "messages" (Anthropic messages)'
_PROTOCOLS = {
    "openai": ("chat", _CHAT_FIX),
    "openai-compatible": ("chat", 'write protocol = "chat"'),
    "openai-chat": ("chat", 'write protocol = "chat"'),
    "completions": ("chat", 'write protocol = "chat"'),
    "chat-completions": ("chat", 'write protocol = "chat"'),
    "openai-responses": ("responses", 'write protocol = "responses"'),
    "anthropic": ("messages", _MESSAGES_FIX),
    "claude": ("messages", _MESSAGES_FIX),
    "google": ("gemini", 'write protocol = "gemini"'),
    "google-genai": ("gemini", 'write protocol = "gemini"'),
}
_KEY_NAMES = ("api_key", "api_keys", "apikey", "apiKey", "api-key", "key", "keys", "token")
_DISCOVERY = frozenset({"discover", "discovery", "discovered", "auto", "all", "any", "*"})
"""Texts in place of a table of models that ask for the provider's own list; only the first is right."""
_IDENTITY = frozenset({"preset", "protocol", "base_url"})


def meant_preset(name: str, row: Any, presets: Mapping[str, Preset]) -> str | None:
    """Return the preset whose name is nearly that of a provider without preset, protocol and address."""
    if not isinstance(row, dict) or row.keys() & _IDENTITY or name in presets:
        return None
    return nearest(name, presets)


def repair(
    tree: dict[str, Any], presets: Mapping[str, Preset], hidden: Hidden
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the tree as it was meant, and the problems; the text of `hidden` places is never shown."""
    problems: list[Problem] = []
    tree = _plural(tree, presets, problems)
    providers = tree.get("providers")
    if not isinstance(providers, dict):
        return tree, problems
    repaired = {}
    for name, row in providers.items():
        repaired[name] = dict(row) if isinstance(row, dict) else row
        if isinstance(row, dict):
            problems += _Row(name, repaired[name], presets, hidden).repair()
    return {**tree, "providers": repaired}, problems


def _plural(tree: dict[str, Any], presets: Mapping[str, Preset], into: list[Problem]) -> dict[str, Any]:
    """Return the tree with the tables of `[provider.NAME]` below `providers`."""
    tables, providers = tree.get("provider"), tree.get("providers", {})
    if not isinstance(tables, dict) or not isinstance(providers, dict):
        return tree
    if not tables or not all(isinstance(row, dict) for row in tables.values()):
        return tree
    moved = {}
    for name, row in tables.items():
        meant = meant_preset(name, row, presets) or name
        moved[meant] = row
        place = ("provider", name)
        into.append(Problem(place, "is not a known table", f"write [providers.{_bare(meant)}]"))
    rest = {key: value for key, value in tree.items() if key != "provider"}
    return {**rest, "providers": {**moved, **providers}}


def _bare(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


class _Row:
    """One provider table, changed in place."""

    def __init__(self, name: str, row: dict[str, Any], presets: Mapping[str, Preset], hidden: Hidden) -> None:
        self._place: ConfigPath = ("providers", name)
        self._row = row
        self._hidden = hidden
        preset = presets.get(str(row.get("preset", name)))
        variable = re.sub(r"[^A-Za-z0-9]", "_", name).upper() + "_API_KEY"
        self._variable = preset.env[0] if preset is not None and preset.env else variable

    def repair(self) -> Iterator[Problem]:
        """Change the table to what was meant; yield the problems."""
        yield from self._protocol()
        yield from self._key_names()
        yield from self._auth()
        yield from self._models()

    def _protocol(self) -> Iterator[Problem]:
        value = self._row.get("protocol")
        known = _PROTOCOLS.get(value.lower().replace("_", "-")) if isinstance(value, str) else None
        if known is None or not isinstance(value, str):
            return
        place = (*self._place, "protocol")
        self._row["protocol"], fix = known
        yield Problem(place, f"{display(value, place, self._hidden)} is not a protocol", fix)

    def _key_names(self) -> Iterator[Problem]:
        for key in _KEY_NAMES:
            if key not in self._row:
                continue
            value = self._row.pop(key)
            fix = "remove it: auth holds the keys" if "auth" in self._row else self._auth_fix()
            yield Problem((*self._place, key), "is not a known key", fix)
            values = value if isinstance(value, list) else [value]
            self._row.setdefault("auth", [{"value": one} for one in values if isinstance(one, str)])

    def _auth_fix(self) -> str:
        return (
            f"write auth = [{{ env = {quoted(self._variable)} }}] and set that variable, "
            'or auth = [{ value = "…" }] with the key'
        )

    def _auth(self) -> Iterator[Problem]:
        auth = self._row.get("auth")
        place = (*self._place, "auth")
        if isinstance(auth, str):
            self._row["auth"] = [{"value": auth}]
            yield Problem(place, "must be a list of keys, got a string", self._auth_fix())
        elif isinstance(auth, dict):
            self._row["auth"] = [auth]
            yield Problem(place, "must be a list of keys, got a table", "write auth = [{ … }]")
        elif isinstance(auth, list):
            entry = f'{{ env = {quoted(self._variable)} }} and set that variable, or {{ value = "…" }}'
            for index, key in enumerate(auth):
                if isinstance(key, str):
                    message, fix = "must be a table, got a string", f"write {entry} with the key"
                    yield Problem((*place, index), message, fix)
            self._row["auth"] = [{"value": key} if isinstance(key, str) else key for key in auth]

    def _models(self) -> Iterator[Problem]:
        models = self._row.get("models")
        place = (*self._place, "models")
        if isinstance(models, str) and models.lower() in _DISCOVERY:
            self._row["models"] = {DISCOVERED: {}}
            if models != "discover":
                fix = 'write models = "discover"'
                yield Problem(place, f"{display(models, place, self._hidden)} is not a table", fix)
            return
        names = [models] if isinstance(models, str) else models
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return
        self._row["models"] = {name: {} for name in names}
        is_hidden = any(one[: len(place)] == place for one in self._hidden)
        shown = ["model-name"] if is_hidden or not names else names
        table = ", ".join(f"{quoted(name)} = {{}}" for name in shown)
        noun = "a string" if isinstance(models, str) else "a list"
        yield Problem(place, f"must be a table, got {noun}", f"write models = {{ {table} }}")
