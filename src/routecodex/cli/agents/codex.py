"""Codex: flags that override its configuration, and a catalogue with the gateway's models.

The flags take precedence over `config.toml` and its profiles, and stand before any subcommand. For a name
without a row in the catalogue Codex warns, guesses the context and has no `apply_patch`. A name of OpenAI's
newer models would switch it to tools in JavaScript.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from routecodex.cli.agents.addresses import base_url
from routecodex.cli.agents.agent import (
    KEY_VARIABLE,
    Agent,
    LaunchPlan,
    LaunchRequest,
    ModelFacts,
    PlannedFile,
)
from routecodex.cli.agents.overlay import json_text

_SECONDS = 20.0
_EFFORTS = {
    "low": "Fast answers with little reasoning",
    "medium": "Balances speed and depth of reasoning",
    "high": "Deeper reasoning for hard problems",
}
_OWN_FIELDS = (
    "slug",
    "display_name",
    "description",
    "priority",
    "context_window",
    "max_context_window",
    "auto_compact_token_limit",
    "input_modalities",
    "supported_reasoning_levels",
    "default_reasoning_level",
)
"""Fields of a row that describe the gateway's model; prompt, tools and limits of output are Codex's own."""
_SIZES = ("context_window", "max_context_window")
_FIXED_FIELDS: dict[str, Any] = {
    "visibility": "list",
    "supported_in_api": True,
    "availability_nux": None,
    "upgrade": None,
    "apply_patch_tool_type": "freeform",
    "use_responses_lite": False,
    "supports_search_tool": False,
}
_NOT_OURS = ("tool_mode", "additional_speed_tiers", "service_tiers", "comp_hash")
"""Fields of OpenAI's own rows that offer what only OpenAI serves."""


def _plan(request: LaunchRequest) -> LaunchPlan:
    provider = {
        "name": "RouteCodex",
        "base_url": f"{base_url(request, request.session)}/v1",
        "env_key": KEY_VARIABLE,
        "wire_api": "responses",
    }
    overrides = {
        "model_provider": _quoted("routecodex"),
        "model_providers.routecodex": _inline_table(provider),
        "model": _quoted(request.model or ""),
    }
    files = _catalogue(request)
    if files:
        overrides["model_catalog_json"] = _quoted(str(files[0].path))
    flags = tuple(part for name, value in overrides.items() for part in ("-c", f"{name}={value}"))
    return LaunchPlan(flags=flags, env={KEY_VARIABLE: request.key}, files=files)


def _quoted(text: str) -> str:
    """Return a TOML string; the escapes of JSON are those of TOML."""
    return msgspec.json.encode(text).decode()


def _inline_table(values: Mapping[str, str]) -> str:
    pairs = ",".join(f"{name}={_quoted(value)}" for name, value in values.items())
    return f"{{{pairs}}}"


def _catalogue(request: LaunchRequest) -> tuple[PlannedFile, ...]:
    """Return the file with a row per model; none if neither Codex nor the gateway has a row to begin with.

    Its name depends on its content, so that runs with other models at the same time keep theirs.
    """
    rows = catalogue_rows(request, installed_template(request.executable, request.environ))
    if not rows:
        return ()
    content = json_text({"models": rows})
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return (PlannedFile(path=request.folder / f"models-{digest}.json", content=content),)


def catalogue_rows(request: LaunchRequest, template: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return a row per model: the template with the gateway's facts, else the gateway's own rows.

    A model without a row at the gateway gets one after the template, or after the gateway's first row.
    """
    rows = {str(row["slug"]): dict(row) for row in request.codex_rows}
    first = template or next(iter(rows.values()), None)
    if first is None:
        return []
    inherited = {name: value for name, value in first.items() if name not in _NOT_OURS} | _FIXED_FIELDS
    made = []
    for priority, model in enumerate(request.models, 1):
        row = rows.get(model.id)
        if row is None or template is not None:
            row = inherited | _own_fields(row or _described(model, priority))
        # Without a size Codex would never compact.
        sizes = {name: row.get(name) or model.context_limit for name in _SIZES}
        made.append(row | sizes)
    return made


def _own_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _OWN_FIELDS if name in row}


def _described(model: ModelFacts, priority: int) -> dict[str, Any]:
    return {
        "slug": model.id,
        "display_name": model.id,
        "description": f"{model.id} through RouteCodex",
        "priority": priority,
        **dict.fromkeys(_SIZES, model.context_limit),
        "input_modalities": model.modalities,
        "supported_reasoning_levels": [
            {"effort": effort, "description": text} for effort, text in _EFFORTS.items()
        ],
        "default_reasoning_level": "medium",
    }


def installed_template(executable: str | None, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the first listed row of the installed Codex that has plain tools; None if it does not tell.

    A person's Codex keeps its own prompt by it. `codex debug models` exists since 0.144.
    """
    listed = _installed_models(executable, environ) if executable else []
    fitting = (row for row in listed if row.get("visibility") == "list" and _has_plain_tools(row))
    return next(fitting, None)


def _has_plain_tools(row: Mapping[str, Any]) -> bool:
    return not row.get("tool_mode") and not row.get("use_responses_lite")


def _installed_models(executable: str, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    with TemporaryDirectory(prefix="routecodex-") as folder:
        try:
            # In an empty home: neither reads a person's catalogue nor writes to the person's files.
            ended = subprocess.run(  # noqa: S603  # the program that the person asked to run
                [executable, "debug", "models"],
                env={**environ, "CODEX_HOME": folder},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=True,
            )
            rows = msgspec.json.decode(ended.stdout)["models"]
            return [row for row in rows if isinstance(row, dict)]
        except (OSError, subprocess.SubprocessError, msgspec.DecodeError, LookupError, TypeError):
            return []


CODEX = Agent(
    name="codex",
    title="Codex",
    executables=("codex",),
    package="@openai/codex",
    install="npm install -g @openai/codex",
    tested="0.169.0",
    plan=_plan,
)
