"""Writes the configuration reference, for people and for editors, from the model itself.

`python -m routecodex.config.reference` writes docs/configuration.md and docs/config.schema.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct, inspect

from routecodex.config.model import Config
from routecodex.config.problems import quoted
from routecodex.config.providers import Preset
from routecodex.config.shape import describe, strip
from routecodex.config.values import Secret

_INTRO = """\
# Configuration

RouteCodex reads one TOML file: the one named by `--config`, else by `ROUTECODEX_CONFIG_PATH`, else
`config.toml` in the user dir (`~/.routecodex`, or `ROUTECODEX_USER_DIR`).
[config.schema.json](config.schema.json) describes it to editors. This page and the schema are generated
from the code: `python -m routecodex.config.reference`.

- **Values from the environment.** In any string, `${NAME}` stands for an environment variable and
  `${NAME:-default}` for one that may be unset or empty; `$$` is a plain `$`. A variable that is not set and
  has no default is an error. Numbers and booleans may be written this way too: `port = "${PORT:-5520}"`.
- **Problems.** All problems are reported at once, each with file, line, path in the file and fix. An unknown
  key is an error: a misspelt setting would otherwise be ignored silently.
- **Secrets** never appear in messages or logs. Keep them out of the file: `${NAME}`, `env = "NAME"` or
  `file = "path"`. If other users can read a file with keys in it, `serve`, `start` and `config check` warn.
- **Units** are in the names: `_ms`, `_seconds`, `_hours`, `_mb`, `_kb`, `_tokens`.

The smallest useful file, with `OPENAI_API_KEY` in the environment:

```toml
[providers.openai]

[routing]
default = ["openai.gpt-4.1"]
```

## An example in full

```toml
"""

_TARGETS = """\
## Targets

A target is the destination of one attempt. `provider.model` means every key of that provider;
`provider.key.model` one of them, the key by its alias or by its number from 1. Names are looked up, not
split, so model names may contain dots and slashes (`openrouter.z-ai/glm-4.7`). Names of providers, keys and
routes consist of letters, digits, `_` and `-`.

A name under `[models]` may be a glob and stands for a target or for a route (`route:background`). `default`
must exist and have targets; every other missing route falls back to it.

With `models = "discover"` in its table a provider names its models itself, and every name after its own is a
model of it, listed or not ([Models](protocols.md#models)).
"""

_PRESETS = """\
## Presets

`preset = "name"` supplies the defaults of a provider's table: protocol, base URL, the environment variable of
the key, models and dialect. A provider that is named like a preset and has neither `protocol` nor `base_url`
uses that preset, so `[providers.deepseek]` alone is enough. Values of the table win, and its models are added
to the preset's. `protocol` chooses among the addresses of the preset; the first is the default. Of several
variables of the key, the first that is set counts. `routecodex config presets` also shows region and plan,
and with `--json` the deviations and the sources of each row.

| Preset | Provider | Base URLs | Key | Models |
|---|---|---|---|---|
"""

_DIALECT = """\
## Dialect

`dialect` of a provider lists its deviations from its protocol. Presets include their own; set it for other
upstreams, or when one changes.

| Key | Type | Default | Meaning |
|---|---|---|---|
"""

_DIALECT_MEANINGS = {
    "max_tokens_field": (
        "Field of a chat request that limits the answer. When absent, the field of chat clients stays, and "
        "requests of other protocols get `max_completion_tokens`."
    ),
    "reasoning_field": (
        "Field of a chat request that enables thinking; `thinking_and_effort`: `thinking` is the switch, and "
        "`reasoning_effort` beside it the depth; `three_efforts`: the model always thinks, with the effort "
        "`low`, `high` or `max`."
    ),
    "reasoning_models": (
        "`reasoning_field` of models that differ, by a glob of their names; the first match counts."
    ),
    "reasoning_history": "Field of an assistant message that returns its thinking.",
    "stream_usage": "It accepts `stream_options.include_usage`.",
    "system_role": "Role of system text.",
    "unsupported": "Request fields that it rejects; they are dropped, with a notice.",
    "parallel_tool_calls": "It accepts `parallel_tool_calls`.",
    "response_format": "The strictest form of structured output that it supports.",
    "image_urls": "It fetches images by http(s) URL itself.",
    "tool_choice": "`no_required`: cannot be forced to call a tool; `auto_only`: nor to call a certain one.",
    "strict_tools": "It accepts `strict` on tools.",
    "composed_schemas": (
        "It accepts `anyOf`, `oneOf` and `allOf` at the root of a tool schema; else they are merged into one "
        "object, with a notice if the choice between them is lost."
    ),
    "web_search": "It runs the web search tool of its protocol; when absent, true for all but `chat`.",
    "unsigned_thoughts": "It accepts thinking blocks without a signature (messages); else they are dropped.",
    "unthought_turns": "It accepts thinking in a tool turn that began without a thinking block (messages).",
    "n": "It can return several answers to one request.",
    "merge_system": "System messages at the start must be merged into one; later ones become user text.",
    "path": "Path of the request below the base URL, if it is not the usual one.",
}


def example() -> str:
    """Return the example of the documentation, a complete file that loads."""
    return resources.files("routecodex.config").joinpath("example.toml").read_text(encoding="utf-8")


def schema() -> str:
    """Return the JSON schema of the file."""
    built = msgspec.json.schema(Config, schema_hook=_schema_of)
    # A preset can supply required values, so the file need not have them.
    provider = built["$defs"]["ProviderConfig"]
    provider["required"] = []
    # A string stands for the value of the key.
    for table, name in (
        ("ClientConfig", "key"),
        ("StoreConfig", "password"),
        ("StoreConfig", "sentinel_password"),
    ):
        built["$defs"][table]["properties"][name]["anyOf"].insert(0, {"type": "string"})
    models = provider["properties"]["models"]
    named = {key: models.pop(key) for key in ("type", "additionalProperties")}
    models["anyOf"] = [{"const": "discover"}, named]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "RouteCodex configuration"}
    return msgspec.json.format(msgspec.json.encode({**head, **built}), indent=2).decode() + "\n"


def _schema_of(kind: type) -> dict[str, Any]:
    if kind is Secret:
        return {"type": "string"}
    raise NotImplementedError(kind)


def page(presets: Mapping[str, Preset], dialect_type: type[Struct]) -> str:
    """Return the page for people."""
    tables = "\n".join(_sections())
    return (
        f"{_INTRO}{example()}```\n\n{_TARGETS}\n{tables}\n{_PRESETS}{_preset_rows(presets)}\n"
        f"{_DIALECT}{_dialect_rows(dialect_type)}"
    )


def _sections() -> Iterator[str]:
    config = inspect.type_info(Config)
    assert isinstance(config, inspect.StructType)
    for field in config.fields:
        found = _struct_in(field.type, field.name)
        if found is not None and field.name != "routing":
            yield from _section(*found)
        else:
            yield f"## `[{field.name}]`\n\n{_description(field.type)}\n"
            if found is not None:
                yield from _section(*found)


def _section(struct: inspect.StructType, title: str) -> Iterator[str]:
    rows = "\n".join(_row(field) for field in struct.fields)
    about = (struct.cls.__doc__ or "").strip()
    yield f"## `[{title}]`\n\n{about}\n\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n{rows}\n"
    for field in struct.fields:
        inner = _struct_in(field.type, f"{title}.{field.encode_name}")
        if inner is not None:
            yield from _section(*inner)


def _struct_in(kind: inspect.Type, title: str) -> tuple[inspect.StructType, str] | None:
    """Return the table inside a type and its title: `<name>` in a table of tables, `[]` in a list."""
    kind = strip(kind)
    match kind:
        case inspect.StructType():
            return kind, title
        case inspect.DictType():
            return _struct_in(kind.value_type, f"{title}.<name>")
        case inspect.VarTupleType():
            return _struct_in(kind.item_type, f"{title}[]")
        case inspect.UnionType():
            found = (_struct_in(one, title) for one in kind.types)
            return next((one for one in found if one is not None), None)
        case _:
            return None


def _row(field: inspect.Field) -> str:
    cells = (f"`{field.encode_name}`", _type(field.type), _default(field), _description(field.type))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata) and "type" in (kind.extra or {}):
        return str((kind.extra or {})["type"])
    kind = strip(kind)
    match kind:
        case inspect.LiteralType():
            return ", ".join(f"`{quoted(str(value))}`" for value in kind.values)
        case inspect.DictType():
            return "table by name" if _struct_in(kind, "") else f"table of {_plural(kind.value_type)}"
        case inspect.VarTupleType():
            return f"list of {_plural(kind.item_type)}"
        case inspect.UnionType():
            return " or ".join(_type(one) for one in kind.types)
        case _:
            return describe(kind).removeprefix("a ")


def _plural(kind: inspect.Type) -> str:
    kind = strip(kind)
    if isinstance(kind, inspect.UnionType):
        return " or ".join(map(_plural, kind.types))
    return {
        inspect.StrType: "strings",
        inspect.CustomType: "strings",
        inspect.StructType: "tables",
        inspect.FloatType: "numbers",
        inspect.AnyType: "values",
        inspect.LiteralType: "values",
    }[type(kind)]


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required" if field.name != "protocol" else ""
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    if default is None or default in ("", (), {}) or isinstance(default, Struct):
        return ""
    return f"`{msgspec.json.encode(default).decode()}`"


def _description(kind: inspect.Type) -> str:
    if not isinstance(kind, inspect.Metadata):
        return ""
    return str((kind.extra_json_schema or {}).get("description", ""))


def _preset_rows(presets: Mapping[str, Preset]) -> str:
    rows = ""
    for name, preset in presets.items():
        urls = "<br>".join(f"{one.protocol}: `{one.base_url}`" for one in (preset, *preset.others))
        env = ", ".join(f"`{variable}`" for variable in preset.env) or "none"
        models = ", ".join(f"`{model}`" for model in preset.models) or "yours"
        rows += f"| `{name}` | {preset.about} | {urls} | {env} | {models} |\n"
    return rows


def _dialect_rows(dialect_type: type[Struct]) -> str:
    kind = inspect.type_info(dialect_type)
    assert isinstance(kind, inspect.StructType)
    rows = ""
    for field in kind.fields:
        meaning = _DIALECT_MEANINGS.get(field.encode_name, "")
        rows += f"| `{field.encode_name}` | {_type(field.type)} | {_default(field)} | {meaning} |\n"
    return rows


def write(directory: Path) -> None:
    """Write both files into the directory."""
    # The page shows the catalog and the dialect, which this package must not import when it is loaded.
    from routecodex.protocols.dialect import Dialect
    from routecodex.providers.catalog import PRESETS

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "configuration.md").write_text(page(PRESETS, Dialect), encoding="utf-8")
    (directory / "config.schema.json").write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs"))
